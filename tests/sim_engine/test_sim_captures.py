"""Requests that a real vLLM engine served, served again: the payloads must be its bytes.

Hashes, order of evictions, duplicates, re-announcements and the encoding are all in them.
"""

import itertools
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest

from benchmarks.sim.engine import SimulatedEngine
from benchmarks.sim.wire import WireFormat
from proto.blockhash import EngineScheme, RequestKeys

WIRE = Path(__file__).parent.parent / "wire"
# What imitates the captured version: 0.32 writes and hashes as 0.31 does.
WIRE_OF = {"0.32.0": "0.31", "0.23.0": "0.23"}
CAPTURES = [
    "v0320_true_duplicate.jsonl",
    "v0320_reannouncement.jsonl",
    "qwen3_bs16_sha256cbor_int_evict.jsonl",
    "qwen3_bs16_sha256_bytes.jsonl",
    "qwen3_bs16_sha256_int_noseed.jsonl",
    "qwen3_bs16_xxhash_cbor_bytes.jsonl",
    "v0320_reannouncement_mixed.jsonl",
    "inproc_v0230_bs16_sha256cbor_bytes.jsonl",
]


# How many requests of a step ran side by side, where it was more than one.
SIDE_BY_SIDE = {"conc": 4, "waiting": 2}


@dataclass
class Served:
    """One request of a capture; ``completion`` is what the engine generated, as far as recorded."""

    prompt: list[int]
    completion: list[int]
    body: dict
    cached_tokens: int | None = None
    arrives_at_step: int = 0


def records(name: str) -> list[dict]:
    return [json.loads(line) for line in (WIRE / name).read_text().splitlines()]


def served(capture: list[dict]) -> Iterator[list[Served] | None]:
    """What was served, in order: requests that ran side by side, or None for a reset."""
    chains, together = chains_of(capture), []
    recorded = {r["step"]: r for r in capture if r["kind"] == "request" and "body" in r}
    for record in capture:
        match record:
            case {"kind": "request", "step": "reset"} | {
                "kind": "note",
                "step": "reset",
                "text": "True",
            }:
                yield None
            case {"kind": "request", "step": "resp"}:
                # Its prompt was not recorded but for the blocks it announced; three tokens follow.
                yield [Served([*chains[22], 0, 0, 0], [], {"max_tokens": 4})]
            case {"kind": "request", "step": "msgs"}:
                # It equals the first prompt: the engine reported all of its blocks as read.
                yield [Served(recorded["a"]["prompt_token_ids"], [], {"max_tokens": 4})]
            case {"kind": "note", "step": "abort"}:
                yield [Served([*chains[29], 0], [], {"max_tokens": 1})]
            case {"kind": "request", "step": "n2", "prompt_token_ids": prompt, "body": body}:
                # Two samples; the second's frames show that it came one step later.
                outputs = [chains[seq][len(prompt) :] for seq in (19, 20)]
                yield [Served(prompt, out, body, None, at) for at, out in enumerate(outputs)]
            case {"kind": "request", "prompt_token_ids": prompt, "body": body}:
                cached = record["usage"]["prompt_tokens_details"]["cached_tokens"]
                completion = record.get("completion_token_ids") or []
                together.append(Served(prompt, completion, body, cached))
                if record["step"] == "waiting":
                    # The second came while the first was at its eleventh step, its frames show.
                    together[-1].arrives_at_step = 11 * (len(together) - 1)
                if len(together) == SIDE_BY_SIDE.get(record["step"].rstrip("0123456789"), 1):
                    # The one that hit least was admitted first.
                    yield sorted(together, key=lambda one: one.cached_tokens)
                    together = []


def chains_of(capture: list[dict]) -> dict[int, list[int]]:
    """Per frame of maps the tokens from the root to the end of what it stored last."""
    tokens: dict[object, list[int]] = {None: []}
    ends: dict[int, list[int]] = {}
    for record in capture:
        if record["kind"] != "frame":
            continue
        for event in msgspec.msgpack.decode(bytes.fromhex(record["payload_hex"]))[1]:
            if isinstance(event, dict) and event["type"] == "BlockStored":
                chain, size = tokens[event["parent_block_hash"]], event["block_size"]
                for index, block_hash in enumerate(event["block_hashes"]):
                    chain = chain + event["token_ids"][index * size : (index + 1) * size]
                    tokens[block_hash] = chain
                ends[record["seq"]] = chain
    return ends


def engine_of(meta: dict) -> SimulatedEngine:
    """An engine like the captured one; what a request generates is looked up in WHOLE."""
    seed, wire = meta["PYTHONHASHSEED"], WireFormat(WIRE_OF[meta["vllm"]])
    scheme = EngineScheme(meta["algo"], seed, meta["block_size"], extra_keys=wire.extra_keys)
    return SimulatedEngine(
        scheme,
        meta["num_gpu_blocks"],
        next_token=recorded_token,
        unhashed_first=wire.unhashed_first,
    )


# Whole token lists, by request id: what a request's tokens were once it had ended.
WHOLE: dict[str, list[int]] = {}


def recorded_token(request_id: str, token_ids: Sequence[int]) -> int:
    whole, position = WHOLE[request_id], len(token_ids)
    return whole[position] if position < len(whole) else 0


def add(engine: SimulatedEngine, request: Served, loras: dict[str, str]) -> str:
    name = f"request-{len(WHOLE)}"
    WHOLE[name] = request.prompt + request.completion
    body, lora = request.body, request.body.get("model")
    is_lora = lora in loras
    engine.add_request(
        name,
        request.prompt,
        body.get("max_tokens", len(request.completion) or 1),
        RequestKeys(
            lora_name=lora if is_lora else None,
            lora_path=loras[lora] if is_lora else None,
            lora_int_id=1 if is_lora else None,
            cache_salt=body.get("cache_salt"),
        ),
        skip_cache="prompt_logprobs" in body,
        report_full=body.get("vllm_xargs", {}).get("kv_cache_report_mode") == "full",
    )
    return name


def serve(engine: SimulatedEngine, requests: list[Served], loras: dict[str, str]) -> list[tuple]:
    """The batches of requests that run side by side to their ends."""
    expected, batches, late = {}, [], list(requests)
    for number in itertools.count():
        while late and late[0].arrives_at_step == number:
            request = late.pop(0)
            expected[add(engine, request, loras)] = request.cached_tokens
        if not engine.has_requests:
            return batches
        step = engine.step()
        batches += [step.events] if step.events else []
        for progress in step.progress:
            assert expected[progress.request_id] in (None, progress.cached_tokens)


def serve_all(capture: list[dict], served_in_turn: Iterable[list[Served] | None]) -> list[tuple]:
    meta = capture[0]
    loras = {meta["lora"]: meta["lora_path"]} if "lora" in meta else {}
    engine, batches = engine_of(meta), []
    for requests in served_in_turn:
        if requests is None:
            assert engine.reset_prefix_cache()
        else:
            batches += serve(engine, requests, loras)
    return batches


def assert_same_bytes(capture: list[dict], batches: list[tuple], frames: list[dict]) -> None:
    wire = WireFormat(WIRE_OF[capture[0]["vllm"]], capture[0]["int_hashes"])
    for batch, frame in zip(batches, frames, strict=True):
        theirs = bytes.fromhex(frame["payload_hex"])
        timestamp, events, rank = msgspec.msgpack.decode(theirs)
        if b"session_id" in theirs:
            # Sessions are not simulated: this field, and nothing else, may differ.
            plain = [{k: v for k, v in event.items() if k != "session_id"} for event in events]
            theirs = msgspec.msgpack.encode((timestamp, plain, rank))
        assert wire.encode(timestamp, batch, rank) == theirs, f"frame {frame['seq']}"


@pytest.mark.parametrize("name", CAPTURES)
def test_requests_publish_the_captured_bytes(name: str):
    """A real engine's requests, served again, give its payloads byte for byte and in order."""
    capture = records(name)
    batches = serve_all(capture, served(capture))
    assert_same_bytes(capture, batches, [r for r in capture if r["kind"] == "frame"])


def test_adapter_requests_publish_the_captured_bytes():
    """LoRA and salted LoRA requests give the payloads of a real engine, from its reset on."""
    capture = records("qwen3_bs16_sha256cbor_bytes_lora.jsonl")
    reset = next(at for at, r in enumerate(capture) if r.get("step") == "reset")
    rest = [r for r in capture[reset:] if r["kind"] in ("frame", "request")]
    batches = serve_all(capture, served(rest))
    assert_same_bytes(capture, batches, [r for r in rest if r["kind"] == "frame"])
