"""The doctor against simulated engines, engines that are none, and garbage; and its command."""

import asyncio
import json
import os
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from benchmarks.data import TOKENIZER_DIRECTORY
from router.main import main
from tests.ports import free_port_pair
from tests.processes import MAIN, ROOT
from tests.shell.doctored import doctor, generate, levels, simulated
from tests.shell.zmq_peers import Peers, raw_server, speak_zmtp_once
from tests.unit.wire import payload, stored

MODEL = ("--model", str(TOKENIZER_DIRECTORY))


def test_a_new_engine_with_two_ranks(capsys: pytest.CaptureFixture[str]) -> None:
    """Its ranks are found and heard, their schemes proven from what they have published."""
    with simulated("0.33", "--data-parallel-size", "2", "--buffer-steps", "100000") as sim:
        for start in range(0, 1200, 100):
            generate(sim["url"], start, rank=0)
        generate(sim["url"], 5000, rank=1, cache_salt="tenant")
        status, (found,) = doctor(capsys, sim["url"])
    assert status == 0
    for rank in "#0", "#1":
        checks = [f"{check}{rank}" for check in ("endpoint", "replay", "buffer_steps", "scheme")]
        assert levels(found, *checks) == ["ok"] * 4
    assert "a second" in found["buffer_steps#0"]["what"]
    assert "sha256,seed=0,block_size=16" in found["scheme#0"]["what"]
    assert "not seen yet" in found["scheme#0"]["what"]
    assert "not seen yet" not in found["scheme#1"]["what"]
    assert levels(found, "ports", "prefix_caching", "capacity") == ["ok"] * 3
    # Nothing was sent that an engine computes.
    assert levels(found, "cached_tokens", "token_parity") == ["unknown"] * 2


@pytest.mark.parametrize(("version", "form"), [("0.23", "untagged_mm_offset"), ("0.31", "tagged")])
def test_a_silent_engine_is_probed(
    version: str, form: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The probe announces a block and shows cached tokens; three chats have the same ids."""
    with simulated(version) as sim:
        told = ()
        if version == "0.23":
            (events,), (replay,) = sim["event_endpoints"], sim["replay_endpoints"]
            told = ("--event-endpoint", events, "--replay-endpoint", replay)
        _, (before,) = doctor(capsys, sim["url"], *told)
        status, (found,) = doctor(capsys, sim["url"], *told, "--probe", "sim", *MODEL)
    assert before["scheme"]["level"] == "unknown" and "--probe" in before["scheme"]["fix"]
    assert status == 0
    checks = ("endpoint", "replay", "scheme", "cached_tokens", "token_parity")
    assert levels(found, *checks) == ["ok"] * 5
    assert f"extra_keys={form}" in found["scheme"]["what"]
    assert ("event_config" in found) == bool(told)


def test_an_old_engine_without_flags(capsys: pytest.CaptureFixture[str]) -> None:
    """Its events are unknown, not off; the fix names the flags."""
    with simulated("0.28") as sim:
        status, (found,) = doctor(capsys, sim["url"])
    assert status == 0 and levels(found, "version", "events") == ["ok", "unknown"]
    assert "--event-endpoint" in found["events"]["fix"] and "replay" not in found


def test_engines_that_connect_and_a_seed_that_is_not_tried(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Two with one topic cannot be told apart; their replay sockets are asked all the same."""
    to = f"tcp://127.0.0.1:{free_port_pair()}"
    flags = ("--event-endpoint", to, "--topic", "kv", "--algorithm", "xxhash_cbor")
    with (
        simulated("0.33", *flags, "--hash-seed", "7") as one,
        simulated("0.33", *flags, "--hash-seed", "7") as other,
    ):
        generate(one["url"], 0)
        status, (found, second) = doctor(capsys, one["url"], other["url"])
        _, (tried, _) = doctor(capsys, one["url"], other["url"], "--hash-seed", "7")
    assert status == 1
    assert levels(found, "endpoint", "replay", "scheme", "topics#0") == [
        "warning",
        "ok",
        "problem",
        "problem",
    ]
    assert found["scheme"]["why"].startswith("with xxhash_cbor")
    assert levels(second, "scheme", "topics#0") == ["unknown", "problem"]
    assert tried["scheme"]["level"] == "ok" and "seed=7" in tried["scheme"]["what"]


def test_another_tokenizer_is_noticed(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """And a model that the engine does not serve; both name what to change."""
    template = tmp_path / "other.jinja"
    template.write_text("{{ messages[0].content }}")
    with simulated("0.33") as sim:
        words = (sim["url"], "--probe", "sim", *MODEL, "--chat-template", str(template))
        status, (found,) = doctor(capsys, *words)
        refused, (unserved,) = doctor(capsys, sim["url"], "--probe", "nobody", *MODEL)
    assert status == refused == 1
    assert found["token_parity"]["level"] == "problem" and found["cached_tokens"]["level"] == "ok"
    assert "--chat-template" in found["token_parity"]["fix"]
    assert "`nobody` does not exist" in unserved["cached_tokens"]["why"]
    assert unserved["token_parity"]["level"] == "unknown"


# Engines by hand.

METRICS = b"""vllm:cache_config_info{block_size="16",enable_prefix_caching="False",engine="0",\
num_gpu_blocks="None",prefix_caching_hash_algo="sha256"} 1.0
vllm:engine_sleep_state{engine="0",sleep_state="weights_offloaded"} 1.0
"""


class FakeEngine:
    """An HTTP server that says what it is told to say; ``key``: what it wants to see."""

    def __init__(self) -> None:
        self.key: str | None = None
        self.pages: dict[str, Any] = {
            "/version": {"version": "0.33.0"},
            "/kv_event_sources": {},
            "/v1/models": {"data": [{"id": "base"}]},
        }
        app = web.Application()
        app.router.add_get("/{path:.*}", self._answer)
        self.server = TestServer(app)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.port}"

    def publishes(self, endpoint: str, replay: str | None) -> None:
        source = {"endpoint": endpoint, "replay_endpoint": replay, "buffer_steps": 10_000}
        self.pages["/kv_event_sources"] = {"0": source}

    async def _answer(self, request: web.Request) -> web.Response:
        wanted = self.key and f"Bearer {self.key}"
        if request.path.startswith("/v1/") and request.headers.get("Authorization") != wanted:
            if self.key is not None:
                return web.Response(status=401)
        if request.path == "/metrics":
            return web.Response(body=METRICS)
        if request.path == "/health":
            return web.Response()
        page = self.pages[request.path]
        return page if isinstance(page, web.Response) else web.json_response(page)


@pytest.fixture
async def fake() -> AsyncIterator[FakeEngine]:
    engine = FakeEngine()
    await engine.server.start_server()
    yield engine
    await engine.server.close()


async def asked(engine_url: str, *words: str, key: str | None = None) -> tuple[int, dict[str, Any]]:
    """The doctor as a process beside this event loop."""
    environment = {k: v for k, v in os.environ.items() if k != "VLLM_API_KEY"}
    if key is not None:
        environment["VLLM_API_KEY"] = key
    process = await asyncio.create_subprocess_exec(
        *MAIN,
        "doctor",
        engine_url,
        *words,
        "--json",
        cwd=ROOT,
        env=environment,
        stdout=asyncio.subprocess.PIPE,
    )
    out, _ = await process.communicate()
    assert process.returncode is not None
    (replica,) = json.loads(out)["replicas"]
    return process.returncode, {f["check"]: f for f in replica["findings"]}


async def test_events_and_caching_that_are_off(fake: FakeEngine) -> None:
    """Both are problems; that it sleeps and hides its blocks are warnings."""
    status, found = await asked(fake.url)
    assert status == 1
    assert levels(found, "events", "prefix_caching", "sleep", "capacity") == [
        "problem",
        "problem",
        "warning",
        "warning",
    ]
    assert "--kv-events-config" in found["events"]["fix"]


async def test_the_key_is_asked_for_refused_and_taken(fake: FakeEngine) -> None:
    """It comes from the environment, and the fix says so."""
    fake.key = "secret"
    for key in None, "wrong":
        status, found = await asked(fake.url, key=key)
        assert status == 1 and list(found) == ["api_key"]
        assert "VLLM_API_KEY" in found["api_key"]["fix"]
    _, found = await asked(fake.url, key="secret")
    assert found["reachable"]["level"] == "ok"


async def test_what_is_no_engine(fake: FakeEngine) -> None:
    """A server that answers something else, and nobody at all."""
    fake.pages["/v1/models"] = web.Response(body=b"<html>")
    status, found = await asked(fake.url)
    assert status == 1 and "not as vLLM does" in found["reachable"]["what"]
    status, found = await asked("http://127.0.0.1:1")
    assert status == 1 and found["reachable"]["what"] == "cannot be reached"


async def test_garbage_on_the_replay_socket(fake: FakeEngine, peers: Peers) -> None:
    """A service of another protocol, one that is no replay socket, and a port where nobody is.

    libzmq takes what is no greeting for a message of its first version.
    """
    publisher = peers.publisher()
    with raw_server(lambda peer: peer.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n" * 9)) as http:
        for replay, says in (
            (http, "a reply of 2 frames"),
            (publisher.endpoint, ""),
            ("tcp://127.0.0.1:1", "refused"),
        ):
            fake.publishes(_bound(publisher.endpoint), replay)
            status, found = await asked(fake.url)
            assert status == 1 and levels(found, "endpoint", "replay") == ["ok", "problem"]
            assert "does not answer a replay" in found["replay"]["what"]
            assert says in found["replay"]["why"]
    with raw_server(speak_zmtp_once) as silent:
        fake.publishes("tcp://*:1", silent)
        _, found = await asked(fake.url)
    assert levels(found, "endpoint", "replay") == ["problem", "problem"]


async def test_batches_that_cannot_be_decoded(fake: FakeEngine, peers: Peers) -> None:
    """They are counted, also where they are live and there is no replay endpoint."""
    publisher, server = peers.publisher(), peers.replay_server()
    fake.publishes(_bound(publisher.endpoint), server.endpoint)

    async def served() -> None:
        request = await asyncio.to_thread(server.receive)
        assert request == [b"", bytes(8)]
        for seq, batch in enumerate((payload(stored([1], range(16))), b"\xc1garbage")):
            server.reply(b"", b"kv", seq.to_bytes(8, "big"), batch)
        server.reply(b"", b"", b"\xff" * 8, b"")

    _, (status, found) = await asyncio.gather(served(), asked(fake.url))
    assert status == 1 and levels(found, "replay", "batches") == ["ok", "problem"]
    assert found["batches"]["what"].startswith("1 of 2 batches")


def _bound(endpoint: str) -> str:
    """As an engine writes what it binds."""
    return endpoint.replace("127.0.0.1", "*")


# The command.


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((), "give the URL of an engine, or --config FILE"),
        (("10.0.0.7:8000",), "http://HOST:PORT"),
        (("ftp://a",), "http://HOST:PORT"),
        (("http://127.0.0.1:1", *MODEL), "give --probe with it"),
        (("--probe", "http://127.0.0.1:1"), "put it behind the URLs"),
        (("http://127.0.0.1:1", "--bind", "5557"), "not an endpoint"),
        (("http://127.0.0.1:1", "--probe", "m", "--model", "nowhere"), "no tokenizer_config.json"),
        (("http://127.0.0.1:1", "--event-endpoint", "5557"), "not an endpoint"),
        (("http://127.0.0.1:1", "--replay-endpoint", "tcp://*:5657"), "give --event-endpoint"),
    ],
)
def test_what_is_asked_wrongly_is_status_2(
    words: tuple[str, ...], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line says what, and nothing is printed for programs."""
    try:
        status = main(["doctor", *words])
    except SystemExit as exit:
        status = int(exit.code or 0)
    printed = capsys.readouterr()
    assert (status, printed.out) == (2, "") and says in printed.err.splitlines()[-1]


def test_a_person_reads_a_list(capsys: pytest.CaptureFixture[str]) -> None:
    """Without --json, and without colour where there is no terminal."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        assert main(["doctor", url]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == url and lines[1] == "  problem  reachable          cannot be reached"
    assert lines[-1] == "1 problem, 0 warnings, 0 unknown"


def test_help_has_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    """--help shows commands to copy, and what the exit status means."""
    with pytest.raises(SystemExit):
        main(["doctor", "--help"])
    text = capsys.readouterr().out
    assert "pointsman doctor http://10.0.0.7:8000 http://10.0.0.8:8000" in text
    assert "Exit status:" in text and max(map(len, text.splitlines())) <= 100
