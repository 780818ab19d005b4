"""Recording from a simulated replica, and inspecting what was recorded."""

import json
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from indexer.inspection import inspect
from tests.ports import free_port_pair

MAIN = (sys.executable, "-m", "router.main")
ROOT = Path(__file__).parent.parent.parent
READY_S_MAX = 30.0


@contextmanager
def simulated(*flags: str) -> Iterator[str]:
    """A replica of two ranks in a process of its own; its URL."""
    http, replay = free_port_pair(), free_port_pair()
    command = (*MAIN, "sim", "--host", "0.0.0.0", "--port", str(http), "--replay-port", str(replay))
    with subprocess.Popen(
        (*command, "--data-parallel-size", "2", "--lora", "sql=/adapters/sql", *flags),
        stdout=subprocess.PIPE,
        cwd=ROOT,
    ) as process:
        try:
            assert process.stdout is not None and process.stdout.readline()
            yield f"http://127.0.0.1:{http}"
        finally:
            process.terminate()


def post(url: str, path: str, body: dict[str, Any]) -> None:
    request = urllib.request.Request(url + path, json.dumps(body).encode(), method="POST")
    with urllib.request.urlopen(request, timeout=READY_S_MAX) as response:
        response.read()


def generate(url: str, start: int, rank: int, lora: str | None = None) -> None:
    tokens = list(range(start, start + 100))
    post(url, "/sim/generate", {"token_ids": tokens, "rank": rank, "lora_name": lora})


@contextmanager
def recorder(url: str, out: Path, *flags: str) -> Iterator[subprocess.Popen[str]]:
    """A recording in a process of its own, which does not outlive a test that fails."""
    command = (*MAIN, "events", "record", "--replica", url, "--out", str(out), *flags)
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=ROOT) as process:
        try:
            yield process
        finally:
            process.kill()


def wait_for_frames(out: Path, count: int) -> None:
    deadline = time.monotonic() + READY_S_MAX
    while not out.exists() or out.read_text().count('"kind": "frame"') < count:
        assert time.monotonic() < deadline, "no frames came"
        time.sleep(0.02)


@pytest.mark.parametrize("connects", [False, True])
def test_history_live_frames_and_a_restart_are_recorded(tmp_path: Path, connects: bool) -> None:
    """Everything is written once and in order, whoever connects, and inspect understands it."""
    out, port = tmp_path / "out.jsonl", free_port_pair()
    listening = ("--event-endpoint", f"tcp://127.0.0.1:{port}", "--topic", "kv@a")
    with simulated(*(listening if connects else ("--event-port", str(port)))) as url:
        for rank in (0, 1, 1):
            generate(url, 0 if rank else 500, rank)
        bind = ("--bind", f"tcp://127.0.0.1:{port}") if connects else ()
        with recorder(url, out, *bind) as process:
            wait_for_frames(out, 2)
            generate(url, 1000, 0, "sql")
            wait_for_frames(out, 3)
            post(url, "/sim/fault", {"kind": "restart"})
            for start in (2000, 3000):
                generate(url, start, 0)
            wait_for_frames(out, 5)
            process.send_signal(signal.SIGINT)
            assert process.wait(READY_S_MAX) == 0
            assert process.stderr is not None
            assert "5 batches recorded" in process.stderr.read()
    report = inspect(out.read_bytes().splitlines())
    assert (report["batches"], report["malformed_batches"]) == (5, 0)
    assert report["reproduced"] == report["stored"] == 30
    # Rank 0 was heard to restart; of rank 1 nothing came after it.
    assert report["resident"] == 18
    assert [scheme["rank"] for scheme in report["schemes"]] == [0, 1]


def test_what_cannot_be_recorded_is_told_by_exit_status(tmp_path: Path) -> None:
    """Wrong flags are exit 2 and name the right ones; an older recording is never overwritten."""
    out, port = tmp_path / "out.jsonl", free_port_pair()
    with simulated("--event-endpoint", f"tcp://127.0.0.1:{port}") as url:
        with recorder(url, out) as process:
            _, errors = process.communicate(timeout=READY_S_MAX)
        assert process.returncode == 2 and "--bind" in errors and not out.exists()
        out.write_text("older")
        with recorder(url, out, "--bind", f"tcp://127.0.0.1:{port}") as process:
            _, errors = process.communicate(timeout=READY_S_MAX)
        assert process.returncode == 2 and "exists already" in errors
        assert out.read_text() == "older"
