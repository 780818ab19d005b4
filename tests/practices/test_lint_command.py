"""`pointsman lint` as a user runs it: what is printed, what is written, how it ends."""

import io
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from random import Random

import pytest

from benchmarks.data import TOKENIZER_DIRECTORY
from router.main import main
from tests.practices import lint_traffic as planted
from tests.practices.lint_traffic import Body, Fault, Place, traffic

MODEL = ["--model", str(TOKENIZER_DIRECTORY)]
Capture = pytest.CaptureFixture[str]


def write(folder: Path, *faults: Fault, name: str = "log.jsonl", conversations: int = 4) -> str:
    file = folder / name
    bodies = traffic(*faults, conversations=conversations, steps=3)
    file.write_text("".join(f"{json.dumps(body)}\n" for body in bodies))
    return str(file)


def lint(*arguments: str) -> int:
    return main(["lint", *arguments, *MODEL])


def test_text_json_and_page_tell_the_same(tmp_path: Path, capsys: Capture) -> None:
    """The finding, its cost, and the rates before and after are in all three."""
    log, page = write(tmp_path, planted.clock), tmp_path / "report.html"
    assert lint(log, "--html", str(page)) == 0
    text = capsys.readouterr().out
    assert lint(log, "--json") == 0
    report = json.loads(capsys.readouterr().out)
    (finding,) = report["findings"]
    assert finding["kind"] == "clock" and report["requests"] == 12
    assert finding["hit_rate_fixed"] == report["hit_rate_fixed"] > report["hit_rate"]
    for shown in (text, page.read_text()):
        assert "clock" in shown and f"{finding['tokens_lost']:,} tokens" in shown
        assert f"{report['hit_rate'] * 100:.1f} %" in shown
        assert f"{report['hit_rate_fixed'] * 100:.1f} %" in shown
        assert "The current time is 0000-00-00 00:00:00." in shown
    assert "\x1b" not in text, "colour is for terminals"


def test_json_keys_are_stable(tmp_path: Path, capsys: Capture) -> None:
    """Programs depend on these."""
    assert lint(write(tmp_path, planted.clock), "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert {"requests", "hit_rate", "hit_rate_fixed", "findings"} <= report.keys()
    wanted = {"kind", "requests", "tokens_lost", "example", "fix", "hit_rate_fixed"}
    assert wanted <= report["findings"][0].keys()


@pytest.mark.parametrize(
    ("flags", "status"),
    [
        ([], 0),
        (["--fail-on", "ids"], 0),
        (["--fail-on", "ids,clock"], 1),
        (["--fail-on", "any"], 1),
        (["--min-hit-rate", "0"], 0),
        (["--min-hit-rate", "50%"], 1),
    ],
)
def test_exit_status_for_ci(flags: list[str], status: int, tmp_path: Path, capsys: Capture) -> None:
    """A finding alone is no failure; what is asked for is, and stderr says which."""
    assert lint(write(tmp_path, planted.clock), *flags) == status
    said = capsys.readouterr()
    assert "1. clock" in said.out
    assert (flags[0] in said.err) if status else not said.err


def test_clean_traffic_passes_all_gates(tmp_path: Path, capsys: Capture) -> None:
    """The control for CI."""
    assert lint(write(tmp_path), "--fail-on", "any", "--min-hit-rate", "50") == 0
    assert "Nothing that breaks prefixes was found." in capsys.readouterr().out


def test_bad_lines_are_named_and_left_out(tmp_path: Path, capsys: Capture) -> None:
    """With line and column, without a word of theirs; the others count."""
    log = Path(write(tmp_path))
    good = log.read_text()
    log.write_text(f'{{"messages": [}}\n[1]\n\n{{"hush": "mum"}}\n{good}\n{{"prompt": NaN}}\n')
    assert lint(str(log), "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["requests"] == 12 and report["bad_lines"] == 4
    assert report["complaints"][0] == f"{log}:1:15: no JSON: Expecting value"
    assert f"{log}:2:1: no JSON object" in report["complaints"]
    assert "mum" not in json.dumps(report)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "no line of LOG holds a request"),
        (b'{"a": 1', "LOG:1:8: no JSON: Expecting ',' delimiter"),
        (b'{"prompt": "\xff"}\n', "LOG:1:13: no UTF-8"),
        (b'{"messages": 7}\n', "no request could be tokenized; the first, LOG:1: "),
        (b'{"prompt": ' + b"[" * 100_000, "LOG:1:1: nested too deeply"),
    ],
)
def test_a_log_without_requests_is_refused(
    content: bytes, complaint: str, tmp_path: Path, capsys: Capture
) -> None:
    """Exit status 2, and one line on stderr that says where."""
    log = tmp_path / "log.jsonl"
    log.write_bytes(content)
    assert lint(str(log)) == 2
    said = capsys.readouterr().err
    assert complaint.replace("LOG", str(log)) in said and said.count("\n") == 1


def test_what_is_not_there_is_said(tmp_path: Path, capsys: Capture) -> None:
    """A missing log, folder of a model, or place for the page: exit status 2 and the path."""
    log = write(tmp_path)
    nowhere = str(tmp_path / "nowhere")
    assert lint(nowhere) == 2 and nowhere in capsys.readouterr().err
    assert main(["lint", log, "--model", nowhere]) == 2
    assert "tokenizer_config.json" in capsys.readouterr().err
    assert lint(log, "--html", f"{nowhere}/x.html") == 2
    assert f"--html {nowhere}/x.html" in capsys.readouterr().err


@pytest.mark.parametrize(
    "flags",
    [["--fail-on", "clocks"], ["--min-hit-rate", "101"], ["--min-hit-rate", "nan"],
     ["--block-size", "0"], ["--requests-max", "x"]],
)  # fmt: skip
def test_wrong_flags_are_refused(flags: list[str], tmp_path: Path, capsys: Capture) -> None:
    """By argparse, which names the flag."""
    with pytest.raises(SystemExit) as exit:
        lint(str(tmp_path), *flags)
    assert exit.value.code == 2 and flags[0] in capsys.readouterr().err


def test_a_folder_of_wrapped_bodies(tmp_path: Path, capsys: Capture) -> None:
    """The router's samples and batch files have a body inside; a .json is one body or a list."""
    first, second, *others = traffic(conversations=2, steps=3)
    (tmp_path / "a.jsonl").write_text(json.dumps({"time": 1, "session": "s", "body": first}))
    batch = {"custom_id": "x", "url": "/v1/chat/completions", "body": second}
    (tmp_path / "b.jsonl").write_text(json.dumps(batch))
    (tmp_path / "c.json").write_text(json.dumps(others, indent=2))
    (tmp_path / "notes.txt").write_text("not a log")
    assert lint(str(tmp_path), "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["requests"], report["bad_lines"]) == (6, 0)


def test_limits_are_said(tmp_path: Path, capsys: Capture) -> None:
    """What is behind --requests-max is counted and not read."""
    assert lint(write(tmp_path), "--requests-max", "5") == 0
    said = capsys.readouterr().out
    assert said.startswith("5 requests") and "(--requests-max): 7 lines" in said


def test_stdin(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Capture) -> None:
    """A dash reads what is piped in."""
    text = Path(write(tmp_path)).read_bytes()
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text)))
    assert lint("-") == 0
    assert capsys.readouterr().out.startswith("12 requests")


SECRETS = (
    "jane.roe@secret.example", "Jane Roe", "Roe", "sk-live-4eC39HqLyjWDarjtT1zdp7dc", "swordfish",
    "4111111111111111", "salt-of-the-earth", "Acme Rockets", "7781-QX", "2026-03-04", "kq8-session",
    "tenant_x_lookup key",
)  # fmt: skip


def secretive(rng: Random, place: Place, body: Body) -> Body:
    system = body["messages"][0]
    system["content"] = (
        f"The password is swordfish for 10:11:{rng.randrange(10, 60)} Jane Roe.\n"
        f"Trace id: 7781-QX{rng.getrandbits(40)} of Acme Rockets sk-live-4eC39HqLyjWDarjtT1zdp7dc\n"
        f"User: Jane Roe{'s' * place.conversation}\nEmail: jane.roe@secret.example\n"
        f"2026-03-04 card 4111111111111111 is {rng.getrandbits(60)} swordfish {place.clock}\n"
        + "\n".join(f"Roe {rng.random()} jane.roe@secret.example swordfish" for _ in range(2))
        + f"\nJane Roe has the password swordfish.\n{system['content']}"
    )
    body["cache_salt"] = f"salt-of-the-earth{rng.random()}"
    body["user"] = f"kq8-session{place.conversation}"
    body["tools"][0]["function"]["name"] = "tenant_x_lookup key"
    rng.shuffle(body["tools"])
    if place.step == 2:
        body["messages"] = [system, *body["messages"][2:]]
    return body


def test_no_secret_is_shown(tmp_path: Path, capsys: Capture) -> None:
    """Names, addresses, keys, passwords, salts and sessions, in text, JSON and page: nowhere."""
    log, page = write(tmp_path, secretive), tmp_path / "report.html"
    assert lint(log, "--html", str(page)) == 0
    shown = capsys.readouterr().out + page.read_text()
    assert lint(log, "--json") == 0
    shown += capsys.readouterr().out
    assert {"clock", "ids", "tool_order", "salts"} <= set(re.findall(r"\d\. ([a-z_]+):", shown))
    assert [secret for secret in SECRETS if secret in shown] == []


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes.update(name for name, _ in attrs)


def test_contents_stay_text_in_the_page(tmp_path: Path, capsys: Capture) -> None:
    """Neither a prompt nor the name of a file becomes markup, and the page loads nothing."""

    def hostile(rng: Random, place: Place, body: Body) -> Body:
        system = body["messages"][0]
        evil = '<script>alert(1)</script><img src=x onerror="x"> </code>{evil}'
        system["content"] = f"{evil} is 10:11:{rng.randrange(10, 60)} {evil}\n{system['content']}"
        return body

    log, page = write(tmp_path, hostile, name="<script>x<b>.jsonl"), tmp_path / "report.html"
    with open(log, "a") as file:
        file.write("not json\n")
    assert lint(log, "--html", str(page)) == 0
    text = page.read_text()
    tags = _Tags()
    tags.feed(text)
    assert not tags.tags & {"script", "img", "link", "iframe", "object", "svg"}
    assert not {name for name in tags.attributes if name.startswith("on")} | (
        tags.attributes & {"src", "href"}
    )
    assert "default-src 'none'" in text and "&lt;script&gt;x&lt;b&gt;.jsonl" in text
    assert "url(" not in text and "@import" not in text


def test_text_holds_no_control_characters(tmp_path: Path, capsys: Capture) -> None:
    """A log's name must not drive the terminal."""
    name = "log\x1b[2J.jsonl"
    log = write(tmp_path, name=name)
    with open(log, "a") as file:
        file.write("not json\n")
    assert lint(log) == 0
    assert "\x1b" not in capsys.readouterr().out
