"""A shell: the subcommand `tokens`, and the flags that say how a model's prompts are made."""

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from router.prompts import CHAT_PATH, COMPLETIONS_PATH
from router.scheme_text import DEFAULT_SCHEME, parse_scheme

if TYPE_CHECKING:
    from proto.blockhash import HashScheme
    from router.pool_tokenizer import PoolTokenizer
    from router.tokens import Lora

_Subcommands = argparse._SubParsersAction  # The one type argparse has for it is not exported.
# From a chat's body to its token ids; raises ValueError where it has none.
ChatIds = Callable[[bytes], Sequence[int]]

_EXAMPLE = f"""\
example: the hashes that an engine with PYTHONHASHSEED=0 and sha256_cbor gives this chat's blocks

  echo '{{"messages": [{{"role": "user", "content": "What is a pointsman?"}}]}}' |
    pointsman tokens - --model /models/Qwen3-32B --scheme sha256_cbor,seed=0,block_size=4 --text

Prints one JSON object: token_ids, count, block_hashes (of the full blocks, as 16 hex digits) and,
with --text, text: what was tokenized, before special tokens are added to a completion and before
truncation; null where the prompt is token ids. A completion with a list of prompts has one object
per prompt and line, each with its index in "prompt".

--scheme begins with the algorithm: sha256, sha256_cbor, xxhash, xxhash_cbor. Left out, it is
  {DEFAULT_SCHEME}
which is vLLM since 0.31 without PYTHONHASHSEED. extra_keys is tagged since 0.31, before that
untagged_mm_offset (0.19), untagged (0.11.1), lora_int. An entry of "schemes" that
`pointsman events inspect` prints is taken too, as it stands.

A cache_salt is taken from the body; with --lora the body's model has to be the adapter's NAME.
Exit status: 0; 2 where something is wrong with the flags, the folder or the body.
"""


class AskedWrongly(Exception):
    """Something is wrong with what the flags name; the text says what."""


def add_tokens(subcommands: "_Subcommands[argparse.ArgumentParser]") -> None:
    parser = subcommands.add_parser(
        "tokens",
        help="show the token ids and block hashes of a request body",
        description="Show the token ids and block hashes of a request body, as the router has them",
        usage="%(prog)s BODY.json --model DIR [options]",
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("body", metavar="BODY.json", help="file with the body of a request; - for stdin")
    add("--model", required=True, metavar="DIR", help="folder with the model's tokenizer")
    paths = (CHAT_PATH, COMPLETIONS_PATH)
    add("--path", choices=paths, default=CHAT_PATH, metavar="PATH", help=" or ".join(paths))
    add("--scheme", type=_scheme, default=DEFAULT_SCHEME, metavar="SCHEME", help="see below")
    add("--lora", type=_lora, metavar="NAME=PATH", help="the adapter that the body's model names")
    add("--text", action="store_true", help="print the text that was tokenized too")
    add_template_flags(parser)
    parser.set_defaults(run=run_tokens)


def add_template_flags(parser: argparse.ArgumentParser) -> None:
    """How the engines were started, in vLLM's own words."""
    add = parser.add_argument
    add("--chat-template", metavar="FILE", help="where the engines are started with it")
    add("--default-chat-template-kwargs", type=_json_object, metavar="JSON", help="likewise")
    add("--exclude-tools-when-tool-choice-none", action="store_true", help="likewise")


def run_tokens(arguments: argparse.Namespace) -> int:
    """All or nothing: no object is printed where one of several prompts has no ids."""
    # Imported here: what tokenizes is nothing that `--help` needs.
    from router.tokens import NotReported, token_reports

    try:
        body = _read(arguments.body)
        reports = token_reports(
            arguments.path,
            body,
            load_tokenizer(arguments),
            arguments.scheme,
            arguments.lora,
            with_text=arguments.text,
        )
    except AskedWrongly as error:
        return _refuse(str(error))
    except NotReported as error:
        return _refuse(f"{_shown(arguments.body)}: {error}")
    for report in reports:
        print(json.dumps(report))
    return 0


def load_tokenizer(arguments: argparse.Namespace) -> "PoolTokenizer":
    """What --model and the flags of templates stand for. Raises AskedWrongly."""
    # The module of the router's own tokenizing, which also keeps transformers quiet and offline.
    from router.tokenizer import PoolTokenizer, TokenizerError

    try:
        return PoolTokenizer.load(
            arguments.model,
            arguments.chat_template,
            default_kwargs=arguments.default_chat_template_kwargs or {},
            exclude_unused_tools=arguments.exclude_tools_when_tool_choice_none,
        )
    except TokenizerError as error:
        raise AskedWrongly(f"--model: {error}") from None


def load_chat_ids(arguments: argparse.Namespace) -> ChatIds:
    """With the model of the flags. Raises ValueError where it cannot be loaded."""
    try:
        return _chat_ids(load_tokenizer(arguments))
    except AskedWrongly as error:
        raise ValueError(str(error)) from None


def load_pools_chat_ids(text: bytes) -> dict[str, ChatIds]:
    """For each pool of a configuration file. Raises ConfigError, which is a ValueError."""
    from router.app import load_tokenizers
    from router.config import parse_router_config

    tokenizers = load_tokenizers(parse_router_config(text))
    return {pool: _chat_ids(tokenizer) for pool, tokenizer in tokenizers.items()}


def _chat_ids(tokenizer: "PoolTokenizer") -> ChatIds:
    from router.tokens import NotReported, tokens_of

    def chat_ids(body: bytes) -> Sequence[int]:
        try:
            return tokens_of(CHAT_PATH, body, tokenizer)[0].token_ids
        except NotReported as error:
            raise ValueError(str(error)) from None

    return chat_ids


def _read(path: str) -> bytes:
    try:
        if path == "-":
            return sys.stdin.buffer.read()
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise AskedWrongly(f"{path}: {error.strerror or error}") from None


def _shown(path: str) -> str:
    return "stdin" if path == "-" else path


def _refuse(text: str) -> int:
    """In one line, whatever a foreign library has put into it."""
    print(f"pointsman tokens: {' '.join(text.split())}", file=sys.stderr)
    return 2


def _scheme(text: str) -> "HashScheme":
    try:
        return parse_scheme(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _lora(text: str) -> "Lora":
    from router.tokens import Lora

    name, equals, path = text.partition("=")
    if not (name and equals and path):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=PATH")
    return Lora(name, path)


def _json_object(text: str) -> Mapping[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"{text!r} is no JSON object")
    return value
