"""The contract's types as the indexer's messages, and back: the router's side.

A scheme that this router cannot compute, since the indexer is of another version, is left out of a
view: nothing can be hashed under it, and a hash under a wrong recipe would find nothing.
"""

import sys
from array import array
from collections.abc import Sequence
from functools import lru_cache

from proto import indexer_pb2 as pb
from proto.blockhash import HashScheme
from proto.contract import HashedPrefix, ReplicaMatch, ReplicaView, scheme_of

_EXACT, _DEGRADED, _FALLBACK = "exact", "degraded", "fallback"
_EXACT_LEVEL = pb.EVIDENCE_LEVEL_EXACT
_LEVELS = {_EXACT_LEVEL: _EXACT, pb.EVIDENCE_LEVEL_DEGRADED: _DEGRADED}
# A named tuple's own constructor is a Python function, twice as slow.
_new = tuple.__new__


def match_request(pool: str, prefixes: Sequence[HashedPrefix]) -> pb.MatchPrefixRequest:
    return pb.MatchPrefixRequest(
        pool=pool,
        prefixes=[
            pb.HashedPrefix(
                scheme_id=prefix.scheme_id, block_hashes=_little_endian(prefix.block_hashes)
            )
            for prefix in prefixes
        ],
    )


def _little_endian(hashes: Sequence[int]) -> bytes:
    words = hashes if isinstance(hashes, array) and hashes.typecode == "Q" else array("Q", hashes)
    if sys.byteorder == "big":
        words = words[:]
        words.byteswap()
    return words.tobytes()


def matches_of(response: pb.MatchPrefixResponse) -> dict[str, ReplicaMatch]:
    matches = {}
    for message in response.matches:
        name, evidence = message.replica, message.evidence
        # Each field that is looked at costs; what is exact has no reasons to look for.
        level = evidence.level
        exact = level == _EXACT_LEVEL
        matches[name] = _new(
            ReplicaMatch,
            (
                name,
                message.matched_blocks_gpu,
                message.matched_blocks_gpu_or_cpu,
                message.matched_blocks_any_tier,
                message.block_size,
                _EXACT if exact else _LEVELS.get(level, _FALLBACK),
                () if exact else tuple(evidence.reasons),
                message.seq,
            ),
        )
    return matches


def view_of(message: pb.Replica) -> ReplicaView:
    schemes = (_scheme(scheme.SerializeToString()) for scheme in message.schemes)
    return ReplicaView(
        replica=message.replica,
        pool=message.pool,
        url=message.url,
        rank=message.rank,
        evidence=_LEVELS.get(message.evidence.level, _FALLBACK),
        reasons=tuple(message.evidence.reasons),
        schemes=tuple(scheme for scheme in schemes if scheme is not None),
        seq=message.seq,
        lag_batches=message.lag_batches,
        blocks=message.blocks,
        capacity_blocks=message.capacity_blocks,
    )


@lru_cache(maxsize=1024)
def _scheme(encoded: bytes) -> HashScheme | None:
    """None where the recipe is unknown here, or is another under the same name."""
    message = pb.HashScheme.FromString(encoded)
    try:
        scheme = scheme_of(
            {
                "algorithm": message.algorithm,
                "seed": message.seed if message.HasField("seed") else None,
                "block_size": message.block_size,
                "extra_keys": message.extra_keys,
                "lookahead": message.lookahead,
            }
        )
    except ValueError:
        return None
    return scheme if scheme.id == message.id else None
