"""Hostile and broken payloads through the whole core, from a seed.

Run another seed with POINTSMAN_FUZZ_SEED, more payloads with POINTSMAN_FUZZ_PAYLOADS.
"""

import os
import random
from pathlib import Path

import pytest

from indexer.evidence import Level
from indexer.index import PoolName, ReplicaId
from indexer.replica import ReplicaState
from indexer.stream import ReplicaStream
from indexer.stream_outputs import Apply, Clear
from tests.fuzz.mutations import MUTATIONS, REAL, random_roots, truncate

SEED = int(os.environ.get("POINTSMAN_FUZZ_SEED", "1"))
PAYLOADS = int(os.environ.get("POINTSMAN_FUZZ_PAYLOADS", "100000"))
STATES = 8
RESTARTS = 1 / 500
CAPACITY = 160
MEMORY_GROWTH_BYTES_MAX = 64 * 2**20


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
