"""What a warm-up is to do, and what came of it, for an operator to read."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from router.warm_bodies import WarmBody

Outcome = Literal["ok", "partly", "failed"]
OUTCOMES: tuple[Outcome, ...] = ("ok", "partly", "failed")


@dataclass(frozen=True, slots=True)
class WarmUpPlan:
    """A pool's: after ``s_max`` a replica takes traffic, warm or not."""

    bodies: tuple[WarmBody, ...]
    s_max: float


@dataclass(frozen=True, slots=True)
class Warmed:
    """What one body came to on one replica.

    ``prompt_blocks`` are the full blocks of its prompt, and ``resident_blocks`` those of them that
    the replica's events show there; None where nobody can say. ``cached_tokens`` were there before.
    ``error`` None: it was answered.
    """

    body: str
    error: str | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    resident_blocks: int | None = None
    prompt_blocks: int | None = None

    def described(self) -> dict[str, Any]:
        """Without what is not known."""
        fields = {name: getattr(self, name) for name in self.__slots__}
        return {name: value for name, value in fields.items() if value is not None}


@dataclass(frozen=True, slots=True)
class WarmUpReport:
    """One engine's last warm-up. ``error``: why it ended before its end."""

    replicas: Mapping[str, Sequence[Warmed]]
    seconds: float
    error: str | None = None

    @property
    def outcome(self) -> Outcome:
        answered = [each.error is None for warmed in self.replicas.values() for each in warmed]
        if answered and all(answered) and self.error is None:
            return "ok"
        return "partly" if any(answered) else "failed"

    def blocks(self, replica: str) -> tuple[int, int] | None:
        """Resident and full blocks of all bodies; None where none of them is known."""
        known = [each for each in self.replicas.get(replica, ()) if each.prompt_blocks is not None]
        if not known:
            return None
        resident = sum(each.resident_blocks or 0 for each in known)
        return resident, sum(each.prompt_blocks or 0 for each in known)

    def described(self) -> dict[str, Any]:
        report: dict[str, Any] = {"outcome": self.outcome, "seconds": round(self.seconds, 3)}
        if self.error is not None:
            report["error"] = self.error
        report["replicas"] = {
            replica: [each.described() for each in warmed]
            for replica, warmed in self.replicas.items()
        }
        return report
