"""``python -m benchmarks.micro``: one JSON line per figure, in the order of the budgets."""

import argparse
import signal
import sys
from collections.abc import Callable, Iterator

from benchmarks.micro import (
    deciding,
    hashing,
    ingest,
    matching,
    memory,
    network,
    relaying,
    replaying,
    storing,
)
from benchmarks.micro.measurement import Measurement

SUBJECTS: dict[str, Callable[[float], Iterator[Measurement]]] = {
    "deciding": deciding.measure,
    "hashing": hashing.measure,
    "ingest": ingest.measure,
    "match": matching.measure,
    "memory": memory.measure,
    "network": network.measure,
    "relaying": relaying.measure,
    "replay": replaying.measure,
    "store": storing.measure,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.micro",
        description="Measure the budgets; prints a JSON line per figure, some minutes in all.",
    )
    parser.add_argument("--only", metavar="NAME", choices=SUBJECTS, help=", ".join(SUBJECTS))
    arguments = parser.parse_args()
    # An end by a signal goes through every context, so that no process stays.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    for subject in [arguments.only] if arguments.only else SUBJECTS:
        for measurement in SUBJECTS[subject](1.0):
            print(measurement.line(), flush=True)


if __name__ == "__main__":
    main()
