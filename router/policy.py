"""Which replica a request goes to: facts in, one decision out.

A policy is pure but for the round robin's counter. Costs are in tokens to prefill, lower is better.
Rules every policy keeps:

* A replica without room (its in-flight limit) is not chosen; where none has room there is no
  decision, and the request waits.
* No replica is given more than its bounded share of what is in flight while another can be had:
  ``spread_factor`` times the mean, and never less than ``spread_min`` requests. This is how a
  hot prefix spreads without leaving the rule "highest ratio subject to in-flight limits": when the
  holders of the prefix have their share, the next request goes to the best of the others, computes
  the uncached remainder there once, and from then on that replica is a holder too.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from math import ceil
from typing import Protocol

import xxhash
from msgspec import Struct

from router.load import Load

# Steps in which capacity that was never used is compared: coarse, since it is known with a delay.
_UNUSED_STEPS = 16


@dataclass(frozen=True, slots=True)
class Ask:
    """What a policy knows of a request. ``affinity``: its session, else its first block's name."""

    affinity: str
    requests: int = 1
    has_session: bool = False


class Candidate(Struct, frozen=True):
    """One replica that can serve the request. Blocks are of this replica's block size."""

    replica: str
    load: Load
    matched_blocks: int = 0
    prompt_blocks: int = 0
    block_size: int = 16
    prompt_tokens: int = 0
    unused_share: float = 0.0

    @property
    def ratio(self) -> float:
        return self.matched_blocks / self.prompt_blocks if self.prompt_blocks else 0.0

    @property
    def uncached_tokens(self) -> int:
        return max(0, self.prompt_tokens - self.matched_blocks * self.block_size)

    @property
    def cost_tokens(self) -> int:
        return self.uncached_tokens + self.load.cost_tokens


@dataclass(frozen=True, slots=True)
class Decision:
    """``reason``: one of the words that README lists."""

    replica: str
    reason: str
    candidates: Sequence[Candidate]

    @property
    def costs(self) -> dict[str, int]:
        """Of every candidate, in tokens; made when somebody asks."""
        return {candidate.replica: candidate.cost_tokens for candidate in self.candidates}


@dataclass(frozen=True, slots=True)
class PolicySettings:
    """``ratio_min``, ``tie_tolerance``: shares of the prompt's blocks."""

    ratio_min: float = 0.1
    tie_tolerance: float = 0.01
    spread_factor: float = 1.5
    spread_min: int = 16


class Policy(Protocol):
    """None: every candidate is full."""

    def pick(self, ask: Ask, candidates: Sequence[Candidate]) -> Decision | None: ...


class PrefixPolicy:
    """The highest matched-block ratio; ties and cold prompts by load."""

    def __init__(self, settings: PolicySettings) -> None:
        self.settings = settings

    def pick(self, ask: Ask, candidates: Sequence[Candidate]) -> Decision | None:
        settings, within = self.settings, _within_share(ask, candidates, self.settings)
        if not within:
            return None
        ratios = [candidate.ratio for candidate in within]
        best = max(ratios)
        if best < settings.ratio_min:
            return self._cold(ask, candidates, within)
        least = best - settings.tie_tolerance
        ties = [c for c, ratio in zip(within, ratios, strict=True) if ratio >= least]
        chosen = min(ties, key=_by_load(ask)) if len(ties) > 1 else ties[0]
        if (
            len(within) < len(candidates)
            and _best_ratio(candidates) > best + settings.tie_tolerance
        ):
            reason = "spread"
        else:
            reason = "prefix" if len(ties) == 1 else "tie"
        return _decision(chosen, reason, candidates)

    def _cold(self, ask: Ask, candidates: Sequence[Candidate], within: list[Candidate]) -> Decision:
        """Nobody holds enough to matter. What could not even be looked up follows its session."""
        if _best_ratio(candidates) >= self.settings.ratio_min:
            return _decision(min(within, key=_by_load(ask)), "spread", candidates)
        if ask.has_session and not any(candidate.prompt_blocks for candidate in candidates):
            return _decision(max(within, key=_rendezvous(ask)), "session", candidates)
        return _decision(min(within, key=_by_load(ask)), "cold", candidates)


class StickyPolicy:
    """Rendezvous hashing of the session, or of the first block; on to the next where it is full."""

    def __init__(self, settings: PolicySettings) -> None:
        self.settings = settings

    def pick(self, ask: Ask, candidates: Sequence[Candidate]) -> Decision | None:
        within = _within_share(ask, candidates, self.settings)
        if not within:
            return None
        chosen = max(within, key=_rendezvous(ask))
        home = max(candidates, key=_rendezvous(ask))
        return _decision(chosen, "sticky" if chosen is home else "spill", candidates)


class LeastLoadedPolicy:
    """The least work ahead, in tokens."""

    def __init__(self, settings: PolicySettings) -> None:
        pass

    def pick(self, ask: Ask, candidates: Sequence[Candidate]) -> Decision | None:
        with_room = _with_room(ask, candidates)
        if not with_room:
            return None
        return _decision(min(with_room, key=_by_load(ask)), "least_loaded", candidates)


class RoundRobinPolicy:
    """One after the other, whatever they hold."""

    def __init__(self, settings: PolicySettings) -> None:
        self._turns = count()

    def pick(self, ask: Ask, candidates: Sequence[Candidate]) -> Decision | None:
        with_room = _with_room(ask, candidates)
        if not with_room:
            return None
        chosen = with_room[next(self._turns) % len(with_room)]
        return _decision(chosen, "round_robin", candidates)


POLICIES: dict[str, Callable[[PolicySettings], Policy]] = {
    "prefix": PrefixPolicy,
    "sticky": StickyPolicy,
    "least_loaded": LeastLoadedPolicy,
    "round_robin": RoundRobinPolicy,
}


def _decision(chosen: Candidate, reason: str, candidates: Sequence[Candidate]) -> Decision:
    return Decision(chosen.replica, reason, candidates)


def _best_ratio(candidates: Sequence[Candidate]) -> float:
    return max(candidate.ratio for candidate in candidates)


def _with_room(ask: Ask, candidates: Sequence[Candidate]) -> list[Candidate]:
    return [c for c in candidates if c.load.has_room(ask.requests)]


def _within_share(
    ask: Ask, candidates: Sequence[Candidate], settings: PolicySettings
) -> list[Candidate]:
    """Those with room that have not had their share; all with room where that leaves none."""
    with_room = _with_room(ask, candidates)
    total = sum(candidate.load.inflight for candidate in candidates) + ask.requests
    share = max(settings.spread_min, ceil(settings.spread_factor * total / len(candidates)))
    within = [c for c in with_room if c.load.inflight + ask.requests <= share]
    return within or with_room


def _by_load(ask: Ask) -> Callable[[Candidate], tuple[float, ...]]:
    """Least work ahead; then most capacity never used, least recent work, and rendezvous."""
    score = _rendezvous(ask)

    def key(candidate: Candidate) -> tuple[float, ...]:
        load = candidate.load
        unused = int(candidate.unused_share * _UNUSED_STEPS)
        return (load.cost_tokens, -unused, load.recent_tokens, -score(candidate))

    return key


def _rendezvous(ask: Ask) -> Callable[[Candidate], int]:
    """Highest random weight: each affinity has an order of all replicas that others' coming and
    going does not change."""

    def score(candidate: Candidate) -> int:
        return xxhash.xxh3_64_intdigest(f"{candidate.replica}\0{ask.affinity}".encode())

    return score
