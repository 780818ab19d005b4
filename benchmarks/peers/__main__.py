"""``python -m benchmarks.peers``: a JSON line per figure and peer, and for what was skipped."""

import argparse
import signal
import sys
from collections.abc import Callable, Iterator

from benchmarks.peers import ingest, match, query, relaying
from benchmarks.peers.figures import Line, markdown

SUBJECTS: dict[str, Callable[[int, float], Iterator[Line]]] = {
    "ingest": ingest.measure,
    "match": match.measure,
    "query": query.measure,
    "relaying": relaying.measure,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.peers",
        description="Measure ours against theirs in turns; installs them first. Some minutes.",
    )
    parser.add_argument("--only", metavar="NAME", choices=SUBJECTS, help=", ".join(SUBJECTS))
    parser.add_argument("--rounds", type=int, default=7, help="of each peer; the median is given")
    parser.add_argument("--markdown", action="store_true", help="end with tables")
    arguments = parser.parse_args()
    if arguments.rounds < 1:
        parser.error("--rounds: at least 1")
    # An end by a signal goes through every context, so that no process stays.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    lines = []
    for subject in [arguments.only] if arguments.only else SUBJECTS:
        for line in SUBJECTS[subject](arguments.rounds, 1.0):
            print(line.line(), flush=True)
            lines.append(line)
    if arguments.markdown:
        print("", markdown(lines), sep="\n")


if __name__ == "__main__":
    main()
