"""The command ``pointsman``: joins the subcommands that each package declares."""

import argparse
import importlib.util
import os
import sys
from importlib import metadata
from pathlib import Path


def main(argv: list[str] | None = None) -> int:
    """Returns the exit status: 0, 1 where the command failed, 2 where it was asked for wrongly."""
    foreign = _foreign_proto()
    if foreign:
        print(f"pointsman: {foreign}", file=sys.stderr)
        return 2
    parser = _parser()
    arguments = parser.parse_args(argv)
    if not hasattr(arguments, "run"):
        parser.print_help(sys.stderr)
        return 2
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

    parser = argparse.ArgumentParser(
        prog="pointsman", description="A precise, KV-event-driven prefix-aware router for vLLM."
    )
    parser.add_argument("--version", action="version", version=f"pointsman {_version()}")
    subcommands = parser.add_subparsers(title="commands", metavar="COMMAND")
    add_indexer_commands(subcommands)
    add_benchmark_commands(subcommands)
    return parser


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
