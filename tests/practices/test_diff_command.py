"""`pointsman diff` as its user meets it: what it prints, its exit status, and what it refuses."""

import io
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from benchmarks.data import TOKENIZER_DIRECTORY
from router.main import main
from router.practices.parting import PROMPTS_MAX
from tests.processes import ROOT

RULES = "You answer for a station. Say which track a train takes and when it leaves. " * 4
PAGE = (ROOT / "docs/practices/diff.md").read_text()
MODEL = str(TOKENIZER_DIRECTORY)
SHARED = Path(os.environ.get("POINTSMAN_SHARED", ROOT.parent / "shared")) / "requests"
REPLIES = ("Track 7, at 12:04.", "Track 2, at 12:31.")


def chat(*turns: str, system: str = RULES, **others: Any) -> dict[str, Any]:
    roles = ("user", "assistant")
    said = [{"role": roles[n % 2], "content": turn} for n, turn in enumerate(turns)]
    return {"messages": [{"role": "system", "content": system}, *said], **others}


def written(folder: Path, **bodies: Any) -> list[str]:
    for name, body in bodies.items():
        (folder / f"{name}.json").write_text(json.dumps(body))
    return [str(folder / f"{name}.json") for name in bodies]


def as_json(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any]]:
    status = main(["diff", *words, "--model", MODEL, "--json"])
    report: dict[str, Any] = json.loads(capsys.readouterr().out)
    return status, report


def test_two_requests_that_part(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Status 1, and all there is to know of the place and of the cause."""
    files = written(
        tmp_path,
        a=chat("To Bern?", system=f"It is 10:00:00.\n{RULES}"),
        b=chat("To Bern?", system=f"It is 10:00:07.\n{RULES}"),
    )
    status, report = as_json(capsys, *files, "--block-size", "4")
    (found,) = report["comparisons"]
    difference, (cause,) = found["first_difference"], found["causes"]
    assert status == 1 and report["part"] and found["relation"] == "part"
    assert found["shared"] == {
        "tokens": difference["token"],
        "full_blocks": difference["token"] // 4,
    }
    for side, text in (("a", "0"), ("b", "7")):
        assert difference[side]["text"] == text
        assert difference[side]["before"].endswith("It is 10:00:0")
        assert difference[side]["after"].startswith(".\nYou answer")
        assert difference[side]["place"] == {
            "kind": "system",
            "index": 0,
            "role": "system",
            "tool": None,
        }
    assert cause["kind"] == "time" and cause["remedy"]
    assert cause["shared_without_it"]["tokens"] == report["requests"][0]["tokens"]


def test_requests_that_do_not_part(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Status 0 for equal prompts and for a prefix, of two and of a whole session."""
    turns = ["To Bern?", REPLIES[0], "And to Zug?", REPLIES[1], "Thanks!"]
    files = written(
        tmp_path, a=chat(*turns[:1]), b=chat(*turns[:3]), c=chat(*turns), d=chat(*turns[:1], n=1)
    )
    for chosen, relation in ((files[::3], "equal"), (files[:2], "prefix")):
        status, report = as_json(capsys, *chosen)
        assert status == 0 and not report["part"]
        assert [found["relation"] for found in report["comparisons"]] == [relation]
    status, report = as_json(capsys, *files)
    assert status == 0 and report["comparisons"] == []
    ending, node = [], report["trees"][0]
    while True:
        ending.append(node["ending"])
        if not node["children"]:
            break
        (node,) = node["children"]
    assert ending == [[0, 3], [1], [2]]


def test_a_tree_of_many(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each fork is numbered in the tree and explained below; every request has its line."""
    files = written(
        tmp_path,
        first=chat("To Bern?"),
        later=chat("To Bern?", REPLIES[0], "And to Zug?"),
        clock=chat("To Bern?", system=RULES.replace("track a", "track, at 10:00:00, a", 1)),
        clock2=chat("To Bern?", system=RULES.replace("track a", "track, at 10:00:07, a", 1)),
    )
    assert main(["diff", *files, "--model", MODEL]) == 1
    shown = capsys.readouterr().out
    tree = shown.partition("\n[1] ")[0].splitlines()[2:]
    names = [re.sub(r".*/|\s+\[\d\]$", "", line) for line in tree]
    assert [name for name in names if name.endswith(".json")] == [
        "first.json",
        "later.json",
        "clock.json",
        "clock2.json",
    ]
    assert tree[0].endswith("[1]") and sum(line.endswith("[2]") for line in tree) == 1
    (second,) = re.findall(r"\n\[2\] 2 requests part.*", shown, re.DOTALL)
    assert "likely cause: a time finer than a day" in second
    assert "\x1b" not in shown


def test_salts_make_trees_of_their_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Equal tokens under two salts part: status 1, nothing shared, and no salt is printed."""
    files = written(
        tmp_path, a=chat("x", cache_salt="secret"), b=chat("x"), c=chat("x", cache_salt="secret")
    )
    status, report = as_json(capsys, *files[:2])
    (found,) = report["comparisons"]
    assert status == 1 and found["relation"] == "equal" and found["equal_tokens"] > 16
    assert found["shared"] == {"tokens": 0, "full_blocks": 0}
    assert [tree["requests"] for tree in report["trees"]] == [[0], [1]]
    assert main(["diff", *files, "--model", MODEL]) == 1
    shown = capsys.readouterr().out
    assert "cache_salt 1:" in shown and "without a salt:" in shown and "secret" not in shown
    assert main(["diff", *files[::2], "--model", MODEL]) == 0


def test_a_repeat_of_full_blocks_finds_one_less(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As the engine computes the last token always; otherwise nothing is said of it."""
    files = written(tmp_path, a={"prompt": list(range(32))}, b={"prompt": list(range(33))})
    path = ("--path", "/v1/completions", "--model", MODEL)
    assert main(["diff", files[0], files[0], *path]) == 0
    assert "32 tokens = 2 full blocks; the prompts are equal (a repeat finds 1:" in (
        capsys.readouterr().out
    )
    assert main(["diff", files[1], files[1], *path]) == 0
    assert "(a repeat" not in capsys.readouterr().out


def test_what_commands_a_terminal_is_not_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A prompt is shown on one line, whatever it holds; a lone surrogate is refused by name."""
    files = written(tmp_path, a=chat("\x1b[31m a \u202e\r\n b"), b=chat("\x1b[31m a \u202e\r\n c"))
    assert main(["diff", *files, "--model", MODEL]) == 1
    shown = capsys.readouterr().out
    assert "\x1b" not in shown and "\u202e" not in shown and "\\x1b[31m a \\u202e\\r\\n" in shown


def test_a_request_comes_from_stdin(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As -, once."""
    (file,) = written(tmp_path, a=chat("x"))
    stdin = io.TextIOWrapper(io.BytesIO(Path(file).read_bytes()))
    monkeypatch.setattr("sys.stdin", stdin)
    status, report = as_json(capsys, file, "-")
    assert status == 0 and [request["name"] for request in report["requests"]] == [file, "stdin"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["good.json", "none.json"], "none.json: No such file or directory"),
        (["good.json", "."], ".: Is a directory"),
        (["good.json", "bad.json"], "bad.json: .*not valid JSON: .*line 2 column 3"),
        (["good.json"], "give two requests or more"),
        (["good.json"] * (PROMPTS_MAX + 1), "are more than the 200"),
        (["-", "-"], r"stdin \(-\) holds one request"),
        (["good.json", "two.json", "--path", "/v1/completions"], "a chat needs --path"),
        (["two.json", "two.json", "--path", "/v1/completions"], "two.json: has 2 prompts"),
        (["good.json", "good.json", "--model", "nowhere"], "nowhere holds no tokenizer_config"),
        (
            ["good.json", "good.json", "--chat-template", "none"],
            "chat_template none cannot be read",
        ),
        (["good.json", "good.json", "--chat-template", os.devnull], "no chat template here"),
    ],
)
def test_what_is_wrong_is_one_line_and_status_2(
    words: list[str],
    says: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With the name of the file that it is about, and what to do."""
    monkeypatch.chdir(tmp_path)
    written(tmp_path, good=chat("x"), two={"prompt": ["a", "b"]})
    (tmp_path / "bad.json").write_text('{"messages":\n [}')
    model = [] if "--model" in words else ["--model", MODEL]
    assert main(["diff", *words, *model]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.count("\n") == 1
    assert re.search(f"^pointsman diff: .*{says}", captured.err)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["a", "b"], "one of the arguments --model --url is required"),
        (["a", "b", "--model", "m", "--url", "http://x"], "not allowed with"),
        (["a", "b", "--url", "x"], "'x' is not http://HOST:PORT"),
        (["a", "b", "--model", "m", "--block-size", "0"], "'0' is no number of tokens"),
        (["a", "b", "--model", "m", "--path", "/v1"], "invalid choice: '/v1'"),
    ],
)
def test_wrong_flags_are_told(
    words: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the parser, with status 2."""
    with pytest.raises(SystemExit) as stopped:
        main(["diff", *words])
    assert stopped.value.code == 2 and says in capsys.readouterr().err


def test_a_replica_has_its_own_template(capsys: pytest.CaptureFixture[str]) -> None:
    """A flag that would be ignored is refused."""
    files = [str(Path(MODEL) / "tokenizer_config.json")] * 2
    words = ["--url", "http://127.0.0.1:9", "--chat-template", "x"]
    assert main(["diff", *files, *words]) == 2
    assert "--chat-template goes with --model" in capsys.readouterr().err


def test_the_page_shows_what_is_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its requests, compared, give its output, but for the folder of the tokenizer."""
    monkeypatch.chdir(tmp_path)
    bodies = re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)
    outputs = re.findall(r"```text\n(.*?)```", PAGE, re.DOTALL)
    names = ("first.json", "second.json", "third.json")
    for name, body in zip(names, bodies, strict=True):
        Path(name).write_text(body)
    for chosen, output in zip((names[:2], names), outputs, strict=True):
        assert main(["diff", *chosen, "--model", MODEL]) == 1
        shown = capsys.readouterr().out.replace(MODEL, "/models/station")
        assert shown == output


@pytest.mark.skipif(not SHARED.is_dir(), reason="set POINTSMAN_SHARED: the shared requests")
@pytest.mark.parametrize(
    ("a", "b", "status", "cause", "place"),
    [
        ("01", "04", 1, "time", "system"),
        ("01", "05", 1, "tool_order", "tools"),
        ("01", "06", 1, "key_order", "tools"),
        ("07", "08", 0, "equal", None),
        ("15", "16", 1, "fixed_after_variable", "message"),
        ("01", "02", 0, "continues", None),
        ("02", "03", 0, "continues", None),
        ("13", "14", 0, "continues", None),
    ],
)
def test_shared_requests(
    a: str,
    b: str,
    status: int,
    cause: str,
    place: str | None,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Their README says what is to be found."""
    files = [str(next(SHARED.glob(f"{number}_*.json"))) for number in (a, b)]
    found_status, report = as_json(capsys, *files)
    (found,) = report["comparisons"]
    difference = found["first_difference"]
    assert (found_status, found["causes"][0]["kind"]) == (status, cause)
    assert (difference and difference["a"]["place"]["kind"]) == place
