"""`pointsman fingerprints`: from logs and bodies, as a user calls it (a URL: tests/e2e)."""

import io
import json
from pathlib import Path
from typing import Any

import pytest

from router.main import main

BODY = {"messages": [{"role": "system", "content": "You are an agent."}]}


def line(**fields: Any) -> str:
    known = {
        "event": "request",
        "timestamp": "2026-11-30T10:44:26.5Z",
        "prefix_fingerprint": "0123456789ab",
        "replica": "a",
        "prompt_tokens": 100,
        "cached_tokens": 80,
    }
    return json.dumps(known | fields) + "\n"


def log(tmp_path: Path, *lines: str) -> str:
    path = tmp_path / "router.log"
    path.write_text("".join(lines))
    return str(path)


def test_a_log_is_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Share, first seen and hit rate; lines of other events and requests of nobody do not count."""
    path = log(
        tmp_path,
        line(event="router_started"),
        *[line()] * 3,
        line(prefix_fingerprint="b" * 12, cached_tokens=None, timestamp="2026-11-30T09:00:00Z"),
        line(replica=None, prefix_fingerprint="c" * 12),
        "\n",
    )
    assert main(["fingerprints", path]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "1 fingerprint is live, 2 were new; 4 requests"
    seen = ["2026-11-30", "10:44:26Z"]
    assert lines[3].split() == ["0123456789ab", "3", "75.0%", "80.0%", *seen, *seen]
    seen = ["2026-11-30", "09:00:00Z"]
    assert lines[4].split() == ["b" * 12, "1", "25.0%", "unknown", *seen, *seen]
    assert main(["fingerprints", path, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["fingerprints"][0]["hit_rate"] == 0.8


def test_more_than_expected_is_an_exit_status(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """For a pipeline: 1 where more are live than --max."""
    path = log(tmp_path, line(), line(prefix_fingerprint="b" * 12))
    assert main(["fingerprints", path, "--max", "2"]) == 0
    assert main(["fingerprints", path, "--max", "1"]) == 1
    assert "more than 1" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (line() + "{nonsense}\n", "line 2, column 2"),
        (line(timestamp="yesterday"), "line 1"),
        (line(timestamp=None), "line 1"),
        (line(prompt_tokens="many"), "line 1"),
        (line(prefix_fingerprint=5), "line 1"),
        (line(event="other"), "no request of a router"),
        ("", "no request of a router"),
        ("\ufffe", "line 1"),
    ],
)
def test_what_is_no_log_is_said_with_its_line(
    text: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit status 2 and where to look."""
    assert main(["fingerprints", log(tmp_path, text)]) == 2
    error = capsys.readouterr().err
    assert says in error and "router.log" in error


def test_the_fingerprint_of_one_body(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """For tenancy.shared_fingerprints; from a file or from stdin, which may be broken."""
    path = tmp_path / "body.json"
    path.write_text(json.dumps(BODY))
    assert main(["fingerprints", "--body", str(path)]) == 0
    printed = capsys.readouterr().out.strip()
    assert len(printed) == 12 and int(printed, 16)
    for text, says in (('{"a":\n x}', "line 2, column 2"), ("[]", "no fingerprint")):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
        assert main(["fingerprints", "--body", "-"]) == 2
        assert says in capsys.readouterr().err


def test_what_is_not_there_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A missing file, and an address where nobody listens, with a hint which it has to be."""
    assert main(["fingerprints", str(tmp_path / "missing.log")]) == 2
    assert "No such file" in capsys.readouterr().err
    assert main(["fingerprints", "http://127.0.0.1:1"]) == 2
    assert "admin.listen" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["fingerprints", "x.log", "--max", "many"])
