"""What ``pointsman lint`` has found, as plain data, and as the JSON that programs read."""

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Finding:
    """``hit_rate_fixed``: with this fix alone; ``hit_rate_so_far``: with those above it too.

    Where several faults stand in one another's way, a fix alone may gain nothing: its ``requests``
    and ``tokens_lost`` are then what is lost where everything else is mended.
    """

    kind: str
    requests: int
    tokens_lost: int
    example: str
    fix: str
    hit_rate_fixed: float
    hit_rate_so_far: float


@dataclass(frozen=True, slots=True)
class LintReport:
    """``hit_rate_fixed``: with the fixes of all findings. ``bad_lines``: the first complaints."""

    requests: int
    prompt_tokens: int
    block_size: int
    hit_rate: float
    hit_rate_fixed: float
    findings: tuple[Finding, ...] = ()
    bad_lines: int = 0
    not_tokenized: int = 0
    not_read: int = 0
    complaints: tuple[str, ...] = field(default=())


def report_json(report: LintReport) -> dict[str, Any]:
    """Rates are shares of prompt tokens, 0 to 1. Keys are only ever added."""
    fields = asdict(report)
    fields["findings"] = [asdict(finding) for finding in report.findings]
    fields["complaints"] = list(report.complaints)
    return fields
