"""What real engines published, kept byte for byte: the captures under tests/wire."""

import json
from pathlib import Path
from typing import Any, NamedTuple

from indexer.replica import ReplicaState
from indexer.stream_outputs import Apply, Clear

WIRE = Path(__file__).parent.parent / "wire"
CAPTURES = sorted(path.name for path in WIRE.glob("*.jsonl"))
DP_CAPTURE = "v0320_dp2_qwen3_bs16.jsonl"
RESTART_CAPTURE = "llama_bs16_restart.jsonl"


class Frame(NamedTuple):
    seq: int
    payload: bytes


def lines_of(name: str) -> list[bytes]:
    return (WIRE / name).read_bytes().splitlines(keepends=True)


def records(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (WIRE / name).read_text().splitlines()]


def meta(name: str) -> dict[str, Any]:
    return next(record for record in records(name) if record["kind"] == "meta")


def lora_paths(name: str) -> dict[str, str]:
    about = meta(name)
    return {about["lora"]: about["lora_path"]} if "lora" in about else {}


def frames(name: str) -> list[Frame]:
    return [
        Frame(record["seq"], bytes.fromhex(record["payload_hex"]))
        for record in records(name)
        if record["kind"] == "frame"
    ]


def replay(state: ReplicaState, name: str) -> ReplicaState:
    """Applies a capture of one rank as its stream would; returns the state."""
    about, last = meta(name), -1
    state.learn(version=about["vllm"], lora_paths=lora_paths(name))
    for seq, payload in frames(name):
        if seq <= last:
            state.clear(Clear("sequence numbers fell back", restart=True))
        state.apply(Apply(seq, payload))
        last = seq
    return state
