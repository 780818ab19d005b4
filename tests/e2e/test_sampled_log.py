"""A router that keeps samples, and what `pointsman lint` finds in them."""

import json
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest

from benchmarks.data import TOKENIZER_DIRECTORY
from router.main import main
from tests.e2e.services import services
from tests.practices import lint_traffic as planted
from tests.practices.lint_traffic import traffic
from tests.processes import until


def sampled(folder: Path) -> list[dict[str, Any]]:
    return [
        json.loads(line)
        for file in sorted(folder.glob("samples-*.jsonl"))
        for line in file.read_text().splitlines()
    ]


def test_a_clock_is_found_in_what_was_sampled(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The log has each request whole, with the engine's own figures and without key and salt; lint
    reads it as it is."""
    folder = tmp_path / "samples"
    settings = f'[router.sample]\nfolder = "{folder}"\nshare = 1.0'
    bodies = traffic(planted.clock, conversations=2, steps=3)
    with services(tmp_path, replicas=1, together=True, settings=settings) as fleet:
        for body in bodies:
            answer = httpx.post(
                f"{fleet.url}/v1/chat/completions",
                json={**body, "model": "sim", "max_tokens": 1, "cache_salt": "hush-hush"},
                headers={"Authorization": "Bearer sk-hidden"},
                timeout=60,
            )
            assert answer.status_code == 200
        until(lambda: len(sampled(folder)) == len(bodies), "all samples are written")
        assert fleet.metric("pointsman_samples_total", outcome="written") == len(bodies)
        assert fleet.metric("pointsman_samples_total", outcome="unwritable") == 0
    lines = sampled(folder)
    assert [line["body"]["messages"] for line in lines] == [body["messages"] for body in bodies]
    assert all(line["prompt_tokens"] > 500 and line["replica"] == "a" for line in lines)
    assert len({line["body"]["cache_salt"] for line in lines}) == 1
    text = json.dumps(lines)
    assert "hush-hush" not in text and "sk-hidden" not in text
    status = main(["lint", str(folder), "--model", str(TOKENIZER_DIRECTORY), "--json"])
    report = json.loads(capsys.readouterr().out)
    assert status == 0 and report["requests"] == len(bodies)
    assert [finding["kind"] for finding in report["findings"]] == ["clock"]
    reported = sum(line["prompt_tokens"] for line in lines)
    assert report["prompt_tokens"] == reported, "lint counts tokens as the engine does"
