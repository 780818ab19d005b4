"""What each replica has been given and has not finished.

Rules:

* A request counts from the moment its replica is chosen, not from when it streams, and until its
  lease is released: exactly once, on every path.
* Outstanding tokens are the prompt tokens that the chosen replica did not have cached; they are
  done with the first byte of the answer.
* Nothing but leases changes these figures: no health check, no refresh of the membership.
* Recent work outlives the request, fading with a half-life, so that traffic of one request at a
  time is spread as well, although nothing is ever in flight when it is placed.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from msgspec import Struct

# What one more running sequence costs a prefill, in tokens: each step that the prefill takes part
# in lasts longer by the sequence's share of the decode. With the cost model of Qwen3-32B on an H100
# (0.4 ms per step and 6,500 tokens of context, 16 steps, 0.055 ms per token) it is about 100.
REQUEST_TOKENS = 100
RECENT_HALF_LIFE_S = 300.0


class Load(Struct, frozen=True):
    """One replica's load at one moment, as a policy sees it."""

    inflight: int = 0
    inflight_max: int = 256
    outstanding_tokens: int = 0
    recent_tokens: float = 0.0

    def has_room(self, requests: int) -> bool:
        """A request of more sequences than the limit is let in where nothing else is."""
        return self.inflight == 0 or self.inflight + requests <= self.inflight_max

    @property
    def cost_tokens(self) -> int:
        """The work ahead of a newcomer, in tokens to prefill."""
        return self.outstanding_tokens + REQUEST_TOKENS * self.inflight


@dataclass(slots=True, eq=False)
class _Account:
    inflight: int = 0
    outstanding_tokens: int = 0
    recent_tokens: float = 0.0
    recent_at: float = 0.0

    def recent(self, now: float) -> float:
        return float(self.recent_tokens * 0.5 ** ((now - self.recent_at) / RECENT_HALF_LIFE_S))


class Lease:
    """One request's share of a replica. ``release`` is called exactly once."""

    __slots__ = ("_account", "_on_release", "_requests", "_tokens", "released")

    def __init__(
        self, account: _Account, requests: int, tokens: int, on_release: Callable[[], None]
    ) -> None:
        self._account, self._requests, self._tokens = account, requests, tokens
        self._on_release = on_release
        self.released = False

    def first_byte(self) -> None:
        """The prompt has been computed."""
        self._account.outstanding_tokens -= self._tokens
        self._tokens = 0

    def release(self) -> None:
        assert not self.released, "a lease is released once"
        self.released = True
        self.first_byte()
        self._account.inflight -= self._requests
        self._on_release()


@dataclass(slots=True)
class InflightLoad:
    """The books of one router. ``on_release`` is called after each release."""

    inflight_max: int = 256
    on_release: Callable[[], None] = lambda: None
    _accounts: dict[str, _Account] = field(default_factory=dict)

    def of(self, replica: str, now: float) -> Load:
        account = self._accounts.get(replica)
        if account is None:
            return Load(inflight_max=self.inflight_max)
        return Load(
            account.inflight, self.inflight_max, account.outstanding_tokens, account.recent(now)
        )

    def take(self, replica: str, requests: int, uncached_tokens: int, now: float) -> Lease:
        """Book ``requests`` sequences that have ``uncached_tokens`` to compute in all."""
        account = self._accounts.setdefault(replica, _Account(recent_at=now))
        account.inflight += requests
        account.outstanding_tokens += uncached_tokens
        account.recent_tokens = account.recent(now) + uncached_tokens + REQUEST_TOKENS * requests
        account.recent_at = now
        return Lease(account, requests, uncached_tokens, self.on_release)

    @property
    def inflight(self) -> int:
        """Sequences in flight on all replicas."""
        return sum(account.inflight for account in self._accounts.values())
