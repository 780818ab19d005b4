"""A shell: the subcommand `diff`."""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from router.prompts import CHAT_PATH, COMPLETIONS_PATH
from router.tokens_command import AskedWrongly, add_template_flags, load_tokenizer

if TYPE_CHECKING:
    from router.practices.prompt import Prompts, TokenizedBody

_Subcommands = argparse._SubParsersAction  # The one type argparse has for it is not exported.

# vLLM's own default.
_BLOCK_SIZE = 16

_EXAMPLE = """\
examples: why the second request finds so little of the first; and how the requests of a session,
or of a fleet of clients, hang together

  pointsman diff first.json second.json --model /models/Qwen3-32B
  pointsman diff logged/*.json --model /models/Qwen3-32B
  pointsman diff first.json - --url http://10.0.0.7:8000 <second.json

Of two requests it shows the first token that differs, the text around it, the part of the request
where that stands, the likely cause with its remedy, and what the two would share without it. Of
more requests it shows a tree: each line is a prefix with the requests that end there, and at [n]
requests part; below, each [n] is shown like two requests. Only full blocks are shared.

With --url a replica makes the tokens: its /render endpoint where it has one (vLLM since 0.16; since
0.30 with --enable-scale-out), else its /tokenize, which ignores reasoning_effort, documents and
truncation. A key that it asks for is read from VLLM_API_KEY.

Exit status: 0 where no two part: all are equal, or each is a prefix of the longer ones; 1 where
some part, or their cache_salt differs; 2 where something is wrong with the flags or a request.
"""


def add_diff(subcommands: "_Subcommands[argparse.ArgumentParser]") -> None:
    parser = subcommands.add_parser(
        "diff",
        help="show where requests part, why, and how to keep them together",
        description="Show where the prompts of request bodies part, why, and what to do about it.",
        usage="%(prog)s A.json B.json [C.json ...] (--model DIR | --url URL) [options]",
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("bodies", nargs="+", metavar="BODY.json", help="file with a request's body; - for stdin")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--model", metavar="DIR", help="folder with the model's tokenizer")
    source.add_argument("--url", type=_url, metavar="URL", help="a replica that tokenizes instead")
    paths = (CHAT_PATH, COMPLETIONS_PATH)
    add("--path", choices=paths, default=CHAT_PATH, metavar="PATH", help=" or ".join(paths))
    add(
        "--block-size",
        type=_block_size,
        default=_BLOCK_SIZE,
        metavar="N",
        help=f"tokens in a block ({_BLOCK_SIZE})",
    )
    add("--json", action="store_true", help="print one JSON object")
    add_template_flags(parser)
    parser.set_defaults(run=run_diff)


def run_diff(arguments: argparse.Namespace) -> int:
    # Imported here: what tokenizes is nothing that `--help` needs.
    from router.practices.diff_report import as_json, report_of
    from router.practices.diff_text import DiffText
    from router.tokens import NotReported

    colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    try:
        bodies = _bodies(arguments.bodies)
        with _prompts(arguments) as prompts:
            requests: list[TokenizedBody] = []
            for name, body in bodies:
                _tell(f"{len(requests)} of {len(bodies)} requests tokenized")
                requests.append(_tokenized(prompts, arguments.path, name, body))
            _tell(f"comparing {len(bodies)} requests")
            report = report_of(requests, prompts, arguments.block_size)
            # What is shown is still asked of a replica.
            text = DiffText(report, colour=colour).lines()
            lines = [json.dumps(as_json(report))] if arguments.json else list(text)
        _tell("")
    except (AskedWrongly, NotReported) as error:
        _tell("")
        # In one line, whatever a foreign library has put into it.
        print(f"pointsman diff: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    _print_anything()
    for line in lines:
        print(line)
    return int(report.parts)


def _bodies(names: Sequence[str]) -> list[tuple[str, bytes]]:
    """Each with its name. Raises AskedWrongly."""
    from router.practices.parting import PROMPTS_MAX

    if len(names) < 2:
        raise AskedWrongly("give two requests or more, to compare them")
    if len(names) > PROMPTS_MAX:
        raise AskedWrongly(
            f"{len(names)} requests are more than the {PROMPTS_MAX} that a tree is shown of:"
            " give fewer, or look at them with `pointsman lint`"
        )
    if names.count("-") > 1:
        raise AskedWrongly("stdin (-) holds one request: give it once")
    return [("stdin" if name == "-" else name, _read(name)) for name in names]


def _read(name: str) -> bytes:
    try:
        if name == "-":
            return sys.stdin.buffer.read()
        with open(name, "rb") as file:
            return file.read()
    except OSError as error:
        raise AskedWrongly(f"{name}: {error.strerror or error}") from None


def _prompts(arguments: argparse.Namespace) -> "AbstractContextManager[Prompts]":
    """Raises AskedWrongly."""
    if arguments.url is None:
        from router.practices.local_prompts import LocalPrompts

        return nullcontext(LocalPrompts(load_tokenizer(arguments), arguments.model))
    from router.practices.replica_prompts import ReplicaPrompts

    flags = ("chat_template", "default_chat_template_kwargs", "exclude_tools_when_tool_choice_none")
    for flag in flags:
        if getattr(arguments, flag):
            name = flag.replace("_", "-")
            raise AskedWrongly(f"--{name} goes with --model: the replica has its own")
    return ReplicaPrompts(arguments.url, os.environ.get("VLLM_API_KEY"))


def _tokenized(prompts: "Prompts", path: str, name: str, body: bytes) -> "TokenizedBody":
    """Raises NotReported, with the name of the request."""
    from router.tokens import NotReported

    try:
        return prompts.tokenized(name, path, body)
    except NotReported as error:
        raise NotReported(f"{name}: {error}") from None


def _tell(progress: str) -> None:
    """In place of what was told before; on a terminal only, since it is soon over."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{progress}", end="", file=sys.stderr, flush=True)


def _print_anything() -> None:
    """Prompts have characters that a terminal's encoding may lack."""
    reconfigure = getattr(sys.stdout, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors="backslashreplace")


def _block_size(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of tokens, 1 or more")
    return int(text)


def _url(text: str) -> str:
    if not text.startswith(("http://", "https://")) or not text.partition("://")[2].strip("/"):
        raise argparse.ArgumentTypeError(f"{text!r} is not http://HOST:PORT")
    return text.rstrip("/")
