"""Which requests are kept as samples, and what of them."""

import json
from typing import Any

import pytest

from router.openai import CHAT_PATH, COMPLETIONS_PATH, ParsedRequest, parse_request
from router.samples import Sample, is_sampled, sample_line, tag_under

SECRET = b"k" * 32


def parsed(body: Any, path: str = CHAT_PATH, **headers: str) -> ParsedRequest:
    return parse_request(path, json.dumps(body).encode(), headers)


def conversation(number: int, steps: int = 4) -> list[ParsedRequest]:
    """Steps of one conversation, under a system prompt that changes with each."""
    said: list[dict[str, str]] = []
    requests = []
    for step in range(steps):
        said.append({"role": "user", "content": f"question {step} of {number}"})
        system = {"role": "system", "content": f"It is 10:00:{step:02}."}
        requests.append(parsed({"messages": [system, *said]}))
        said.append({"role": "assistant", "content": f"answer {step}"})
    return requests


def line_of(request: ParsedRequest, secret: bytes = SECRET) -> dict[str, Any]:
    line = sample_line(Sample.of(request, {"time": 1.5, "replica": "a"}), tag_under(secret))
    assert line.endswith(b"\n") and line.count(b"\n") == 1
    decoded: dict[str, Any] = json.loads(line)
    return decoded


def test_conversations_are_kept_whole() -> None:
    """Every step is decided like the first, and the share is about what was asked for."""
    kept = [{is_sampled(step, 0.3) for step in conversation(n)} for n in range(600)]
    assert all(len(decisions) == 1 for decisions in kept)
    assert 130 < sum(True in decisions for decisions in kept) < 230


def test_a_session_decides_where_there_is_one() -> None:
    """Whatever is said in it: a session is kept whole."""
    for number in range(50):
        decisions = {
            is_sampled(
                parsed({"messages": [{"role": "user", "content": text}], "user": f"{number}"}), 0.5
            )
            for text in ("hello", "and now?", "x")
        }
        assert len(decisions) == 1


@pytest.mark.parametrize(
    "request_",
    [
        parsed({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}),
        parsed({"messages": [{"role": "system", "content": "x"}]}),
        parsed({"messages": []}),
        parsed({"prompt": ["a", "b"]}, COMPLETIONS_PATH),
        parsed({"prompt": [1, 2]}, COMPLETIONS_PATH),
    ],
)
def test_every_request_can_be_decided(request_: ParsedRequest) -> None:
    """Share 1 keeps all, share 0 none, whatever the body."""
    assert is_sampled(request_, 1.0) and not is_sampled(request_, 0.0)


def test_a_salt_tells_only_equal_from_different() -> None:
    """Neither salt nor session nor user can be read or recomputed; the prompt stays as it is."""
    body = {
        "messages": [{"role": "user", "content": "hi"}],
        "cache_salt": "tenant-7",
        "user": "jane@example.org",
        "metadata": {"ticket": "T-1"},
    }
    first, again = line_of(parsed(body)), line_of(parsed(body))
    other = line_of(parsed({**body, "cache_salt": "tenant-8"}))
    elsewhere = line_of(parsed(body), b"x" * 32)
    assert first == again
    assert first["body"]["messages"] == body["messages"]
    salts = {line["body"]["cache_salt"] for line in (first, other, elsewhere)}
    assert len(salts) == 3 and first["session"] == first["body"]["user"]
    text = json.dumps([first, other])
    assert not any(word in text for word in ("tenant-", "jane", "T-1"))


def test_no_header_is_kept() -> None:
    """A key travels in a header; of headers only the session is used, as a tag."""
    headers = {"Authorization": "Bearer sk-1", "X-Session-ID": "my-session"}
    line = line_of(parse_request(CHAT_PATH, b'{"messages": [{"role": "user"}]}', headers))
    assert line["session"] and not {"sk-1", "my-session"} & set(json.dumps(line).split('"'))


def test_what_is_no_strict_json_is_not_kept() -> None:
    """It could not be read back."""
    request = parse_request(CHAT_PATH, b'{"messages": [{"role": "user"}], "x": NaN}', {})
    with pytest.raises(ValueError, match="no strict JSON"):
        sample_line(Sample.of(request, {}), tag_under(SECRET))
