"""Records what a real engine published, with what it was asked and what it reported.

    python -m tests.engine.record older|translated|two_ranks ...

One file per variant into ``tests/engine/recorded``, which ``test_recorded.py`` replays without an
engine. The events are those of ``pointsman events record``. It cannot record vLLM before 0.31,
which does not say where it publishes: of that one the replay is asked here.
"""

import json
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from router.main import main
from router.pool_tokenizer import PoolTokenizer
from tests.engine.engine import Engine, engines
from tests.engine.engine_log import replayed
from tests.engine.install import OLDER, model_folder
from tests.engine.mix import short_mix
from tests.engine.proof import Explainer
from tests.engine.runs import Sequential
from tests.engine.services import Services
from tests.engine.variants import VARIANTS

RECORDED = Path(__file__).parent / "recorded"
# The whole log comes by replay, at once.
_RECORD_S = "3"


def record(variant: str) -> Path:
    settings, evidence = VARIANTS[variant]
    out = RECORDED / f"{variant}.jsonl"
    RECORDED.mkdir(exist_ok=True)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        (engine,) = stack.enter_context(engines(folder, settings, ("v",)))
        services = Services(stack, folder, [engine])
        services.serve()
        tokenizer = PoolTokenizer.load(str(model_folder()))
        mix = Sequential(services, Explainer(services, tokenizer, {}), short_mix(3))
        mix.run()
        assert services.router is not None
        services.router.stop()
        events = _events(engine, folder / "events.jsonl")
    about = {
        "kind": "recorded",
        "vllm": settings.version,
        "algo": settings.algorithm,
        "PYTHONHASHSEED": settings.seed,
        "ranks": settings.ranks,
        "evidence": evidence,
        "origin": "A real vLLM engine on a CPU with random weights and Qwen3's tokenizer, asked the"
        " short mix of tests/engine/mix.py by tests/engine/record.py",
    }
    requests = [
        {
            "kind": "request",
            "replica": prediction.replica,
            "seq": seq,
            "prompt_ids": answer.prompt_ids,
            "cache_salt": answer.ask.body.get("cache_salt"),
            "cached_tokens": answer.cached_tokens,
        }
        for prediction, (answer, seq) in zip(mix.predictions, mix.answers, strict=True)
    ]
    lines = [json.dumps(about), *events, *(json.dumps(request) for request in requests)]
    out.write_text("\n".join(lines) + "\n")
    return out


def _events(engine: Engine, file: Path) -> list[str]:
    if engine.settings.version == OLDER:
        return [
            json.dumps({"kind": "frame", "topic": "", "seq": seq, "payload_hex": payload.hex()})
            for seq, payload in replayed(engine.replay_endpoint())
        ]
    arguments = ["events", "record", "--replica", engine.url, "--out", str(file)]
    bind = ["--bind", engine.event_endpoint] if engine.settings.dials else []
    assert main([*arguments, "--seconds", _RECORD_S, *bind]) == 0
    return file.read_text().splitlines()


if __name__ == "__main__":
    for name in sys.argv[1:] or VARIANTS:
        print(record(name))
