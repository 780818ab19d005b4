"""Engines whose root nobody can know: their blocks under pointsman's own names."""

import random
from typing import Any

import msgspec

from indexer.evidence import Level, Reason
from indexer.index import MemoryIndex, PoolName, ReplicaId
from indexer.replica import ReplicaState
from indexer.stream import ReplicaStream
from indexer.stream_outputs import Apply, Clear
from proto.blockhash import CanonicalScheme, EngineScheme
from tests.unit.wire import CLEARED, payload, removed, stored

POOL = PoolName("pool")
TOKENS = list(range(100, 148))


def state() -> ReplicaState:
    return ReplicaState(ReplicaId("r"), POOL)


class Engine:
    """An engine with a random root: its names are consistent, and nobody can compute them."""

    def __init__(self) -> None:
        self.rng = random.Random(7)
        self.names: dict[int, int] = {}

    def stored(self, tokens: list[int], **fields: Any) -> dict[str, Any]:
        own = CanonicalScheme(16).block_hashes(tokens)
        hashes = [self.names.setdefault(name, self.rng.getrandbits(64)) for name in own]
        return stored(hashes, tokens[: 16 * len(own)], **fields)


def test_an_unprovable_engine_is_translated() -> None:
    """Its blocks are found under canonical names, always as degraded, until they are removed."""
    replica, engine, stream = state(), Engine(), ReplicaStream(replay=False)
    stream.opened(0.0)
    first, second = engine.stored(TOKENS), engine.stored([*TOKENS[:16], *range(32)])
    replica.apply(Apply(0, payload(first)))
    replica.apply(Apply(1, payload(second)))
    scheme = CanonicalScheme(16)
    assert replica.indexed.scheme_ids == (scheme.id,)
    evidence = replica.evidence(stream, 0.0)
    assert evidence.level is Level.DEGRADED and Reason.TRANSLATING in evidence.reasons
    index = MemoryIndex({replica.id: replica.indexed})
    hashes = scheme.block_hashes(TOKENS)
    assert index.match(POOL, {scheme.id: hashes})[replica.id].gpu == 3
    child = engine.stored([*TOKENS, *range(16)])
    appended = stored(child["block_hashes"][3:], range(16), parent=child["block_hashes"][2])
    replica.apply(Apply(2, payload(appended)))
    longer = scheme.block_hashes([*TOKENS, *range(16)])
    assert index.match(POOL, {scheme.id: longer})[replica.id].gpu == 4
    gone = [*appended["block_hashes"], *reversed(first["block_hashes"]), *second["block_hashes"]]
    replica.apply(Apply(3, payload(removed(gone))))
    assert not replica.blocks.primary.counts


def test_a_translation_lasts_until_the_last_tier_removes() -> None:
    """Each group and tier removes a block under the engine's name, in whatever order."""
    replica, engine = state(), Engine()
    full = {"group_idx": 0, "kv_cache_spec_kind": "full_attention"}
    window = {"group_idx": 1, "kv_cache_spec_kind": "sliding_window"}
    event = engine.stored(TOKENS, **full)
    cpu = {"medium": "CPU", "group_idx": 0}
    replica.apply(Apply(0, payload(event, event | window, event | cpu)))
    assert replica.blocks.copies == 9
    hashes = event["block_hashes"]
    gone = (removed(hashes, group_idx=1), removed(hashes, group_idx=0), removed(hashes, **cpu))
    replica.apply(Apply(1, payload(*gone)))
    assert replica.blocks.copies == 0


def test_translations_of_gone_blocks_are_dropped() -> None:
    """The names kept are bounded by the blocks that are resident, not by the log's length."""
    replica, engine = state(), Engine()
    for seq in range(1200):
        event = engine.stored([seq * 100 + token for token in range(48)])
        replica.apply(Apply(seq, payload(event, removed(event["block_hashes"]))))
    assert replica.translator is not None and len(replica.translator) < 1100


def test_what_cannot_be_translated_is_left_out() -> None:
    """A block whose keys no recipe can serialise has no canonical name, and raises nothing."""
    replica, engine = state(), Engine()
    replica.apply(Apply(0, payload(engine.stored(TOKENS))))
    odd = stored([5], range(16), extra_keys=[[msgspec.msgpack.Ext(5, b"x")]])
    replica.apply(Apply(1, payload(odd)))
    assert replica.blocks.copies == 3 and replica.counters.malformed_batches == 0


def test_a_restart_ends_the_translation() -> None:
    """An engine that was restarted is proven anew, and its blocks carry their own names again."""
    replica, scheme = state(), EngineScheme("sha256", "0", 16)
    replica.apply(Apply(0, payload(Engine().stored(TOKENS))))
    assert replica.translator is not None
    replica.clear(Clear("restarted", restart=True))
    assert replica.indexed.scheme_ids == ()
    hashes = scheme.block_hashes(TOKENS)
    replica.apply(Apply(0, payload(CLEARED, stored(hashes, TOKENS))))
    assert replica.translator is None
    assert set(replica.blocks.primary.counts) == set(hashes)
