"""Runs seeds: ``python -m tests.simulation --seeds 1000000 [--first N] [--processes N]``."""

import argparse
import multiprocessing
import os
import sys
import time
import traceback
from collections.abc import Iterator

from tests.simulation.world import World

CHUNK = 250


def failure_of(seed: int) -> str | None:
    """What went wrong in one seed's world, with the seed in front; None if nothing did."""
    try:
        World(seed).run()
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        return (
            f"seed {seed}: {type(error).__name__}: {error} ({os.path.basename(where.filename)}:"
            f"{where.lineno})"
        )
    return None


def run_chunk(first: int) -> list[str]:
    return [f for f in map(failure_of, range(first, first + CHUNK)) if f is not None]


def run_seeds(first: int, seeds: int, processes: int) -> Iterator[list[str]]:
    """Failures chunk by chunk; ``seeds`` is rounded up to whole chunks."""
    starts = range(first, first + seeds, CHUNK)
    with multiprocessing.get_context("fork").Pool(processes) as pool:
        yield from pool.imap_unordered(run_chunk, starts)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=10_000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    arguments = parser.parse_args()
    started, done, failures = time.monotonic(), 0, 0
    for failed in run_seeds(arguments.first, arguments.seeds, arguments.processes):
        done += CHUNK
        failures += len(failed)
        for failure in failed[:3]:
            print(failure, flush=True)
        if failures > 20:
            break
    print(f"{done} seeds, {failures} failed, {time.monotonic() - started:.0f} s")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
