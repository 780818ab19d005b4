"""The report of ``pointsman lint`` for a person at a terminal."""

import textwrap
from collections.abc import Iterator

from router.practices.lint_report import Finding, LintReport

_BOLD, _DIM, _PLAIN = "\x1b[1m", "\x1b[2m", "\x1b[0m"
_WIDTH = 96


def report_text(report: LintReport, *, is_coloured: bool) -> str:
    bold, dim, plain = (_BOLD, _DIM, _PLAIN) if is_coloured else ("", "", "")
    lines = [
        f"{report.requests:,} requests, {report.prompt_tokens:,} prompt tokens,"
        f" blocks of {report.block_size}",
        f"hit rate of an endless cache: {bold}{percent(report.hit_rate)}{plain}"
        + (
            f", with the fixes below {bold}{percent(report.hit_rate_fixed)}{plain}"
            if report.findings
            else ""
        ),
        *not_counted(report),
    ]
    if not report.findings:
        lines += ["", "Nothing that breaks prefixes was found."]
    for place, finding in enumerate(report.findings, 1):
        lines += ["", *_finding(place, finding, report, bold, dim, plain)]
    return "\n".join(lines) + "\n"


def not_counted(report: LintReport) -> Iterator[str]:
    """What the figures leave out, in sentences."""
    if report.bad_lines:
        yield f"without a request, and left out: {_counted(report.bad_lines, 'line')}"
    if report.not_tokenized:
        yield (
            f"not tokenized (images, or a template that refuses them), and counted nowhere:"
            f" {_counted(report.not_tokenized, 'request')}"
        )
    if report.not_read:
        lines = _counted(report.not_read, "line")
        yield f"behind the limits, and not read (--requests-max): {lines}"
    for complaint in report.complaints:
        yield f"  {shown(complaint)}"


def gain_text(finding: Finding, report: LintReport) -> str:
    """What the fix brings. A fault behind another one brings nothing alone."""
    alone = f"{percent(report.hit_rate)} -> {percent(finding.hit_rate_fixed)} alone"
    if finding.kind == "short_prompt":
        return "none: nothing in the prompt can mend it"
    return f"{alone}, {percent(finding.hit_rate_so_far)} with those above"


def lost_text(finding: Finding) -> str:
    return f"{_counted(finding.requests, 'request')} cost {finding.tokens_lost:,} tokens more"


def percent(share: float) -> str:
    return f"{share * 100:.1f} %"


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def shown(text: str) -> str:
    """Without characters that a terminal would obey."""
    return "".join(character if character.isprintable() else "?" for character in text)


def _finding(
    place: int, finding: Finding, report: LintReport, bold: str, dim: str, plain: str
) -> Iterator[str]:
    yield (f"{place}. {bold}{finding.kind}{plain}: {lost_text(finding)}")
    rows = (
        ("seen", finding.example),
        ("fix", finding.fix),
        ("hit rate", gain_text(finding, report)),
    )
    for label, text in rows:
        wrapped = textwrap.wrap(shown(text), _WIDTH - 12) or [""]
        yield f"   {dim}{label:<8}{plain} {wrapped[0]}"
        yield from (f"{'':12}{line}" for line in wrapped[1:])
