"""Each rule of the indexer's core, broken once: a check that has never failed proves nothing.

A mutant is one replacement in one module's source. ``python -m tests.simulation.mutants`` runs
worlds against each until one fails and prints the seed; a mutant that survives is an error, of the
rule or of the world. The modules are mutated in a process of their own.
"""

import argparse
import importlib.util
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

SEEDS_MAX = 4000


@dataclass(frozen=True)
class Mutant:
    rule: str
    module: str
    old: str
    new: str


STREAM, REPLICA, HUB = "indexer.stream", "indexer.replica", "indexer.hub"
JOURNAL = "indexer.durability"
MUTANTS = {
    "gap_applied": Mutant(
        "a gap is closed by replay or clears",
        STREAM,
        "last is not None and seq == last.seq + 1 and not self._held",
        "last is not None and seq > last.seq and not self._held",
    ),
    "proof_not_compared": Mutant(
        "the same bytes prove the same incarnation",
        STREAM,
        "if replay.proof.same(seq, payload):",
        "if replay.proof.seq == seq:",
    ),
    "end_proves": Mutant(
        "a log that ends before the last applied batch is another incarnation's",
        STREAM,
        "        if replay.unproven:\n            return self._other_incarnation(now)",
        "        if replay.unproven:\n            replay.unproven = False",
    ),
    "buffer_overrun_ignored": Mutant(
        "a last batch that left the engine's buffer proves nothing",
        STREAM,
        'outputs.append(self._clear("the engine\'s replay buffer no longer reaches back"))',
        "self.last = None",
    ),
    "live_never_confirmed": Mutant(
        "live frames are held until one batch came over both ways",
        STREAM,
        "self._confirmed = not replay",
        "self._confirmed = True",
    ),
    "conflict_ignored": Mutant(
        "live and replay that differ come from two engines",
        STREAM,
        "if held != payload:",
        "if False:",
    ),
    "fall_back_ignored": Mutant(
        "a live number that falls back is a restart",
        STREAM,
        "if seq <= self._last_live_seq:",
        "if False:",
    ),
    "applied_twice": Mutant(
        "a batch is never applied twice",
        STREAM,
        "            replay.progressed = True\n            return []\n        if last",
        "            replay.progressed = True\n            return [Apply(seq, payload)]\n"
        "        if last",
    ),
    "hole_applied": Mutant(
        "a hole inside a replay is asked for again, or clears",
        STREAM,
        "if last is not None and seq > last.seq + 1:",
        "if False:",
    ),
    "hole_not_cleared": Mutant(
        "a hole that no replay fills clears",
        STREAM,
        'outputs.append(self._clear("a hole that no replay fills"))',
        "pass",
    ),
    "hole_cleared_at_once": Mutant(
        "what was lost inside a replay is asked for again before anything is cleared",
        STREAM,
        "            if replay.progressed:\n",
        "            if False:\n",
    ),
    "dead_replay_awaited": Mutant(
        "a replay that is silent three times is given up",
        STREAM,
        "if self._failures < REPLAY_FAILURES_MAX:",
        "if True:",
    ),
    "no_probe": Mutant(
        "a silent replica's last batch is asked again",
        STREAM,
        ">= PROBE_INTERVAL_S:",
        ">= 1e9:",
    ),
    "resume_unproven": Mutant(
        "a reconnect proves continuity",
        HUB,
        "replay=link.source.replay_endpoint is not None, resume=link.last, now=now",
        "replay=link.source.replay_endpoint is not None, resume=None, now=now",
    ),
    "duplicate_publisher_heard": Mutant(
        "two live connections with one topic and rank are refused",
        HUB,
        "if len(link.claimants) == 1:",
        "if True:",
    ),
    "replays_unlimited": Mutant(
        "one replay at a time per engine, a few in all",
        "indexer.replay_queue",
        "if len(self._running) >= self._replays_max:",
        "if False:",
    ),
    "malformed_ignored": Mutant(
        "an undecodable batch is a hole",
        REPLICA,
        'self._forget("a batch that cannot be decoded", quiet=True)',
        "pass",
    ),
    "history_always_complete": Mutant(
        "a history is complete from seq 0, a clear, or a full pool on",
        REPLICA,
        "        self.indexed.history_complete = False\n",
        "        self.indexed.history_complete = True\n",
    ),
    "clear_clears_nothing": Mutant(
        "AllBlocksCleared clears",
        REPLICA,
        "        self.counters.cleared += 1\n        self.blocks.clear()\n",
        "        self.counters.cleared += 1\n",
    ),
    "proof_survives_restart": Mutant(
        "a restart voids the proof",
        REPLICA,
        "            self._publish_schemes()\n        self.applied = None\n",
        "        self.applied = None\n",
    ),
    "unknown_event_trusted": Mutant(
        "an unknown event degrades until the next clear",
        REPLICA,
        "        self._unknown_event = True\n",
        "",
    ),
    "copies_not_counted": Mutant(
        "each physical copy counts",
        "indexer.residency",
        "                counts[block_hash] = counts.get(block_hash, 0) + 1",
        "                counts[block_hash] = 1",
    ),
    "removal_clears_all_copies": Mutant(
        "a block leaves with its last copy, not before",
        "indexer.residency",
        "            if copies > 1:",
        "            if copies > 1000:",
    ),
    "pool_fills_early": Mutant(
        "only copies that fill the pool complete a history",
        "indexer.residency",
        "self.gpu_copies == self.capacity",
        "self.gpu_copies >= self.capacity // 2",
    ),
    "delta_forgets_clear": Mutant(
        "a delta covers what a clear removed",
        "indexer.residency",
        "        self._cleared = True\n",
        "        self._cleared = False\n",
    ),
    "bisected_incomplete": Mutant(
        "an incomplete history is scanned from the end",
        "indexer.index",
        "    elif replica.history_complete:",
        "    elif True:",
    ),
    "orphans_translated": Mutant(
        "a block whose parent is unknown cannot be translated",
        "indexer.translation",
        "if not blocks.dense or (parent is not None and parent not in self._names):",
        "if not blocks.dense:",
    ),
    "digest_not_compared": Mutant(
        "a store's last batch is proven by its digest",
        "indexer.stream_outputs",
        "return sha256(payload).digest() == self.digest",
        "return True",
    ),
    "restored_unproven": Mutant(
        "what a store kept is gone on with only where it is proven",
        HUB,
        "            link.last = state.applied\n",
        "",
    ),
    "restored_as_complete": Mutant(
        "a history that was kept incomplete stays incomplete",
        REPLICA,
        "self.indexed.history_complete = state.history_complete",
        "self.indexed.history_complete = True",
    ),
    "translations_kept": Mutant(
        "blocks whose names cannot be removed again are not kept",
        REPLICA,
        "if self.applied is None or self.translator is not None:",
        "if self.applied is None:",
    ),
    "half_a_rewrite_complete": Mutant(
        "until a rewrite has ended the history is not called complete",
        JOURNAL,
        "if state is not None and self._backlog:",
        "if False:",
    ),
    "elsewhere_ignored": Mutant(
        "a store that stands elsewhere is written anew",
        JOURNAL,
        "                self.position = position\n                self._rewrite = True\n",
        "                self.position = position\n",
    ),
    "unanswered_forgotten": Mutant(
        "a flush is asked again until its answer is known",
        JOURNAL,
        "        if flush is self._asked:\n            self._ask_again_at = now + RETRY_S\n",
        "        if flush is self._asked:\n            self._asked = None\n",
    ),
    "forgotten_changes_not_rewritten": Mutant(
        "changes that were not remembered are written by a rewrite",
        JOURNAL,
        "            self._rewrite = True\n            blocks.take_delta()\n",
        "            blocks.take_delta()\n",
    ),
    "clear_not_told": Mutant(
        "a clear is told to the store",
        JOURNAL,
        "cleared = delta.cleared or self._rewrite",
        "cleared = self._rewrite",
    ),
    "removals_not_told": Mutant(
        "removals are never put off",
        JOURNAL,
        "removed = cast(list[int], delta.removed)",
        "removed: list[int] = []",
    ),
}


def mutate(mutant: Mutant) -> None:
    """Puts the broken module in place of the real one, before anything has imported it."""
    spec = importlib.util.find_spec(mutant.module)
    assert spec is not None and spec.origin is not None
    source = Path(spec.origin).read_text()
    assert source.count(mutant.old) == 1, f"{mutant.module} no longer contains: {mutant.old}"
    module = importlib.util.module_from_spec(spec)
    sys.modules[mutant.module] = module
    exec(compile(source.replace(mutant.old, mutant.new), spec.origin, "exec"), module.__dict__)


def first_seed_that_fails(name: str) -> dict[str, object]:
    """Runs in a process of its own."""
    mutate(MUTANTS[name])
    from tests.simulation.__main__ import failure_of

    for seed in range(SEEDS_MAX):
        failure = failure_of(seed)
        if failure is not None:
            return {"mutant": name, "seed": seed, "failure": failure}
    return {"mutant": name, "seed": None, "failure": None}


def hunt(name: str) -> dict[str, object]:
    """The first seed that catches a mutant, found by a child process."""
    command = [sys.executable, "-m", "tests.simulation.mutants", "--only", name]
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr
    return dict(json.loads(finished.stdout))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.mutants", description=__doc__)
    parser.add_argument("--only", choices=sorted(MUTANTS), help="one mutant, in this process")
    only = parser.parse_args().only
    if only:
        print(json.dumps(first_seed_that_fails(only)))
        return 0
    survivors = 0
    for name, mutant in MUTANTS.items():
        found = hunt(name)
        survivors += found["seed"] is None
        print(f"{name:28} seed {found['seed']!s:>5}  {mutant.rule}: {found['failure']}", flush=True)
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
