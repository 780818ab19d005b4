"""The indexer as a process beside simulated replicas: what an operator and a test can see of it."""

import json
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.ports import free_port_pair

MAIN = (sys.executable, "-m", "router.main")
ROOT = Path(__file__).parent.parent
WAIT_S = 30.0


@contextmanager
def process(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A pointsman command, running; its first line of output has been read."""
    with subprocess.Popen((*MAIN, *arguments), stdout=subprocess.PIPE, text=True, cwd=ROOT) as made:
        try:
            assert made.stdout is not None and made.stdout.readline()
            yield made
        finally:
            made.kill()


def call(url: str, body: dict[str, Any] | None = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(urllib.request.Request(url, data), timeout=WAIT_S) as response:
        return json.load(response)


def until(condition: Callable[[], Any], what: str) -> Any:
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        try:
            value = condition()
        except (urllib.error.URLError, ConnectionError):
            value = None
        if value:
            return value
        time.sleep(0.05)
    raise AssertionError(f"not within {WAIT_S} s: {what}")


class Fleet:
    """Simulated replicas and an indexer that follows them."""

    def __init__(self, stack: ExitStack, tmp_path: Path, *, dial_in: bool, ranks: int = 1) -> None:
        self.http, events, replay = (free_port_pair() for _ in range(3))
        flags = ["--port", str(self.http), "--replay-port", str(replay), "--blocks", "64"]
        flags += ["--data-parallel-size", str(ranks), "--hash-seed", "0", "--topic", "kv@a"]
        if dial_in:
            flags += ["--event-endpoint", f"tcp://127.0.0.1:{events}"]
        else:
            flags += ["--event-port", str(events)]
        self.sim_flags, self.stack = flags, stack
        self.sim = stack.enter_context(process("sim", *flags))
        self.indexer_port, self.grpc_port = free_port_pair(), free_port_pair()
        config = tmp_path / "indexer.toml"
        bind = [f"tcp://127.0.0.1:{events + rank}" for rank in range(ranks)] if dial_in else []
        config.write_text(
            f'[http]\nlisten = "127.0.0.1:{self.indexer_port}"\n'
            f'[grpc]\nlisten = "127.0.0.1:{self.grpc_port}"\n'
            f"[events]\nbind = {json.dumps(bind)}\n"
            "[discovery]\ninterval_s = 0.3\n"
            f'[[replicas]]\nname = "a"\nurl = "http://127.0.0.1:{self.http}"\n'
        )
        self.indexer = stack.enter_context(process("indexer", "--config", str(config)))

    def generate(self, start: int, rank: int = 0) -> None:
        body = {"token_ids": list(range(start, start + 100)), "max_tokens": 20, "rank": rank}
        call(f"http://127.0.0.1:{self.http}/sim/generate", body)

    def replicas(self) -> list[dict[str, Any]]:
        return list(call(f"http://127.0.0.1:{self.indexer_port}/replicas")["replicas"])

    def truth(self, rank: int = 0) -> int:
        return sum(call(f"http://127.0.0.1:{self.http}/sim/blocks?rank={rank}").values())

    def heard(self, rank: int) -> None:
        """Until an engine that connects to us has: what it says before that nobody hears."""

        def connected() -> bool:
            self.generate(9000, rank)
            self.generate(8000, rank)
            ranks = self.replicas()
            return len(ranks) > rank and bool(ranks[rank]["connected"])

        until(connected, f"rank {rank} is heard")

    def caught_up(self, rank: int = 0, evidence: str = "exact") -> dict[str, Any]:
        """The rank's report, once its copies equal those of the engine's own pool."""

        def report() -> dict[str, Any] | None:
            ranks = self.replicas()
            if len(ranks) <= rank or ranks[rank]["evidence"] != evidence:
                return None
            return ranks[rank] if ranks[rank]["copies"] == self.truth(rank) > 0 else None

        return dict(until(report, f"rank {rank} {evidence} and equal: {self.replicas()}"))


@pytest.mark.parametrize("dial_in", [False, True])
def test_a_fleet_is_followed_whoever_connects(tmp_path: Path, dial_in: bool) -> None:
    """Both ranks of an engine become exact and equal to its pools, through evictions too."""
    with ExitStack() as stack:
        fleet = Fleet(stack, tmp_path, dial_in=dial_in, ranks=2)
        for start in range(0, 2000, 200):
            fleet.generate(start)
            fleet.generate(start + 100, rank=1)
        for rank in (0, 1):
            fleet.heard(rank)
            report = fleet.caught_up(rank)
            assert report["replica"] == f"a#{rank}" and report["schemes"][0]["seed"] == "0"


def test_faults_are_survived_and_shown(tmp_path: Path) -> None:
    """Lost batches are replayed; garbage clears and says so; a restart is noticed and followed."""
    with ExitStack() as stack:
        fleet = Fleet(stack, tmp_path, dial_in=False)
        fault = f"http://127.0.0.1:{fleet.http}/sim/fault"
        fleet.generate(0)
        fleet.caught_up()
        call(fault, {"kind": "drop", "batches": 2})
        for start in (1000, 2000, 3000):
            fleet.generate(start)
        fleet.caught_up()
        call(fault, {"kind": "garbage"})
        fleet.generate(4000)
        reasons = until(
            lambda: (
                fleet.replicas()[0]["evidence"] == "degraded" and fleet.replicas()[0]["reasons"]
            ),
            "degraded",
        )
        assert reasons == ["incomplete_history"]
        call(fault, {"kind": "restart"})
        fleet.generate(5000)
        fleet.caught_up()


def test_a_killed_engine_comes_back_empty(tmp_path: Path) -> None:
    """After kill -9 of the engine its blocks are not believed in; its successor is followed."""
    with ExitStack() as stack:
        fleet = Fleet(stack, tmp_path, dial_in=False)
        for start in (0, 1000, 2000):
            fleet.generate(start)
        before = fleet.caught_up()["copies"]
        fleet.sim.kill()
        fleet.sim.wait()
        stack.enter_context(process("sim", *fleet.sim_flags))
        fleet.generate(7000)
        after = fleet.caught_up()["copies"]
        assert after < before


def test_it_stops_when_told(tmp_path: Path) -> None:
    """SIGTERM ends the indexer in order, with exit status 0."""
    with ExitStack() as stack:
        fleet = Fleet(stack, tmp_path, dial_in=False)
        fleet.generate(0)
        fleet.caught_up()
        metrics = urllib.request.urlopen(f"http://127.0.0.1:{fleet.indexer_port}/metrics").read()
        assert (
            b'pointsman_indexer_evidence{level="exact",pool="default",replica="a"} 1.0' in metrics
        )
        fleet.indexer.send_signal(signal.SIGTERM)
        assert fleet.indexer.wait(WAIT_S) == 0


@pytest.mark.parametrize("section", ["http", "grpc"])
def test_a_taken_port_is_one_clear_line(tmp_path: Path, section: str) -> None:
    """Exit status 1, and stderr names the address."""
    config = tmp_path / "indexer.toml"
    ports = {"http": 0, "grpc": 0}
    with socket.create_server(("127.0.0.1", 0)) as taken:
        ports[section] = taken.getsockname()[1]
        config.write_text(
            "".join(f'[{name}]\nlisten = "127.0.0.1:{port}"\n' for name, port in ports.items())
        )
        command = (*MAIN, "indexer", "--config", str(config))
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 1 and done.stderr.count("\n") == 1
    assert str(ports[section]) in done.stderr


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[grpc]\nlisten = '50051'\n", "grpc.listen: '50051' is not HOST:PORT"),
        ("[[replicas]]\nname = 'a'\nurl = 'http://a:port'\n", "url: 'http://a:port' is not"),
        ("[[replicas]]\nname = 'a b'\nurl = 'http://a'\n", "name: Expected `str` matching"),
        ("[[replicas]]\nname = 'a'\n", "url"),
        ("[[replicas]]\nname = 'a'\nurl = 'a:8000'\n", "url: 'a:8000' is not http://HOST:PORT"),
        ("[[replicas]]\nname = 'a'\nurl = 'http://a'\nrank = 1\n", "unknown field `rank`"),
        ("[[replicas]]\nname = 'a'\nurl = 'http://a'\n" * 2, "'a' occurs twice"),
        ("[http]\nlisten = '9464'\n[[replicas]]\nname='a'\nurl='http://a'\n", "http.listen"),
        ("replicas = 3\n", "replicas: Expected `array`"),
        ("[replicas\n", "not TOML"),
    ],
)
def test_a_wrong_configuration_names_its_key(tmp_path: Path, text: str, complaint: str) -> None:
    """Exit status 2 and one line with the key, before anything has started."""
    config = tmp_path / "indexer.toml"
    config.write_text(text)
    command = (*MAIN, "indexer", "--config", str(config))
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 2 and done.stdout == ""
    assert complaint in done.stderr and done.stderr.count("\n") == 1
