"""A shell: the subcommand `fingerprints`."""

import argparse
import json
import sys
import urllib.error
import urllib.request
from collections.abc import Iterable
from contextlib import nullcontext
from typing import Any
from urllib.parse import urlsplit

_Subcommands = argparse._SubParsersAction  # The one type argparse has for it is not exported.

_WAIT_S = 10.0
_ANSWER_BYTES_MAX = 2**20

_EXAMPLE = """\
examples: of a running router, by its admin listener; of its log; and of one body, such as for
tenancy.shared_fingerprints

  pointsman fingerprints http://127.0.0.1:9465
  pointsman fingerprints router.log --max 3
  pointsman fingerprints --body platform-prompt.json

A fingerprint stands for the first system message and the tools, in whatever order they are listed:
12 hex digits of a sha256. Requests with the same one can share its blocks. Live is what was seen
within an hour, of now or of the log's end. "none" has neither a system message nor tools,
"other" is what the router's table had no room for (router.fingerprints_max). The hit rate is that
of the tokens that the engines reported; without --enable-prompt-tokens-details it is unknown.

Exit status: 0; 1 where more than --max are live; 2 where there is nothing to read, or it is wrong.
"""


class _Unreadable(Exception):
    """The text says what, and what to give instead."""


def add_fingerprints(subcommands: "_Subcommands[argparse.ArgumentParser]") -> None:
    parser = subcommands.add_parser(
        "fingerprints",
        help="show how many versions of the shared prefix are live",
        description="Show how many versions of the shared prefix are live: the share, first sight"
        " and hit rate of each.",
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("source", metavar="SOURCE", help="URL of an admin listener, or a log file; - for stdin")
    add("--body", action="store_true", help="SOURCE is one request body: print its fingerprint")
    add("--max", type=_count, metavar="N", help="fail where more fingerprints than this are live")
    add("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=run_fingerprints)


def run_fingerprints(arguments: argparse.Namespace) -> int:
    from router.practices.fingerprints_report import NoLog, as_text

    try:
        if arguments.body:
            return _print_fingerprint(arguments.source)
        report = _report(arguments.source)
    except (_Unreadable, NoLog) as error:
        print(f"pointsman fingerprints: {arguments.source}: {error}", file=sys.stderr)
        return 2
    print(json.dumps(report) if arguments.json else "\n".join(as_text(report)))
    if arguments.max is not None and report["live"] > arguments.max:
        said = f"{report['live']} fingerprints are live, more than {arguments.max}"
        print(f"pointsman fingerprints: {said}", file=sys.stderr)
        return 1
    return 0


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is no number of fingerprints")
    return int(text)


def _report(source: str) -> dict[str, Any]:
    if urlsplit(source).scheme in ("http", "https"):
        return _asked(source)
    return _counted(source)


def _asked(url: str) -> dict[str, Any]:
    """Of a running router."""
    from router.practices.fingerprints_report import is_report

    whole = url if urlsplit(url).path.strip("/") else f"{url.rstrip('/')}/fingerprints"
    hint = "it has to be the router's admin listener (admin.listen, http://127.0.0.1:9465)"
    try:
        with urllib.request.urlopen(whole, timeout=_WAIT_S) as response:
            report = json.loads(response.read(_ANSWER_BYTES_MAX))
    except urllib.error.HTTPError as error:
        raise _Unreadable(f"answered {error.code}; {hint}") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise _Unreadable(f"{reason}; {hint}"[:300]) from None
    if not is_report(report):
        raise _Unreadable(f"its answer is something else; {hint}")
    return dict(report)


def _counted(path: str) -> dict[str, Any]:
    """Of a log."""
    from router.practices.fingerprints_report import report_of_log

    try:
        with nullcontext(sys.stdin.buffer) if path == "-" else open(path, "rb") as file:
            lines: Iterable[bytes] = file
            return report_of_log(lines)
    except OSError as error:
        raise _Unreadable(error.strerror or str(error)) from None


def _print_fingerprint(path: str) -> int:
    from router.fingerprint import prefix_fingerprint

    try:
        with nullcontext(sys.stdin.buffer) if path == "-" else open(path, "rb") as file:
            body = json.loads(file.read())
    except OSError as error:
        raise _Unreadable(error.strerror or str(error)) from None
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise _Unreadable(f"no JSON: {error.msg}, {where}") from None
    except (ValueError, RecursionError) as error:
        raise _Unreadable(f"no JSON: {error}"[:200]) from None
    fingerprint = prefix_fingerprint(body) if isinstance(body, dict) else None
    if fingerprint is None:
        raise _Unreadable("it has no fingerprint: a chat with a system message or tools has one")
    print(fingerprint)
    return 0
