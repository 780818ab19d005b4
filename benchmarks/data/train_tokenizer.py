"""A shell: trains the tokenizer of this folder and writes its files.

``python -m benchmarks.data.train_tokenizer [DIRECTORY]`` writes ``tokenizer.json`` and
``tokenizer_config.json``; the chat template beside them is written by hand. Rules it keeps:

* The corpus is the text of Python's own help topics and of a few standard modules, so it is there
  on every machine; the same Python gives the same bytes.
* The pieces are of the kind that current models use: byte-level BPE behind a split into words,
  single digits, punctuation and white space; every text goes there and back unchanged, but for
  Unicode's composed forms (NFC).
"""

import argparse
import ast
import inspect
import json
import pydoc_data.topics
import textwrap
from collections.abc import Iterator
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer

from benchmarks.data import TOKENIZER_DIRECTORY

# The Python whose texts made the committed files; change it when they are written anew.
TRAINED_WITH = "3.11.7"
VOCABULARY = 6_000
CONTEXT_TOKENS_MAX = 131_072
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
# One token each, but text: a decoded answer shows them.
MARKERS = (
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "<think>",
    "</think>",
)
_CORPUS_MODULES = (argparse, ast, inspect, json, textwrap)
_PIECES = (
    r"(?i:'(?:s|t|re|ve|m|ll|d))"
    r"|[^\r\n\p{L}\p{N}]?\p{L}+"
    r"|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+"
    r"|\s+(?!\S)"
    r"|\s+"
)


def train() -> Tokenizer:
    """The tokenizer, from nothing; takes about a second."""
    tokenizer = Tokenizer(BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PIECES), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    added = len(SPECIAL_TOKENS) + len(MARKERS)
    trainer = BpeTrainer(
        vocab_size=VOCABULARY - added,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_corpus(), trainer)
    # Behind the learnt tokens, so that every id below the first of these is ordinary text.
    tokenizer.add_special_tokens([AddedToken(text, normalized=False) for text in SPECIAL_TOKENS])
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in MARKERS])
    return tokenizer


def write(directory: Path) -> None:
    """Both files, in their shortest form."""
    directory.mkdir(parents=True, exist_ok=True)
    train().save(str(directory / "tokenizer.json"), pretty=False)
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "model_max_length": CONTEXT_TOKENS_MAX,
        "clean_up_tokenization_spaces": False,
    }
    text = json.dumps(config, indent=2) + "\n"
    (directory / "tokenizer_config.json").write_text(text, encoding="utf-8")


def _corpus() -> Iterator[str]:
    for topic in sorted(pydoc_data.topics.topics):
        yield pydoc_data.topics.topics[topic]
    for module in _CORPUS_MODULES:
        yield inspect.getsource(module)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("directory", nargs="?", type=Path, default=TOKENIZER_DIRECTORY)
    write(parser.parse_args().directory)
