"""`pointsman tokens`: ids and hashes of a body, and what is said where there are none."""

import io
import json
import subprocess
from array import array
from pathlib import Path
from typing import Any

import pytest

from benchmarks.data import TOKENIZER_DIRECTORY
from proto.blockhash import EngineScheme, ExtraKeyForm
from router.main import main
from router.openai import CHAT_PATH, COMPLETIONS_PATH
from router.pool_tokenizer import PoolTokenizer
from router.tokens import Lora, NotReported, token_reports
from tests.processes import MAIN, ROOT

VECTORS = json.loads((ROOT / "tests/vectors/golden_vectors.json").read_text())["vectors"]
FORMS: dict[str, ExtraKeyForm] = {
    "tagged": "tagged",
    "untagged_mmoff": "untagged_mm_offset",
    "untagged": "untagged",
    "lora_int": "lora_int",
}
# What a body can ask for: nothing with images, and no adapter of the time of numbers.
ASKABLE = [v for v in VECTORS if not v["mm"] and not (v["scheme"] == "lora_int")]
PLAIN = EngineScheme("sha256", None, 4)
CHAT = {"messages": [{"role": "user", "content": "What is a pointsman?"}]}


@pytest.fixture(scope="module")
def tokenizer() -> PoolTokenizer:
    return PoolTokenizer.load(str(TOKENIZER_DIRECTORY))


def scheme_of(vector: dict[str, Any]) -> EngineScheme:
    return EngineScheme(
        vector["algo"],
        vector["PYTHONHASHSEED"],
        vector["block_size"],
        vector["lookahead"],
        FORMS[vector["scheme"]],
    )


@pytest.mark.parametrize("vector", ASKABLE, ids=lambda vector: vector["name"])
def test_hashes_equal_vllms(vector: dict[str, Any], tokenizer: PoolTokenizer) -> None:
    """Salt from the body, the adapter from its name: the hashes that vLLM's own functions gave."""
    body = {"prompt": vector["token_ids"], "cache_salt": vector["cache_salt"]}
    lora = None
    if vector["lora_name"] is not None:
        lora = Lora(vector["lora_name"], vector["lora_path"] or "unused")
        body["model"] = lora.name
    (report,) = token_reports(
        COMPLETIONS_PATH, json.dumps(body).encode(), tokenizer, scheme_of(vector), lora
    )
    assert report["block_hashes"] == [f"{h:016x}" for h in vector["wire_int"]]
    assert report["token_ids"] == vector["token_ids"] and report["count"] == len(
        report["token_ids"]
    )


def report_of(body: Any, tokenizer: PoolTokenizer, path: str = COMPLETIONS_PATH) -> list[Any]:
    return token_reports(path, json.dumps(body).encode(), tokenizer, PLAIN, with_text=True)


def test_the_text_is_what_was_tokenized(tokenizer: PoolTokenizer) -> None:
    """A chat's is rendered, a completion's is as given and not truncated, ids have none."""
    (chat,) = report_of(CHAT, tokenizer, CHAT_PATH)
    assert "What is a pointsman?" in chat["text"] and chat["text"] != "What is a pointsman?"
    assert array("I", chat["token_ids"]) == tokenizer.encoder.encode(chat["text"], False)
    assert len(chat["block_hashes"]) == chat["count"] // 4
    cut = {"prompt": "What is a pointsman?", "truncate_prompt_tokens": 2}
    (completion,) = report_of({**cut, "add_special_tokens": False}, tokenizer)
    assert (completion["text"], completion["count"]) == ("What is a pointsman?", 2)
    assert report_of({"prompt": [5, 6]}, tokenizer)[0]["text"] is None


def test_a_list_of_prompts_has_one_report_each(tokenizer: PoolTokenizer) -> None:
    """As the engine makes a request of each; each says which it is."""
    reports = report_of({"prompt": [[1, 2, 3, 4], [1, 2, 3, 4, 5]], "n": 2}, tokenizer)
    assert [(r["prompt"], r["count"]) for r in reports] == [(0, 4), (1, 5)]
    assert reports[0]["block_hashes"] == reports[1]["block_hashes"]


@pytest.mark.parametrize(
    ("path", "body", "says"),
    [
        (CHAT_PATH, b'{"messages":\n [}', "Expecting value: line 2 column 3"),
        (CHAT_PATH, b"[]", "must be a JSON object"),
        (CHAT_PATH, b"\xff", "not valid JSON"),
        (CHAT_PATH, b'{"prompt": "x"}', "a completion needs --path /v1/completions"),
        (COMPLETIONS_PATH, b'{"messages": []}', "a chat needs --path /v1/chat/completions"),
        (COMPLETIONS_PATH, b'{"prompt": "x", "suffix": "y"}', "not tokenized: suffix"),
        (COMPLETIONS_PATH, b'{"prompt": [[1], [-1]]}', "prompt 1: not tokenized: a token id is"),
        (
            CHAT_PATH,
            b'{"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}',
            "parts other than text",
        ),
        (CHAT_PATH, b'{"messages": [{"role": 7}]}', "a message without a role"),
        (CHAT_PATH, b'{"messages": [{"role": "user"}], "x": NaN}', "no strict JSON"),
    ],
)
def test_a_body_without_ids_says_why(
    path: str, body: bytes, says: str, tokenizer: PoolTokenizer
) -> None:
    """What the router would route without hashes has no report."""
    with pytest.raises(NotReported, match=says):
        token_reports(path, body, tokenizer, PLAIN)


def test_an_adapter_is_the_one_that_the_body_names(tokenizer: PoolTokenizer) -> None:
    """Hashes of an adapter that the engine would not use would be of no use; nor guessed ones."""
    with pytest.raises(NotReported, match="the body's model is 'base', not the adapter 'sql'"):
        token_reports(
            COMPLETIONS_PATH,
            b'{"prompt": "x", "model": "base"}',
            tokenizer,
            PLAIN,
            Lora("sql", "/"),
        )
    numbered = EngineScheme("sha256", "0", 16, 0, "lora_int")
    with pytest.raises(NotReported, match="order in which adapters were loaded"):
        token_reports(
            COMPLETIONS_PATH, b'{"prompt": "x", "model": "s"}', tokenizer, numbered, Lora("s", "/")
        )


def test_the_command_prints_one_object(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """From a file or from stdin, with the text only where it is asked for."""
    file = tmp_path / "body.json"
    file.write_text(json.dumps(CHAT))
    flags = ("--model", str(TOKENIZER_DIRECTORY), "--scheme", "sha256_cbor,seed=0,block_size=4")
    assert main(["tokens", str(file), *flags]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert list(printed) == ["token_ids", "count", "block_hashes"]
    assert all(len(block_hash) == 16 for block_hash in printed["block_hashes"])
    stdin = io.TextIOWrapper(io.BytesIO(file.read_bytes()))
    monkeypatch.setattr("sys.stdin", stdin)
    assert main(["tokens", "-", *flags, "--text"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert again.pop("text") and again == printed


def test_the_engines_template_settings_are_flags(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In vLLM's words: a template of one's own, and what it is given beside the messages."""
    template, body = tmp_path / "t.jinja", tmp_path / "body.json"
    template.write_text("{{ greeting }}{% for t in tools or [] %}!{% endfor %}")
    tool = {"type": "function", "function": {"name": "f"}}
    body.write_text(json.dumps(CHAT | {"tools": [tool], "tool_choice": "none"}))
    flags = ("--model", str(TOKENIZER_DIRECTORY), "--chat-template", str(template), "--text")
    kwargs = ("--default-chat-template-kwargs", '{"greeting": "Hi"}')
    texts = []
    for more in (), kwargs, (*kwargs, "--exclude-tools-when-tool-choice-none"):
        assert main(["tokens", str(body), *flags, *more]) == 0
        texts.append(json.loads(capsys.readouterr().out)["text"])
    assert texts == ["!", "Hi!", "Hi"]


def test_what_is_wrong_is_one_line_and_status_2(tmp_path: Path) -> None:
    """Nothing on stdout, and the line names the file or the flag."""
    body = tmp_path / "body.json"
    body.write_text('{"messages": [{"role": "user", "content": "Hi"},]}')
    bare = tmp_path / "bare"
    bare.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (bare / name).write_bytes((TOKENIZER_DIRECTORY / name).read_bytes())
    good = ("--model", str(TOKENIZER_DIRECTORY))
    wrong = {
        (str(tmp_path / "none.json"), *good): "none.json: No such file or directory",
        (str(body), *good): f"{body}: The request body is not valid JSON: ",
        (str(body), "--model", str(tmp_path)): "--model: ",
        (str(body), "--model", str(bare)): "has no chat template",
        (str(body), *good, "--scheme", "sha257"): "argument --scheme: unknown algorithm 'sha257'",
        (str(body), *good, "--lora", "sql"): "argument --lora: 'sql' is not NAME=PATH",
        (str(body), *good, "--path", "/v1/x"): "argument --path: invalid choice: '/v1/x'",
    }
    for words, says in wrong.items():
        done = subprocess.run(
            (*MAIN, "tokens", *words), capture_output=True, text=True, cwd=ROOT, timeout=60
        )
        assert (done.returncode, done.stdout) == (2, ""), done
        *usage, line = done.stderr.splitlines()
        assert line.startswith("pointsman tokens: ") and says in line
        assert not usage or usage[0].startswith("usage: pointsman tokens BODY.json")
