"""What the doctor says of each fact: one thing, with its fix."""

from dataclasses import replace
from typing import Any

import pytest

from indexer.doctor.facts import Asked, Examination, ParityFacts, ProbeFacts, ReplayFacts
from indexer.doctor.finding import Finding
from indexer.doctor.findings import findings
from indexer.doctor.versions import version_findings
from tests.unit.doctor_facts import ASKED, CACHE, HEALTHY, exam_with, rank_with

Case = tuple[Examination, str, str, str]


def of(exam: Examination, asked: Asked = ASKED) -> list[Finding]:
    return findings([exam], asked)[0]


def not_ok(exam: Examination, asked: Asked = ASKED) -> list[Finding]:
    return [finding for finding in of(exam, asked) if finding.level != "ok"]


def test_a_healthy_engine_has_nothing_wrong() -> None:
    """And says so of everything that was looked at, in the order in which it matters."""
    found = of(HEALTHY)
    assert {finding.level for finding in found} == {"ok"}
    assert [finding.check for finding in found] == [
        "reachable",
        "version",
        "prefix_caching",
        "capacity",
        "events",
        "endpoint",
        "replay",
        "buffer_steps",
        "scheme",
        "cached_tokens",
        "token_parity",
    ]


def refused(refusal: Any) -> Examination:
    return Examination("http://10.0.0.7:8000", refusal=refusal, why="as it was said")


UNPROVEN: dict[str, Any] = {"schemes": (), "unprovable": 7}
CASES: dict[str, Case] = {
    "unreachable": (refused("unreachable"), "problem", "reachable", "its --host and --port"),
    "no key": (refused("key"), "problem", "api_key", "set VLLM_API_KEY"),
    "a proxy": (refused("not_vllm"), "problem", "reachable", "without /v1"),
    "dead": (exam_with(unhealthy="503"), "problem", "reachable", "engine's log"),
    "asleep": (exam_with(engine={"sleep_states": {0: "discard_all"}}), "warning", "sleep", "wake"),
    "caching off": (
        exam_with(engine={"cache": replace(CACHE, prefix_caching=False)}),
        "problem",
        "prefix_caching",
        "--enable-prefix-caching",
    ),
    "caching not told": (
        exam_with(engine={"cache": replace(CACHE, prefix_caching=None)}),
        "unknown",
        "prefix_caching",
        "/metrics",
    ),
    "blocks not told": (
        exam_with(engine={"cache": replace(CACHE, blocks_total=None)}),
        "warning",
        "capacity",
        "set blocks",
    ),
    "events off": (
        exam_with(engine={"sources": ()}, ranks=()),
        "problem",
        "events",
        '"enable_kv_cache_events": true',
    ),
    "does not listen": (
        exam_with(rank={"listens": False, "source": {"endpoint": "tcp://10.0.0.1:5557"}}),
        "warning",
        "endpoint",
        "events.bind",
    ),
    "0.0.0.0": (
        exam_with(rank={"listens": False, "source": {"endpoint": "tcp://0.0.0.0:5557"}}),
        "problem",
        "endpoint",
        "write tcp://*:5557",
    ),
    "port closed": (
        exam_with(rank={"lost": "the connection was refused"}),
        "problem",
        "endpoint",
        "open the port",
    ),
    "no replay answer": (
        exam_with(rank={"replay": ReplayFacts("silent for 3000 ms"), "log": {"batches": 0}}),
        "problem",
        "replay",
        "no other service",
    ),
    "no end of a replay": (
        exam_with(rank={"replay": ReplayFacts("silent for 3000 ms")}),
        "warning",
        "replay",
        "0.33 sends",
    ),
    "short buffer": (
        exam_with(rank={"buffer_steps": 10_000}),
        "warning",
        "buffer_steps",
        '"buffer_steps": 100000',
    ),
    "garbage": (exam_with(rank={"log": {"malformed": 3}}), "problem", "batches", "vLLM's"),
    "future events": (
        exam_with(rank={"log": {"unknown_tags": ("BlockMoved",)}}),
        "warning",
        "batches",
        "newer pointsman",
    ),
    "gaps": (exam_with(rank={"log": {"missing": 2}}), "warning", "gaps", "publisher"),
    "hybrid": (exam_with(rank={"log": {"hybrid": True}}), "warning", "groups", "fewer cached"),
    "wrong seed": (exam_with(rank={"log": UNPROVEN}), "problem", "scheme", "PYTHONHASHSEED=0"),
    "a second recipe": (
        exam_with(rank={"log": {"unprovable": 1}}),
        "warning",
        "scheme",
        "events record",
    ),
    "silent": (
        exam_with(rank={"log": {"batches": 0, "roots": 0, "schemes": ()}}),
        "unknown",
        "scheme",
        "became of the probe",
    ),
    "only adapters": (
        exam_with(rank={"log": {"schemes": ()}}),
        "unknown",
        "scheme",
        "plain request",
    ),
    "probe refused": (
        exam_with(probes=(ProbeFacts(0, refused="404 no such model"),)),
        "problem",
        "cached_tokens",
        "GET /v1/models",
    ),
    "details off": (
        exam_with(probes=(ProbeFacts(0),)),
        "warning",
        "cached_tokens",
        "--enable-prompt-tokens-details",
    ),
    "nothing found again": (
        exam_with(probes=(ProbeFacts(0, cached_tokens=0),)),
        "problem",
        "cached_tokens",
        "load balancer",
    ),
    "other template": (
        exam_with(parity=(ParityFacts("text", [1, 2, 3], [1, 9, 3]),)),
        "problem",
        "token_parity",
        "--chat-template",
    ),
    "no ids": (
        exam_with(parity=(ParityFacts("text", [1], None, "the engine: 400"),)),
        "unknown",
        "token_parity",
        "without hashes",
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_each_fact_is_one_finding(case: Case) -> None:
    """Of its level and check; what is said beside it does not change, and the fix says how."""
    exam, level, check, fix = case
    (finding,) = not_ok(exam)
    assert (finding.level, finding.check) == (level, check)
    assert finding.what and finding.why
    assert fix in finding.fix


def test_without_a_replay_endpoint_neither_replay_nor_buffer_is_known() -> None:
    """Both say what to add."""
    found = not_ok(exam_with(rank={"replay": None, "source": {"replay_endpoint": None}}))
    assert [(f.level, f.check) for f in found] == [
        ("warning", "replay"),
        ("unknown", "buffer_steps"),
    ]
    assert all("buffer_steps" in finding.fix for finding in found)


def test_the_buffer_is_told_in_time() -> None:
    """At the rate that was seen: minutes, or many hours; a few batches show no rate."""
    texts = []
    for log in {"seconds": 1.0}, {"seconds": 10.0}, {"seconds": 1e3}, {"batches": 3}:
        found = of(exam_with(rank={"buffer_steps": 10_000, "log": log}))
        texts.append(next(f.what for f in found if f.check == "buffer_steps"))
    kept = "10000 batches are kept for replay"
    assert texts == [
        f"{kept}: 1.7 minutes at 100 a second",
        f"{kept}: 17 minutes at 10 a second",
        f"{kept}: 28 hours at 0.1 a second",
        kept,
    ]


def test_an_old_engine_has_to_be_told_of() -> None:
    """Before 0.31 flags say where events are; without them nothing of the events is known."""
    silent = not_ok(exam_with(engine={"version": "0.28.0", "sources": None}, ranks=()))
    assert [(f.level, f.check) for f in silent] == [("unknown", "events")]
    assert "--event-endpoint" in silent[0].fix
    told = exam_with(engine={"version": "0.28.0", "sources": None}, configured=True)
    assert [(f.level, f.check) for f in not_ok(told)] == [("warning", "event_config")]


def test_nothing_that_needs_a_request_is_known_without_one() -> None:
    """And the fix says what to give."""
    exam = exam_with(probes=(), parity=(), rank={"log": {"batches": 0, "roots": 0, "schemes": ()}})
    found = not_ok(exam, Asked())
    assert [f.check for f in found] == ["scheme", "cached_tokens", "token_parity"]
    assert all(f.level == "unknown" and "--probe" in f.fix for f in found)


def test_each_rank_is_looked_at() -> None:
    """What is wrong says of which; ranks whose ports run into each other are one finding."""
    second = {
        "rank": 1,
        "endpoint": "tcp://10.0.0.7:5558",
        "replay_endpoint": "tcp://10.0.0.7:5559",
    }
    near = {"replay_endpoint": "tcp://10.0.0.7:5558"}
    exam = exam_with(ranks=(rank_with(source=near), rank_with(source=second, lost="refused")))
    ports, endpoint = not_ok(exam)
    assert (ports.check, ports.rank) == ("ports", None) and "at least 2 apart" in ports.fix
    assert (endpoint.check, endpoint.rank) == ("endpoint", 1)
    far = {"replay_endpoint": "tcp://10.0.0.7:5658"}
    apart = of(exam_with(ranks=(rank_with(), rank_with(source=second | far))))
    assert {f.level for f in apart} == {"ok"} and "ports" in {f.check for f in apart}


def test_why_hashes_are_unknown_depends_on_the_engine() -> None:
    """The algorithm first, then the version, then the seed."""
    whys = []
    for version, algorithm in ("0.33.0", "xxhash_cbor"), ("0.28.0", "sha256"), ("0.33.0", "sha256"):
        cache = replace(CACHE, hash_algorithm=algorithm)
        exam = exam_with(engine={"version": version, "cache": cache}, rank={"log": UNPROVEN})
        whys.append(next(f.why for f in of(exam) if f.check == "scheme"))
    assert whys[0].startswith("with xxhash_cbor") and whys[1].startswith("before 0.29")
    assert whys[2].startswith("the engine has another seed")


def test_engines_that_cannot_be_told_apart_are_found() -> None:
    """One topic of two that connect, or one address of two that listen: said of both."""
    connecting = exam_with(rank={"listens": False, "source": {"endpoint": "tcp://10.0.0.1:5557"}})
    both = findings([connecting, connecting], ASKED)
    assert all([f.check for f in found if f.level == "problem"] == ["topics"] for found in both)
    listening = findings([HEALTHY, HEALTHY], ASKED)
    assert all([f.check for f in found][-1] == "shared_endpoint" for found in listening)
    other = exam_with(
        rank={"listens": False, "source": {"endpoint": "tcp://10.0.0.1:5557", "topic": "b"}}
    )
    assert all("topics" not in {f.check for f in o} for o in findings([connecting, other], ASKED))


@pytest.mark.parametrize(
    ("version", "loras", "expected"),
    [
        ("0.33.0", {}, [("ok", "version")]),
        ("0.32.0+cpu", {"sql": "/"}, [("ok", "version")]),
        ("0.30.1", {}, [("ok", "version")]),
        ("0.30.1", {"sql": "/"}, [("ok", "version"), ("warning", "version_untagged")]),
        ("0.28.0", {}, [("ok", "version")]),
        ("0.26.0", {}, [("ok", "version"), ("warning", "version_tool_keys")]),
        (
            "0.16.0",
            {},
            [
                ("ok", "version"),
                ("warning", "version_extra_keys"),
                ("warning", "version_tool_keys"),
            ],
        ),
        (
            "0.11.0",
            {},
            [
                ("ok", "version"),
                ("warning", "version_extra_keys"),
                ("warning", "version_tool_keys"),
                ("warning", "version_lora"),
            ],
        ),
        (
            "0.11.0",
            {"sql": "/"},
            [
                ("ok", "version"),
                ("problem", "version_lora"),
                ("warning", "version_extra_keys"),
                ("warning", "version_tool_keys"),
            ],
        ),
        (
            "0.10.1",
            {},
            [
                ("problem", "version"),
                ("warning", "version_extra_keys"),
                ("warning", "version_tool_keys"),
            ],
        ),
        ("0.34.0", {}, [("warning", "version")]),
        ("1.0", {}, [("warning", "version")]),
        ("dev", {}, [("unknown", "version")]),
        ("0.0.0", {}, [("unknown", "version")]),
    ],
)
def test_versions_have_their_traps(
    version: str, loras: dict[str, str], expected: list[tuple[str, str]]
) -> None:
    """Warnings only where they apply."""
    assert [(f.level, f.check) for f in version_findings(version, loras)] == expected


@pytest.mark.parametrize(
    ("version", "says"),
    [
        ("0.23.0", "events are arrays"),
        ("0.25.9", "no topic"),
        ("0.28.0", "random unless PYTHONHASHSEED"),
        ("0.30.0", "without a tag"),
        ("0.32.0", "cut at 1,000"),
    ],
)
def test_what_is_understood_is_listed(version: str, says: str) -> None:
    """Up to the release that changed it, and no further."""
    first, later = version_findings(version, {}), version_findings("0.33.0", {})
    assert says in next(iter(first)).what and says not in next(iter(later)).what
