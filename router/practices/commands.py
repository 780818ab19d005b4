"""The subcommands of the practices, each declared beside what it runs."""

import argparse

from router.practices.capacity_command import add_capacity
from router.practices.diff_command import add_diff
from router.practices.fingerprints_command import add_fingerprints
from router.practices.lint_command import add_lint
from router.practices.verify_command import add_verify
from router.practices.warmup_command import add_warmup

_Subcommands = argparse._SubParsersAction  # The one type argparse has for it is not exported.


def add_practice_commands(subcommands: "_Subcommands[argparse.ArgumentParser]") -> None:
    """Declare them in the order of use: what breaks a prefix, then what a fleet can hold."""
    add_diff(subcommands)
    add_lint(subcommands)
    add_fingerprints(subcommands)
    add_capacity(subcommands)
    add_warmup(subcommands)
    add_verify(subcommands)
