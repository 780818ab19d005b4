"""Token ids that are computed here are those that a real vLLM uses, id by id."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from router.openai import CHAT_PATH
from tests.engine.bodies import bodies
from tests.engine.client import Answer, chat, completion
from tests.engine.install import ROOT
from tests.engine.stage import Stage
from tests.engine.test_token_parity import CASES

_SHARED = Path(os.environ.get("POINTSMAN_SHARED", ROOT.parent / "shared")) / "requests"
_COMPARED_MIN = 60


def compared(stage: Stage, name: str, path: str, fields: dict[str, Any]) -> Answer:
    """Sent through the router; what the engine served has our ids."""
    fields = {"max_tokens": 1} | fields
    prompt = fields.pop("prompt", None)
    ask = chat(**fields) if path == CHAT_PATH else completion(prompt, **fields)
    answer = stage.services.send(ask)
    differs = stage.explainer.parity(answer)
    assert not differs, f"{name}: {differs}; {json.dumps(ask.body)[:1000]}"
    return answer


def test_bodies_of_every_kind(stage: Stage) -> None:
    """What the engine refuses is named; at least sixty are served and compared."""
    served, refused = 0, []
    for name, (path, fields) in bodies().items():
        answer = compared(stage, name, path, fields)
        if answer.status == 200:
            assert answer.prompt_ids, name
            served += 1
        else:
            assert answer.status == 400, f"{name}: {answer.error}"
            refused.append(f"{name}: {answer.error}")
    print(f"{served} bodies have the engine's ids; refused:", *refused, sep="\n  ")
    assert served >= _COMPARED_MIN


def test_recorded_bodies(stage: Stage) -> None:
    """What was recorded of an engine is what this one does, so the recording is still true."""
    for case in CASES:
        fields = {key: value for key, value in case["body"].items() if key != "model"}
        answer = compared(stage, case["case"], CHAT_PATH, fields)
        assert answer.prompt_ids == case["chat_ids"], case["case"]


def test_bodies_of_real_agents(stage: Stage) -> None:
    """Where a folder with recorded bodies lies beside the repository."""
    files = sorted(_SHARED.glob("[0-9]*.json"))
    if not files:
        pytest.skip("no recorded bodies: POINTSMAN_SHARED names a folder with requests/*.json")
    for file in files:
        fields = json.loads(file.read_text())
        kept = {key: fields[key] for key in fields.keys() - {"model", "stream_options"}}
        answer = compared(stage, file.name, CHAT_PATH, kept)
        assert answer.status == 200 and answer.prompt_ids, f"{file.name}: {answer.error}"
    print(f"{len(files)} bodies of agents have the engine's ids")
