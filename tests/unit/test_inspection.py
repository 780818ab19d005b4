"""The report on a capture, and what it refuses to be made from."""

import json
from typing import Any

import msgspec
import pytest

from indexer import rank_log
from indexer.inspection import NotACapture, head_lines, inspect
from indexer.sources import CacheFacts, EngineFacts, EventSource
from proto.blockhash import EngineScheme, RequestKeys
from tests.unit.captures import lines_of, meta
from tests.unit.wire import CLEARED, payload, removed, stored

SCHEME = EngineScheme("sha256_cbor", "0", 16)
TOKENS = list(range(500, 564))
HASHES = SCHEME.block_hashes(TOKENS)
ROOT = stored(HASHES, TOKENS)


def frame(seq: int, *events: Any, topic: str = "t", rank: int = 0) -> bytes:
    return raw_frame(seq, payload(*events, rank=rank), topic)


def raw_frame(seq: int, body: bytes, topic: str = "t") -> bytes:
    record = {"kind": "frame", "topic": topic, "seq": seq, "payload_hex": body.hex()}
    return json.dumps(record).encode() + b"\n"


def meta_line(**fields: Any) -> bytes:
    return json.dumps({"kind": "meta"} | fields).encode()


def checks(report: dict[str, Any]) -> tuple[int, int, int]:
    return report["reproduced"], report["not_reproduced"], report["not_checkable"]


def test_ranks_and_topics_are_logs_of_their_own() -> None:
    """The same sequence numbers under another rank or topic are neither restart nor gap."""
    lines = [
        frame(0, ROOT),
        frame(0, ROOT, rank=1),
        frame(0, ROOT, topic="u"),
        frame(1, removed(HASHES[3:])),
    ]
    report = inspect(lines)
    assert (report["resident"], report["removed"]) == (11, 1)
    assert [scheme["rank"] for scheme in report["schemes"] if scheme["proven"]].count(1) == 4


def test_a_restart_clears_and_voids_the_proof() -> None:
    """Numbers that fall back or stay begin a new log, which has to prove its scheme itself."""
    child = stored(SCHEME.block_hashes([*TOKENS, *range(16)])[4:], range(16), parent=HASHES[3])
    for seq in (0, 1):
        report = inspect([frame(0, CLEARED), frame(1, ROOT), frame(seq, child)])
        assert report["resident"] == 1
        assert checks(report) == (4, 0, 1)
        assert [scheme["proven"] for scheme in report["schemes"]] == [False]


def test_a_restart_forgets_the_chains_of_before() -> None:
    """A child of a block that only the last incarnation announced is not checkable."""
    other = list(range(900, 964))
    child = stored(SCHEME.block_hashes([*TOKENS, *range(16)])[4:], range(16), parent=HASHES[3])
    again = stored(SCHEME.block_hashes(other), other)
    report = inspect([frame(0, ROOT), frame(0, again), frame(1, child)])
    assert checks(report) == (8, 0, 1)


def test_an_undecodable_batch_takes_its_number() -> None:
    """Where its topic has one rank, an undecodable batch can be the restart of that rank."""
    report = inspect([frame(0, ROOT), frame(1, CLEARED), raw_frame(0, b"\xc1"), frame(2, CLEARED)])
    assert [scheme["proven"] for scheme in report["schemes"]] == [False]


def test_a_gap_clears_and_keeps_the_proof() -> None:
    """A hole empties the index; the engine is the same, so its chains can still be followed."""
    child = stored(SCHEME.block_hashes([*TOKENS, *range(16)])[4:], range(16), parent=HASHES[3])
    report = inspect([frame(1, ROOT), frame(3, child)])
    assert (report["resident"], *checks(report)) == (1, 5, 0, 0)


@pytest.mark.parametrize(
    "body",
    [
        b"\xc1",
        msgspec.msgpack.encode([1.5, [{"type": "BlockStored"}], 0]),
        payload(stored(HASHES, ["x"])),
        payload(stored(HASHES, TOKENS, extra_keys=[None])),
    ],
)
def test_an_undecodable_batch_is_a_hole(body: bytes) -> None:
    """Nothing of it counts, the index is empty, and the next number continues the log."""
    report = inspect([frame(0, ROOT), raw_frame(1, body), frame(2, stored([7]))])
    assert (report["batches"], report["malformed_batches"]) == (3, 1)
    assert (report["stored"], report["resident"]) == (5, 1)
    assert checks(report) == (4, 0, 1)


def test_a_batch_without_a_rank_is_a_hole_in_all_ranks_of_its_topic() -> None:
    """Whose batch it was cannot be told; other topics are not concerned."""
    lines = [frame(0, ROOT, rank=0), frame(0, ROOT, rank=1), frame(0, ROOT, topic="u")]
    report = inspect([*lines, raw_frame(1, b"\xc1")])
    assert report["resident"] == 4


def test_a_wrong_hash_is_not_reproduced() -> None:
    """One block that the proven scheme does not give is counted, alone."""
    wrong = [*HASHES[:2], 5, HASHES[3]]
    report = inspect([frame(0, ROOT), frame(1, stored(wrong, TOKENS))])
    assert checks(report) == (7, 1, 0)
    child = stored([6], range(16), parent=HASHES[3])
    report = inspect([frame(0, ROOT), frame(1, child)])
    assert checks(report) == (4, 1, 0)


@pytest.mark.parametrize(
    "event",
    [
        stored([1], range(16), parent=99),
        stored([1, 2], range(48), parent=HASHES[3]),
        stored([1], [], block_size=0, medium="CPU"),
        stored([1], range(16), lora_name="sql", extra_keys=[["sql"]]),
        stored([1], range(16), extra_keys=None),
        stored([1], range(32), block_size=32, parent=HASHES[3]),
        stored([1], range(16), parent=HASHES[3], extra_keys=[[{"a": 1}, [[[]]]]], lora_name="x"),
    ],
)
def test_what_depends_on_the_unknown_is_not_checkable(event: dict[str, Any]) -> None:
    """Unknown parents and LoRA paths, sparse groups, missing tokens or keys are no mismatch."""
    report = inspect([meta_line(vllm="0.32.0"), frame(0, ROOT), frame(1, event)])
    assert checks(report) == (4, 0, len(event["block_hashes"]))


def test_nothing_proven_is_said_so() -> None:
    """One entry for each rank that was seen, without a scheme; no hash is checkable."""
    report = inspect([frame(0, stored([1, 2], range(32))), frame(0, CLEARED, rank=3)])
    nothing = dict.fromkeys(("algorithm", "seed", "block_size", "extra_keys", "lookahead", "id"))
    assert report["schemes"] == [{"rank": rank, "proven": False} | nothing for rank in (0, 3)]
    assert checks(report) == (0, 0, 2)


def test_every_possible_form_is_a_scheme_unless_the_version_decides() -> None:
    """Plain roots leave the form of extra keys open; the meta line's version settles it."""
    forms = [s["extra_keys"] for s in inspect([frame(0, ROOT)])["schemes"]]
    assert forms == ["lora_int", "untagged", "untagged_mm_offset", "tagged"]
    for version, form in (("0.32.0", "tagged"), ("0.20.1", "untagged_mm_offset")):
        (scheme,) = inspect([meta_line(vllm=version), frame(0, ROOT)])["schemes"]
        assert scheme["extra_keys"] == form and scheme["id"]


@pytest.mark.parametrize(
    "about", [{"lora": "sql", "lora_path": "/a/sql"}, {"lora_paths": {"sql": "/a/sql", "b": "/b"}}]
)
def test_the_meta_line_gives_lora_paths_and_seed(about: dict[str, Any]) -> None:
    """What is in the hash and not in the event is read from the capture's head."""
    scheme = EngineScheme("sha256", "4711", 16)
    keys = RequestKeys(lora_name="sql", lora_path="/a/sql")
    hashes = scheme.block_hashes(TOKENS, keys)
    event = stored(hashes, TOKENS, lora_name="sql", extra_keys=[["sql"]] * 4)
    head = meta_line(vllm="0.32.0", PYTHONHASHSEED="4711", **about)
    report = inspect([head, frame(0, event)])
    assert checks(report) == (4, 0, 0)
    assert report["schemes"][0]["id"] == scheme.id


def test_counts_of_events() -> None:
    """Stored and removed count hashes, cleared and unknown count events."""
    events = (ROOT, removed([1, 2]), {"type": "BlockMoved"}, CLEARED, CLEARED, stored([3]))
    report = inspect([frame(0, *events)])
    names = ("batches", "stored", "removed", "cleared", "unknown_events", "resident", "copies")
    assert [report[name] for name in names] == [1, 5, 2, 2, 1, 1, 1]


def test_the_pool_bounds_nothing() -> None:
    """Re-announced blocks are counted as the log has them, though the capture tells the pool."""
    report = inspect(lines_of("v0320_reannouncement.jsonl"))
    assert report["copies"] > meta("v0320_reannouncement.jsonl")["num_gpu_blocks"] - 1


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        ([], "no line is a frame"),
        ([b"\n", b'{"kind": "meta"}'], "no line is a frame"),
        ([b'{"kind": "meta"}', b"not json"], "line 2: not a JSON object"),
        ([b"[1, 2]"], "line 1: not a JSON object"),
        ([b"\xff\xfe"], "line 1: not a JSON object"),
        ([b'{"a": ' * 5000], "line 1: not a JSON object"),
        ([b'{"kind": "frame", "seq": 0, "payload_hex": "zz"}'], "line 1: .* hex"),
        ([b'{"kind": "frame", "seq": 0, "payload_hex": "abc"}'], "hex"),
        ([b'{"kind": "frame", "seq": 0, "payload_hex": 5}'], "hex"),
        ([b'{"kind": "frame", "seq": 0}'], "hex"),
        ([b'{"kind": "frame", "payload_hex": ""}'], "without a seq"),
        ([b'{"kind": "frame", "seq": -1, "payload_hex": ""}'], "without a seq"),
        ([b'{"kind": "frame", "seq": true, "payload_hex": ""}'], "without a seq"),
        ([b'{"kind": "frame", "seq": 1.5, "payload_hex": ""}'], "without a seq"),
        ([b'{"kind": "frame", "topic": 5, "seq": 1, "payload_hex": ""}'], "topic"),
        ([frame(0, CLEARED, rank=rank) for rank in range(1025)], "line 1025: more than 1024"),
    ],
)
def test_what_is_no_capture_is_refused(lines: list[bytes], why: str) -> None:
    """The first line that cannot be meant is named, with what is wrong about it."""
    with pytest.raises(NotACapture, match=why):
        inspect(lines)


def test_odd_meta_lines_are_harmless() -> None:
    """Fields of other types than a recorder writes are as good as absent."""
    odd = [
        b'{"kind": "meta", "vllm": 5, "lora": [1], "lora_path": {}, "lora_paths": [], "t": "x"}',
        b'{"kind": "meta", "lora_paths": {"a": 1}, "PYTHONHASHSEED": 0}',
        b'{"kind": ["frame"]}',
        b"{}",
    ]
    assert checks(inspect([*odd, frame(0, ROOT)])) == (4, 0, 0)


def test_digests_are_kept_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """A long log forgets the oldest digests; their children are not checkable, never wrong."""
    monkeypatch.setattr(rank_log, "DIGESTS_MAX", 8)
    lines = [frame(0, ROOT)]
    for seq in range(1, 20):
        tokens = [seq * 1000 + token for token in range(64)]
        lines.append(frame(seq, stored(SCHEME.block_hashes(tokens), tokens)))
    child = stored(SCHEME.block_hashes([*TOKENS, *range(16)])[4:], range(16), parent=HASHES[3])
    report = inspect([*lines, frame(20, child)])
    assert checks(report) == (80, 0, 1)


def test_the_head_of_a_recording_is_read_back() -> None:
    """What the recorder writes about the engine is what inspect needs to know."""
    facts = EngineFacts(
        version="0.32.0",
        sources=(EventSource(0, "tcp://h:5557", None, "kv", 10_000, True),),
        models=("m",),
        lora_paths={"sql": "/a/sql", "other": "/a/other"},
        cache=CacheFacts(blocks_total=100, block_size_tokens=16),
        sleep_states={},
    )
    head = [json.dumps(record).encode() for record in head_lines(facts, "test")]
    keys = RequestKeys(lora_name="other", lora_path="/a/other")
    hashes = SCHEME.block_hashes(TOKENS, keys)
    event = stored(hashes, TOKENS, lora_name="other", extra_keys=[["other"]] * 4)
    report = inspect([*head, frame(0, event)])
    assert checks(report) == (4, 0, 0) and len(report["schemes"]) == 1
    about = json.loads(head[0])
    assert (about["num_gpu_blocks"], about["data_parallel_size"]) == (100, 1)
    assert json.loads(head[1])["body"]["0"]["topic"] == "kv"
