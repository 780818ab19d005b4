"""Captures what a real engine publishes of requests that run side by side, for ``tests/wire``.

    python -m tests.engine.capture

The other captures there are of requests one by one. Here batches have events of several requests:
an adapter, salts, clients that leave, several sequences of one prompt, evictions, and a reset in
the middle. The events are those of ``pointsman events record``.
"""

import json
import tempfile
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from router.main import main
from tests.engine import mix
from tests.engine.adapter import write_adapter
from tests.engine.client import send
from tests.engine.engine import Engine, EngineSettings, engines
from tests.engine.install import ROOT
from tests.engine.runs import at_once
from tests.processes import call

OUT = ROOT / "tests/wire/v0320_side_by_side_lora_salts_reset.jsonl"
# The whole log comes by replay, at once.
_RECORD_S = "3"
_BLOCKS = 160


def lanes(seed: int) -> dict[str, mix.Lane]:
    made = {
        "adapter": mix.adapter,
        "salts": mix.salts,
        "aborts": mix.aborts,
        "several_sequences": mix.several_sequences,
        "full_hits": mix.full_hits,
        "evictions": evictions,
    }
    return {name: make(mix.Writer(f"{seed}/{name}")) for name, make in made.items()}


def evictions(write: mix.Writer) -> mix.Lane:
    """Prompts of half a pool, as small as this one is."""
    for _ in range(3):
        yield mix.completion(write.ids(_BLOCKS * 8), max_tokens=2)


def capture(out: Path) -> None:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        adapter = write_adapter(folder / "sql")
        lora = ("--enable-lora", "--max-lora-rank", "8", "--lora-modules", f"sql={adapter}")
        settings = EngineSettings(blocks=_BLOCKS, context_tokens=2_048, flags=lora)
        (engine,) = stack.enter_context(engines(folder, settings, ("side",)))
        for seed in (1, 2):
            at_once(partial(send, engine.url), lanes(seed))
            call(f"{engine.url}/reset_prefix_cache", {})
        # What was dropped is told with the next step.
        send(engine.url, mix.completion([7] * 40))
        out.write_text("".join(f"{line}\n" for line in (_about(settings, adapter), *_log(engine))))


def _about(settings: EngineSettings, adapter: Path) -> str:
    about = {
        "kind": "meta",
        "vllm": settings.version,
        "block_size": 16,
        "algo": settings.algorithm,
        "PYTHONHASHSEED": settings.seed,
        "int_hashes": settings.integers,
        "num_gpu_blocks": settings.blocks,
        "lora": "sql",
        "lora_path": str(adapter),
        "origin": "A real vLLM engine on a CPU with random weights and Qwen3's tokenizer, asked by"
        " tests/engine/capture.py and recorded by pointsman events record",
    }
    return json.dumps(about)


def _log(engine: Engine) -> list[str]:
    file = engine.folder / "events.jsonl"
    arguments = ["events", "record", "--replica", engine.url, "--out", str(file)]
    assert main([*arguments, "--seconds", _RECORD_S]) == 0
    return file.read_text().splitlines()


if __name__ == "__main__":
    capture(OUT)
    print(OUT)
