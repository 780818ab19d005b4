"""Prompts that a replica makes: by its /render, else by its /tokenize."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from benchmarks.data import TOKENIZER_DIRECTORY
from router.main import main
from router.pool_tokenizer import PoolTokenizer
from router.practices.comparing import Comparing
from router.practices.local_prompts import LocalPrompts
from router.practices.marking import Place
from router.practices.prompt import layout_of
from router.practices.replica_prompts import ReplicaPrompts
from router.prompts import CHAT_PATH, COMPLETIONS_PATH
from router.tokens import NotReported
from tests.processes import running

Answer = tuple[int, Any]
CHAT = {
    "model": "m",
    "messages": [
        {"role": "system", "content": "You answer for a station. It is 10:00:00."},
        {"role": "user", "content": "Which track has the train to Zürich?"},
    ],
}
LATER = json.loads(json.dumps(CHAT).replace("10:00:00", "10:00:07"))
NO_ROUTE: Answer = (404, {"detail": "Not Found"})
DISABLED: Answer = (403, {"error": {"message": "Scale-out endpoints are disabled."}})


@pytest.fixture(scope="module")
def local() -> LocalPrompts:
    return LocalPrompts(PoolTokenizer.load(str(TOKENIZER_DIRECTORY)), "here")


class Engine:
    """Answers as vLLM does, but for what is in ``overrides``; ``asked`` are the paths."""

    def __init__(self, local: LocalPrompts) -> None:
        self.local, self.asked = local, list[str]()
        self.overrides: dict[str, Answer] = {}
        self.authorization: str | None = None

    def decode(self, token_ids: list[int]) -> str:
        """As a completion with these ids has them as its text."""
        if not token_ids:
            return ""
        return self.local.tokenized("", COMPLETIONS_PATH, raw({"prompt": token_ids})).text or ""

    def answer(self, path: str, body: dict[str, Any]) -> Answer:
        self.asked.append(path)
        if path in self.overrides:
            return self.overrides[path]
        if path == "/detokenize":
            return 200, {"prompt": self.decode(body["tokens"])}
        is_chat = "messages" in body
        ids = self.local.tokenized(
            "", CHAT_PATH if is_chat else COMPLETIONS_PATH, json.dumps(body).encode()
        ).token_ids.tolist()
        if path == "/tokenize":
            return 200, {"tokens": ids, "count": len(ids)}
        rendered = {"token_ids": ids, "request_id": "r"}
        return 200, rendered if is_chat else [rendered]


@pytest.fixture
def engine(local: LocalPrompts) -> Engine:
    return Engine(local)


@pytest.fixture
def url(engine: Engine) -> Iterator[str]:
    with served(engine) as made:
        yield made


@contextmanager
def served(engine: Engine) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            engine.authorization = self.headers.get("Authorization")
            status, answer = engine.answer(self.path, body)
            raw = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(raw)))
            self.end_headers()
            self.wfile.write(raw)

        def log_message(self, *words: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def raw(body: Any) -> bytes:
    return json.dumps(body).encode()


@pytest.mark.parametrize("render", [None, NO_ROUTE, DISABLED, (501, b"")])
def test_the_ids_are_those_of_render_or_else_of_tokenize(
    render: Answer | None, engine: Engine, url: str, local: LocalPrompts
) -> None:
    """Both of chats and of completions; a replica without /render is asked for it once."""
    bodies = ((CHAT_PATH, CHAT), (COMPLETIONS_PATH, {"prompt": "Track 7, Zürich"}))
    for path, body in bodies:
        engine.asked.clear()
        if render is not None:
            engine.overrides[f"{path}/render"] = render
        with ReplicaPrompts(url, "secret") as prompts:
            made, ours = (source.tokenized("x", path, raw(body)) for source in (prompts, local))
            assert (made.token_ids, made.text) == (ours.token_ids, ours.text)
            assert [made.start(n) for n in range(len(made.token_ids) + 1)] == [
                ours.start(n) for n in range(len(made.token_ids) + 1)
            ]
            prompts.tokenized("y", path, raw(body))
            assert prompts.described == f"by {url}, {'/render' if render is None else '/tokenize'}"
        assert engine.asked.count(f"{path}/render") == (2 if render is None else 1)
        assert engine.authorization == "Bearer secret"


def test_places_and_causes_are_the_same_as_here(
    engine: Engine, url: str, local: LocalPrompts
) -> None:
    """The replica renders the marked requests too."""
    with ReplicaPrompts(url) as prompts:
        bodies = [prompts.tokenized("x", CHAT_PATH, raw(body)) for body in (CHAT, LATER)]
        theirs = layout_of(bodies[0], prompts)
        ours = layout_of(local.tokenized("x", CHAT_PATH, raw(CHAT)), local)
        assert theirs == ours and theirs is not None
        found = Comparing(prompts, bodies).compare(0, 1)
    assert [cause.kind for cause in found.causes] == ["time"]
    assert found.a.place == Place("system", 0, "system")
    assert found.causes[0].shared_tokens == len(bodies[0].token_ids)


def test_without_detokenize_there_are_ids_only(engine: Engine, url: str) -> None:
    """The shared tokens are told all the same, and causes that the requests themselves show."""
    engine.overrides["/detokenize"] = NO_ROUTE
    with ReplicaPrompts(url) as prompts:
        bodies = [prompts.tokenized("x", CHAT_PATH, raw(body)) for body in (CHAT, LATER)]
        found = Comparing(prompts, bodies).compare(0, 1)
    assert found.relation == "part" and found.shared_tokens > 10
    assert bodies[0].text is None and found.a.place is None
    assert engine.asked.count("/detokenize") == 1


@pytest.mark.parametrize(
    ("path", "answer", "says"),
    [
        (
            "/tokenize",
            (404, {"error": {"message": "The model `m` does not exist."}}),
            "404 The model",
        ),
        ("/tokenize", (200, {"count": 3}), "answered without tokens"),
        ("/tokenize", (200, {"tokens": [1, "2"]}), "answered without tokens"),
        ("/tokenize", (200, {"tokens": [-1]}), "out of range"),
        ("/tokenize", (200, b"<html>"), "malformed"),
        ("/tokenize", (307, b""), "307"),
        ("/detokenize", (500, b"oh\nno"), "500 oh no"),
        ("/detokenize", (200, {"prompt": 3}), "without a prompt"),
    ],
)
def test_an_answer_that_is_none_is_told(
    path: str, answer: Answer, says: str, engine: Engine, url: str
) -> None:
    """In the replica's own words where it has some, and never taken for a prompt."""
    engine.overrides = {f"{CHAT_PATH}/render": NO_ROUTE, path: answer}
    with ReplicaPrompts(url) as prompts, pytest.raises(NotReported, match=says):
        prompts.tokenized("x", CHAT_PATH, raw(CHAT))


def test_render_that_refuses_a_request_is_not_asked_otherwise(engine: Engine, url: str) -> None:
    """A bad request is bad for /tokenize too, or worse, is not."""
    engine.overrides = {f"{CHAT_PATH}/render": (400, {"error": {"message": "too long"}})}
    with ReplicaPrompts(url) as prompts, pytest.raises(NotReported, match="400 too long"):
        prompts.tokenized("x", CHAT_PATH, raw(CHAT))
    assert "/tokenize" not in engine.asked


@pytest.mark.parametrize("field", ["reasoning_effort", "documents", "truncate_prompt_tokens"])
def test_what_tokenize_ignores_is_refused(field: str, engine: Engine, url: str) -> None:
    """Its ids would be others than the engine's."""
    engine.overrides[f"{CHAT_PATH}/render"] = DISABLED
    body = CHAT | {field: {"reasoning_effort": "low", "documents": []}.get(field, 5)}
    with ReplicaPrompts(url) as prompts, pytest.raises(NotReported, match=f"ignores {field}"):
        prompts.tokenized("x", CHAT_PATH, raw(body))


def test_a_simulated_replica_is_asked_by_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """From the command line to a replica and back: the clock is found."""
    files = []
    for name, body in (("a", CHAT), ("b", LATER)):
        files.append(str(tmp_path / f"{name}.json"))
        Path(files[-1]).write_text(json.dumps(body | {"model": "sim"}))
    ports = ("--port", "0", "--event-port", "0", "--replay-port", "0")
    with running(tmp_path, "sim", *ports, ready='"url"') as sim:
        url = sim.lines()[0]["url"]
        assert main(["diff", *files, "--url", url]) == 1
    shown = capsys.readouterr().out
    assert "likely cause: a time finer than a day" in shown and "system (message 1 of 2)" in shown
    assert f"tokenized by {url}, /tokenize" in shown
