"""What naming a block costs: microseconds per block of 16 tokens, for a prompt of 1,024 blocks.

Honest because the ids have the lengths of real ones and the whole public call is timed, sliced into
blocks, hashed and unpacked. The ids come as an array, as the router's tokenizer gives them. numpy,
imported by a process's first long prompt, is imported beforehand. The comparison with cbor2
alternates within one run, so a slow moment of the machine slows both; each is given what suits it,
a list in cbor2's case, and both build the same bytes: that is checked.
"""

from array import array
from collections.abc import Iterator
from itertools import repeat
from random import Random

import cbor2

from benchmarks.micro.measurement import Measurement, scaled, seconds_of
from benchmarks.micro.workload import BLOCK_TOKENS, SEED, scheme, zipf_tokens
from proto.blockhash import ALGORITHMS, CanonicalScheme, EngineScheme, HashScheme
from proto.cborchain import cbor_bodies

_BLOCKS = 1024
_RUNS = 41


def measure(scale: float = 1.0) -> Iterator[Measurement]:
    runs, blocks = scaled(_RUNS, scale, 2), scaled(_BLOCKS, scale, 4)
    tokens = zipf_tokens(Random(SEED), blocks * BLOCK_TOKENS)
    schemes: dict[str, HashScheme] = {
        name: EngineScheme(name, "0", BLOCK_TOKENS) for name in ALGORITHMS
    }
    schemes["canonical_xxh3"] = CanonicalScheme(BLOCK_TOKENS)
    for name, each in schemes.items():
        ids = array("I", tokens)
        yield Measurement.of(f"hash_block_{name}", "us", _per_block(each, ids, blocks, runs))
    yield from _against_cbor2(tokens, blocks, runs)


def _per_block(each: HashScheme, tokens: "array[int]", blocks: int, runs: int) -> list[float]:
    assert len(each.block_hashes(tokens)) == blocks
    return [seconds_of(lambda: each.block_hashes(tokens)) / blocks * 1e6 for _ in range(runs)]


def _against_cbor2(tokens: list[int], blocks: int, runs: int) -> Iterator[Measurement]:
    """Building the bytes to be hashed, without the hash: how many times as fast as cbor2."""
    parents = [b"\x00" * 32, *scheme().block_digests(tokens)[:-1]]
    ids = array("I", tokens)
    assert _built(parents, ids) == _dumped(parents, tokens), "the two encoders disagree"
    fast, slow = [], []
    for _ in range(runs):
        fast.append(seconds_of(lambda: _built(parents, ids)) / blocks * 1e6)
        slow.append(seconds_of(lambda: _dumped(parents, tokens)) / blocks * 1e6)
    yield Measurement.of("cbor_block_fast", "us", fast)
    yield Measurement.of("cbor_block_cbor2", "us", slow)
    ratios = [each / other for each, other in zip(slow, fast, strict=True)]
    yield Measurement.of("cbor_fast_against_cbor2", "times as fast", ratios)


def _built(parents: list[bytes], tokens: "array[int]") -> list[bytes]:
    head = b"\x83\x58\x20"
    bodies = cbor_bodies(tokens, BLOCK_TOKENS, [None] * len(parents))
    return list(map(b"".join, zip(repeat(head), parents, bodies, strict=False)))


def _dumped(parents: list[bytes], tokens: list[int]) -> list[bytes]:
    return [
        cbor2.dumps((parent, tuple(tokens[first : first + BLOCK_TOKENS]), None), canonical=True)
        for first, parent in zip(range(0, len(tokens), BLOCK_TOKENS), parents, strict=True)
    ]
