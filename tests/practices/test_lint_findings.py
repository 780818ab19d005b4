"""Each way of breaking prefixes, planted in traffic, and what is found of it."""

import json
import os
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import pytest

from benchmarks.data import TOKENIZER_DIRECTORY
from router.pool_tokenizer import PoolTokenizer
from router.practices.findings.volatile_values import clock, ids, names
from router.practices.lint_log import Origin, logged_requests
from router.practices.lint_replay import KINDS, Examined, Replay, examine
from router.practices.traffic import LoggedRequest, Traffic
from router.tokens import NotReported, tokens_of
from tests.practices import lint_traffic as planted
from tests.practices.lint_traffic import FAULTS, Body, Fault, Place, logged, story, traffic
from tests.processes import ROOT

BLOCK_SIZE = 16
SHARED = Path(os.environ.get("POINTSMAN_SHARED", ROOT.parent / "shared")) / "requests"


@cache
def tokenizer() -> PoolTokenizer:
    return PoolTokenizer.load(str(TOKENIZER_DIRECTORY))


def tokenize(path: str, body: bytes) -> Sequence[Sequence[int]]:
    try:
        return [tokens.token_ids for tokens in tokens_of(path, body, tokenizer())]
    except NotReported as error:
        raise ValueError(str(error)) from None


def examined(requests: list[LoggedRequest]) -> Examined:
    seen = Traffic(requests)
    return examine(seen, Replay(seen, tokenize, BLOCK_SIZE), BLOCK_SIZE)


@cache
def clean() -> Examined:
    return examined(logged(traffic()))


def kinds(result: Examined) -> list[str]:
    return [finding.kind for finding in result.findings]


def test_clean_traffic_has_no_finding() -> None:
    """The control: conversations that only grow, with one prompt and one list of tools."""
    assert kinds(clean()) == []
    assert clean().base.hit_rate == clean().fixed.hit_rate > 0.85


@pytest.mark.parametrize("kind", FAULTS)
def test_a_planted_fault_is_found_alone(kind: str) -> None:
    """That kind and no other; and the fix brings back nearly what the control has."""
    result = examined(logged(traffic(FAULTS[kind])))
    assert kinds(result) == [kind]
    (finding,) = result.findings
    assert finding.requests > 0 and finding.tokens_lost > 0 and finding.example and finding.fix
    assert kind in KINDS
    if kind != "short_prompt":
        assert finding.hit_rate_fixed == result.fixed.hit_rate
        assert result.base.hit_rate < result.fixed.hit_rate
        assert result.fixed.hit_rate > clean().base.hit_rate - 0.03


@pytest.mark.parametrize("kind", ["clock", "ids", "salts"])
def test_what_differs_in_every_request_leaves_nothing(kind: str) -> None:
    """A clock in front, or a salt of its own, costs all reuse, and the fix returns it."""
    result = examined(logged(traffic(FAULTS[kind])))
    assert result.base.hit_rate < 0.02 and result.fixed.hit_rate > 0.85
    assert result.findings[0].requests == len(result.base.hit_tokens) - 1
    assert result.findings[0].tokens_lost == pytest.approx(
        sum(result.fixed.hit_tokens) - sum(result.base.hit_tokens), rel=0.02
    )


def test_faults_that_hide_behind_each_other_are_all_found() -> None:
    """Behind a clock, shuffled and missing tools cost nothing more, until it is gone."""

    result = examined(logged(story()))
    assert set(kinds(result)) == {"clock", "tool_order", "tools_missing"}
    rates = [result.base.hit_rate, *(finding.hit_rate_so_far for finding in result.findings)]
    assert rates == sorted(rates) and rates[0] < 0.05 and rates[-1] > 0.85
    by_kind = {finding.kind: finding for finding in result.findings}
    assert by_kind["tool_order"].hit_rate_fixed < 0.05, "alone it brings nothing"


def test_what_stands_still_is_no_finding() -> None:
    """A clock, an id and a name that never change break nothing, nor does a date."""

    def still(rng: Random, place: Place, body: Body) -> Body:
        system = body["messages"][0]
        system["content"] = (
            "The current time is 2026-03-04 10:00:00. Trace id: 77ab21cd\nUser: Jane Doe\n"
            f"Today is 2026-03-{3 + place.step // 2:02}.\n{system['content']}"
        )
        return body

    requests = logged(traffic(still, conversations=4))
    assert kinds(examined(requests)) == []
    seen = Traffic(requests)
    fixes = [make(seen) for make in (clock, ids, names)]
    assert [fix.fix(0, requests[0].body) for fix in fixes] == [None] * 3


def test_private_prompts_may_be_salted() -> None:
    """Salts that keep apart what nobody shares cost nothing."""

    def private(rng: Random, place: Place, body: Body) -> Body:
        body["messages"][0]["content"] = planted.instructions(100 + place.conversation)
        return {**body, "cache_salt": f"tenant-{place.conversation}"}

    assert "salts" not in kinds(examined(logged(traffic(private))))


def test_two_templates_are_told_apart() -> None:
    """A phrase in common does not hide the clock of one of two agents."""

    def two_agents(rng: Random, place: Place, body: Body) -> Body:
        if place.conversation % 2:
            shared = planted.instructions().splitlines()[0]
            body["messages"][0]["content"] = f"{shared}\n{planted.instructions(5)}"
        return planted.clock(rng, place, body)

    result = examined(logged(traffic(two_agents)))
    assert kinds(result) == ["clock"] and result.fixed.hit_rate > 0.8


def test_completions_and_their_salts_are_looked_at_too() -> None:
    """A log of completions has no messages; its salts still count."""
    prompt = planted.instructions()
    bodies: list[Body] = [
        {"prompt": f"{prompt}\n{number}", "cache_salt": str(number)} for number in range(6)
    ]
    assert kinds(examined(logged(bodies))) == ["salts"]


@pytest.mark.parametrize("fault", [None, *FAULTS.values()], ids=["none", *FAULTS])
def test_fixes_leave_bodies_that_the_engine_takes(fault: Fault | None) -> None:
    """All fixes at once on any traffic: every body still has tokens, and is not the logged one's
    own object."""
    requests = logged(traffic(fault) if fault else traffic())
    before = [request.raw for request in requests]
    result = examined(requests)
    assert len(result.fixed.prompt_tokens) == len(requests)
    assert all(result.fixed.prompt_tokens)
    assert [request.raw for request in requests] == before


def test_odd_bodies_are_no_failure() -> None:
    """Whatever JSON a log holds under the names of a request, it is counted or left out."""
    odd: list[Any] = [
        {"messages": []},
        {"messages": [1, None, {"role": 7}]},
        {"messages": "x", "tools": {}},
        {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
        {"messages": [{"role": "user", "content": None, "tool_calls": [1]}], "tools": [3, {}]},
        {"prompt": None, "cache_salt": 5},
        {"prompt": [[1, 2], [3]]},
        {"messages": [{"role": "system", "content": [{"type": "text", "text": "x"}]}]},
        {"messages": [{"role": "tool", "content": "12:00:01"}], "tools": []},
    ]
    result = examined(logged([*odd, *odd, *traffic(conversations=2)]))
    assert len(result.base.prompt_tokens) == 2 * len(odd) + 8


def test_a_fix_that_the_engine_would_refuse_changes_nothing() -> None:
    """A step whose tools are none has no tokens; the steps beside it keep theirs."""

    def bad_tools(rng: Random, place: Place, body: Body) -> Body:
        if place.step == 1:
            body["tools"].append({"type": "function", "function": {"name": "odd", "strict": 5}})
        elif place.step == 2:
            del body["tools"]
        return body

    result = examined(logged(traffic(bad_tools, conversations=3)))
    assert [tokens > 0 for tokens in result.base.prompt_tokens] == [True] * 3 + [False] * 3 + [
        True
    ] * 6
    assert [tokens > 0 for tokens in result.fixed.prompt_tokens] == [
        tokens > 0 for tokens in result.base.prompt_tokens
    ]


def test_one_request_is_no_traffic() -> None:
    """There is nothing to compare it with."""
    assert kinds(examined(logged(traffic(planted.clock, conversations=1, steps=1)))) == []


def test_many_conversations_of_one_session_are_no_rewriting() -> None:
    """A new conversation repeats nothing, and a question that is asked again comes last."""

    def of_one_user(rng: Random, place: Place, body: Body) -> Body:
        body["user"] = "jane"
        if place.step == 2:
            body["messages"][-1]["content"] = "And the same question again, please."
        return body

    assert kinds(examined(logged(traffic(of_one_user)))) == []


def test_a_question_that_begins_another_conversation_is_no_rewriting() -> None:
    """It was asked in the middle of an earlier one, with an answer of its own."""
    said = [
        {"role": role, "content": f"{role} says a longer thing, number {number}."}
        for number in range(4)
        for role in ("user", "assistant")
    ]
    asked = said[2]
    chats = [said[:1], said[:3], said[:5], said[:7], [asked], [asked, said[7], said[6]]]
    assert Traffic(logged([{"messages": chat} for chat in chats])).histories.rewritings == {}


def test_a_summary_in_place_of_the_history_is_found() -> None:
    """What was said goes into one message, and the newest ones stay."""

    def summarised(rng: Random, place: Place, body: Body) -> Body:
        system, *said = body["messages"]
        if len(said) < 4:
            return body
        summary = {"role": "user", "content": f"Summary: {planted.paragraph(rng, 1)}"}
        return {**body, "messages": [system, summary, *said[-3:]]}

    assert kinds(examined(logged(traffic(summarised, steps=7)))) == ["rewritten_history"]


def test_retrieved_passages_that_change_with_each_step() -> None:
    """They go to the newest message: in front of the conversation they would break it again."""

    def retrieved(rng: Random, place: Place, body: Body) -> Body:
        return planted.retrieval_first(rng, Place(rng.randrange(1000), 0, 0), body)

    result = examined(logged(traffic(retrieved)))
    assert kinds(result) == ["retrieval_first"]
    assert result.base.hit_rate < 0.05 and result.fixed.hit_rate > 0.6


@pytest.mark.skipif(not SHARED.is_dir(), reason="POINTSMAN_SHARED names no folder with them")
def test_collected_bodies() -> None:
    """Bodies of real agents: the clock, the order of tools, the order of keys, and the task in
    front of the instructions."""
    requests: list[LoggedRequest] = []
    for file in sorted(SHARED.glob("[0-9]*.json")):
        requests += logged_requests(file.read_bytes(), Origin(file.name, 1))
    result = examined(requests)
    assert set(kinds(result)) == {"clock", "tool_order", "key_order", "retrieval_first"}
    assert json.dumps([finding.example for finding in result.findings]).count("2024") == 0
