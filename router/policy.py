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
* The prefix policy bounds recent work in the same way, for prompts of which nobody holds most: a
  first prompt that shares its system text goes past a replica that has had ``work_factor`` times
  the mean of recent work. Without it every conversation would begin where the first one did, and
  one cache would have to hold them all while the others stay empty.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from math import ceil
from typing import Protocol

import xxhash
from msgspec import Struct

from router.load import Load

# Recent work that no cache minds is no reason to pass a replica over.
_WORK_TOKENS_MIN = 4096
_WORK_CAPACITY_SHARE_MIN = 0.1
# Steps in which capacity that was never used is compared: coarse, since it is known with a delay.
_UNUSED_STEPS = 16


@dataclass(frozen=True, slots=True)
class Ask:
    """What a policy knows of a request.

    ``affinity``: its session, else its first block's name; empty where it has neither.
    """

    affinity: str
    requests: int = 1
    has_session: bool = False


class Candidate(Struct, frozen=True):
    """One replica that can serve the request. Blocks are of this replica's block size.

    ``capacity_tokens`` 0: not known.
    """

    replica: str
    load: Load
    matched_blocks: int = 0
    prompt_blocks: int = 0
    block_size: int = 16
    prompt_tokens: int = 0
    capacity_tokens: int = 0
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
    """``ratio_min``, ``settled_ratio``, ``tie_tolerance``: shares of the prompt's blocks."""

    ratio_min: float = 0.1
    settled_ratio: float = 0.8
    tie_tolerance: float = 0.01
    work_factor: float = 1.25
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
        reason, best = "spread", _best_ratio(within)
        if settings.ratio_min <= best < settings.settled_ratio:
            within = _within_work(within, candidates, settings.work_factor)
            reason = reason if _best_ratio(within) == best else "balance"
            best = _best_ratio(within)
        if _best_ratio(candidates) > max(best, settings.ratio_min) + settings.tie_tolerance:
            return _decision(self._best(ask, within, best)[0], reason, candidates)
        if best >= settings.ratio_min:
            chosen, ties = self._best(ask, within, best)
            return _decision(chosen, "prefix" if ties == 1 else "tie", candidates)
        if ask.has_session and not any(candidate.prompt_blocks for candidate in candidates):
            # It could not even be looked up.
            return _decision(max(within, key=_rendezvous(ask)), "session", candidates)
        return _decision(min(within, key=_by_load(ask)), "cold", candidates)

    def _best(self, ask: Ask, within: Sequence[Candidate], best: float) -> tuple[Candidate, int]:
        """The least loaded of those that hold the most, and how many they are."""
        least = best - self.settings.tie_tolerance if best >= self.settings.ratio_min else 0.0
        ties = [candidate for candidate in within if candidate.ratio >= least]
        return (ties[0] if len(ties) == 1 else min(ties, key=_by_load(ask))), len(ties)


class StickyPolicy:
    """Rendezvous hashing of the session, or of the first block; on to the next where it is full."""

    def __init__(self, settings: PolicySettings) -> None:
        self.settings = settings

    def pick(self, ask: Ask, candidates: Sequence[Candidate]) -> Decision | None:
        within = _within_share(ask, candidates, self.settings)
        if not within:
            return None
        if not ask.affinity:
            # Nothing to be loyal to: all such requests would have the same home.
            return _decision(min(within, key=_by_load(ask)), "cold", candidates)
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


def _within_work(
    within: list[Candidate], candidates: Sequence[Candidate], work_factor: float
) -> list[Candidate]:
    """Those that have not had more than their share of recent work; all, where that leaves none."""
    mean = sum(candidate.load.recent_tokens for candidate in candidates) / len(candidates)

    def has_room(candidate: Candidate) -> bool:
        spare = max(_WORK_TOKENS_MIN, _WORK_CAPACITY_SHARE_MIN * candidate.capacity_tokens)
        return candidate.load.recent_tokens <= max(spare, work_factor * mean)

    return [candidate for candidate in within if has_room(candidate)] or within


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
