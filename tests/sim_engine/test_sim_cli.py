import json
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from router.main import main

MAIN = (sys.executable, "-m", "router.main", "sim")
ANY_PORTS = ("--port", "0", "--event-port", "0", "--replay-port", "0")
ROOT = Path(__file__).parent.parent.parent


def pointsman(*flags: str) -> int:
    """The exit status of the command, run in this process."""
    try:
        return main(["sim", *flags])
    except SystemExit as exit:
        return int(exit.code or 0)


def test_runs_until_terminated():
    """It says in one JSON line where it listens, serves, and ends with 0 on SIGTERM."""
    flags = (*ANY_PORTS, "--data-parallel-size", "2", "--lora", "sql=/adapters/sql")
    process = subprocess.Popen((*MAIN, *flags), stdout=subprocess.PIPE, text=True, cwd=ROOT)
    with process:
        ready = json.loads(process.stdout.readline())
        assert len(ready["event_endpoints"]) == len(ready["replay_endpoints"]) == 2
        with urllib.request.urlopen(ready["url"] + "/v1/models", timeout=10) as response:
            assert [card["id"] for card in json.load(response)["data"]] == ["sim", "sql"]
        asked = urllib.request.Request(
            ready["url"] + "/v1/completions", b'{"model": "sql", "prompt": "Once"}'
        )
        with urllib.request.urlopen(asked, timeout=10) as response:
            assert json.load(response)["usage"]["completion_tokens"] == 16
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0 and process.stdout.read() == ""


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        (("--port", "http"), "'http' is no whole number"),
        (("--block-size", "0"), "'0' is no whole number"),
        (("--lora", "sql"), "expected NAME=PATH"),
        (("--blocks", "1"), "null block"),
        (("--algorithm", "xxhash", "--hash-seed", "none"), "random root"),
        (("--vllm-version", "0.31", "--lookahead", "1"), "lookahead"),
        (("--event-port", "5557", "--replay-port", "5558", "--data-parallel-size", "2"), "apart"),
        (("--event-endpoint", "ipc:///tmp/x", "--data-parallel-size", "2"), "ranks"),
        (("--step-ms", "-1"), "duration"),
        (("--speedup", "2"), "--cost-model"),
        (("--cost-model", "abacus"), "qwen3-32b-h100-fp8"),
        (("--cost-model", "qwen3-32b-h100-fp8", "--step-ms", "1"), "in the place of"),
        (("--cost-model", "qwen3-32b-h100-fp8", "--speedup", "0"), "above 0"),
        (("--tokenizer", "nowhere"), "tokenizer.json"),
    ],
)
def test_bad_flags_are_one_clear_line(
    flags: tuple[str, ...], complaint: str, capsys: pytest.CaptureFixture[str]
):
    """A flag that makes no sense ends with 2 and a line that says which and why."""
    assert pointsman(*flags) == 2
    printed = capsys.readouterr()
    assert printed.out == "" and complaint in printed.err.splitlines()[-1]


def test_help_has_an_example(capsys: pytest.CaptureFixture[str]):
    """--help shows a command to copy."""
    assert pointsman("--help") == 0
    assert "pointsman sim --port 8001" in capsys.readouterr().out
