import asyncio
import os
import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from benchmarks import demo
from benchmarks.demo_fleet import DemoSettings, sim_arguments, sim_url
from benchmarks.processes import ProcessFailed, pointsman

ROOT = Path(__file__).parent.parent.parent
SIM = sim_arguments(DemoSettings())
# No other process of this machine is likely to have so many blocks.
MARK = 4_000 + os.getpid() % 10_000


def simulators(blocks: int) -> dict[int, str]:
    """The processes with so many blocks."""
    listing = subprocess.run(["ps", "-ww", "-eo", "pid=,args="], capture_output=True, text=True)
    rows = [line.split(None, 1) for line in listing.stdout.splitlines()]
    return {
        int(pid): args
        for pid, args in rows
        if "router.main sim" in args and f"--blocks {blocks}" in args
    }


def left_over_stores() -> list[str]:
    """Sockets of the servers that have outlived their demo: its folder goes with it."""
    listing = subprocess.run(["ps", "-ww", "-eo", "args="], capture_output=True, text=True)
    sockets = re.findall(r"\S*/pointsman-demo-\S*/valkey\.sock", listing.stdout)
    return [found for found in sockets if not Path(found[found.index("/") :]).parent.exists()]


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url + "/health", timeout=5) as response:
            return response.status == 200
    except OSError:
        return False


async def test_process_lasts_as_long_as_its_context():
    """It is ready when the context begins and gone when it ends, by an error too."""
    with pytest.raises(KeyError):
        async with pointsman(*SIM, ready=sim_url, seconds_max=60) as url:
            assert await asyncio.to_thread(answers, url)
            raise KeyError
    assert not await asyncio.to_thread(answers, url)


async def test_process_that_does_not_start_says_why():
    """One that ends before it is ready fails with what it printed."""
    with pytest.raises(ProcessFailed, match=r"(?s)pointsman sim ended.*null block"):
        async with pointsman("sim", "--blocks", "1", ready=sim_url, seconds_max=60):
            pass


async def test_process_that_is_never_ready_is_stopped():
    """One that does not get ready in time fails and is gone."""
    arguments = sim_arguments(DemoSettings(blocks=MARK))
    with pytest.raises(ProcessFailed, match=r"was not ready within 0\.1 s"):
        async with pointsman(*arguments, ready=sim_url, seconds_max=0.1):
            pass
    assert simulators(MARK) == {}


async def test_process_that_ends_early_is_the_reason():
    """Whatever goes wrong after a process ended, its end is what is told."""
    arguments = sim_arguments(DemoSettings(blocks=MARK))
    with pytest.raises(ProcessFailed, match="pointsman sim ended"):
        async with pointsman(*arguments, ready=sim_url, seconds_max=60) as url:
            (pid,) = simulators(MARK)
            os.kill(pid, signal.SIGKILL)
            while await asyncio.to_thread(answers, url):
                pass
            raise KeyError


DEMO = (sys.executable, "-m", "router.main", "demo", "--agents", "2", "--speedup", "20")


def test_demo_runs_to_its_table():
    """A small demo answers everything, prints a row for each policy and leaves no process.

    What the killed service knew is there again, though engines replay next to nothing.
    """
    flags = ("--turns", "3", "--replicas", "2", "--blocks", str(MARK + 1))
    done = subprocess.run(
        (*DEMO, *flags), capture_output=True, text=True, cwd=ROOT, timeout=400, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [line.split() for line in done.stdout.splitlines() if line]
    for policy in ("round_robin", "prefix"):
        assert [policy, "6"] in [words[:2] for words in lines]
    back = " ".join(lines[-1])
    loaded = re.search(r"the index came back: ([\d,]+) blocks of [12] replicas loaded, exact", back)
    assert loaded is not None and int(loaded[1].replace(",", "")) > 100, back
    assert simulators(MARK + 1) == {} and left_over_stores() == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_stops_everything(number: int):
    """A signal in the middle ends the demo with 130, and its processes with it."""
    flags = ("--turns", "40", "--replicas", "1", "--blocks", str(MARK + 2))
    process = subprocess.Popen((*DEMO, *flags), stdout=subprocess.PIPE, text=True, cwd=ROOT)
    with process:
        # A quarter of the requests are answered.
        while " of 80 requests" not in process.stdout.readline():
            assert process.poll() is None
        assert simulators(MARK + 2)
        process.send_signal(number)
        assert process.wait(60) == 130
    assert simulators(MARK + 2) == {} and left_over_stores() == []


def test_missing_client_is_named(monkeypatch: pytest.MonkeyPatch, capsys):
    """Without the openai package the demo says what to install and ends with 2."""
    monkeypatch.setitem(sys.modules, "openai", None)
    assert demo.run_demo(DemoSettings()) == 2
    assert "pip install openai" in capsys.readouterr().err
