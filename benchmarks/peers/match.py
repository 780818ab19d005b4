"""One match in the index itself: a prompt's blocks against 64 replicas, called from Python.

Every replica holds 10,000 blocks: a prefix of the prompt whose length is random, the rest of other
prompts. Ours is ``MemoryIndex.match`` with the engine's hashes; theirs is Dynamo's
``RadixTree.find_matches`` with hashes of each block's tokens, filled with the same depths. Hashing
the prompt is in neither figure. The radix tree runs in a thread of its own, so theirs has a
hand-over and the conversion of a list of ints in it, and ours is Python to begin with. A round is
the median of 51 calls.
"""

import json
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

from benchmarks.micro.matching import stored_event
from benchmarks.micro.measurement import scaled
from benchmarks.micro.workload import SEED, as_decoded, random_hashes
from benchmarks.peers import dynamo_indexer as dynamo
from benchmarks.peers import radix_tree
from benchmarks.peers.figures import OURS, Line, NotMeasured
from benchmarks.peers.installing import installed
from benchmarks.peers.taking_turns import Round, take_turns
from indexer.index import IndexedReplica, MemoryIndex, PoolName, ReplicaId
from indexer.residency import ReplicaBlocks
from proto.blockhash import BlockHash

_PROMPTS = (512, 8192)
_REPLICAS = 64
_REPLICA_BLOCKS = 10_000
_CALLS = 51
_POOL, _SCHEME = PoolName("model"), "scheme"

Holding = tuple[list[BlockHash], list[BlockHash]]
"""A prefix of the prompt, and blocks of other prompts."""


def measure(rounds: int, scale: float = 1.0) -> Iterator[Line]:
    for blocks in _PROMPTS:
        asked = _Asked(blocks, scale)
        entrants = {OURS: asked.ours, dynamo.PEER: asked.theirs}
        yield from take_turns(asked.name, {asked.name: "us"}, entrants, rounds)


class _Asked:
    """One length of prompts, and what the replicas hold of it."""

    def __init__(self, blocks: int, scale: float) -> None:
        rng = Random(SEED)
        self.name = f"match_{blocks}_blocks_{_REPLICAS}_replicas"
        self._calls = scaled(_CALLS, scale, 2)
        self._prompt = random_hashes(rng, scaled(blocks, scale, 16))
        held = scaled(_REPLICA_BLOCKS, scale, len(self._prompt))
        self._holdings: list[Holding] = []
        for _ in range(scaled(_REPLICAS, scale, 2)):
            depth = rng.randint(1, len(self._prompt))
            self._holdings.append((self._prompt[:depth], random_hashes(rng, held - depth)))

    @contextmanager
    def ours(self) -> Iterator[Round]:
        index = MemoryIndex()
        for number, holding in enumerate(self._holdings):
            blocks = ReplicaBlocks()
            for hashes in holding:
                blocks.stored(stored_event(as_decoded(hashes)))
            replica = IndexedReplica(_POOL, blocks, (_SCHEME,), history_complete=True)
            index.add(ReplicaId(f"replica-{number}"), replica)
        by_scheme = {_SCHEME: as_decoded(self._prompt)}
        if len(index.match(_POOL, by_scheme)) != len(self._holdings):
            raise NotMeasured("not every replica matches")

        def call_us() -> float:
            begun = time.perf_counter()
            index.match(_POOL, by_scheme)
            return (time.perf_counter() - begun) * 1e6

        yield lambda: {self.name: median(call_us() for _ in range(self._calls))}

    @contextmanager
    def theirs(self) -> Iterator[Round]:
        python = installed(dynamo.PACKAGE) / "bin" / "python"
        given = {"prompt": self._prompt, "holdings": self._holdings}
        with _talking_to([python, str(radix_tree.__file__)]) as ask:
            matching = ask(json.dumps(given))
            if matching != len(self._holdings):
                raise NotMeasured(f"{matching} of {len(self._holdings)} replicas match")
            yield lambda: {self.name: median(ask(str(self._calls)))}


@contextmanager
def _talking_to(command: list[str | Path]) -> Iterator[Callable[[str], Any]]:
    """A function that sends a line and gives what the next line of the answer says, as JSON."""
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdin and process.stdout and process.stderr
    to, answers, errors = process.stdin, process.stdout, process.stderr

    def ask(line: str) -> Any:
        try:
            print(line, file=to, flush=True)
            answer = answers.readline()
        except BrokenPipeError:
            answer = ""
        if not answer:
            raise NotMeasured(f"ended\n{errors.read()}")
        return json.loads(answer)

    try:
        yield ask
    finally:
        process.kill()
        process.communicate()
