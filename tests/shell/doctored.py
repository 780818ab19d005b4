"""Simulated replicas, and what the doctor says of them."""

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from router.main import main
from tests.ports import free_port_pair
from tests.processes import MAIN, ROOT, call


@contextmanager
def simulated(version: str, *flags: str) -> Iterator[dict[str, Any]]:
    """A replica in a process of its own; where it is."""
    http, events, replay = (free_port_pair() for _ in range(3))
    command = (*MAIN, "sim", "--port", str(http), "--vllm-version", version, "--blocks", "256")
    ports = () if "--event-endpoint" in flags else ("--event-port", str(events))
    with subprocess.Popen(
        (*command, *ports, "--replay-port", str(replay), *flags), stdout=subprocess.PIPE, cwd=ROOT
    ) as process:
        try:
            assert process.stdout is not None
            yield json.loads(process.stdout.readline())
        finally:
            process.terminate()


def generate(url: str, start: int, **more: Any) -> None:
    call(f"{url}/sim/generate", {"token_ids": list(range(start, start + 100)), **more})


def doctor(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, list[dict[str, Any]]]:
    """The exit status, and each engine's findings by check (and rank, where it has one)."""
    status = main(["doctor", *words, "--json"])
    report = json.loads(capsys.readouterr().out)
    assert report["ok"] == (status == 0) == (report["problems"] == 0)
    found = []
    for replica in report["replicas"]:
        names = [
            f["check"] if f["rank"] is None else f"{f['check']}#{f['rank']}"
            for f in replica["findings"]
        ]
        found.append(dict(zip(names, replica["findings"], strict=True)))
    return status, found


def levels(found: dict[str, Any], *checks: str) -> list[str]:
    return [found[check]["level"] for check in checks]
