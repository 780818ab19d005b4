"""The story of a cache that nobody hits: what breaks it, what lint says, and what each fix brings.

``docs/practices/story.md`` has the table of one run: pytest -s prints it.
"""

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx2 as httpx

from tests.e2e.services import Services, services
from tests.e2e.story import AGENTS, STEPS, Client, sessions
from tests.processes import MAIN, ROOT, until

MODEL = "benchmarks/data"
# What a router adds to or loses against one cache that never forgets.
MARGIN = 0.06


def served(fleet: Services, client: Client, log: Path | None = None) -> float:
    """The share of prompt tokens that came out of caches, over all requests of this client."""
    prompt_tokens = cached_tokens = 0
    lines = []
    for body, messages in sessions(client):
        lines.append(json.dumps(body) + "\n")
        response = httpx.post(f"{fleet.url}/v1/chat/completions", json=body, timeout=60)
        assert response.status_code == 200, response.text
        answer = response.json()
        said = answer["choices"][0]["message"]["content"]
        messages.append({"role": "assistant", "content": said})
        prompt_tokens += answer["usage"]["prompt_tokens"]
        cached_tokens += answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert len(lines) == AGENTS * STEPS
    if log is not None:
        log.write_text("".join(lines))
    return cached_tokens / prompt_tokens


def with_canonical_tools(fleet: Services) -> None:
    """The router started again with the one key set, in front of the same engines."""
    assert fleet.router.stop() == 0
    text = fleet.config.read_text()
    pool = "[pools.default]\n"
    fleet.config.write_text(text.replace(pool, f"{pool}canonical_tools = true\n"))
    fleet.router = fleet.start("serve", "router_started")
    until(fleet.all_in_service, "all replicas are in service again")
    fleet.caught_up()


def linted(log: Path) -> Mapping[str, Any]:
    done = subprocess.run(
        (*MAIN, "lint", str(log), "--model", MODEL, "--json"),
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    report: Mapping[str, Any] = json.loads(done.stdout)
    return report


def told(rates: Mapping[str, float], report: Mapping[str, Any]) -> str:
    """The table of ``docs/practices/story.md``."""
    rows = [f"| {name} | {rate:.0%} |" for name, rate in rates.items()]
    found = [
        f"| {f['kind']} | {f['requests']} | {f['tokens_lost']:,} | {f['hit_rate_so_far']:.0%} |"
        for f in report["findings"]
    ]
    return "\n".join(
        (
            "\n| client | hit rate |\n|---|---|",
            *rows,
            "\n| lint says | requests | tokens lost | hit rate so far |\n|---|---|---|---|",
            f"| nothing mended | | | {report['hit_rate']:.0%} |",
            *found,
        )
    )


def test_the_story_of_a_broken_prefix_and_its_fixes(tmp_path: Path) -> None:
    """A fleet that reuses next to nothing, lint's account of why, and each fix as it is made."""
    log = tmp_path / "requests.jsonl"
    flags = ("--blocks", "8192")
    with services(tmp_path, replicas=2, together=True, sim_flags=flags) as fleet:
        rates = {"as it was": served(fleet, Client("one"), log)}
        report = linted(log)
        mended = {"clock_in_system": False}
        rates["the clock moved to the end"] = served(fleet, Client("two", **mended))
        with_canonical_tools(fleet)
        rates["tools in one order"] = served(fleet, Client("three", **mended))
        kept = {**mended, "tools_left_out": False}
        rates["tools on every step"] = served(fleet, Client("four", **kept))
        fleet.at_rest()
    print(told(rates, report))
    before, clock, order, tools = rates.values()

    # Every fix adds to the ones before it, and together they are worth nearly everything.
    assert before < 0.05
    assert before + 0.1 < clock
    assert clock + 0.1 < order
    assert order + 0.05 < tools
    assert tools > 0.75

    # Lint has said so, of the log of the first client alone.
    kinds = {finding["kind"] for finding in report["findings"]}
    assert {"clock", "tool_order", "tools_missing"} <= kinds
    assert abs(report["hit_rate"] - before) < MARGIN
    assert abs(report["hit_rate_fixed"] - tools) < MARGIN
