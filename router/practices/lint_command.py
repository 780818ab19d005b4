"""A shell: the subcommand `lint`."""

import argparse
import json
import sys
import time
from typing import TYPE_CHECKING, TextIO

from router.tokens_command import AskedWrongly, add_template_flags, load_tokenizer

if TYPE_CHECKING:
    from array import array

    from router.practices.lint_files import LogContents
    from router.practices.lint_replay import Tokenize
    from router.practices.lint_report import LintReport

_Subcommands = argparse._SubParsersAction  # The one type argparse has for it is not exported.

# The same words as in lint_replay, which `--help` does not need to import.
_KINDS = (
    "clock ids names retrieval_first tool_order key_order tools_missing whitespace salts"
    " rewritten_history short_prompt"
).split()
_REQUESTS_MAX = 20_000

_EXAMPLE = f"""\
example: what breaks prefixes in a day's requests, as text and as a page

  pointsman lint requests.jsonl --model /models/Qwen3-32B --html report.html

and in CI, where a clock or fewer than 60 % of the tokens from the cache is a failure

  pointsman lint recorded/ --model /models/Qwen3-32B --fail-on clock,tool_order --min-hit-rate 60

A LOG has one OpenAI body (chat or completion) in each line, or objects that have one under "body",
as the router's sampled log and OpenAI's batch files do; of a folder every .jsonl, .ndjson and .json
in it is read, by name. The order of the lines is the order of the requests. Each fault is replayed
against a cache that never forgets, as logged and mended; examples show shapes, never contents.

kinds: {", ".join(_KINDS[:6])},
{", ".join(_KINDS[6:])}

Limits: --requests-max requests (default {_REQUESTS_MAX:,}), 512 MiB of logs, 64 MiB a line; what is
behind them is counted and not read. Lines that hold no request are named and left out.

Exit status: 0; 1 where --fail-on or --min-hit-rate is not met; 2 where something is wrong with the
flags, the model or the log (no line of it holds a request).
"""


def add_lint(subcommands: "_Subcommands[argparse.ArgumentParser]") -> None:
    parser = subcommands.add_parser(
        "lint",
        help="find what breaks prefixes in a log of requests",
        description="Find what breaks prefixes in a log of requests, what it costs, and the fix.",
        usage="%(prog)s LOG.jsonl --model DIR [options]",
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("logs", nargs="+", metavar="LOG.jsonl", help="a log, or a folder of them; - for stdin")
    add("--model", required=True, metavar="DIR", help="folder with the model's tokenizer")
    add("--block-size", type=_positive, default=16, metavar="TOKENS", help="the engines' (16)")
    add("--json", action="store_true", help="print one JSON object")
    add("--html", metavar="FILE", help="write the report as a page of its own, too")
    add("--fail-on", type=_kinds, default=(), metavar="KIND[,KIND]", help="see below; or any")
    add("--min-hit-rate", type=_percent, metavar="PERCENT", help="of the log as it is")
    add("--requests-max", type=_positive, default=_REQUESTS_MAX, metavar="N", help="see below")
    add_template_flags(parser)
    parser.set_defaults(run=run_lint)


def run_lint(arguments: argparse.Namespace) -> int:
    # Imported here: what tokenizes is nothing that `--help` needs.
    from router.practices.lint_report import report_json
    from router.practices.lint_text import report_text

    try:
        report = _report(arguments)
        if arguments.html:
            _write_page(arguments.html, report)
    except AskedWrongly as error:
        print(f"pointsman lint: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    if arguments.json:
        print(json.dumps(report_json(report)))
    else:
        sys.stdout.write(report_text(report, is_coloured=sys.stdout.isatty()))
    return _status(arguments, report)


def _status(arguments: argparse.Namespace, report: "LintReport") -> int:
    found = {finding.kind for finding in report.findings}
    failed = sorted(found if "any" in arguments.fail_on else found.intersection(arguments.fail_on))
    if failed:
        print(f"pointsman lint: found {', '.join(failed)} (--fail-on)", file=sys.stderr)
    least = arguments.min_hit_rate
    is_low = least is not None and report.hit_rate * 100 < least
    if is_low:
        print(
            f"pointsman lint: the hit rate is {report.hit_rate * 100:.1f} %,"
            f" less than {least:g} % (--min-hit-rate)",
            file=sys.stderr,
        )
    return 1 if failed or is_low else 0


def _report(arguments: argparse.Namespace) -> "LintReport":
    """Raises AskedWrongly."""
    from router.practices.lint_replay import Replay, examine
    from router.practices.lint_report import LintReport
    from router.practices.traffic import Traffic

    contents = _contents(arguments)
    tokenize = _tokenize(arguments)
    progress = _Progress(sys.stderr)
    traffic = Traffic(contents.requests)
    replay = Replay(traffic, tokenize, arguments.block_size, progress.count)
    examined = examine(traffic, replay, arguments.block_size)
    progress.over()
    if len(replay.not_tokenized) == len(contents.requests):
        where, why = next(iter(replay.not_tokenized.items()))
        raise AskedWrongly(
            f"no request could be tokenized; the first, {contents.requests[where].where}: {why}"
        )
    return LintReport(
        len(contents.requests),
        sum(examined.base.prompt_tokens),
        arguments.block_size,
        examined.base.hit_rate,
        examined.fixed.hit_rate,
        examined.findings,
        contents.bad_lines,
        len(replay.not_tokenized),
        contents.not_read,
        tuple(contents.complaints),
    )


def _contents(arguments: argparse.Namespace) -> "LogContents":
    from router.practices.lint_files import LogReader

    reader = LogReader(arguments.requests_max)
    for path in arguments.logs:
        try:
            reader.read(path)
        except OSError as error:
            raise AskedWrongly(f"{error.filename or path}: {error.strerror or error}") from None
    contents = reader.contents
    if not contents.requests:
        names = ", ".join(arguments.logs)
        first = f"; {contents.complaints[0]}" if contents.complaints else ""
        raise AskedWrongly(f"no line of {names} holds a request{first}")
    return contents


def _tokenize(arguments: argparse.Namespace) -> "Tokenize":
    from router.tokens import NotReported, tokens_of

    tokenizer = load_tokenizer(arguments)

    def tokenize(path: str, body: bytes) -> "list[array[int]]":
        try:
            return [tokens.token_ids for tokens in tokens_of(path, body, tokenizer)]
        except NotReported as error:
            raise ValueError(str(error)) from None

    return tokenize


def _write_page(path: str, report: "LintReport") -> None:
    from router.practices.lint_html import report_html

    try:
        with open(path, "w", encoding="utf-8") as page:
            page.write(report_html(report))
    except OSError as error:
        raise AskedWrongly(f"--html {path}: {error.strerror or error}") from None


class _Progress:
    """Nothing in the first seconds; then a line that changes, or now and then a line."""

    def __init__(self, out: TextIO) -> None:
        self._out, self._is_terminal = out, out.isatty()
        self._interval_s = 0.2 if self._is_terminal else 15.0
        self._next_s = time.monotonic() + (2.0 if self._is_terminal else 15.0)
        self._done, self._shown = 0, False

    def count(self) -> None:
        self._done += 1
        now = time.monotonic()
        if now < self._next_s:
            return
        self._next_s = now + self._interval_s
        text = f"replaying: {self._done:,} requests so far, each fault with and without its fix"
        self._out.write(f"\r\x1b[K{text}" if self._is_terminal else f"{text}\n")
        self._out.flush()
        self._shown = True

    def over(self) -> None:
        if self._shown and self._is_terminal:
            self._out.write("\r\x1b[K")


def _positive(text: str) -> int:
    if not text.isdecimal() or not 0 < int(text) <= 1_000_000:
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 1 to 1,000,000")
    return int(text)


def _percent(text: str) -> float:
    try:
        value = float(text.removesuffix("%"))
    except ValueError:
        value = -1.0
    if not 0 <= value <= 100:
        raise argparse.ArgumentTypeError(f"{text!r} is no percentage from 0 to 100")
    return value


def _kinds(text: str) -> tuple[str, ...]:
    kinds = tuple(kind.strip() for kind in text.split(","))
    unknown = [kind for kind in kinds if kind not in (*_KINDS, "any")]
    if unknown:
        raise argparse.ArgumentTypeError(
            f"{', '.join(map(repr, unknown))}: the kinds are {', '.join(_KINDS)}, or any"
        )
    return kinds
