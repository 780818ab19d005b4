"""A shell: the subcommand `warmup`, which a deploy script runs against one replica."""

import argparse
import asyncio
import json
import sys
import time
from dataclasses import replace
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    import aiohttp

    from router.practices.warmup_report import BodyResult
    from router.replicas import Engine, Replica
    from router.warm_bodies import WarmBody

_Subcommands = argparse._SubParsersAction  # The one type argparse has for it is not exported.

_ASK_AGAIN_S = 1.0
_PROBE_S_MAX = 5.0
_METRICS_BYTES_MAX = 4 * 2**20

_EXAMPLE = """\
example: in a deploy script, once the replica was started and before it gets traffic

  pointsman warmup http://10.0.0.7:8000 --bodies prompts/ --wait 600 && add_to_balancer 10.0.0.7

Each *.json of the folder is one request body as a client sends it: the platform's prompt with its
tools. It goes out with one token to generate and without streaming, one after the other, in the
order of the names; then all of them again, which shows what is resident now: the engine reports the
cached tokens of the repeat. Where an engine has several data-parallel ranks, each gets the bodies.

URL is of one replica. A router would send each body to whatever replica it likes; to have replicas
warmed up behind one, give the folder as pools.NAME.warm_up in its configuration instead.

Where clients come through a router with canonical_tools = true, give --canonical-tools: else other
bytes would be warmed up than they send.

An API key is taken from VLLM_API_KEY. Progress is on stderr.
Exit status: 0 where all bodies are resident, or nobody can tell; 1 where one was not taken or is
not resident, or the replica cannot be reached; 2 where it was asked for wrongly.
"""


def add_warmup(subcommands: "_Subcommands[argparse.ArgumentParser]") -> None:
    parser = subcommands.add_parser(
        "warmup",
        help="send a replica the bodies that warm its cache up",
        description="Send a replica the bodies that warm its cache up, and show what is resident.",
        usage="%(prog)s URL --bodies DIR [options]",
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("url", metavar="URL", help="of one replica, such as http://10.0.0.7:8000")
    add("--bodies", required=True, metavar="DIR", help="folder with one body in each *.json")
    add("--wait", type=_seconds, default=0.0, metavar="S", help="for it to come up (0)")
    add("--timeout", type=_seconds, default=600.0, metavar="S", help="for all of it (600)")
    add("--canonical-tools", action="store_true", help="as the pool's canonical_tools = true")
    add("--no-repeat", action="store_true", help="do not send them again to see what is there")
    add("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=run_warmup)


def run_warmup(arguments: argparse.Namespace) -> int:
    # Imported here: none of it is needed by `--help`.
    from router.practices.warmup_report import as_json, as_text, failed, with_zeros
    from router.preparation import PoolPractices
    from router.warm_bodies import NoWarmBodies, load_warm_bodies, prepared_warm_bodies

    if not _is_url(arguments.url):
        return _fail(f"{arguments.url!r} is not http://HOST:PORT", 2)
    try:
        practices = PoolPractices(canonical_tools=arguments.canonical_tools)
        bodies = prepared_warm_bodies(load_warm_bodies(arguments.bodies), practices)
    except NoWarmBodies as error:
        return _fail(f"--bodies: {error}", 2)
    try:
        found, block_size = asyncio.run(_run(arguments, bodies))
    except _NotReached as error:
        return _fail(f"{arguments.url}: {error}", 1)
    results = with_zeros(found)
    if arguments.json:
        print(json.dumps(as_json(results, block_size)))
    else:
        print("\n".join(as_text(results, block_size)))
    return 1 if failed(results, block_size) else 0


class _NotReached(Exception):
    """The text says what the replica did instead of answering."""


async def _run(
    arguments: argparse.Namespace, bodies: "tuple[WarmBody, ...]"
) -> "tuple[list[BodyResult], int | None]":
    """Raises _NotReached."""
    import aiohttp

    from router.cli import engine_headers

    async with aiohttp.ClientSession(headers=engine_headers()) as session:
        engine = await _come_up(session, arguments.url.rstrip("/"), arguments.wait)
        warming = _Warming(session, engine, bodies)
        try:
            async with asyncio.timeout(arguments.timeout) as deadline:
                await warming.run(repeat=not arguments.no_repeat)
                return warming.results, await _block_size(session, engine.config.url)
        except (aiohttp.ClientError, OSError) as error:
            late = f"not done within {arguments.timeout:g} s"
            text = late if deadline.expired() else str(error) or type(error).__name__
            raise _NotReached(text) from None


async def _come_up(session: "aiohttp.ClientSession", url: str, wait_s: float) -> "Engine":
    from router.probes import Probes
    from router.replicas import EngineConfig, ReplicaSet

    replicas = ReplicaSet()
    replicas.reset([EngineConfig(urlsplit(url).netloc, url, "")])
    (engine,) = replicas.engines.values()
    probes = Probes(replicas, session, interval_s=_ASK_AGAIN_S, timeout_s=_PROBE_S_MAX)
    deadline = time.monotonic() + wait_s
    while True:
        await probes.probe(engine)
        if not engine.failed_probes:
            return engine
        if time.monotonic() >= deadline:
            raise _NotReached(engine.error or "it does not answer")
        await asyncio.sleep(_ASK_AGAIN_S)


class _Warming:
    """All bodies to all ranks, one after the other."""

    def __init__(
        self,
        session: "aiohttp.ClientSession",
        engine: "Engine",
        bodies: "tuple[WarmBody, ...]",
    ) -> None:
        self.results: list[BodyResult] = []
        self._session = session
        self._sent = [(replica, body) for replica in engine.replicas for body in bodies]

    async def run(self, *, repeat: bool) -> None:
        for replica, body in self._sent:
            result = await self._send(replica, body)
            self.results.append(result)
            self._say("sent", result)
        if repeat:
            for index, (replica, body) in enumerate(self._sent):
                await self._repeat(index, replica, body)

    async def _repeat(self, index: int, replica: "Replica", body: "WarmBody") -> None:
        first = self.results[index]
        if first.error is not None:
            return
        again = await self._send(replica, body)
        self.results[index] = replace(
            first, error=again.error, cached_after=again.cached_before, repeated=True
        )
        self._say("repeated", again)

    async def _send(self, replica: "Replica", body: "WarmBody") -> "BodyResult":
        from router.practices.warmup_report import BodyResult
        from router.warming import BodyNotTaken, send_body

        started = time.monotonic()
        try:
            usage = await send_body(self._session, replica, body)
        except BodyNotTaken as error:
            return BodyResult(replica.id, body.name, str(error))
        seconds = time.monotonic() - started
        if usage is None:
            return BodyResult(replica.id, body.name, seconds=seconds)
        return BodyResult(
            replica.id,
            body.name,
            prompt_tokens=usage.prompt_tokens,
            cached_before=usage.cached_tokens,
            seconds=seconds,
        )

    @staticmethod
    def _say(what: str, result: "BodyResult") -> None:
        how = result.error or f"{result.seconds:.2f} s"
        print(f"{result.replica}: {what} {result.body}: {how}", file=sys.stderr)


async def _block_size(session: "aiohttp.ClientSession", url: str) -> int | None:
    from router.practices.warmup_report import block_size_in
    from router.probes import read_answer

    async with session.get(f"{url}/metrics") as response:
        text = await read_answer(response, _METRICS_BYTES_MAX)
    return block_size_in(text.decode(errors="replace"))


def _is_url(text: str) -> bool:
    try:
        parts = urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= 86_400:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds")
    return seconds


def _fail(text: str, status: int) -> int:
    """In one line, whatever a foreign library has put into it."""
    print(f"pointsman warmup: {' '.join(text.split())}", file=sys.stderr)
    return status
