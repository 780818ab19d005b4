"""The seeded simulation: its invariant over many worlds, and that it can fail at all."""

import os
from concurrent.futures import ThreadPoolExecutor

from tests.simulation.__main__ import run_seeds
from tests.simulation.mutants import MUTANTS, hunt

SEEDS = 10_000
PROCESSES = os.cpu_count() or 1


def test_an_index_never_claims_what_its_engine_does_not_hold() -> None:
    """In 10,000 worlds of bad networks and restarting engines the invariant holds at every step."""
    failures = [failure for chunk in run_seeds(0, SEEDS, PROCESSES) for failure in chunk]
    assert not failures, "\n".join(failures[:5])


def test_every_broken_rule_is_caught() -> None:
    """Each rule of the core, broken once, makes some world fail: none of them is untested."""
    with ThreadPoolExecutor(PROCESSES) as threads:
        found = list(threads.map(hunt, MUTANTS))
    survivors = [entry["mutant"] for entry in found if entry["seed"] is None]
    assert not survivors, f"no world notices: {survivors}"
