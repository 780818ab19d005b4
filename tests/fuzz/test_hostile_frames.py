"""Hostile and broken payloads through the whole core, from a seed.

Run another seed with POINTSMAN_FUZZ_SEED, more payloads with POINTSMAN_FUZZ_PAYLOADS.
"""

import copy
import os
import random
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from indexer.evidence import Level
from indexer.index import PoolName, ReplicaId
from indexer.replica import ReplicaState
from indexer.stream import ReplicaStream
from indexer.stream_outputs import Apply, Clear
from tests.unit.captures import CAPTURES, frames

SEED = int(os.environ.get("POINTSMAN_FUZZ_SEED", "1"))
PAYLOADS = int(os.environ.get("POINTSMAN_FUZZ_PAYLOADS", "100000"))
STATES = 8
RESTARTS = 1 / 500
CAPACITY = 160
MEMORY_GROWTH_BYTES_MAX = 64 * 2**20

REAL = [frame.payload for name in CAPTURES for frame in frames(name)]
EXTREMES: list[Any] = [
    -1,
    0,
    -(2**63),
    2**63,
    2**64 - 1,
    1.5,
    float("nan"),
    float("inf"),
    None,
    True,
    "",
    "GPU",
    "cpu",
    "STORAGE",
    "\U0001f600" * 50,
    b"",
    b"\x00" * 7,
    b"\xff" * 32,
    [],
    [[]],
    [None],
    {},
    {"type": "BlockStored"},
    {1: 2},
    msgspec.msgpack.Ext(5, b"hostile"),
    "BlockRemoved",
    "AllBlocksCleared",
    "SomethingNew",
    [1, "a", b"b", None, [2.5]],
]


def flip_bits(rng: random.Random, payload: bytes) -> bytes:
    changed = bytearray(payload)
    for _ in range(rng.choice((1, 1, 2, 8))):
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def truncate(rng: random.Random, payload: bytes) -> bytes:
    return payload[: rng.randrange(len(payload))]


def splice(rng: random.Random, payload: bytes) -> bytes:
    other = rng.choice(REAL)
    return payload[: rng.randrange(len(payload))] + other[rng.randrange(len(other)) :]


def huge_header(rng: random.Random, payload: bytes) -> bytes:
    """A length of up to 4 GiB in front of what is no such thing."""
    header = bytes((rng.choice((0xC6, 0xC9, 0xDB, 0xDD, 0xDF)),))
    at = rng.randrange(len(payload))
    return payload[:at] + header + struct.pack(">I", rng.choice((2**16, 2**31, 2**32 - 1)))


def deep_nesting(rng: random.Random, payload: bytes) -> bytes:
    opening = rng.choice((b"\x91", b"\x81\xa1a", b"\x92\xc0"))
    nest = opening * rng.choice((10, 500, 20_000))
    at = rng.randrange(len(payload))
    return payload[:at] + nest + payload[at:]


def odd_extra_keys(rng: random.Random, payload: bytes) -> bytes:
    """Well-formed in every typed field: what is odd is in what only a proof decodes."""
    nest: Any = extreme(rng)
    for _ in range(rng.choice((0, 3, 200, 900))):
        nest = [nest]
    batch = msgspec.msgpack.decode(payload)
    for event in batch[1]:
        if isinstance(event, dict) and event.get("extra_keys"):
            event["extra_keys"] = [[nest], *event["extra_keys"][1:]]
    return msgspec.msgpack.encode(batch)


def wrong_value(rng: random.Random, payload: bytes) -> bytes:
    """Another type or an extreme at a random place of the decoded batch."""
    holder = [msgspec.msgpack.decode(payload)]
    for _ in range(rng.choice((1, 1, 3))):
        container, key = rng.choice(list(places(holder, depth=5)))
        container[key] = extreme(rng)
    return encode(holder[0])


def swap_strings_and_bytes(rng: random.Random, payload: bytes) -> bytes:
    holder = [msgspec.msgpack.decode(payload)]
    for container, key in list(places(holder, depth=5)):
        value = container[key]
        if isinstance(value, bytes) and rng.random() < 0.3:
            container[key] = value.hex()
        elif isinstance(value, str) and rng.random() < 0.3:
            container[key] = value.encode()
    return encode(holder[0])


def drop_or_add_field(rng: random.Random, payload: bytes) -> bytes:
    batch = msgspec.msgpack.decode(payload)
    event = rng.choice(batch[1])
    if isinstance(event, dict):
        event.pop(rng.choice(list(event)), None)
        event[f"new_{rng.randrange(10)}"] = extreme(rng)
    else:
        event[rng.randrange(1, len(event) + 1) :] = [extreme(rng)] * rng.randrange(4)
    return encode(batch)


def many_tiers(rng: random.Random, payload: bytes) -> bytes:
    """Tiers, groups and spellings without end."""
    batch = msgspec.msgpack.decode(payload)
    for event in batch[1]:
        if isinstance(event, dict) and "medium" in event:
            letters = "gpu-of-a-stranger"
            event["medium"] = "".join(rng.choice((c, c.upper())) for c in letters)
            event["group_idx"] = rng.choice((None, 0, 1))
    return encode(batch)


def repeat_events(rng: random.Random, payload: bytes) -> bytes:
    batch = msgspec.msgpack.decode(payload)
    batch[1] = batch[1] * rng.randrange(2, 40)
    return encode(batch)


def random_roots(rng: random.Random, payload: bytes) -> bytes:
    """Names of an engine with a random root: well-formed, and no recipe reproduces them."""
    batch = msgspec.msgpack.decode(payload)
    for event in batch[1]:
        if isinstance(event, dict) and "block_hashes" in event:
            event["block_hashes"] = [rng.getrandbits(64) for _ in event["block_hashes"]]
    return encode(batch)


def random_structure(rng: random.Random, payload: bytes) -> bytes:
    """Valid msgpack that has nothing to do with a batch."""
    return encode(random_value(rng, 4))


def random_batch(rng: random.Random, payload: bytes) -> bytes:
    return encode([1.0, [random_value(rng, 3) for _ in range(rng.randrange(4))], 0])


def unknown_tag(rng: random.Random, payload: bytes) -> bytes:
    batch = msgspec.msgpack.decode(payload)
    batch[1].insert(rng.randrange(len(batch[1]) + 1), {"type": "BlockMoved" * rng.randrange(1, 50)})
    return encode(batch)


def unchanged(rng: random.Random, payload: bytes) -> bytes:
    return payload


def clear_all(rng: random.Random, payload: bytes) -> bytes:
    return encode([1.0, [{"type": "AllBlocksCleared"}], 0])


MUTATIONS: list[Callable[[random.Random, bytes], bytes]] = [
    flip_bits,
    truncate,
    splice,
    huge_header,
    deep_nesting,
    odd_extra_keys,
    wrong_value,
    wrong_value,
    swap_strings_and_bytes,
    drop_or_add_field,
    many_tiers,
    repeat_events,
    random_roots,
    random_structure,
    random_batch,
    unknown_tag,
    unchanged,
    unchanged,
    clear_all,
]


def extreme(rng: random.Random) -> Any:
    """A copy, since the next mutation may write into it."""
    return copy.deepcopy(rng.choice(EXTREMES))


def encode(value: Any) -> bytes:
    return msgspec.msgpack.encode(value)


def places(value: Any, depth: int) -> Iterator[tuple[Any, Any]]:
    """Every (container, key) in a decoded value; of long lists only the ends."""
    if depth == 0:
        return
    if isinstance(value, dict):
        keys: list[Any] = list(value)
    elif isinstance(value, list):
        keys = list(range(len(value)))
        keys = keys if len(keys) < 6 else [*keys[:3], *keys[-2:]]
    else:
        return
    for key in keys:
        yield value, key
        yield from places(value[key], depth - 1)


def random_value(rng: random.Random, depth: int) -> Any:
    kind = rng.randrange(8 if depth else 5)
    if kind < 5:
        return extreme(rng)
    if kind < 7:
        return [random_value(rng, depth - 1) for _ in range(rng.randrange(5))]
    return {str(extreme(rng)): random_value(rng, depth - 1) for _ in range(rng.randrange(4))}


class Checked:
    """A state under fire, and what must hold after each payload."""

    def __init__(self, number: int) -> None:
        self.state = ReplicaState(ReplicaId(f"r{number}"), PoolName("p"), capacity=CAPACITY)
        # Half know the version: then tagged keys are the only form that is tried.
        version = "0.32.0" if number % 2 else None
        self.state.learn(version=version, lora_paths={"lora-a": "/adapters/a"})
        self.stream = ReplicaStream(replay=False)
        self.stream.opened(0.0)
        self.seq = 0
        self.poisoned = False

    def apply(self, payload: bytes) -> None:
        state, counters = self.state, self.state.counters
        malformed, cleared = counters.malformed_batches, counters.cleared
        self.seq += 1
        state.apply(Apply(self.seq, payload))
        if counters.cleared > cleared or state.blocks.fills_pool:
            self.poisoned = False
        if counters.malformed_batches > malformed:
            self.poisoned = True
            assert not state.indexed.history_complete
            assert not state.blocks.primary.counts
        self.check()

    def restart(self) -> None:
        """Without it each state would end up translating, and prove nothing any more."""
        self.state.clear(Clear("restarted", restart=True))
        assert not self.state.indexed.history_complete
        self.seq, self.poisoned = 0, True

    def check(self) -> None:
        state = self.state
        assert state.blocks.gpu_copies <= CAPACITY
        assert len(state.blocks.primary.counts) <= CAPACITY
        assert len(state.notes.waiting) <= state.notes.max
        if self.poisoned:
            assert state.evidence(self.stream, 0.0).level is not Level.EXACT


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_no_payload_breaks_the_core() -> None:
    """No payload raises, grows memory without bound, or leaves evidence that is too good."""
    rng = random.Random(SEED)
    states = [Checked(number) for number in range(STATES)]
    warm = PAYLOADS // 20
    before, seen = 0, set()
    for count in range(PAYLOADS):
        mutation = rng.choice(MUTATIONS)
        payload = mutation(rng, rng.choice(REAL))
        checked = states[count % STATES]
        try:
            if rng.random() < RESTARTS:
                checked.restart()
            checked.apply(payload)
        except Exception as error:
            error.add_note(
                f"seed {SEED}, payload {count}, {mutation.__name__}: {payload[:2000].hex()}"
            )
            raise
        seen.add(checked.state.evidence(checked.stream, 0.0).level)
        if count == warm:
            before = resident_bytes()
    assert resident_bytes() - before < MEMORY_GROWTH_BYTES_MAX
    assert seen == set(Level), "the mutations must leave room for every level"
    for checked in states:
        counters = checked.state.counters
        assert counters.malformed_batches and counters.drifts and counters.unknown_events


@pytest.mark.parametrize("translating", [False, True])
def test_a_burst_leaves_few_notes(translating: bool) -> None:
    """Whatever a stream sends in a burst, what waits for the log stays bounded."""
    state = ReplicaState(ReplicaId("r"), PoolName("p"), capacity=CAPACITY)
    rng = random.Random(SEED)
    if translating:
        state.apply(Apply(0, random_roots(rng, REAL[-1])))
    for seq in range(1, 2000):
        state.apply(Apply(seq, truncate(rng, rng.choice(REAL))))
    assert len(state.notes.waiting) == state.notes.max
