"""Bodies that no client should send: a 4xx, or passed on; never a 5xx of ours."""

import json
from collections.abc import Iterator
from pathlib import Path

import httpx2 as httpx
import pytest

from tests.e2e.services import Services, services

CHAT = '{"model": "sim", "max_tokens": 2, "messages": [{"role": "user", "content": %s}]%s}'


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Services]:
    with services(tmp_path_factory.mktemp("bad"), together=True) as made:
        yield made


def chat(content: str = '"hello"', more: str = "") -> bytes:
    return (CHAT % (content, more)).encode()


BODIES = {
    "empty": b"",
    "no JSON": b"{model",
    "cut off": chat()[:-5],
    "a list": b"[]",
    "a number": b"1",
    "null": b"null",
    "no UTF-8": b'{"model": "sim\xff\xfe", "messages": []}',
    "UTF-16": chat().decode().encode("utf-16"),
    "an empty object": b"{}",
    "messages of numbers": b'{"model": "sim", "messages": [1, 2]}',
    "messages of null": b'{"model": "sim", "messages": null}',
    "messages a text": b'{"model": "sim", "messages": "hello"}',
    "content a number": chat("7"),
    "content null": chat("null"),
    "content an object": chat('{"a": 1}'),
    "parts of nothing": chat("[{}]"),
    "parts of numbers": chat("[1]"),
    "lone surrogate": chat('"\\ud800"'),
    "surrogate pair the wrong way": chat('"\\udc00\\ud800"'),
    "NUL": chat('"a\\u0000b"'),
    "NaN": chat(more=', "temperature": NaN'),
    "infinity": chat(more=', "temperature": 1e999'),
    "a huge number": chat(more=', "n": 1' + "0" * 5000),
    "a negative n": chat(more=', "n": -1'),
    "n a text": chat(more=', "n": "2"'),
    "duplicate keys": chat(more=', "model": "sim", "messages": []'),
    "deep": b"[" * 100_000 + b"]" * 100_000,
    "deep inside": chat("[" * 20_000 + "]" * 20_000),
    "tools of nothing": chat(more=', "tools": [{}]'),
    "no tools": chat(more=', "tools": []'),
    "salt a number": chat(more=', "cache_salt": 5'),
    "salt a surrogate": chat(more=', "cache_salt": "\\ud800"'),
    "session an object": chat(more=', "user": {"a": 1}'),
    "model a number": chat(more=', "model": 5'),
    "model a list": chat(more=', "model": ["sim"]'),
    "xargs a text": chat(more=', "vllm_xargs": "kv_cache_report_mode"'),
    "template arguments a list": chat(more=', "chat_template_kwargs": [1]'),
    "a cut of nothing": chat(more=', "truncate_prompt_tokens": -5'),
}


@pytest.mark.parametrize("name", BODIES)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_a_bad_body_is_refused_or_passed_on(fleet: Services, name: str, path: str) -> None:
    """By us with a 4xx of OpenAI's shape, or by the engine in its own words."""
    response = httpx.post(f"{fleet.url}{path}", content=BODIES[name], timeout=60)
    assert response.status_code < 500 or "x-pointsman-replica" in response.headers
    if response.status_code >= 400 and "x-pointsman-replica" not in response.headers:
        assert set(response.json()["error"]) == {"message", "type", "param", "code"}


@pytest.mark.parametrize("prompt", ["[]", "[[]]", "[true]", "[-1]", "[1, [2]]", "5", "[1e30]"])
def test_a_bad_prompt_is_the_engines_to_refuse(fleet: Services, prompt: str) -> None:
    """Ids that are none are not hashed."""
    body = f'{{"model": "sim", "max_tokens": 1, "prompt": {prompt}}}'
    response = httpx.post(f"{fleet.url}/v1/completions", content=body.encode(), timeout=60)
    assert response.status_code < 500
    assert "x-pointsman-replica" in response.headers


def test_twenty_megabytes_are_passed_on(fleet: Services) -> None:
    """Whatever they are: a field that the engine does not know is its own business."""
    body = chat(more=f', "padding": "{"x" * 20_000_000}"')
    response = httpx.post(f"{fleet.url}/v1/chat/completions", content=body, timeout=120)
    assert response.status_code == 200


def test_a_prompt_that_is_too_long_to_be_tokenized_is_passed_on(fleet: Services) -> None:
    """Routed by load; the engine says that it is longer than the model's context."""
    body = chat(json.dumps("internationalization " * 200_000))
    response = httpx.post(f"{fleet.url}/v1/chat/completions", content=body, timeout=120)
    assert response.status_code == 400
    assert "x-pointsman-replica" in response.headers
    assert fleet.chat("after it").status_code == 200


def test_a_body_beyond_the_limit_is_refused_before_it_is_read(tmp_path: Path) -> None:
    """413, whether its length was announced or not."""
    with services(tmp_path, together=True, settings="body_bytes_max = 2048") as fleet:
        url = f"{fleet.url}/v1/chat/completions"
        announced = httpx.post(url, content=b"x" * 5_000, timeout=60)
        chunked = httpx.post(url, content=iter([b"x" * 1_000] * 5), timeout=60)
        assert (announced.status_code, chunked.status_code) == (413, 413)
        assert "2048" in announced.json()["error"]["message"]


def test_nothing_of_all_this_was_a_bug_of_ours(fleet: Services) -> None:
    """The log has no traceback, and nothing is left in flight."""
    fleet.at_rest()
    assert not fleet.router.events("handler_failed")
    assert not [line for line in fleet.requests() if line["outcome"] == "internal_error"]
