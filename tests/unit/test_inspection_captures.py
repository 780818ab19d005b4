"""Reports on what real engines published."""

from collections import Counter

import pytest

from indexer.events import AllBlocksCleared, BatchDecoder, BlockStored
from indexer.inspection import inspect
from proto.blockhash import show
from tests.unit.captures import CAPTURES, lines_of, meta, records

KEYS = {
    "batches",
    "stored",
    "removed",
    "cleared",
    "unknown_events",
    "malformed_batches",
    "resident",
    "copies",
    "schemes",
    "reproduced",
    "not_reproduced",
    "not_checkable",
}


def dumb_counts(name: str) -> dict[str, Counter[int]]:
    """Copies by rank: nothing but adding and taking away."""
    copies: dict[str, Counter[int]] = {}
    decoder, last = BatchDecoder(), dict[str, int]()
    for record in records(name):
        if record["kind"] != "frame":
            continue
        batch = decoder.decode(bytes.fromhex(record["payload_hex"]))
        rank = str(batch.data_parallel_rank)
        if record["seq"] <= last.get(rank, -1):
            copies[rank] = Counter()
        last[rank], counts = record["seq"], copies.setdefault(rank, Counter())
        for event in batch.events:
            if isinstance(event, AllBlocksCleared):
                counts.clear()
            elif isinstance(event, BlockStored):
                counts.update(event.block_hashes)
            else:
                counts.subtract(event.block_hashes)
        copies[rank] = +counts
    return copies


@pytest.mark.parametrize("name", CAPTURES)
def test_every_hash_of_every_capture_is_reproduced(name: str) -> None:
    """Real engines, 0.23 and 0.32: each stored block, children included, is recomputed."""
    report = inspect(lines_of(name))
    assert set(report) == KEYS
    checks = [report[name] for name in ("reproduced", "not_reproduced", "not_checkable")]
    assert checks == [report["stored"], 0, 0]
    assert report["stored"] > 0 and report["malformed_batches"] == report["unknown_events"] == 0
    about, schemes = meta(name), report["schemes"]
    assert [scheme["rank"] for scheme in schemes] == list(range(about.get("data_parallel_size", 1)))
    for scheme in schemes:
        assert scheme["proven"] and scheme["algorithm"] == about["algo"]
        assert scheme["seed"] == about["PYTHONHASHSEED"] and scheme["block_size"] == 16
        assert scheme["extra_keys"] == (
            "tagged" if about["vllm"] >= "0.31" else "untagged_mm_offset"
        )


@pytest.mark.parametrize("name", CAPTURES)
def test_what_is_resident_equals_a_dumb_count(name: str) -> None:
    """Resident blocks, copies and hashes are those of adding and taking away, rank by rank."""
    report, dumb = inspect(lines_of(name), with_hashes=True), dumb_counts(name).values()
    assert report["resident"] == sum(map(len, dumb))
    assert report["copies"] == sum(counts.total() for counts in dumb)
    assert report["hashes"] == sorted(show(h) for counts in dumb for h in counts)
