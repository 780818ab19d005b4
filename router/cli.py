"""A shell: the subcommand `router`, and the process that it is.

The parser sets ``run``, a function of the parsed arguments that returns the exit status: 2 where
something was asked for wrongly, 1 where it failed.
"""

import argparse
import json
import os
import re
import sys
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from proto.config_file import ConfigError
from proto.contract import DEFAULT_POOL
from router.practices.commands import add_practice_commands
from router.tokens_command import add_tokens

_Subcommands = argparse._SubParsersAction  # The one type argparse has for it is not exported.

# How often the interpreter may pass from one thread to another: hashing has a thread of its own,
# and the event loop must not wait for it longer than this.
SWITCH_INTERVAL_S = 0.001

CONFIG_EXAMPLE = """\
  [[replicas]]
  name = "a"
  url = "http://10.0.0.7:8000"

  [[replicas]]
  name = "b"
  url = "http://10.0.0.8:8000"

  [pools.default]
  tokenizer = "/models/Qwen3-32B"   # folder with tokenizer.json and tokenizer_config.json
"""

_EXAMPLE = f"""\
example: pointsman router --config pointsman.toml, beside `pointsman indexer --config
pointsman.toml`; both read the one file, each its own sections

{CONFIG_EXAMPLE}
OpenAI's clients use http://127.0.0.1:8080/v1 (router.listen); GET /ready and /metrics are there
too. A key that the replicas ask for is passed on from the client; the router's own questions use
VLLM_API_KEY from the environment. `pointsman serve` runs both services in one process.
"""


def add_commands(subcommands: "_Subcommands[argparse.ArgumentParser]") -> None:
    """Declare every subcommand of this package."""
    parser = subcommands.add_parser(
        "router",
        help="route OpenAI requests to the replica that holds their prefix",
        description="Route OpenAI requests to the replica with the highest matched-block ratio.",
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--config", required=True, metavar="FILE", help="TOML, see the example")
    parser.set_defaults(run=run_router, logs=True)
    add_tokens(subcommands)
    add_practice_commands(subcommands)


def run_router(arguments: argparse.Namespace) -> int:
    """Run until SIGTERM or SIGINT. What is wrong with the configuration stops it before it runs."""
    # Imported here: an event loop and an HTTP server are nothing that `--help` needs.
    from router.app import RouterApp, load_tenancy, load_tokenizers, load_warm_ups
    from router.config import parse_router_config
    from router.indexer_client import GrpcIndexer

    async def run() -> None:
        indexer = GrpcIndexer(file.router.indexer, file.router.indexer_s_max)
        try:
            headers = engine_headers()
            await RouterApp(file, tokenizers, indexer, headers, warm_ups, tenancy).run()
        finally:
            await indexer.close()

    try:
        file = parse_router_config(read_config(arguments.config))
        warm_ups = load_warm_ups(file)
        tenancy = load_tenancy(file, os.environ)
        tokenizers = load_tokenizers(file)
    except ConfigError as error:
        print(f"pointsman router: {arguments.config}: {error}", file=sys.stderr)
        return 2
    return run_service("router", run)


def read_config(path: str) -> bytes:
    """Raises ConfigError where there is nothing to read."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise ConfigError(error.strerror or str(error)) from None


def serve_config(arguments: argparse.Namespace) -> bytes:
    """The file of ``--config``, or what ``--replica`` and ``--model`` stand for.

    Raises ConfigError.
    """
    given = (arguments.replica, arguments.model, arguments.listen)
    if arguments.config is not None:
        if any(given):
            raise ConfigError("--config has all of it: leave out --replica, --model and --listen")
        return read_config(arguments.config)
    if not arguments.replica or not arguments.model:
        raise ConfigError("give --config FILE, or --replica URL (for each engine) and --model DIR")
    text = "".join(
        f"[[replicas]]\nname = {_quoted(_name(url))}\nurl = {_quoted(url)}\n"
        for url in arguments.replica
    )
    text += f"[pools.{DEFAULT_POOL}]\ntokenizer = {_quoted(arguments.model)}\n"
    if arguments.listen:
        text += f"[router]\nlisten = {_quoted(arguments.listen)}\n"
    return text.encode()


def _quoted(text: str) -> str:
    """What JSON makes of a text is a TOML string too."""
    return json.dumps(text, ensure_ascii=False)


def _name(url: str) -> str:
    """An engine's name from its URL, of the characters that names have."""
    return re.sub(r"[^A-Za-z0-9._:-]", "-", url.rpartition("://")[2].rstrip("/"))


def engine_headers() -> Mapping[str, str] | None:
    """What the engines want to see with our own questions."""
    key = os.environ.get("VLLM_API_KEY")
    return {"Authorization": f"Bearer {key}"} if key else None


def run_service(
    name: str,
    run: Callable[[], Coroutine[Any, Any, None]],
    failures: tuple[type[Exception], ...] = (OSError,),
) -> int:
    """The event loop of a service, until it is told to stop. 1 where it could not do its work."""
    import uvloop

    status = 0
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    try:
        uvloop.run(run())
    except* failures as group:
        print(f"pointsman {name}: {_first(group)}", file=sys.stderr)
        status = 1
    return status


def _first(group: BaseExceptionGroup[Any]) -> BaseException:
    """What went wrong, without the groups around it."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
