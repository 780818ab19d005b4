"""A shell: Dynamo's standalone indexer, as its wheel brings it: ``python -m dynamo.indexer``.

It follows vLLM's events over ZMQ and names a block by a hash of its own tokens alone (xxh3 with a
seed), chained by its index. That hash is made here the same way, so that questions can be asked
that are hashed already; an answer that does not find what was published would show a difference.
"""

import re
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import xxhash

from benchmarks.micro.workload import BLOCK_TOKENS
from benchmarks.peers.figures import NotMeasured
from benchmarks.peers.keepalive import Answer, Connection, post
from benchmarks.peers.running import Program, answers, free_port, running

PEER = "dynamo"
PACKAGE = "ai-dynamo-runtime"
_MODEL = "benchmark"
_SEED = 1337
_BLOCK_BYTES = 4 * BLOCK_TOKENS
_APPLIED = re.compile(
    rb'^dynamo_kvrouter_kv_cache_events_applied{event_type="stored",status="ok"} (\d+)$', re.M
)


@contextmanager
def indexer(folder: Path) -> Iterator[Program]:
    """With its default of four threads."""
    port = free_port()
    command = [str(folder / "bin" / "python"), "-m", "dynamo.indexer", "--port", str(port)]
    with running(command, port, answers("/workers"), {"DYN_LOG": "warn"}) as program:
        yield program


async def register(connection: Connection, instance: int, endpoint: str) -> None:
    """It subscribes to the endpoint from then on."""
    body = {
        "instance_id": instance,
        "endpoint": endpoint,
        "model_name": _MODEL,
        "block_size": BLOCK_TOKENS,
    }
    answer = await connection.ask(post("/register", msgspec.json.encode(body)))
    if answer.status != 201:
        raise NotMeasured(f"/register answered {answer.status}: {answer.body!r}")


async def unregister(connection: Connection, instance: int) -> None:
    """With the last instance its model's index goes."""
    body = {"instance_id": instance, "model_name": _MODEL}
    answer = await connection.ask(post("/unregister", msgspec.json.encode(body)))
    if answer.status != 200:
        raise NotMeasured(f"/unregister answered {answer.status}: {answer.body!r}")


def question(token_ids: Sequence[int]) -> bytes:
    """The request that asks how much of these blocks everyone holds, hashed beforehand."""
    body = {"block_hashes": list(map(_signed, local_hashes(token_ids))), "model_name": _MODEL}
    return post("/query_by_hash", msgspec.json.encode(body))


def scores(answer: Answer) -> dict[int, int]:
    """Blocks matched by instance; it counts tokens."""
    if answer.status != 200:
        raise NotMeasured(f"/query_by_hash answered {answer.status}: {answer.body[:200]!r}")
    said: dict[str, Any] = msgspec.json.decode(answer.body)
    return {
        int(instance): max(tokens_by_rank.values()) // BLOCK_TOKENS
        for instance, tokens_by_rank in said["scores"].items()
    }


async def events_applied(connection: Connection) -> int:
    """Stored events that are in the index, by its own count."""
    answer = await connection.ask(b"GET /metrics HTTP/1.1\r\nhost: benchmark\r\n\r\n")
    found = _APPLIED.search(answer.body)
    return int(found[1]) if found else 0


def local_hashes(token_ids: Sequence[int]) -> list[int]:
    packed = struct.pack(f"<{len(token_ids)}I", *token_ids)
    return [
        xxhash.xxh3_64_intdigest(packed[first : first + _BLOCK_BYTES], seed=_SEED)
        for first in range(0, len(packed) - _BLOCK_BYTES + 1, _BLOCK_BYTES)
    ]


def _signed(value: int) -> int:
    """Its questions are of i64."""
    return value - 2**64 if value >= 2**63 else value
