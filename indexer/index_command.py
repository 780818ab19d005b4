"""A shell: the subcommands of `pointsman index`, which read a running indexer from the outside.

They change nothing, in the indexer, its store or an engine.
"""

import argparse
import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from indexer.arguments import print_help, seconds
from indexer.config import PASSWORD_VARIABLE, HttpConfig, check_redis_url, parse_config
from proto.config_file import ConfigError, parse_listen

if TYPE_CHECKING:
    import aiohttp

    from indexer.index_reading import IndexReader
    from indexer.redis_store import RedisStore

_Subcommands = argparse._SubParsersAction  # The one type argparse has for it is not exported.

WAIT_S = 10.0

_FROM = """
The indexer is asked at 127.0.0.1:9464, where --indexer says, or at http.listen of --config. Where
its store is it says itself; --redis URL is for a store that has another address from here. The
password is read from POINTSMAN_REDIS_PASSWORD. It runs in `pointsman serve` too.
"""

_STATS_EXAMPLE = f"""\
example: how large is the index of each replica, how sure, and how far is the store behind?

  pointsman index stats
  pointsman index stats --indexer http://10.0.0.5:9464 --json
{_FROM}
"B/block" is memory of the indexer, "stored B/block" of the store's server; "lag" is batches that
are known and not applied, "stored seq" the batch as of which the store has it.

Exit status: 0; 1 where the indexer cannot be read; 2 where it was asked for wrongly.
"""

_DUMP_EXAMPLE = f"""\
example: which blocks does replica a hold?

  pointsman index dump a | head -3

For each replica one JSON line says what follows (replica, seq, blocks, ...), then there is one for
each block: its hash, 16 hex digits as in logs, and its copies.
{_FROM}
Exit status: 0; 1 where the indexer cannot be read; 2 where it was asked for wrongly.
"""

_VERIFY_EXAMPLE = f"""\
example: are memory and store equal, block for block, and equal to what simulated engines hold?

  pointsman index verify
  pointsman index verify a --config pointsman.toml --json

Memory and store are compared at one moment, also under load. Memory and a simulated engine are
compared while the engine is still, which takes some seconds where they differ; with an incomplete
history the memory may hold less ("part").
{_FROM}
Exit status: 0 where nothing differs; 1 where something does; 2 where it was asked for wrongly; 3
where it could not be told: the indexer or the store cannot be read, or something does not hold
still.
"""


def add_index(subcommands: "_Subcommands[argparse.ArgumentParser]") -> None:
    """Declare `index` and what is below it."""
    index = subcommands.add_parser(
        "index",
        help="look into the index of a running indexer, and verify it",
        description="Look into the index of a running indexer: its size, its blocks, and whether"
        " memory, store and simulated engines agree.",
    )
    index.set_defaults(run=lambda arguments: print_help(index))
    commands = index.add_subparsers(title="commands", metavar="COMMAND")
    _add(commands, "stats", "sizes, evidence, seq and lag of each replica", _STATS_EXAMPLE, _stats)
    _add(commands, "dump", "print the blocks of replicas as JSON lines", _DUMP_EXAMPLE, _dump)
    verify = _add(
        commands, "verify", "compare memory, store and simulated engines", _VERIFY_EXAMPLE, _verify
    )
    verify.add_argument(
        "--wait",
        type=seconds,
        default=WAIT_S,
        metavar="N",
        help="seconds to try for (%(default)g)",
    )


def _add(
    commands: "_Subcommands[argparse.ArgumentParser]",
    name: str,
    text: str,
    example: str,
    work: "Callable[[_Asked, argparse.Namespace], Awaitable[int]]",
) -> argparse.ArgumentParser:
    parser = commands.add_parser(
        name,
        help=text,
        description=f"{text[0].upper()}{text[1:]}.",
        epilog=example,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("replica", nargs="?", metavar="REPLICA", help="one of them (all)")
    add("--indexer", metavar="URL", help="where the indexer serves HTTP")
    add("--redis", metavar="URL", help="where its store is")
    add("--config", metavar="FILE", help="the indexer's, in place of both")
    if name != "dump":
        add("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=lambda arguments: _run(name, work, arguments))
    return parser


@dataclass(frozen=True, slots=True)
class _Asked:
    """What a command works with. ``replicas`` are those that were asked for."""

    session: "aiohttp.ClientSession"
    reader: "IndexReader"
    store: "RedisStore | None"
    replicas: Sequence[Mapping[str, Any]]


class _NoSuchReplica(Exception):
    pass


def _run(
    name: str,
    work: Callable[[_Asked, argparse.Namespace], Awaitable[int]],
    arguments: argparse.Namespace,
) -> int:
    # Imported here: sockets are nothing that `--help` needs.
    from indexer.index_reading import NotRead

    async def run() -> int:
        async with _asked(indexer, redis, arguments.replica) as asked:
            return await work(asked, arguments)

    try:
        indexer, redis = _places(arguments)
        return asyncio.run(run())
    except (ConfigError, _NoSuchReplica) as error:
        status, text = 2, str(error)
    except NotRead as error:
        status, text = 3 if name == "verify" else 1, str(error)
    print(f"pointsman index {name}: {text}", file=sys.stderr)
    return status


def _places(arguments: argparse.Namespace) -> tuple[str, str | None]:
    """URLs of the indexer and, where it was told, of the store. Raises ConfigError."""
    listen, redis = HttpConfig().listen, arguments.redis
    if arguments.config is not None:
        if arguments.indexer is not None:
            raise ConfigError("--config says where the indexer is: leave out --indexer")
        try:
            with open(arguments.config, "rb") as file:
                config = parse_config(file.read())
        except OSError as error:
            raise ConfigError(f"{arguments.config}: {error.strerror}") from None
        except ConfigError as error:
            raise ConfigError(f"{arguments.config}: {error}") from None
        listen = config.http.listen
        redis = redis or (config.redis.url if config.redis.enabled else None)
    if redis is not None:
        check_redis_url(redis, "--redis")
    return _checked(arguments.indexer) if arguments.indexer else _reachable(listen), redis


def _reachable(listen: str) -> str:
    """From this machine, where an indexer listens on every address of it."""
    host, port = parse_listen(listen, "http.listen")
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _checked(url: str) -> str:
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise ConfigError(f"--indexer: {url!r} is not http://HOST:PORT")
    return url


@asynccontextmanager
async def _asked(indexer: str, redis: str | None, replica: str | None) -> AsyncIterator[_Asked]:
    """Raises NotRead, _NoSuchReplica."""
    import aiohttp

    from indexer.index_reading import IndexReader
    from indexer.redis_store import RedisStore

    async with aiohttp.ClientSession() as session:
        reader = IndexReader(session, indexer)
        known = await reader.known()
        replicas = [each for each in known.replicas if replica in (None, each["replica"])]
        if replica is not None and not replicas:
            names = ", ".join(each["replica"] for each in known.replicas) or "none"
            raise _NoSuchReplica(f"no replica {replica!r} is followed; there are: {names}")
        url = redis or known.store
        store = RedisStore(url, os.environ.get(PASSWORD_VARIABLE)) if url is not None else None
        try:
            yield _Asked(session, reader, store, replicas)
        finally:
            if store is not None:
                await store.close()


async def _stats(asked: _Asked, arguments: argparse.Namespace) -> int:
    from indexer.index_text import stats_of, stats_table
    from indexer.redis_store import StoreUnavailable

    rows, error = [], None
    for replica in asked.replicas:
        size = None
        if asked.store is not None and error is None:
            try:
                size = await asked.store.memory_bytes(replica["pool"], replica["replica"])
            except StoreUnavailable as unavailable:
                error = str(unavailable)
        rows.append(stats_of(replica, size))
    if arguments.json:
        print(json.dumps({"replicas": rows, "store_error": error}))
    else:
        print("\n".join(stats_table(rows)))
        if error is not None:
            print(f"pointsman index stats: {error}", file=sys.stderr)
    return 0


async def _dump(asked: _Asked, arguments: argparse.Namespace) -> int:
    from indexer.block_lines import block_lines, head_line

    out = sys.stdout.buffer
    for replica in asked.replicas:
        async with asked.reader.blocks(replica["replica"]) as answer:
            blocks = await answer.blocks()
        out.write(head_line(answer.head))
        for lines in block_lines(blocks):
            out.write(lines)
    out.flush()
    return 0


async def _verify(asked: _Asked, arguments: argparse.Namespace) -> int:
    from indexer.comparing import exit_status
    from indexer.index_text import verify_lines
    from indexer.verifying import Verifier

    verifier = Verifier(asked.reader, asked.store, asked.session, arguments.wait)
    checked = []
    for number, replica in enumerate(asked.replicas, 1):
        if sys.stderr.isatty():
            print(f"\r\x1b[K{number} of {len(asked.replicas)}", end="", file=sys.stderr)
        checked.append(await verifier.verify(replica))
    if sys.stderr.isatty():
        print("\r\x1b[K", end="", file=sys.stderr)
    status = exit_status(checked)
    if arguments.json:
        found = [one.as_json() for one in checked]
        print(json.dumps({"ok": status == 0, "replicas": found}))
    else:
        colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
        print("\n".join(verify_lines(checked, colour=colour)))
    return status
