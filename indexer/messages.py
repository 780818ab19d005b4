"""The gRPC messages as the answers' own types, and back.

What a message can get wrong that types do not refuse raises ``MalformedAsk`` or ``ConfigError``.
Hashes stay in an array of 64-bit words: a list would cost an object per block.
"""

import sys
from array import array
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

import msgspec

from indexer.answers import MalformedAsk
from proto import indexer_pb2 as pb
from proto.blockhash import HashScheme
from proto.config_file import ConfigError, readable
from proto.contract import HashedPrefix, ReplicaMatch, ReplicaView
from proto.replica_config import ReplicaConfig

_HASH_BYTES = 8
_LENGTH_DELIMITED = 2
_LEVELS = {
    "exact": pb.EVIDENCE_LEVEL_EXACT,
    "degraded": pb.EVIDENCE_LEVEL_DEGRADED,
    "fallback": pb.EVIDENCE_LEVEL_FALLBACK,
}


def prefixes_of(request: pb.MatchPrefixRequest) -> list[HashedPrefix]:
    """Raises MalformedAsk."""
    return [HashedPrefix(prefix.scheme_id, _hashes_of(prefix)) for prefix in request.prefixes]


def _hashes_of(prefix: pb.HashedPrefix) -> "array[int]":
    encoded, words = prefix.block_hashes, prefix.block_hash_words
    if words:
        if encoded:
            raise MalformedAsk("give block_hashes or block_hash_words, not both")
        return array("Q", words)
    if len(encoded) % _HASH_BYTES:
        raise MalformedAsk(
            f"block_hashes has {len(encoded)} bytes, no multiple of {_HASH_BYTES}: each hash is 8"
            " little-endian bytes"
        )
    hashes = array("Q", encoded)
    if sys.byteorder == "big":
        hashes.byteswap()
    return hashes


def add_matches(response: pb.MatchPrefixResponse, matches: Iterable[ReplicaMatch]) -> None:
    """Appends them, put together from encoded parts.

    Setting eight fields of each costs several times as much as the match itself did, and between
    two answers most parts are the same. The fields of a message may come in any order.
    """
    parts: list[bytes] = []
    for name, gpu, gpu_or_cpu, any_tier, block_size, level, reasons, seq in matches:
        match = (
            _replica_part(name, block_size, level, reasons)
            + _blocks_part(gpu, gpu_or_cpu, any_tier)
            + _seq_part(seq)
        )
        parts += (_match_head(len(match)), match)
    response.MergeFromString(b"".join(parts))


@lru_cache(maxsize=16_384)
def _replica_part(name: str, block_size: int, level: str, reasons: tuple[str, ...]) -> bytes:
    message = pb.ReplicaMatch(
        replica=name, block_size=block_size, evidence=_evidence(level, reasons)
    )
    return message.SerializeToString()


@lru_cache(maxsize=65_536)
def _blocks_part(gpu: int, gpu_or_cpu: int, any_tier: int) -> bytes:
    message = pb.ReplicaMatch(
        matched_blocks_gpu=gpu,
        matched_blocks_gpu_or_cpu=gpu_or_cpu,
        matched_blocks_any_tier=any_tier,
    )
    return message.SerializeToString()


@lru_cache(maxsize=16_384)
def _seq_part(seq: int) -> bytes:
    return pb.ReplicaMatch(seq=seq).SerializeToString()


@lru_cache(maxsize=1024)
def _match_head(length: int) -> bytes:
    """Tag and length of one entry of ``matches``: what its encoding has beside the entry's own."""
    head = [pb.MatchPrefixResponse.MATCHES_FIELD_NUMBER << 3 | _LENGTH_DELIMITED]
    while length >= 0x80:
        head.append(length & 0x7F | 0x80)
        length >>= 7
    return bytes((*head, length))


@lru_cache(maxsize=256)
def _evidence(level: str, reasons: tuple[str, ...]) -> pb.Evidence:
    """A few combinations are in use at any time, so the message of each is made once."""
    return pb.Evidence(level=_LEVELS[level], reasons=reasons)


def replica_messages(views: Sequence[ReplicaView]) -> list[pb.Replica]:
    return [
        pb.Replica(
            replica=view.replica,
            pool=view.pool,
            url=view.url,
            rank=view.rank,
            evidence=_evidence(view.evidence, view.reasons),
            schemes=map(_scheme_message, view.schemes),
            seq=view.seq,
            lag_batches=view.lag_batches,
            blocks=view.blocks,
            capacity_blocks=view.capacity_blocks,
        )
        for view in views
    ]


def _scheme_message(scheme: HashScheme) -> pb.HashScheme:
    return pb.HashScheme(id=scheme.id, **scheme.describe())


def replica_config_of(request: pb.RegisterReplicaRequest) -> ReplicaConfig:
    """As it would stand in the configuration; an empty field is one that is not there.

    Raises ConfigError.
    """
    fields: dict[str, Any] = {field.name: value for field, value in request.ListFields() if value}
    fields.setdefault("name", "")
    fields.setdefault("url", "")
    try:
        return msgspec.convert(fields, ReplicaConfig)
    except msgspec.ValidationError as error:
        raise ConfigError(readable(str(error))) from None
