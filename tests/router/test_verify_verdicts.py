"""What the answers of an acceptance run prove, and what they do not."""

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.practices.verify_prompts import chat, listed, question, user
from router.practices.verify_stream import AnswerStream, NoStream
from router.practices.verify_verdicts import (
    Answer,
    Sent,
    Verdict,
    judged,
    judged_salted,
    source_of,
    status_of,
    undone,
)


def sent(*answers: tuple[int, int, int | None], replicas: str = "") -> list[Sent]:
    """Each with its prompt, what should be found of it, and what is reported."""
    made = []
    for number, (prompt, expected, reported) in enumerate(answers):
        replica = replicas[number] if replicas else None
        reason = replica and "prefix"
        answer = Answer(prompt, reported, ttft_ms=100.0, replica=replica, reason=reason)
        made.append(Sent(f"request {number + 1}", expected, answer))
    return made


def test_a_prefix_that_is_found_passes() -> None:
    """Up to a block less, and whatever the last question adds."""
    verdict = judged("x", sent((1000, 0, 0), (1010, 1000, 992), (1012, 1000, 992)), "usage")
    assert verdict.level == "pass"
    assert verdict.what.startswith("1,984 of 2,022 prompt tokens were cached (98%)")


@pytest.mark.parametrize("missing", [1, 2])
def test_one_request_that_did_not_find_it_fails_the_step(missing: int) -> None:
    """Which is named with its replica, and why when there are several."""
    answers = [(1000, 0, 0), (1010, 1000, 992), (1012, 1000, 992)]
    answers[missing] = (1010, 1000, 16)
    verdict = judged("x", sent(*answers, replicas="aba"), "usage")
    assert verdict.level == "fail"
    assert f"request {missing + 1} found 16 of 1,000 tokens on replica" in verdict.what
    assert "2 replicas (a, b)" in verdict.why


def test_where_nothing_is_ever_found_caching_is_off() -> None:
    """One replica that finds nothing at all."""
    verdict = judged("x", sent((1000, 0, 0), (1010, 1000, 0), replicas="aa"), "usage")
    assert verdict.level == "fail" and "--no-enable-prefix-caching" in verdict.why


def test_a_cold_prompt_that_is_found_fails() -> None:
    """A control proves nothing if it is warm; a template's own words are no such thing."""
    verdict = judged("x", sent((1000, 0, 0), (1000, 0, 500)), "usage")
    assert verdict.level == "fail" and "request 2 found 500 of 1,000" in verdict.what
    assert judged("x", sent((1000, 0, 64)), "usage").level == "pass"


def test_nothing_reported_is_zero_only_of_engines_that_report() -> None:
    """vLLM leaves the field out where nothing was cached."""
    cold, warm = sent((1000, 0, None)), sent((1000, 0, None), (1000, 1000, 992))
    assert source_of(cold) == "unknown" and judged("x", cold, "unknown").level == "unknown"
    assert source_of(cold + warm) == "usage" and judged("x", warm, "usage").level == "pass"


def test_a_salt_that_a_router_replaced_proves_nothing() -> None:
    """Only where it is why the control is warm: one that is not found again fails all the same."""
    warm = Answer(1000, 992, transformed="canonical_tools,cache_salt")
    assert judged_salted("x", [Sent("1", 0, warm)], "usage").level == "skipped"
    plain = Answer(1000, 992, transformed="none")
    assert judged_salted("x", [Sent("1", 0, plain)], "usage").level == "fail"
    cold = Answer(1000, 0, transformed="cache_salt")
    lost = [Sent("1", 0, cold), Sent("2", 1000, cold)]
    assert judged_salted("x", lost, "usage").level == "fail"


def test_what_is_unknown_never_passes_and_says_how_to_know() -> None:
    """Also with times that speak for it."""
    verdict = judged("x", sent((1000, 0, None), (1000, 1000, None)), "unknown")
    assert verdict.level == "unknown"
    assert "--enable-prompt-tokens-details" in verdict.why
    assert "first token after 100 ms cold, 100 ms with the prefix" in verdict.what


def test_counters_are_believed_where_usage_says_nothing() -> None:
    """All requests have to be counted: one that is not may hide what it likes."""
    counted = [Sent("1", 0, Answer(1000, None, 0)), Sent("2", 1000, Answer(1000, None, 992))]
    assert source_of(counted) == "metrics"
    assert judged("x", counted, "metrics").level == "pass"
    assert source_of([*counted, Sent("3", 0, Answer(1000, None, None))]) == "unknown"


def test_a_request_without_an_answer_fails_its_step() -> None:
    """With the reason, whatever the others found."""
    answers = [*sent((1000, 0, 0)), Sent("request 2", 1000, failed="503 busy")]
    verdict = judged("x", answers, "usage")
    assert (verdict.level, verdict.what) == ("fail", "request 2: 503 busy")


def test_the_exit_status_is_of_the_worst_step() -> None:
    """1 before 3 before 0; a step that was skipped counts for nothing."""
    passed, skipped = Verdict("x", "pass", ""), Verdict("x", "skipped", "")
    assert status_of([passed, skipped]) == 0
    assert status_of([passed, undone("y", "no time")]) == 3
    assert status_of([Verdict("x", "fail", ""), undone("y", "no time")]) == 1


@given(st.text(min_size=1), st.text(min_size=1))
def test_prompts_of_two_runs_differ_from_their_first_words_on(one: str, other: str) -> None:
    """Nothing that an earlier run left behind can be found."""
    beginnings = {listed(nonce, 500)[:60] for nonce in (one, other)}
    assert len(beginnings) == len({one, other})


def test_questions_stand_behind_what_is_shared() -> None:
    """Of two bodies of a step only the end differs."""
    text = listed("n", 300)
    one, other = (chat("m", [user(text + question(n))], 8) for n in (0, 6))
    assert one != other
    assert one["messages"][0]["content"].startswith(text)
    assert one["stream_options"] == {"include_usage": True}
    assert "cache_salt" not in one and chat("m", [], 8, "s")["cache_salt"] == "s"


def event(delta: dict[str, str] | None, usage: dict[str, object] | None = None) -> bytes:
    choices = [] if delta is None else [{"index": 0, "delta": delta}]
    return b"data: " + json.dumps({"choices": choices, "usage": usage}).encode() + b"\n\n"


STREAM = (
    event({"role": "assistant", "content": ""})
    + event({"reasoning": "Hm."})
    + event({"content": "Größe"})
    + event({"content": " 2"})
    + event(None, {"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 8}})
    + b"data: [DONE]\n\n"
)


@given(st.lists(st.integers(1, len(STREAM) - 1), unique=True))
def test_a_stream_is_read_however_it_is_cut(cuts: list[int]) -> None:
    """The role is no token; what is thought aloud is one."""
    stream, edges = AnswerStream(), [0, *sorted(cuts), len(STREAM)]
    for begin, end in pairwise(edges):
        stream.feed(STREAM[begin:end], now=end)
    assert stream.text == "Hm.Größe 2" and stream.is_done
    assert stream.usage is not None and stream.usage.cached_tokens == 8
    first = STREAM.index(b"Hm.")
    assert stream.first_at == next(edge for edge in edges if edge > STREAM.index(b"\n", first))
    assert stream.last_at is not None and stream.last_at >= stream.first_at


@pytest.mark.parametrize(
    ("bytes_", "says"),
    [
        (b"data: {\n", "no JSON"),
        (b"data: []\n", "no object"),
        (b'data: {"error": {"message": "worker died"}}\n', "worker died"),
        (b"x" * (4 * 2**20 + 1), "more than"),
    ],
)
def test_what_is_no_stream_is_said(bytes_: bytes, says: str) -> None:
    """In words that tell what came."""
    with pytest.raises(NoStream, match=says):
        AnswerStream().feed(bytes_, 0.0)
