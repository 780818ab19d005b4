"""A shell: the subcommand `doctor`.

Whoever composes the commands hands in how chats are tokenized, since that is the router's.
"""

import argparse
import json
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from indexer.sources import DiscoveryError, host_of

if TYPE_CHECKING:
    from indexer.doctor.examining import Doctor
    from indexer.doctor.places import ToldEndpoints
    from indexer.doctor.probes import ChatIds

_Subcommands = argparse._SubParsersAction  # The one type argparse has for it is not exported.
# Raises ValueError where what the flags name cannot be loaded.
LoadChatIds = Callable[[argparse.Namespace], "ChatIds"]

_EXAMPLE = """\
examples: look at two engines; and look closer, with five tiny requests to each (max_tokens 1)

  pointsman doctor http://10.0.0.7:8000 http://10.0.0.8:8000
  pointsman doctor http://10.0.0.7:8000 --probe Qwen/Qwen3-32B --model /models/Qwen3-32B

Without --probe nothing is sent that an engine computes: it is asked for its version, models, event
sources and metrics, its events are listened to for a second, and what it has kept of them is
replayed (of a busy engine only the last 2,000 batches). With --probe two completions go to each
rank, which announce a block and show whether cached tokens are reported; with --model too, three
chats, whose token ids are compared.

vLLM before 0.31 does not tell where its events are: give --event-endpoint and --replay-endpoint, as
the engine is started with them. A key that the engines ask for is read from VLLM_API_KEY.

Each finding is ok, a warning, a problem or unknown, and all but the first have a fix. Exit status:
0 without problems (there may be warnings), 1 with some, 2 where it was asked for wrongly.
"""


def add_doctor(
    subcommands: "_Subcommands[argparse.ArgumentParser]", load_chat_ids: LoadChatIds
) -> argparse.ArgumentParser:
    """``load_chat_ids`` is called where --model is given; its flags may be added to the parser."""
    parser = subcommands.add_parser(
        "doctor",
        help="say what keeps engines from being followed, and how to fix it",
        description="Look at vLLM engines as pointsman does, and say what is wrong and how to fix"
        " it.",
        usage="%(prog)s URL [URL ...] [options]",
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("urls", nargs="+", type=_url, metavar="URL", help="root of a vLLM server")
    add("--json", action="store_true", help="print one JSON object")
    add("--probe", metavar="MODEL", help="send tiny requests for this model")
    add("--model", metavar="DIR", help="with --probe: tokenizer to compare with the engine's")
    add(
        "--hash-seed", action="append", metavar="SEED", help="PYTHONHASHSEED to try; repeatable (0)"
    )
    add("--event-endpoint", metavar="ENDPOINT", help="of rank 0, before vLLM 0.31")
    add("--replay-endpoint", metavar="ENDPOINT", help="likewise")
    add("--data-parallel-size", type=int, metavar="N", help="likewise (as /metrics tells)")
    parser.set_defaults(run=lambda arguments: _run(arguments, load_chat_ids))
    return parser


def _run(arguments: argparse.Namespace, load_chat_ids: LoadChatIds) -> int:
    # Imported here: sockets are nothing that `--help` needs.
    from indexer.doctor.examining import examine
    from indexer.doctor.findings import findings
    from indexer.doctor.report import as_json, as_text, status_of

    try:
        doctor = _doctor(arguments, load_chat_ids)
    except ValueError as error:
        print(f"pointsman doctor: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    exams = examine(arguments.urls, doctor)
    reports = list(zip(arguments.urls, findings(exams, doctor.asked), strict=True))
    if arguments.json:
        print(json.dumps(as_json(reports)))
    else:
        colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
        print("\n".join(as_text(reports, colour=colour)))
    return status_of(reports)


def _doctor(arguments: argparse.Namespace, load_chat_ids: LoadChatIds) -> "Doctor":
    """Raises ValueError for what was asked for wrongly."""
    from indexer.doctor.examining import Doctor
    from indexer.doctor.facts import Asked

    key = os.environ.get("VLLM_API_KEY")
    if arguments.model is not None and arguments.probe is None:
        raise ValueError("--model compares answers of the engine: give --probe MODEL with it")
    asked = Asked(
        key_given=bool(key),
        seeds=tuple(arguments.hash_seed or ("0",)),
        probe=arguments.probe is not None,
        model_given=arguments.model is not None,
    )
    return Doctor(
        asked,
        told=_told(arguments),
        headers={"Authorization": f"Bearer {key}"} if key else {},
        probe=arguments.probe,
        chat_ids=None if arguments.model is None else load_chat_ids(arguments),
    )


def _told(arguments: argparse.Namespace) -> "ToldEndpoints":
    from indexer.doctor.places import ToldEndpoints

    try:
        return ToldEndpoints(
            arguments.event_endpoint, arguments.replay_endpoint, arguments.data_parallel_size
        )
    except DiscoveryError as error:
        raise ValueError(str(error)) from None


def _url(text: str) -> str:
    try:
        host_of(text)
    except DiscoveryError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if not text.startswith(("http://", "https://")):
        raise argparse.ArgumentTypeError(f"{text!r} is not http://HOST:PORT")
    return text
