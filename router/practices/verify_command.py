"""A shell: the subcommand `verify`."""

import argparse
import asyncio
import json
import os
import sys
import uuid
from collections.abc import Mapping, Sequence
from time import monotonic
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from router.practices.verify_client import Model
    from router.practices.verify_verdicts import Verdict

_Subcommands = argparse._SubParsersAction  # The one type argparse has for it is not exported.

_PREFIX_TOKENS, _PREFIX_TOKENS_MIN = 4000, 500
# Beside the prefix: questions, turns and answers.
_ROOM_TOKENS = 1000
_REQUEST_S_MAX = 60.0

_EXAMPLE = """\
examples: a router before it takes traffic; and one replica, in a deploy script

  pointsman verify http://127.0.0.1:8080
  pointsman verify http://10.0.0.7:8000 --model Qwen/Qwen3-32B --json

It sends about 20 chats, one after the other, with prompts that nobody has sent before:
  control         prompts with nothing in common: none may be cached
  fixed prefix    a long beginning and changing questions: all but the first must find it
  repeat          a prompt twice: all of it is found, up to a block less
  conversation    turns that grow: each must find the one before
  salted control  the fixed prefix with a cache_salt: new at first, then found

A step passes where at least nine tenths of what was sent before are cached. Cached tokens are those
of the answers' usage; where an engine does not report them, those that its /metrics count, if
nobody else uses it meanwhile; else they are unknown. The times of the first token and of those
behind it are shown, and decide nothing.

A key is read from VLLM_API_KEY or OPENAI_API_KEY.
Exit status: 0 where every step passed (or was skipped: a cache_salt that is refused or replaced);
1 where one failed; 2 where nothing could be asked; 3 where none failed, but one was not judged.
"""


def add_verify(subcommands: "_Subcommands[argparse.ArgumentParser]") -> None:
    parser = subcommands.add_parser(
        "verify",
        help="prove that a router or a replica reuses prefixes",
        description="Prove that a router or a replica reuses the prefixes that it should, and no"
        " others.",
        usage="%(prog)s URL [options]",
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("url", type=_url, metavar="URL", help="root of the router or replica")
    add("--model", metavar="NAME", help="(the first of /v1/models)")
    add("--requests", type=_requests, default=6, metavar="N", help="with the prefix (%(default)s)")
    add(
        "--prefix-tokens",
        type=_prefix_tokens,
        metavar="N",
        help=f"about so long ({_PREFIX_TOKENS}, or what the model has room for)",
    )
    add("--max-tokens", type=_answer_tokens, default=16, metavar="N", help="(%(default)s)")
    add("--header", action="append", default=[], type=_header, metavar="NAME:VALUE", help="send it")
    add("--seconds-max", type=_seconds, default=300.0, metavar="S", help="in all (300)")
    add("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=run_verify)


def run_verify(arguments: argparse.Namespace) -> int:
    from router.practices.verify_client import Refused
    from router.practices.verify_report import as_json, as_text
    from router.practices.verify_verdicts import status_of

    try:
        model, verdicts = asyncio.run(_verify(arguments))
    except (Refused, ValueError) as error:
        print(f"pointsman verify: {error}", file=sys.stderr)
        return 2
    if arguments.json:
        print(json.dumps(as_json(arguments.url, model, verdicts)))
    else:
        colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
        print("\n".join(as_text(arguments.url, model, verdicts, colour=colour)))
    return status_of(verdicts)


async def _verify(arguments: argparse.Namespace) -> "tuple[str, list[Verdict]]":
    """Raises Refused and ValueError."""
    # Imported here: an HTTP client is nothing that `--help` needs.
    import aiohttp

    from router.practices.verify_client import VerifyClient
    from router.practices.verify_run import Run

    ends_at = monotonic() + arguments.seconds_max
    # As if each request were another client's: no connection and no cookie leads to where the one
    # before has gone.
    connector, jar = aiohttp.TCPConnector(force_close=True), aiohttp.DummyCookieJar()
    async with aiohttp.ClientSession(connector=connector, cookie_jar=jar) as session:
        client = VerifyClient(session, arguments.url, _headers(arguments), _REQUEST_S_MAX, ends_at)
        model = _model(await client.models(), arguments.model)
        await client.look_for_counters()
        run = Run(
            client=client,
            model=model.name,
            nonce=uuid.uuid4().hex,
            requests=arguments.requests,
            prefix_tokens=_fitting_tokens(arguments.prefix_tokens, model),
            answer_tokens=arguments.max_tokens,
            ends_at=ends_at,
            progress=_say,
        )
        return model.name, await run.run()


def _model(models: "Sequence[Model]", wanted: str | None) -> "Model":
    names = [model.name for model in models]
    if not models:
        raise ValueError("/v1/models lists no model: is a replica in service?")
    if wanted is None:
        return models[0]
    if wanted not in names:
        raise ValueError(f"--model: {wanted!r} is not served; there are {', '.join(names)}")
    return models[names.index(wanted)]


def _fitting_tokens(wanted: int | None, model: "Model") -> int:
    """Of the prefix, as many as are asked for, or as the model's context has room for."""
    room = model.tokens_max - _ROOM_TOKENS if isinstance(model.tokens_max, int) else None
    if wanted is not None:
        if room is not None and wanted > room:
            raise ValueError(f"--prefix-tokens: the model's context has room for {max(0, room)}")
        return wanted
    fitting = _PREFIX_TOKENS if room is None else min(_PREFIX_TOKENS, room)
    if fitting < _PREFIX_TOKENS_MIN:
        raise ValueError(f"the model's context of {model.tokens_max} tokens is too short for this")
    return fitting


def _headers(arguments: argparse.Namespace) -> Mapping[str, str]:
    """What is given with --header goes before the key of the environment."""
    key = os.environ.get("VLLM_API_KEY") or os.environ.get("OPENAI_API_KEY")
    given = dict(arguments.header)
    if key and "authorization" not in {name.lower() for name in given}:
        given["Authorization"] = f"Bearer {key}"
    return given


def _say(step: str) -> None:
    print(f"pointsman verify: {step} ...", file=sys.stderr, flush=True)


def _url(text: str) -> str:
    """The root; clients' base URLs, which end in /v1, are taken too."""
    try:
        parts = urlsplit(text)
        host, _ = parts.hostname, parts.port
    except ValueError:
        host = None
    if not host or parts.scheme not in ("http", "https"):
        raise argparse.ArgumentTypeError(f"{text!r} is not http://HOST:PORT")
    return text.rstrip("/").removesuffix("/v1").rstrip("/")


def _header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not colon or not name.strip() or "\n" in text or "\r" in text:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME:VALUE")
    return name.strip(), value.strip()


def _requests(text: str) -> int:
    return _whole(text, 2, 1000)


def _prefix_tokens(text: str) -> int:
    return _whole(text, _PREFIX_TOKENS_MIN, 10**6)


def _answer_tokens(text: str) -> int:
    return _whole(text, 1, 4096)


def _whole(text: str, least: int, most: int) -> int:
    if not text.isdecimal() or not least <= int(text) <= most:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from {least} to {most}")
    return int(text)


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= 86_400:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds")
    return value
