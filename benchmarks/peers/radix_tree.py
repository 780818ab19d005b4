"""A program for Dynamo's own environment: its RadixTree, asked from Python in a process of its own.

It imports nothing of this project. The first line it reads is ``{"prompt": hashes of tokens,
"holdings": [hashes of tokens of each replica's prefix and of its filler]}``; then each line is a
number of calls to make, answered with a line of so many durations in microseconds, after a first
answer: how many replicas match.
"""

import json
import sys
import time
from typing import Any


def main() -> None:
    from dynamo._core import RadixTree  # type: ignore[import-not-found]

    given = json.loads(sys.stdin.readline())
    tree = RadixTree()
    for worker, holding in enumerate(given["holdings"]):
        for event, hashes in enumerate(holding):
            tree.apply_event(worker, _stored(event, worker, hashes))
    prompt = given["prompt"]
    print(len(tree.find_matches(prompt).scores), flush=True)
    for line in sys.stdin:
        print(json.dumps([_match_us(tree, prompt) for _ in range(int(line))]), flush=True)


def _stored(event: int, worker: int, hashes: list[int]) -> bytes:
    """Equal blocks have equal names on every replica, as from engines: event 0 is the prompt's."""
    base = (worker + 1) << 32 if event else 0
    blocks = [
        {"block_hash": base + number, "tokens_hash": each} for number, each in enumerate(hashes)
    ]
    data = {"stored": {"parent_hash": None, "blocks": blocks}}
    return json.dumps({"event_id": event, "data": data}).encode()


def _match_us(tree: Any, prompt: list[int]) -> float:
    begun = time.perf_counter()
    tree.find_matches(prompt)
    return (time.perf_counter() - begun) * 1e6


if __name__ == "__main__":
    main()
