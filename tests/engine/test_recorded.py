"""What real engines reported, predicted again from what they published: without an engine.

The files under ``recorded`` say in their first line where they are from.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from indexer.events import peek_rank
from indexer.evidence import judge
from indexer.index import MemoryIndex, PoolName, ReplicaId
from indexer.replica import ReplicaState
from indexer.stream_outputs import Apply
from proto.blockhash import RequestKeys
from proto.contract import replica_id
from router.fleet import predicted_cached_tokens

RECORDED = sorted((Path(__file__).parent / "recorded").glob("*.jsonl"))
POOL = PoolName("pool")


def lines_of(file: Path, kind: str) -> list[dict[str, Any]]:
    lines = (json.loads(line) for line in file.read_text().splitlines())
    return [line for line in lines if line["kind"] == kind]


class Rank:
    """One rank's index, as far as its recording has been applied."""

    def __init__(self, replica: str, about: dict[str, Any]) -> None:
        self.state = ReplicaState(ReplicaId(replica), POOL)
        self.state.learn(version=about["vllm"], lora_paths={})
        self.index = MemoryIndex({self.state.id: self.state.indexed})
        self.frames: list[tuple[int, bytes]] = []

    def apply_up_to(self, seq: int) -> None:
        while self.frames and self.frames[0][0] <= seq:
            self.state.apply(Apply(*self.frames.pop(0)))

    def predicted(self, prompt_ids: list[int], keys: RequestKeys) -> int:
        translator = self.state.translator
        schemes = self.state.proof.schemes if translator is None else (translator.scheme,)
        matched = [0]
        for scheme in filter(None, schemes):
            hashes = {scheme.id: scheme.block_hashes(prompt_ids, keys)}
            matched += (match.any_tier for match in self.index.match(POOL, hashes).values())
        return predicted_cached_tokens(max(matched), len(prompt_ids), 16)


@pytest.mark.parametrize("file", RECORDED, ids=lambda file: file.stem)
def test_what_was_published_predicts_what_was_reported(file: Path) -> None:
    """Every request, from the first; each from the batches that its index had applied."""
    (about,) = lines_of(file, "recorded")
    ranks: dict[str, Rank] = {}
    for frame in lines_of(file, "frame"):
        payload = bytes.fromhex(frame["payload_hex"])
        name = replica_id("v", peek_rank(payload) or 0, about["ranks"])
        ranks.setdefault(name, Rank(name, about)).frames.append((frame["seq"], payload))
    requests = lines_of(file, "request")
    for request in requests:
        rank = ranks[request["replica"]]
        rank.apply_up_to(request["seq"])
        keys = RequestKeys(cache_salt=request["cache_salt"])
        assert rank.predicted(request["prompt_ids"], keys) == request["cached_tokens"]
    assert len(requests) > 20 and len(ranks) == about["ranks"]
    for rank in ranks.values():
        facts = replace(rank.state.facts(None, 0.0), streaming=True)
        assert str(judge(facts)) == about["evidence"]
