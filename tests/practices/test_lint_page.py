"""The worked example of docs/practices/lint.md is what the command prints."""

import json
import re
from pathlib import Path

import pytest

from benchmarks.data import TOKENIZER_DIRECTORY
from router.main import main
from router.practices.lint_command import _KINDS
from router.practices.lint_replay import KINDS
from tests.practices.lint_traffic import story
from tests.processes import ROOT

PAGE = (ROOT / "docs/practices/lint.md").read_text()


def test_the_worked_example_is_real(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Word by word, from traffic that the tests make."""
    log = tmp_path / "shop.jsonl"
    log.write_text("".join(f"{json.dumps(body)}\n" for body in story()))
    assert main(["lint", str(log), "--model", str(TOKENIZER_DIRECTORY)]) == 0
    printed = capsys.readouterr().out
    shown = [block for block in re.findall(r"^```\n(.*?)^```", PAGE, re.M | re.S)]
    assert printed in shown


def test_every_kind_is_explained() -> None:
    """On the page and in the command's help, in one order."""
    assert re.findall(r"^\| `(\w+)` \|", PAGE, re.M) == list(KINDS) == _KINDS
