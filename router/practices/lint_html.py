"""The report of ``pointsman lint`` as one page that needs nothing else.

Everything that comes from a log is escaped, and the page's own policy forbids scripts and loading,
so that what a prompt holds stays text wherever the page is opened.
"""

from html import escape

from router.practices.lint_report import Finding, LintReport
from router.practices.lint_text import gain_text, lost_text, not_counted, percent

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>pointsman lint: {hit_rate}</title>
<style>
:root {{ color-scheme: light dark; --ink: #1c2430; --dim: #5b6675; --line: #d9dee5;
  --back: #f6f7f9; --card: #fff; --bar: #c2c9d2; --good: #23845a; }}
@media (prefers-color-scheme: dark) {{ :root {{ --ink: #e6eaf0; --dim: #9aa6b5; --line: #333c48;
  --back: #14181e; --card: #1c222a; --bar: #4a5563; --good: #4cc38a; }} }}
* {{ box-sizing: border-box; }}
body {{ margin: 0; padding: 2rem 1rem 4rem; background: var(--back); color: var(--ink);
  font: 15px/1.5 system-ui, sans-serif; }}
main {{ max-width: 56rem; margin: 0 auto; }}
h1 {{ font-size: 1.3rem; margin: 0 0 .3rem; }}
h2 {{ font-size: 1.05rem; margin: 0 0 .5rem; overflow-wrap: anywhere; }}
p {{ margin: .3rem 0; }}
.dim {{ color: var(--dim); }}
.figures {{ display: flex; flex-wrap: wrap; gap: 2.5rem; margin: 1.4rem 0; }}
.figures b {{ display: block; font-size: 2rem; line-height: 1.2; font-weight: 600;
  font-variant-numeric: tabular-nums; }}
.good {{ color: var(--good); }}
section {{ background: var(--card); border: 1px solid var(--line); border-radius: 8px;
  padding: 1rem 1.2rem; margin: 1rem 0; }}
table {{ width: 100%; border-collapse: collapse; }}
td {{ padding: .25rem .6rem .25rem 0; vertical-align: middle; }}
td.number {{ text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums;
  width: 5rem; }}
td.label {{ width: clamp(8rem, 30%, 14rem); overflow-wrap: anywhere; }}
.track {{ height: .8rem; border-radius: 4px; background: var(--line); }}
.track i {{ display: block; height: 100%; border-radius: 4px; background: var(--good); }}
.track.before i {{ background: var(--bar); }}
dl {{ display: grid; grid-template-columns: 5rem 1fr; gap: .35rem .8rem; margin: 0; }}
dt {{ color: var(--dim); }}
dd {{ margin: 0; overflow-wrap: anywhere; }}
code {{ font: .9em/1.5 ui-monospace, monospace; white-space: pre-wrap; }}
</style>
</head>
<body>
<main>
{content}
</main>
</body>
</html>
"""


def report_html(report: LintReport) -> str:
    parts = [_head(report)]
    if report.findings:
        parts += [_plan(report), *(_finding(finding, report) for finding in report.findings)]
    else:
        parts.append("<section><p>Nothing that breaks prefixes was found.</p></section>")
    return _PAGE.format(hit_rate=percent(report.hit_rate), content="\n".join(parts))


def _head(report: LintReport) -> str:
    after = (
        f'<div class="good"><b>{percent(report.hit_rate_fixed)}</b>with the fixes below</div>'
        if report.findings
        else ""
    )
    notes = "".join(f'<p class="dim">{escape(note.strip())}</p>' for note in not_counted(report))
    return (
        "<h1>What breaks prefixes in this traffic</h1>"
        f'<p class="dim">{report.requests:,} requests, {report.prompt_tokens:,} prompt tokens,'
        f" blocks of {report.block_size} tokens, against a cache that never forgets</p>"
        f'<div class="figures"><div><b>{percent(report.hit_rate)}</b>hit rate as logged</div>'
        f"{after}</div>{notes}"
    )


def _plan(report: LintReport) -> str:
    rows = [_bar("as logged", report.hit_rate, "track before")]
    for place, finding in enumerate(report.findings, 1):
        label = f"{place}. {finding.kind}" if place == 1 else f"{place}. and {finding.kind}"
        if finding.kind != "short_prompt":
            rows.append(_bar(label, finding.hit_rate_so_far, "track"))
    return "<section><h2>Hit rate, fix by fix</h2><table>" + "".join(rows) + "</table></section>"


def _bar(label: str, rate: float, style: str) -> str:
    return (
        f'<tr><td class="label">{escape(label)}</td><td><div class="{style}">'
        f'<i style="width:{max(0.4, rate * 100):.1f}%"></i></div></td>'
        f'<td class="number">{percent(rate)}</td></tr>'
    )


def _finding(finding: Finding, report: LintReport) -> str:
    rows = (
        ("seen", f"<code>{escape(finding.example)}</code>"),
        ("fix", escape(finding.fix)),
        ("hit rate", escape(gain_text(finding, report))),
    )
    items = "".join(f"<dt>{label}</dt><dd>{text}</dd>" for label, text in rows)
    return (
        f"<section><h2>{escape(finding.kind)}</h2>"
        f'<p class="dim">{lost_text(finding)}</p>'
        f"<dl>{items}</dl></section>"
    )
