"""What the answers of an acceptance run prove: one verdict for each step, with its numbers.

Rules it keeps:

* Only cached tokens decide. Times are shown, and hint where nothing else is known; they never pass
  or fail a step.
* What an engine does not report is taken from its own counters, and else is unknown: a step that
  could not be judged never passes.
* An engine that reports cached tokens at all may leave them out where there are none (vLLM does):
  then nothing reported is 0.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Literal

Level = Literal["pass", "fail", "unknown", "skipped"]
Source = Literal["usage", "metrics", "unknown"]

# Of what was there to be found, so much is enough: questions differ, a template may change the end
# of a turn, and hybrid models have blocks of several hundred tokens.
SHARE_MIN = 0.9
# Templates begin with words of their own, such as a date, that every prompt shares.
COLD_SHARE_MAX = 0.1


@dataclass(frozen=True, slots=True)
class Answer:
    """``reported``: cached tokens of its usage; ``counted``: of the engine's metrics meanwhile.

    ``decode_ms``: a token behind the first. The last three are what a router says of it.
    """

    prompt_tokens: int
    reported: int | None
    counted: int | None = None
    completion_tokens: int | None = None
    ttft_ms: float | None = None
    decode_ms: float | None = None
    text: str = ""
    replica: str | None = None
    reason: str | None = None
    transformed: str | None = None


@dataclass(frozen=True, slots=True)
class Sent:
    """One request of a step: what should be found of it. ``failed``: why it has no answer."""

    name: str
    expected_tokens: int
    answer: Answer | None = None
    failed: str | None = None


@dataclass(frozen=True, slots=True)
class Request:
    """A request as it is reported. ``cached_tokens`` is None where it is unknown."""

    name: str
    prompt_tokens: int | None
    cached_tokens: int | None
    expected_tokens: int
    ttft_ms: float | None
    decode_ms: float | None
    replica: str | None
    reason: str | None
    failed: str | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    step: str
    level: Level
    what: str
    why: str = ""
    source: Source = "unknown"
    requests: tuple[Request, ...] = ()
    notes: tuple[str, ...] = field(default=())


def source_of(sent: Sequence[Sent]) -> Source:
    """Where the cached tokens of all requests of a run are known from."""
    answers = [each.answer for each in sent if each.answer is not None]
    if any(answer.reported is not None for answer in answers):
        return "usage"
    if answers and all(answer.counted is not None for answer in answers):
        return "metrics"
    return "unknown"


def cached_tokens(answer: Answer, source: Source) -> int | None:
    if source == "usage":
        return answer.reported or 0
    return answer.counted if source == "metrics" else None


def judged(
    step: str, sent: Sequence[Sent], source: Source, *, notes: Sequence[str] = ()
) -> Verdict:
    """``sent``: in the order they were sent. Those of which nothing is expected must be cold."""
    requests = tuple(_request(each, source) for each in sent)
    failed = [each for each in sent if each.failed is not None]
    if failed:
        what = f"{failed[0].name}: {failed[0].failed}"
        return Verdict(step, "fail", what, source=source, requests=requests, notes=tuple(notes))
    if source == "unknown":
        return Verdict(
            step,
            "unknown",
            f"cached tokens are not reported; {_times(requests)}",
            _NOT_REPORTED,
            source,
            requests,
            tuple(notes),
        )
    warm = [request for request in requests if _is_warm_where_cold(request)]
    missed = [request for request in requests if _is_missed(request)]
    level: Level = "fail" if warm or missed else "pass"
    what, why = _found(requests), ""
    if warm:
        what, why = _warm_text(warm[0]), _WARM
    elif missed:
        what, why = _missed_text(requests, missed), _missed_why(requests)
    return Verdict(step, level, what, why, source, requests, tuple(notes))


def judged_salted(step: str, sent: Sequence[Sent], source: Source) -> Verdict:
    """A router whose policy puts another salt in the client's place isolates as it likes."""
    verdict = judged(step, sent, source)
    warm = any(r.cached_tokens is not None and _is_warm_where_cold(r) for r in verdict.requests)
    if warm and any(_SALT in (each.answer.transformed or "") for each in sent if each.answer):
        what = f"the router sent another salt, or none (x-pointsman-transformed: {_SALT})"
        return skipped(step, what, NO_SALT)
    return verdict


def skipped(step: str, what: str, why: str) -> Verdict:
    return Verdict(step, "skipped", what, why)


def undone(step: str, what: str) -> Verdict:
    """A step that was not come to."""
    return Verdict(step, "unknown", what)


def status_of(verdicts: Sequence[Verdict]) -> int:
    """The exit status: 1 where a step failed, 3 where none did but one could not be judged."""
    levels = {verdict.level for verdict in verdicts}
    return 1 if "fail" in levels else 3 if "unknown" in levels else 0


def repeat_note(prompt_tokens: int, cached: int) -> str:
    """Why the same prompt again is not found whole."""
    return (
        f"{prompt_tokens - cached:,} of {prompt_tokens:,} tokens were computed although all of them"
        " were sent before: only full blocks are reused, and the last token is always computed,"
        " since the first token of the answer comes out of it. That is from one token up to a"
        " whole block"
    )


NO_SALT = (
    "isolation by salt cannot be shown here: the engine is older than cache_salt, or the router's"
    " salt policy keeps salts for itself"
)
# As pointsman names the change.
_SALT = "cache_salt"
_NOT_REPORTED = (
    "start vLLM with --enable-prompt-tokens-details; or give the URL of one replica that nobody"
    " else uses, whose /metrics count hits"
)
_WARM = (
    "this prompt was new, so what is reported as cached belongs to other prompts, or the numbers"
    " cannot be relied on"
)


def _request(sent: Sent, source: Source) -> Request:
    answer = sent.answer
    if answer is None:
        nothing = (None, None, sent.expected_tokens, None, None, None, None)
        return Request(sent.name, *nothing, sent.failed)
    return Request(
        sent.name,
        answer.prompt_tokens,
        cached_tokens(answer, source),
        sent.expected_tokens,
        answer.ttft_ms,
        answer.decode_ms,
        answer.replica,
        answer.reason,
        sent.failed,
    )


def _is_found(request: Request) -> bool:
    """Where it is unknown, what was expected is taken for it."""
    if request.cached_tokens is None:
        return request.expected_tokens > 0
    return request.expected_tokens > 0 and not _is_missed(request)


def _is_missed(request: Request) -> bool:
    assert request.cached_tokens is not None
    return request.cached_tokens < SHARE_MIN * request.expected_tokens


def _is_warm_where_cold(request: Request) -> bool:
    assert request.cached_tokens is not None and request.prompt_tokens is not None
    is_cold = request.expected_tokens == 0
    return is_cold and request.cached_tokens > COLD_SHARE_MAX * request.prompt_tokens


def _found(requests: Sequence[Request]) -> str:
    expecting = [request for request in requests if request.expected_tokens]
    found = sum(request.cached_tokens or 0 for request in expecting)
    if not expecting:
        most = max(request.cached_tokens or 0 for request in requests)
        return f"at most {most:,} cached tokens where nothing was sent before; {_times(requests)}"
    total = sum(request.prompt_tokens or 0 for request in expecting)
    return (
        f"{found:,} of {total:,} prompt tokens were cached ({found / total:.0%});"
        f" {_times(requests)}"
    )


def _times(requests: Sequence[Request]) -> str:
    """Time to first token apart from decoding, and with the prefix apart from without."""
    cold = [r.ttft_ms for r in requests if not _is_found(r) and r.ttft_ms is not None]
    warm = [r.ttft_ms for r in requests if _is_found(r) and r.ttft_ms is not None]
    decode = [r.decode_ms for r in requests if r.decode_ms is not None]
    parts = [
        f"{median(times):.0f} ms {name}"
        for name, times in (("cold", cold), ("with the prefix", warm))
        if times
    ]
    text = f"first token after {', '.join(parts)}" if parts else "no token came"
    return f"{text}; {median(decode):.1f} ms a token then" if decode else text


def _warm_text(request: Request) -> str:
    return (
        f"{request.name} found {request.cached_tokens or 0:,} of {request.prompt_tokens or 0:,}"
        " tokens cached, and nothing of it was sent before"
    )


def _missed_text(requests: Sequence[Request], missed: Sequence[Request]) -> str:
    expecting = sum(1 for request in requests if request.expected_tokens)
    first = missed[0]
    where = "" if first.replica is None else f" on replica {first.replica} ({first.reason})"
    return (
        f"{len(missed)} of {expecting} did not find the prefix; {first.name} found"
        f" {first.cached_tokens or 0:,} of {first.expected_tokens:,} tokens{where};"
        f" {_times(requests)}"
    )


def _missed_why(requests: Sequence[Request]) -> str:
    replicas = {request.replica for request in requests if request.replica is not None}
    if len(replicas) > 1:
        return (
            f"the requests went to {len(replicas)} replicas ({', '.join(sorted(replicas))}), each"
            " of which has to compute the prefix once: route by prefix"
        )
    if not any(request.cached_tokens for request in requests):
        return (
            "nothing was found at all: look for --no-enable-prefix-caching, or for a balancer that"
            " sends each request elsewhere"
        )
    return (
        "what was computed a moment ago is not found again: a balancer that sends requests"
        " elsewhere, or a pool so full that it was evicted (pointsman capacity)"
    )
