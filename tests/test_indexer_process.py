"""The indexer as a process beside simulated replicas: what an operator and a test can see of it."""

import os
import signal
import socket
import subprocess
import urllib.request
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from tests.fleet import Fleet, process
from tests.processes import MAIN, ROOT, WAIT_S, call, until


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


def test_an_engine_whose_hashes_nobody_can_compute_is_translated(tmp_path: Path) -> None:
    """Its seed is not configured: the log and its evidence say so, and it is followed."""
    with ExitStack() as stack:
        flags = ("--algorithm", "xxhash_cbor", "--hash-seed", "7")
        fleet = Fleet(stack, tmp_path, sim_flags=flags)
        for start in (0, 1000, 2000):
            fleet.generate(start)

        def translating() -> bool:
            (report,) = fleet.replicas()
            return report["reasons"] == ["translating"] and report["blocks"] == fleet.truth()

        until(translating, lambda: f"translating {fleet.truth()}: {fleet.replicas()}")
        assert fleet.indexer.stdout is not None
        output = fleet.indexer.stdout.fileno()
        os.set_blocking(output, False)
        until(lambda: b'"scheme_unprovable"' in said(output), "it is logged")
        assert fleet.indexer.poll() is None


def said(output: int) -> bytes:
    """What a process has written since it was asked last."""
    with suppress(BlockingIOError):
        return os.read(output, 2**20)
    return b""


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
