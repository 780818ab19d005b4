"""What a recorded event log says: capture lines -> one report; and the lines that one begins with.

The tool for the question "does pointsman understand this engine?". Rules it keeps:

* Each (topic, rank) is a log of its own, see ``rank_log``. An undecodable batch that does not even
  show its rank is a hole in every rank of its topic.
* Schemes are those of the last incarnation of each rank: a restart voids the proof.
* The pool's size bounds nothing here, also where the capture tells it. A re-announcement cannot be
  told from a true copy on the wire; the live index clears once the counts exceed the pool, but this
  report is about the log: it counts what the log says, so ``copies`` beyond the pool is the sign.
* Lines are taken one at a time, and ranks are limited: the size of a file costs no memory.
"""

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

import msgspec

from indexer.events import peek_rank
from indexer.rank_log import Counts, RankLog
from indexer.schemes import SchemeProof
from indexer.sources import EngineFacts
from proto.blockhash import show

# Ranks of all topics; vLLM has at most 1,024 of one engine.
RANKS_MAX = 1024


class NotACapture(ValueError):
    """The lines are not a recording of KV events; the text says where and why."""


class _Line(msgspec.Struct):
    """The fields of all kinds of lines that matter here; checked where they are used."""

    kind: Any = None
    topic: Any = ""
    seq: Any = None
    payload_hex: Any = None
    vllm: Any = None
    lora: Any = None
    lora_path: Any = None
    lora_paths: Any = None
    PYTHONHASHSEED: Any = None


_decode_line = msgspec.json.Decoder(_Line).decode


@dataclass(slots=True)
class _Engine:
    """What the capture's meta lines tell about the engine; shared by its ranks."""

    version: str | None = None
    lora_paths: dict[str, str] = field(default_factory=dict)
    seeds: tuple[str, ...] = ("0",)

    def instruct(self, proof: SchemeProof) -> None:
        proof.version, proof.lora_paths = self.version, self.lora_paths
        proof.seeds = self.seeds


def inspect(lines: Iterable[bytes], *, with_hashes: bool = False) -> dict[str, Any]:
    """The report on one capture. Raises NotACapture; takes the lines one at a time."""
    inspection = Inspection()
    for number, line in enumerate(lines, 1):
        try:
            inspection.read(line)
        except NotACapture as error:
            raise NotACapture(f"line {number}: {error}") from None
    return inspection.report(with_hashes=with_hashes)


def head_lines(facts: EngineFacts, origin: str) -> Iterator[dict[str, Any]]:
    """The records a capture begins with: what hashing depends on, and where the frames are from."""
    sources = facts.sources or ()
    lora, lora_path = next(iter(facts.lora_paths.items()), (None, None))
    meta = {
        "vllm": facts.version,
        "block_size": facts.cache.block_size_tokens,
        "algo": facts.cache.hash_algorithm,
        "num_gpu_blocks": facts.blocks_total,
        "data_parallel_size": len(sources),
        "lora": lora,
        "lora_path": lora_path,
        "lora_paths": dict(facts.lora_paths) or None,
        "origin": origin,
    }
    yield {"kind": "meta"} | {name: value for name, value in meta.items() if value is not None}
    names = ("endpoint", "replay_endpoint", "topic", "buffer_steps")
    body = {str(s.rank): {name: getattr(s, name) for name in names} for s in sources}
    yield {"kind": "kv_event_sources", "body": body}


class Inspection:
    """One capture, line by line: ``read`` each, then ask for the ``report``."""

    def __init__(self) -> None:
        self._counts = Counts()
        self._engine = _Engine()
        self._ranks: dict[tuple[str, int], RankLog] = {}

    def __repr__(self) -> str:
        return f"<Inspection {self._counts.batches} batches, {len(self._ranks)} ranks>"

    def read(self, line: bytes) -> None:
        if not line.strip():
            return
        try:
            record = _decode_line(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise NotACapture(f"not a JSON object ({error})") from None
        if record.kind == "frame":
            self._frame(record)
        elif record.kind == "meta":
            self._meta(record)

    def report(self, *, with_hashes: bool = False) -> dict[str, Any]:
        """Raises NotACapture when there was no frame. ``resident`` counts every tier and group."""
        if not self._counts.batches:
            raise NotACapture("no line is a frame: not a capture of KV events")
        counts = asdict(self._counts)
        ranks = [log for _, log in sorted(self._ranks.items())]
        resident = [log.resident() for log in ranks]
        checks = {key: counts.pop(key) for key in ("reproduced", "not_reproduced", "not_checkable")}
        report = counts | {
            "resident": sum(map(len, resident)),
            "copies": sum(log.blocks.copies for log in ranks),
            "schemes": [scheme for log in ranks for scheme in log.schemes()],
            **checks,
        }
        if with_hashes:
            # As many as ``resident``: a block that two ranks hold is listed for each.
            report["hashes"] = sorted(show(h) for hashes in resident for h in hashes)
        return report

    def _meta(self, record: _Line) -> None:
        engine = self._engine
        if isinstance(record.vllm, str):
            engine.version = record.vllm
        paths = record.lora_paths if isinstance(record.lora_paths, dict) else {}
        for name, path in [*paths.items(), (record.lora, record.lora_path)]:
            if isinstance(name, str) and isinstance(path, str):
                engine.lora_paths[name] = path
        if record.PYTHONHASHSEED is not None:
            engine.seeds = tuple(dict.fromkeys((str(record.PYTHONHASHSEED), "0")))
        for log in self._ranks.values():
            engine.instruct(log.proof)

    def _frame(self, record: _Line) -> None:
        topic, seq = record.topic, record.seq
        if not isinstance(topic, str):
            raise NotACapture("a frame whose topic is no string")
        if not isinstance(seq, int) or isinstance(seq, bool) or not 0 <= seq < 2**64:
            raise NotACapture("a frame without a seq, a whole number from 0 to 2^64-1")
        try:
            payload = bytes.fromhex(record.payload_hex)
        except (ValueError, TypeError):
            raise NotACapture("a frame whose payload_hex is not hex digits") from None
        self._counts.batches += 1
        rank = peek_rank(payload)
        if rank is None:
            self._undecodable(topic, seq)
        else:
            self._log(topic, rank).frame(seq, payload, self._counts)

    def _undecodable(self, topic: str, seq: int) -> None:
        """Only where a topic has one rank is it known whose number this batch took."""
        self._counts.malformed_batches += 1
        logs = [log for (other, _), log in self._ranks.items() if other == topic]
        for log in logs:
            log.hole()
        if len(logs) == 1:
            logs[0].follow(seq)

    def _log(self, topic: str, rank: int) -> RankLog:
        log = self._ranks.get((topic, rank))
        if log is None:
            if len(self._ranks) == RANKS_MAX:
                raise NotACapture(f"more than {RANKS_MAX} pairs of topic and rank")
            log = self._ranks[(topic, rank)] = RankLog(rank)
            self._engine.instruct(log.proof)
        return log
