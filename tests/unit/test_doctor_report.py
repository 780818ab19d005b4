"""Findings in words and in JSON; the probes' bodies and what is read off their answers; places."""

import json
from dataclasses import replace
from typing import Any

import pytest

from indexer.doctor.finding import Finding
from indexer.doctor.places import ToldEndpoints, is_dialled, rank_facts, sources_of
from indexer.doctor.probes import cached_tokens_of, compared, parity_bodies, probe_body, shown
from indexer.doctor.report import as_json, as_text, status_of
from indexer.sources import DiscoveryError, parse_sources
from tests.unit.doctor_facts import ENGINE, LOG

OK = Finding("ok", "version", "vLLM 0.33.0")
PROBLEM = Finding("problem", "endpoint", "it " * 60, "because", "--do-this\x1bthing", rank=1)
WARNING = Finding("warning", "replay", "there is none", "because", "add one")
URL = "http://10.0.0.7:8000"


def test_a_person_reads_the_mark_the_fact_and_the_fix() -> None:
    """In lines that fit a terminal and cannot command it, with a count at the end."""
    text = list(as_text([(URL, [OK, PROBLEM])]))
    assert text[0] == URL
    assert text[1] == "  ok       version            vLLM 0.33.0"
    assert text[2].startswith("  problem  endpoint           rank 1: it it")
    assert "           fix: --do-this thing" in text
    assert text[-1] == "1 problem, 0 warnings, 0 unknown"
    assert max(map(len, text)) <= 100


def test_colour_only_where_it_is_asked_for() -> None:
    """On the mark, and nowhere else."""
    plain = "\n".join(as_text([(URL, [OK, WARNING])]))
    coloured = "\n".join(as_text([(URL, [OK, WARNING])], colour=True))
    assert "\x1b" not in plain and coloured.count("\x1b[0m") == 2
    assert "\x1b[33mwarning\x1b[0m  replay" in coloured


def test_a_program_reads_every_field() -> None:
    """Under the engine's URL, with counts and whether all is well."""
    report = as_json([(URL, [OK, PROBLEM, WARNING])])
    assert json.loads(json.dumps(report)) == report
    assert {key: report[key] for key in report if key != "replicas"} == {
        "ok": False,
        "problems": 1,
        "warnings": 1,
        "unknown": 0,
        "store": None,
    }
    (replica,) = report["replicas"]
    assert replica["url"] == URL
    assert replica["findings"][1] == {
        "level": "problem",
        "check": "endpoint",
        "what": PROBLEM.what,
        "why": "because",
        "fix": "--do-this\x1bthing",
        "rank": 1,
    }


def test_only_problems_are_failures() -> None:
    """Warnings and what is unknown are not."""
    unknown = Finding("unknown", "scheme", "nothing seen", "idle", "send something")
    assert status_of([(URL, [OK, WARNING, unknown])]) == 0
    assert status_of([(URL, [OK]), (URL, [PROBLEM])]) == 1


def test_a_finding_that_is_not_ok_has_a_fix() -> None:
    """A finding without one is a bug."""
    with pytest.raises(AssertionError, match="without a fix"):
        Finding("warning", "x", "y")


def test_a_probe_is_new_and_fills_two_blocks() -> None:
    """Its prompt is of the block's size, at four characters a token, and bounded."""
    one, other, large = (
        json.loads(probe_body("m", nonce, size))
        for nonce, size in (("a", 16), ("b", 16), ("a", 10**6))
    )
    assert one["prompt"] != other["prompt"] and len(one["prompt"]) == 2.5 * 16 * 4
    assert (one["model"], one["max_tokens"]) == ("m", 1) and len(large["prompt"]) == 4096 * 4


@pytest.mark.parametrize(
    ("answer", "cached"),
    [
        ({"usage": {"prompt_tokens_details": {"cached_tokens": 0}}}, 0),
        ({"usage": {"prompt_tokens_details": {"cached_tokens": 32}}}, 32),
        ({"usage": {"prompt_tokens_details": None}}, None),
        ({"usage": {"prompt_tokens_details": {"cached_tokens": True}}}, None),
        ({"usage": None}, None),
        ({}, None),
    ],
)
def test_cached_tokens_are_read_where_they_are(answer: dict[str, Any], cached: int | None) -> None:
    """None where the engine says nothing."""
    assert cached_tokens_of(answer) == cached


def test_chats_are_compared_or_it_is_said_why_not() -> None:
    """Ids of both sides; the reason of whichever has none."""
    bodies = parity_bodies("m")
    assert len(bodies) == 3 and len({name for name, _ in bodies}) == 3
    # An engine that is not started with a parser of tool calls refuses any other choice.
    choices = [json.loads(body).get("tool_choice") for _, body in bodies]
    assert choices == [None, None, "none"]
    name, body = bodies[0]
    assert json.loads(body)["return_token_ids"] is True and json.loads(body)["max_tokens"] == 1

    def refuse(body: bytes) -> list[int]:
        raise ValueError("no chat template")

    both = compared(name, body, {"prompt_token_ids": [1]}, lambda body: [1])
    assert (both.ours, both.theirs, both.why_not) == ([1], [1], "")
    assert compared(name, body, {}, refuse).why_not == "here: no chat template"
    assert compared(name, body, "400 no", lambda body: [1]).why_not == "the engine: 400 no"
    without = compared(name, body, {"prompt_token_ids": ["1"]}, lambda body: [1])
    assert without.theirs is None and "does not return" in without.why_not


def test_a_refusal_is_one_line() -> None:
    """The engine's own message where it has one, else the body."""
    assert shown(400, b'{"error": {"message": "No\\nsuch model"}}') == "400 No such model"
    assert shown(502, b"<html>\n") == "502 <html>"
    assert len(shown(500, b"x" * 9999)) == 300


def test_old_engines_are_where_the_flags_say() -> None:
    """Each rank at its ports, as many as /metrics has, and at the engine's own host."""
    old = replace(ENGINE, sources=None, sleep_states={0: "awake", 1: "awake"})
    told = ToldEndpoints("tcp://*:5557", "tcp://*:5657")
    places = [(s.rank, s.endpoint, s.replay_endpoint) for s in sources_of(old, "10.0.0.7", told)]
    assert places == [
        (0, "tcp://10.0.0.7:5557", "tcp://10.0.0.7:5657"),
        (1, "tcp://10.0.0.7:5558", "tcp://10.0.0.7:5658"),
    ]
    assert len(sources_of(old, "h", ToldEndpoints("tcp://a:5557", None, 3))) == 3
    assert sources_of(old, "h", ToldEndpoints()) == ()
    # What the engine says itself counts more.
    assert sources_of(ENGINE, "h", told) == ENGINE.sources
    (trap,) = sources_of(old, "h", ToldEndpoints("tcp://0.0.0.0:5557", None, 1))
    assert not trap.binds and trap.endpoint == "tcp://0.0.0.0:5557"


@pytest.mark.parametrize(
    "wrong",
    [
        {"event_endpoint": "5557"},
        {"replay_endpoint": "tcp://*:5657"},
        {"ranks": 2},
        {"event_endpoint": "tcp://*:65535", "ranks": 2},
        {"event_endpoint": "ipc:///tmp/x", "ranks": 2},
        {"event_endpoint": "tcp://*:5557", "ranks": 0},
    ],
)
def test_flags_that_name_no_place_are_refused(wrong: dict[str, Any]) -> None:
    """Before anything is asked."""
    with pytest.raises(DiscoveryError):
        ToldEndpoints(**wrong)


def test_a_resolved_endpoint_listens_if_it_can_be_heard() -> None:
    """It looks like one that an engine connects to, and only connecting tells."""
    body = b'{"0": {"endpoint": "tcp://10.0.0.7:41234", "replay_endpoint": null}}'
    (source,) = parse_sources(body, "10.0.0.7", "0.33.0")
    assert is_dialled(source) and not source.binds
    facts = [
        rank_facts(source, told=False, lost=lost, replay=None, log=LOG)
        for lost in (None, "the connection was refused")
    ]
    assert [(f.listens, f.lost) for f in facts] == [(True, None), (False, None)]
