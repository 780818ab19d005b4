"""`pointsman tokens` prints the ids that a real engine used."""

import json
from pathlib import Path
from typing import Any

import pytest

from router.main import main
from tests.engine.test_token_parity import CASES, folder

__all__ = ["folder"]
# One of each kind; every case goes through the same code in test_token_parity.
SAMPLE = [case for case in CASES if case["chat_ids"] is not None][::8]
REFUSED = [case for case in CASES if case["chat_ids"] is None][:1]


@pytest.mark.parametrize("case", SAMPLE, ids=lambda case: case["case"])
def test_ids_and_text_equal_the_engines(
    case: dict[str, Any],
    folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """What vLLM answered with return_token_ids, from the body as it was sent."""
    body = tmp_path / "body.json"
    body.write_text(json.dumps(case["body"]))
    assert main(["tokens", str(body), "--model", str(folder), "--text"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["token_ids"] == case["chat_ids"]
    assert report["count"] == len(case["chat_ids"])
    # The recorded text is that of the ids, so it is a truncated one where the body asks for that.
    if "truncate_prompt_tokens" not in case["body"]:
        assert report["text"] == case["chat_text"]


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case["case"])
def test_what_the_engine_refuses_has_none(
    case: dict[str, Any],
    folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """One line says why."""
    body = tmp_path / "body.json"
    body.write_text(json.dumps(case["body"]))
    assert main(["tokens", str(body), "--model", str(folder)]) == 2
    printed = capsys.readouterr()
    assert printed.out == "" and "not tokenized: " in printed.err
