"""The peers' programs and folders: kept, started, measured, ended."""

import sys
import time
from pathlib import Path

import pytest

from benchmarks.peers.figures import Figure, NotMeasured
from benchmarks.peers.installing import PINS, installed
from benchmarks.peers.proxies import BARE, OURS_PREFIX, PROXIES, nginx
from benchmarks.peers.relaying import SMALL, STREAM, measure
from benchmarks.peers.running import running

# Works for half a second, with a child that works as long, and waits.
_BUSY = """
import subprocess, sys, time
work = "import time\\nend = time.process_time() + 0.5\\nwhile time.process_time() < end: pass\\n"
child = subprocess.Popen([sys.executable, "-c", work + "print('done', flush=True); time.sleep(60)"],
                         stdout=subprocess.PIPE)
exec(work)
child.stdout.readline()
open(sys.argv[1], "w").write(str(child.pid))
time.sleep(60)
"""


def test_the_processor_time_is_that_of_a_program_and_its_children(tmp_path: Path) -> None:
    """And when the context ends, all of them have ended."""
    said = tmp_path / "child"

    def ready(_: int) -> bool:
        return said.exists() and said.read_text() != ""

    with running([sys.executable, "-c", _BUSY, str(said)], 0, ready) as program:
        child = Path(f"/proc/{said.read_text()}")
        assert child.exists()
        assert 1.0 <= program.cpu_s() < 10.0
    deadline = time.monotonic() + 5
    while child.exists() and "Z" not in (child / "stat").read_text().split()[2]:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_program_that_ends_is_not_measured_and_its_last_words_are_told() -> None:
    """The reason holds the exit code and what the program said."""
    command = [sys.executable, "-c", "raise SystemExit('no such worker')"]
    with (
        pytest.raises(NotMeasured, match=r"ended with 1\nno such worker"),
        running(command, 0, lambda _: False),
    ):
        pass


def test_a_program_that_is_not_there_is_not_measured() -> None:
    """What cannot be started is a reason like any other."""
    with (
        pytest.raises(NotMeasured, match="cannot be started"),
        running(["/nonexistent/program"], 0, lambda _: True),
    ):
        pass


def test_a_kept_folder_with_the_same_pin_is_used_again(tmp_path: Path) -> None:
    """Nothing is fetched for it."""
    name = "vllm-router"
    folder = tmp_path / name
    folder.mkdir()
    (folder / "pointsman-pin.txt").write_text(f"{name}=={PINS[name]}")
    assert installed(name, tmp_path) == folder


def test_without_nginx_there_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """nginx is used where it is installed, and is nobody's dependency."""
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(NotMeasured, match="no nginx on the PATH"), nginx([]):
        pass


def test_ours_and_the_bare_pass_through_are_measured_in_front_of_the_same_engines() -> None:
    """Small requests and streams go through both; ours routes by an index that it has proven."""
    proxies = {peer: PROXIES[peer] for peer in (OURS_PREFIX, BARE)}
    lines = list(measure(1, 0.001, proxies))
    assert all(isinstance(line, Figure) for line in lines), lines
    figures = {(line.name, line.peer) for line in lines}
    assert figures == {(name, peer) for name in (SMALL, STREAM) for peer in proxies}
