"""What the router asks of the indexer and what it is told: plain types, whatever carries them.

The gRPC client and the indexer of the same process both implement ``Indexer``, so nothing in the
router knows which of them answers. The one rule for naming a rank is here too, because both
services apply it to the same configuration.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from proto.blockhash import EXTRA_KEY_FORMS, CanonicalScheme, EngineScheme, HashScheme

DEFAULT_POOL = "default"


class ReplicaMatch(NamedTuple):
    """Blocks from the start of a prompt that one replica holds, cumulated over tiers in order.

    ``block_size`` in tokens. ``seq`` is the last applied event batch, for which this holds; -1:
    none yet.
    """

    replica: str
    gpu_blocks: int
    gpu_or_cpu_blocks: int
    any_tier_blocks: int
    block_size: int
    evidence: str
    reasons: tuple[str, ...]
    seq: int


@dataclass(frozen=True, slots=True)
class HashedPrefix:
    """The hashes of one prompt's full blocks under one scheme, first to last."""

    scheme_id: str
    block_hashes: Sequence[int]


@dataclass(frozen=True, slots=True)
class ReplicaView:
    """One rank as the indexer knows it.

    ``evidence`` is "exact", "degraded" or "fallback". ``schemes`` are those that a prompt has to be
    hashed under; none before the first proof. ``capacity_blocks`` 0: not known.
    """

    replica: str
    pool: str
    url: str
    rank: int
    evidence: str
    reasons: tuple[str, ...]
    schemes: tuple[HashScheme, ...]
    seq: int
    lag_batches: int
    blocks: int
    capacity_blocks: int


class IndexerUnavailable(Exception):
    """No answer in time, no connection, or too many questions at once; the text says which."""


class Indexer(Protocol):
    """What the router asks."""

    async def match(self, pool: str, prefixes: Sequence[HashedPrefix]) -> dict[str, ReplicaMatch]:
        """Replicas of the pool that hold at least the first block. Raises IndexerUnavailable."""
        ...

    def watch(self) -> AsyncIterator[tuple[ReplicaView, ...]]:
        """The whole state of all pools at once, and again whenever it changes; it never ends."""
        ...


def scheme_of(description: Mapping[str, Any]) -> HashScheme:
    """The scheme whose ``describe()`` is this. ValueError where there is none such."""
    fields = {key: description[key] for key in description if key != "id"}
    if fields.get("algorithm") == "canonical_xxh3":
        scheme: HashScheme = CanonicalScheme(_positive(fields.get("block_size")))
    else:
        try:
            scheme = EngineScheme(**fields)
        except TypeError as error:
            raise ValueError(f"no description of a hash scheme: {error}") from None
    known_form = fields.get("extra_keys") in EXTRA_KEY_FORMS
    if not known_form or scheme.describe() != fields:
        raise ValueError(f"no hash scheme is described by {fields!r}")
    return scheme


def _positive(value: Any) -> int:
    if not isinstance(value, int) or value < 1:
        raise ValueError(f"block_size {value!r} is no number of tokens")
    return value


def replica_id(name: str, rank: int, ranks: int) -> str:
    """One data-parallel rank is a replica of its own: "name#rank" where an engine has several."""
    return name if ranks == 1 else f"{name}#{rank}"
