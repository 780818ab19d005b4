"""A tokenizer is loaded from a folder, or its user is told what to do."""

import json
import shutil
import subprocess
import sys
from array import array
from pathlib import Path
from typing import Any

import pytest

from benchmarks.data import TOKENIZER_DIRECTORY
from router.pool_tokenizer import PoolTokenizer, TokenizerError
from router.prompts import ChatPrompt, TextPrompt, Truncation
from router.render import NotRendered

CHAT = {"messages": [{"role": "user", "content": "Hello"}]}


@pytest.fixture(scope="module")
def demo() -> PoolTokenizer:
    return PoolTokenizer.load(str(TOKENIZER_DIRECTORY))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the small tokenizer that a test may spoil."""
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(TOKENIZER_DIRECTORY / name, tmp_path / name)
    return tmp_path


def ids_of(tokenizer: PoolTokenizer, prompt: TextPrompt) -> "array[int]":
    steps = tokenizer.encode_steps(prompt)
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            token_ids: array[int] = stop.value
            return token_ids


def reference_ids(chat: dict[str, Any]) -> list[int]:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(TOKENIZER_DIRECTORY), local_files_only=True)
    encoded = tokenizer.apply_chat_template(chat["messages"], add_generation_prompt=True)
    return list(encoded["input_ids"])


def test_a_chat_becomes_the_ids_of_transformers(demo: PoolTokenizer) -> None:
    """Rendered and encoded; a long one too, in pieces, first and remembered."""
    long = [{"role": "user", "content": f"Zürich {i}\n" * 300} for i in range(20)]
    for chat in (CHAT, {"messages": long}, {"messages": long}, {"messages": [*long, *long]}):
        prompt = demo.render(ChatPrompt(chat))
        assert not prompt.add_special_tokens
        assert list(ids_of(demo, prompt)) == reference_ids(chat)


def test_the_encoder_in_use_and_why_can_be_seen(demo: PoolTokenizer) -> None:
    """It is what an operator asks for."""
    assert demo.encoder.name in ("fastokens", "tokenizers")
    assert demo.encoder.name in repr(demo) and demo.encoder.reason in repr(demo)


def test_a_long_text_is_encoded_in_steps(demo: PoolTokenizer) -> None:
    """So that other prompts get their turn."""
    if not demo.encoder.remembers:
        pytest.skip(f"only a remembering encoder can: {demo.encoder.reason}")
    chat = {"messages": [{"role": "user", "content": f"step {i} " * 500} for i in range(60)]}
    prompt = demo.render(ChatPrompt(chat))
    assert len(list(demo.encode_steps(prompt))) >= 8


def test_ids_are_truncated_from_either_side(demo: PoolTokenizer) -> None:
    """Behind the template, on ids."""
    whole = ids_of(demo, TextPrompt("one two three four", False))
    left = TextPrompt("one two three four", False, Truncation(2, "left"))
    right = TextPrompt("one two three four", False, Truncation(2, "right"))
    assert ids_of(demo, left) == whole[-2:]
    assert ids_of(demo, right) == whole[:2]


def test_truncation_to_the_engines_own_context_is_not_guessed(demo: PoolTokenizer) -> None:
    """Only the engine knows its length."""
    with pytest.raises(NotRendered):
        ids_of(demo, TextPrompt("a", False, Truncation(-1)))


def test_a_given_template_replaces_the_models(folder: Path) -> None:
    """As --chat-template does in the engine."""
    template = folder / "other.jinja"
    template.write_text("{% for m in messages %}<{{ m.content }}>{% endfor %}")
    tokenizer = PoolTokenizer.load(str(folder), str(template))
    assert tokenizer.render(ChatPrompt(CHAT)).text == "<Hello>"


def test_named_templates_are_chosen_by_tools(folder: Path) -> None:
    """A model may have one for tools."""
    (folder / "chat_template.jinja").unlink()
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config["chat_template"] = [
        {"name": "default", "template": "plain"},
        {"name": "tool_use", "template": "tools"},
    ]
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    tokenizer = PoolTokenizer.load(str(folder))
    assert tokenizer.render(ChatPrompt(CHAT)).text == "plain"
    with_tools = {**CHAT, "tools": [{"function": {"name": "f"}}]}
    assert tokenizer.render(ChatPrompt(with_tools)).text == "tools"


def test_a_model_without_a_template_must_say_so(folder: Path) -> None:
    """A forgotten file is an error; an empty one means that there is none."""
    (folder / "chat_template.jinja").unlink()
    with pytest.raises(TokenizerError, match=r"copy the model's chat_template\.jinja"):
        PoolTokenizer.load(str(folder))
    (folder / "none.jinja").touch()
    tokenizer = PoolTokenizer.load(str(folder), str(folder / "none.jinja"))
    with pytest.raises(NotRendered):
        tokenizer.render(ChatPrompt(CHAT))


def test_a_model_whose_chats_are_coded_in_the_engine_is_not_rendered(folder: Path) -> None:
    """Its template is not what the engine uses."""
    (folder / "config.json").write_text('{"model_type": "gpt_oss"}')
    tokenizer = PoolTokenizer.load(str(folder))
    with pytest.raises(NotRendered):
        tokenizer.render(ChatPrompt(CHAT))
    assert len(ids_of(tokenizer, TextPrompt("Hello")))


def test_a_folder_without_a_tokenizer_is_named_with_what_to_do(tmp_path: Path) -> None:
    """No attempt is made to find it on a network."""
    with pytest.raises(TokenizerError, match=r"copy tokenizer\.json"):
        PoolTokenizer.load(str(tmp_path))
    with pytest.raises(TokenizerError, match=r"copy tokenizer\.json"):
        PoolTokenizer.load("Qwen/Qwen3-8B")


def test_a_broken_tokenizer_and_a_missing_template_file_are_errors(folder: Path) -> None:
    """Typed ones, with the file's name."""
    with pytest.raises(TokenizerError, match="absent"):
        PoolTokenizer.load(str(folder), str(folder / "absent.jinja"))
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(TokenizerError, match="cannot be loaded"):
        PoolTokenizer.load(str(folder))


def test_importing_the_router_imports_neither_transformers_nor_torch() -> None:
    """Commands that need no tokenizer do not wait for it; torch is never needed."""
    code = (
        "import sys, router.tokenizer; assert 'transformers' not in sys.modules\n"
        f"tok = router.tokenizer.PoolTokenizer.load({str(TOKENIZER_DIRECTORY)!r})\n"
        "assert 'transformers' in sys.modules and 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
