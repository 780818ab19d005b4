"""The command ``pointsman``: joins the subcommands that each package declares.

It is also the one place that knows both services: ``pointsman serve`` runs them on one event loop,
and the questions of the router to the indexer skip the network.
"""

import argparse
import asyncio
import importlib.util
import os
import signal
import sys
from importlib import metadata
from pathlib import Path

_SERVE_EXAMPLE = """\
example: two engines on this machine, of one model whose tokenizer is in a folder

  pointsman serve --replica http://127.0.0.1:8000 --replica http://127.0.0.1:8001 \\
      --model /models/Qwen3-32B

example: pointsman serve --config pointsman.toml

{config}
The replicas are vLLM engines with --kv-events-config (README has the flags). OpenAI's clients use
http://127.0.0.1:8080/v1; GET /ready there tells how far each replica's index can be trusted.

A restart forgets nothing: the index is kept by a Valkey server of its own, which starts and ends
with it, in a folder of this configuration's below $XDG_STATE_HOME/pointsman (~/.local/state/...).
--data or redis.folder says where else, redis.url names a server that is there, and --no-data or
redis.enabled = false keeps it in memory only.

Exit status: 0 after SIGTERM or Ctrl-C, 1 where it could not go on, 2 where it was asked wrongly.
"""


def main(argv: list[str] | None = None) -> int:
    """Returns the exit status: 0, 1 where the command failed, 2 where it was asked for wrongly."""
    foreign = _foreign_proto()
    if foreign:
        print(f"pointsman: {foreign}", file=sys.stderr)
        return 2
    # gRPC's own lines beside a refusal of ours say the same less clearly.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    parser = _parser()
    arguments = parser.parse_args(argv)
    if not hasattr(arguments, "run"):
        parser.print_help(sys.stderr)
        return 2
    if getattr(arguments, "logs", False):
        from indexer.logs import log_to_stdout

        log_to_stdout()
    try:
        status: int = arguments.run(arguments)
        sys.stdout.flush()
    except BrokenPipeError:
        # Whoever read our output has gone. Python would try to flush the rest at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        return 130
    return status


def _parser() -> argparse.ArgumentParser:
    """Imports here, since every package of ours needs ``proto`` to be ours."""
    from benchmarks.cli import add_commands as add_benchmark_commands
    from indexer.cli import add_commands as add_indexer_commands
    from indexer.doctor.command import Loaders, add_doctor
    from router.cli import CONFIG_EXAMPLE
    from router.cli import add_commands as add_router_commands
    from router.tokens_command import add_template_flags, load_chat_ids, load_pools_chat_ids

    parser = argparse.ArgumentParser(
        prog="pointsman", description="A precise, KV-event-driven prefix-aware router for vLLM."
    )
    parser.add_argument("--version", action="version", version=f"pointsman {_version()}")
    subcommands = parser.add_subparsers(title="commands", metavar="COMMAND")
    serve = subcommands.add_parser(
        "serve",
        help="run the router and the indexer in one process",
        description="Run the router and the indexer in one process.",
        epilog=_SERVE_EXAMPLE.format(config=CONFIG_EXAMPLE),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = serve.add_argument
    add("--config", metavar="FILE", help="TOML, see the example")
    add("--replica", action="append", metavar="URL", help="an engine; in place of --config")
    add("--model", metavar="DIR", help="folder with the tokenizer of the model they serve")
    add("--listen", metavar="HOST:PORT", help="with --replica (127.0.0.1:8080)")
    kept = serve.add_mutually_exclusive_group()
    kept.add_argument("--data", metavar="DIR", help="keep the index there, see below")
    kept.add_argument("--no-data", action="store_true", help="keep the index in memory only")
    serve.set_defaults(run=run_serve, logs=True)
    add_router_commands(subcommands)
    add_indexer_commands(subcommands)
    doctor = add_doctor(subcommands, Loaders(load_chat_ids, load_pools_chat_ids))
    add_template_flags(doctor)
    add_benchmark_commands(subcommands)
    return parser


def run_serve(arguments: argparse.Namespace) -> int:
    """Run both until SIGTERM or SIGINT. What is wrong with the configuration stops it before."""
    import msgspec

    from indexer.app import IndexerApp
    from indexer.config import PASSWORD_VARIABLE, parse_config
    from indexer.default_folder import redis_of_serve
    from indexer.listener import ListenError
    from proto.config_file import ConfigError
    from router.app import RouterApp, load_tenancy, load_tokenizers, load_warm_ups
    from router.cli import engine_headers, run_service, serve_config
    from router.config import parse_router_config

    async def run() -> None:
        stopping = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stopping.set)
        indexer = IndexerApp(config, engine_headers(), os.environ.get(PASSWORD_VARIABLE))
        indexer_ready = asyncio.Event()
        # The indexer goes last: requests that are still running ask it.
        router_stopped = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            group.create_task(indexer.run(indexer_ready, router_stopped))
            await indexer_ready.wait()
            try:
                headers = engine_headers()
                router = RouterApp(file, tokenizers, indexer.local, headers, warm_ups, tenancy)
                await router.run(stopping=stopping)
            finally:
                router_stopped.set()

    try:
        text = serve_config(arguments)
        config, file = parse_config(text), parse_router_config(text)
        warm_ups = load_warm_ups(file)
        tenancy = load_tenancy(file, os.environ)
        identity = str(Path(arguments.config).resolve()) if arguments.config else file.router.listen
        redis = redis_of_serve(
            config.redis, identity, os.environ, data=arguments.data, no_data=arguments.no_data
        )
        config = msgspec.structs.replace(config, redis=redis)
        tokenizers = load_tokenizers(file)
    except ConfigError as error:
        where = f"{arguments.config}: " if arguments.config else ""
        print(f"pointsman serve: {where}{error}", file=sys.stderr)
        return 2
    return run_service("serve", run, (ListenError, OSError))


def _version() -> str:
    try:
        return metadata.version("pointsman")
    except metadata.PackageNotFoundError:
        return "(not installed)"


def _foreign_proto() -> str | None:
    """What to do about a package that has the name of ours, such as proto-plus; None if ours."""
    ours = Path(__file__).resolve().parent.parent / "proto" / "blockhash.py"
    try:
        found = importlib.util.find_spec("proto.blockhash")
    except ImportError:
        # There is a `proto` that cannot be imported, or that is no package.
        found = None
    if found is not None and found.origin and Path(found.origin).resolve() == ours:
        return None
    return (
        "another package is installed as `proto` (proto-plus is one) and hides pointsman's own;"
        " install pointsman in an environment of its own, with `uv tool install` or pipx"
    )


if __name__ == "__main__":
    sys.exit(main())
