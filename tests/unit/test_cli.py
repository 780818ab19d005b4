"""The command line, as processes of their own."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from indexer.inspection import inspect
from tests.unit.captures import RESTART_CAPTURE, WIRE

CAPTURE = WIRE / RESTART_CAPTURE


def pointsman(*arguments: str | Path, path: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = os.environ | ({"PYTHONPATH": str(path)} if path else {})
    return subprocess.run(
        [sys.executable, "-m", "router.main", *map(str, arguments)],
        capture_output=True,
        text=True,
        env=environment,
        cwd=Path(__file__).parent.parent.parent,
        timeout=60,
    )


def test_inspect_prints_one_line_per_file() -> None:
    """Each file's report is one JSON line, in the order of the arguments."""
    other = WIRE / "v0320_true_duplicate.jsonl"
    done = pointsman("events", "inspect", CAPTURE, other)
    assert (done.returncode, done.stderr) == (0, "")
    reports = [json.loads(line) for line in done.stdout.splitlines()]
    assert reports == [inspect(path.read_bytes().splitlines()) for path in (CAPTURE, other)]


def test_inspect_with_hashes() -> None:
    """--hashes adds the resident hashes, sorted, 16 hex digits each."""
    report = json.loads(pointsman("events", "inspect", "--hashes", CAPTURE).stdout)
    assert len(report["hashes"]) == report["resident"] == 12
    assert report["hashes"] == sorted(report["hashes"])
    assert all(len(text) == 16 and int(text, 16) >= 0 for text in report["hashes"])


def test_a_file_that_is_no_capture_is_one_line_and_exit_2(tmp_path: Path) -> None:
    """Every bad file has its own line on stderr; the good ones are reported all the same."""
    text, empty = tmp_path / "text", tmp_path / "empty"
    text.write_text("not json\n")
    empty.write_text("")
    missing = tmp_path / "missing"
    done = pointsman("events", "inspect", text, empty, missing, tmp_path, CAPTURE)
    assert done.returncode == 2
    assert len(done.stdout.splitlines()) == 1
    lines = done.stderr.splitlines()
    assert [line.count(str(tmp_path)) for line in lines] == [1, 1, 1, 1]
    assert "line 1: not a JSON object" in lines[0] and "no line is a frame" in lines[1]
    assert "No such file" in lines[2] and "Is a directory" in lines[3]


@pytest.mark.parametrize(
    "arguments", [(), ("events",), ("events", "inspect"), ("events", "record"), ("nonsense",)]
)
def test_an_incomplete_command_is_helped_and_exits_2(arguments: tuple[str, ...]) -> None:
    """What is missing is said on stderr, together with how it is used."""
    done = pointsman(*arguments)
    assert done.returncode == 2 and done.stdout == ""
    assert "usage: pointsman" in done.stderr


@pytest.mark.parametrize("arguments", [("inspect",), ("record",)])
def test_help_shows_an_example(arguments: tuple[str, ...]) -> None:
    """Each command's help ends with a command that can be copied."""
    done = pointsman("events", *arguments, "--help")
    assert done.returncode == 0
    assert "example:" in done.stdout and f"pointsman events {arguments[0]} " in done.stdout


def test_version() -> None:
    """--version names the program and its version."""
    assert pointsman("--version").stdout == "pointsman 0.1.0\n"


def test_recording_from_nowhere_fails_in_one_line(tmp_path: Path) -> None:
    """An unreachable replica is exit 1, says what to check, and leaves no file."""
    out = tmp_path / "out.jsonl"
    done = pointsman("events", "record", "--replica", "http://127.0.0.1:9", "--out", out)
    assert done.returncode == 1 and not out.exists()
    (line,) = done.stderr.splitlines()
    assert "check that the replica is up" in line


@pytest.mark.parametrize("seconds", ["0", "-1", "x", "nan"])
def test_recording_for_no_time_is_a_usage_error(tmp_path: Path, seconds: str) -> None:
    """--seconds takes a number above zero."""
    arguments = ("--replica", "http://h", "--out", tmp_path / "o", "--seconds", seconds)
    done = pointsman("events", "record", *arguments)
    assert done.returncode == 2 and "no number of seconds" in done.stderr


@pytest.mark.parametrize("content", ["Message = object\n", "raise ImportError('no protobuf')\n"])
def test_a_foreign_proto_is_named(tmp_path: Path, content: str) -> None:
    """A package called `proto` that hides ours is one clear line and exit 2, no traceback."""
    foreign = tmp_path / "proto"
    foreign.mkdir()
    (foreign / "__init__.py").write_text(content)
    code = (
        "import runpy, sys;"
        f"sys.path.insert(0, {str(tmp_path)!r});"
        "sys.argv = ['pointsman', '--version'];"
        "runpy.run_module('router.main', run_name='__main__')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert "proto-plus" in line and "environment of its own" in line


def test_an_output_nobody_reads_is_no_traceback() -> None:
    """A closed pipe ends the command quietly."""
    with subprocess.Popen(
        [sys.executable, "-m", "router.main", "events", "inspect", *[str(CAPTURE)] * 3],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=Path(__file__).parent.parent.parent,
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(60) == 1
