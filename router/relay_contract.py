"""What the relay asks of whoever places a request, and what it tells when it is done."""

from dataclasses import dataclass, field
from typing import Protocol

from router.usage import Usage


class Placed(Protocol):
    """One attempt on one replica."""

    @property
    def replica(self) -> str: ...

    @property
    def url(self) -> str:
        """Root of the replica, without a slash at its end, like ``http://10.0.0.7:8000``."""

    @property
    def rank_header(self) -> int | None:
        """For X-data-parallel-rank, unless the client sent one."""

    @property
    def headers(self) -> tuple[tuple[str, str], ...]:
        """Our own, for the response."""

    def first_byte(self) -> None:
        """The engine's answer has begun: its prefill is done. Once at most."""

    def failed(self, kind: str) -> None:
        """``refused``, ``broken``, ``silent`` or ``overloaded``. Once at most, before release."""

    def release(self) -> None:
        """Called exactly once."""


class NoReplica(Exception):
    """Nothing to place on; what to answer, unless an engine's answer is at hand."""

    def __init__(self, status: int, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.retry_after_s = retry_after_s


class Placer(Protocol):
    async def place(self, excluding: frozenset[str]) -> Placed:
        """On another replica than these. Raises ``NoReplica``; cancelled, it leaves nothing behind.

        Called again after a failed attempt, which has been released by then.
        """


@dataclass(slots=True)
class RelayResult:
    """What became of a request, for its log line and the counters.

    ``outcome`` is ``ok``, ``client_gone``, ``broken_midstream``, ``no_replica``, ``upstream_error``
    (no engine answered) or ``internal_error`` (ours). ``ok`` says that an answer was passed on
    whole, whatever its status. ``status`` is what the client was or would have been told.
    ``phases_ms`` add up over attempts: ``place``, ``wait`` (for the first byte), ``body``.
    """

    outcome: str = "internal_error"
    status: int | None = None
    usage: Usage | None = None
    ttft_s: float | None = None
    response_bytes: int = 0
    attempts: int = 0
    failures: list[str] = field(default_factory=list)
    phases_ms: dict[str, float] = field(default_factory=dict)
