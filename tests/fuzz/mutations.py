"""Real payloads made hostile: each mutation takes an rng and a payload, and gives a payload."""

import copy
import random
import struct
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from tests.unit.captures import CAPTURES, frames

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
