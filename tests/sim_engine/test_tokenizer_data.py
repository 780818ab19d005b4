import json
import platform
from pathlib import Path

import fastokens
import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from benchmarks.data import TOKENIZER_DIRECTORY
from benchmarks.data.train_tokenizer import (
    MARKERS,
    SPECIAL_TOKENS,
    TRAINED_WITH,
    VOCABULARY,
    write,
)

BYTES_MAX = 300_000
FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
TOOL = {
    "type": "function",
    "function": {"name": "read", "description": "Read a file.", "parameters": {"type": "object"}},
}
MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "What is in a and b?"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"type": "function", "function": {"name": "read", "arguments": {"path": name}}}
            for name in "ab"
        ],
    },
    {"role": "tool", "content": "first"},
    {"role": "tool", "content": "second"},
]
RENDERED = """\
<|im_start|>system
Be brief.

These functions can be called:
<tools>
{"type": "function", "function": {"name": "read", "description": "Read a file.", \
"parameters": {"type": "object"}}}
</tools>
Call one with <tool_call>{"name": ..., "arguments": {...}}</tool_call>.<|im_end|>
<|im_start|>user
What is in a and b?<|im_end|>
<|im_start|>assistant
<tool_call>
{"name": "read", "arguments": {"path": "a"}}
</tool_call>
<tool_call>
{"name": "read", "arguments": {"path": "b"}}
</tool_call><|im_end|>
<|im_start|>user
<tool_response>
first
</tool_response>
<tool_response>
second
</tool_response><|im_end|>
<|im_start|>assistant
"""

Tokenizer = PreTrainedTokenizerBase


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return AutoTokenizer.from_pretrained(str(TOKENIZER_DIRECTORY), local_files_only=True)


@pytest.fixture(scope="module")
def fast() -> fastokens.Tokenizer:
    return fastokens.Tokenizer.from_file(str(TOKENIZER_DIRECTORY / "tokenizer.json"))


def test_folder_is_small():
    """Everything that is needed is there, in less than 300 kB."""
    assert sum((TOKENIZER_DIRECTORY / name).stat().st_size for name in FILES) < BYTES_MAX


@given(text=st.text(max_size=200) | st.sampled_from(["cafe\u0301 日本語 🙂\r\n\tx = 12345"]))
def test_both_libraries_agree(tokenizer: Tokenizer, fast: fastokens.Tokenizer, text: str):
    """transformers and fastokens cut any text into the same tokens."""
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert list(fast.encode(text, add_special_tokens=False).ids) == ids


@pytest.mark.parametrize(
    "text", ["", "plain words", "日本語 🙂\u200d ±", "a\r\n\n\t b  ", "<tool_call>{}</tool_call>"]
)
def test_text_survives(tokenizer: Tokenizer, text: str):
    """A composed text comes back unchanged, and a marker is one token that is shown."""
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert tokenizer.decode(ids, skip_special_tokens=True) == text
    assert all(len(tokenizer.encode(name, add_special_tokens=False)) == 1 for name in MARKERS)


def test_special_tokens_come_last(tokenizer: Tokenizer):
    """Every id below the first special token is ordinary text; nothing is added unasked."""
    first = min(tokenizer.convert_tokens_to_ids(list(SPECIAL_TOKENS + MARKERS)))
    assert first == VOCABULARY - len(SPECIAL_TOKENS + MARKERS) and len(tokenizer) == VOCABULARY
    assert tokenizer.encode("x") == tokenizer.encode("x", add_special_tokens=False)


def test_template_renders_tools_and_calls(tokenizer: Tokenizer):
    """Tools stand in the system turn, calls in the assistant's, results together in one turn."""
    text = tokenizer.apply_chat_template(
        MESSAGES, tools=[TOOL], tokenize=False, add_generation_prompt=True
    )
    assert text == RENDERED


def test_next_turn_extends_the_prompt(tokenizer: Tokenizer):
    """The prompt of a turn is a prefix of the next turn's, so that its cache is used again."""
    history = [MESSAGES[1], {"role": "assistant", "content": "One."}, MESSAGES[1]]
    first, second = (
        tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
        for turns in (history[:1], history)
    )
    assert second.startswith(first + "One.<|im_end|>\n")


def test_thinking_can_be_switched_off(tokenizer: Tokenizer):
    """enable_thinking false opens the answer with an empty thought."""
    text = tokenizer.apply_chat_template(
        MESSAGES[1:2], tokenize=False, add_generation_prompt=True, enable_thinking=False
    )
    assert text.endswith("<|im_start|>assistant\n<think>\n\n</think>\n\n")


def test_training_again_gives_the_same_files(tmp_path: Path):
    """The script makes the same bytes each time, and on its Python those that are committed."""
    write(tmp_path / "one")
    write(tmp_path / "two")
    for name in FILES[:2]:
        made = (tmp_path / "one" / name).read_bytes()
        assert made == (tmp_path / "two" / name).read_bytes()
        if platform.python_version() == TRAINED_WITH:
            assert made == (TOKENIZER_DIRECTORY / name).read_bytes()
    assert json.loads(made)["eos_token"] == SPECIAL_TOKENS[2]
