"""What the indexer's subcommands have in common: values of flags, and help where none is given."""

import argparse
import sys


def seconds(text: str) -> float:
    """A type of argparse: seconds above 0."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value < 1e9:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds above 0")
    return value


def print_help(parser: argparse.ArgumentParser) -> int:
    """Of a command whose subcommand is missing; the exit status."""
    parser.print_help(sys.stderr)
    return 2
