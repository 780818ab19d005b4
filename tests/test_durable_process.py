"""The indexer as a process beside a real Valkey: what a restart of either of them costs."""

import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import grpc

from proto import indexer_pb2 as pb
from proto.indexer_pb2_grpc import IndexerStub
from tests.fleet import Fleet
from tests.ports import free_port_pair
from tests.processes import call, until
from tests.valkey import kill_left_over, plain_client, valkey

# So few batches that every test's engine has published more than it can replay.
BUFFER_STEPS = 8
FLAGS = ("--buffer-steps", str(BUFFER_STEPS), "--blocks", "2048")
# On disk with every write, so that a server that is killed comes back with all of it.
DISK = {"appendonly": "yes", "appendfsync": "always"}


class Durable(Fleet):
    """A fleet with a store on a port, or in a folder of its own."""

    def __init__(self, stack: ExitStack, folder: Path, port: int | None) -> None:
        store = f'folder = "{folder}/s"' if port is None else f'url = "redis://127.0.0.1:{port}"'
        super().__init__(stack, folder, sim_flags=FLAGS, settings=f"[redis]\n{store}")

    def fill(self) -> dict[str, Any]:
        """More batches than the engine can replay; its report once all is known and kept."""
        until(lambda: [r["connected"] for r in self.replicas()] == [True], "connected")
        self.generate(0)
        self.caught_up()
        for start in range(1_000, 10_000, 1_000):
            self.generate(start)
        self.caught_up()
        report = self.kept()
        assert report["seq"] > 2 * BUFFER_STEPS
        return report

    def kept(self) -> dict[str, Any]:
        """The report, once a store keeps what it says."""

        def report() -> dict[str, Any] | None:
            (report,) = self.replicas()
            return report if report["durable"] and report["durable_seq"] == report["seq"] else None

        return dict(until(report, lambda: f"durable: {self.replicas()}"))

    def restart_indexer(self) -> None:
        self.kill_indexer()
        self.indexer = self.start_indexer()

    def matched(self, token_ids: Sequence[int]) -> int:
        with grpc.insecure_channel(f"127.0.0.1:{self.grpc_port}") as channel:
            request = pb.MatchTokensRequest(token_ids=token_ids)
            matches = IndexerStub(channel).MatchTokens(request, timeout=60).matches
            return matches[0].matched_blocks_gpu if matches else 0


@contextmanager
def durable_fleet(folder: Path, **config: Any) -> Iterator[tuple[Durable, Any]]:
    """A fleet and its store."""
    with ExitStack() as stack:
        server = stack.enter_context(valkey(folder / "valkey", **config))
        yield Durable(stack, folder, server.port), server


def test_a_restart_forgets_nothing(tmp_path: Path) -> None:
    """kill -9 of an indexer whose engine can replay next to nothing: all is there, and exact."""
    with durable_fleet(tmp_path) as (fleet, _):
        before = fleet.fill()
        fleet.restart_indexer()
        after = fleet.caught_up()
        assert after["history_complete"] and after["copies"] == before["copies"]
        assert fleet.matched(range(100)) == 6
        fleet.generate(20_000)
        fleet.caught_up()
        assert fleet.kept()["store_rewrites"] == 0


def test_a_restart_with_an_emptied_store_is_shown(tmp_path: Path) -> None:
    """The history is incomplete, yet a shared prefix counts once any descendant is announced."""
    with durable_fleet(tmp_path) as (fleet, server):
        fleet.fill()
        fleet.kill_indexer()
        with plain_client(server) as client:
            client.flushall()
        fleet.indexer = fleet.start_indexer()
        until(lambda: [r["reasons"] for r in fleet.replicas()] == [["incomplete_history"]], "shown")
        assert fleet.matched(range(100)) == 0
        # The engine has the first six blocks, and announces only those that come behind them.
        body = {"token_ids": list(range(200)), "max_tokens": 1}
        call(f"{fleet.url}/sim/generate", body)
        until(lambda: fleet.matched(range(200)) == 12, "the whole prefix is found")
        assert fleet.matched([*range(120), *range(80_000, 80_080)]) == 7
        assert fleet.matched([*range(100), *range(80_000, 80_080)]) == 0


def test_an_engine_restarted_while_nobody_listened_is_not_believed(tmp_path: Path) -> None:
    """What was kept of its predecessor is dropped, and its own log replayed from the start."""
    with durable_fleet(tmp_path) as (fleet, _):
        fleet.fill()
        fleet.kill_indexer()
        call(f"{fleet.url}/sim/fault", {"kind": "restart"})
        fleet.generate(50_000)
        fleet.indexer = fleet.start_indexer()
        fleet.caught_up()
        assert fleet.matched(range(100)) == 0 and fleet.matched(range(50_000, 50_100)) == 6


def test_a_store_that_comes_late_is_written(tmp_path: Path) -> None:
    """Away at the start, the index answers and says that it is not durable; later all is kept."""
    port = free_port_pair()
    with ExitStack() as stack:
        fleet = Durable(stack, tmp_path, port)
        fleet.generate(0)
        report = fleet.caught_up()
        assert not report["durable"] and fleet.matched(range(100)) == 6
        stack.enter_context(valkey(tmp_path / "valkey", port))
        fleet.kept()
        fleet.fill()
        fleet.restart_indexer()
        fleet.caught_up()
        assert fleet.matched(range(100)) == 6


def test_a_store_that_restarts_costs_no_answer(tmp_path: Path) -> None:
    """With its data it is gone on with; without, all is written anew; meanwhile it says so."""
    with durable_fleet(tmp_path, **DISK) as (fleet, server):
        fleet.fill()
        server.stop()
        until(lambda: not fleet.replicas()[0]["durable"], "not durable")
        fleet.generate(30_000)
        fleet.caught_up()
        assert fleet.matched(range(30_000, 30_100)) == 6
        server.start()
        assert fleet.kept()["store_rewrites"] == 0
        with plain_client(server) as client:
            client.flushall()
        until(lambda: fleet.replicas()[0]["store_rewrites"] == 1, "noticed though nothing happens")
        fleet.kept()
        fleet.restart_indexer()
        fleet.caught_up()
        assert fleet.matched(range(100)) == fleet.matched(range(30_000, 30_100)) == 6


def test_a_server_of_our_own_outlives_a_crash_and_ends_with_a_stop(tmp_path: Path) -> None:
    """kill -9 of the indexer: its server is adopted. kill -9 of that: it is started again."""
    pid_file = tmp_path / "s" / "valkey.pid"
    with ExitStack() as stack:
        # Where the test fails on its way, the server would outlive it.
        stack.callback(kill_left_over, tmp_path)
        fleet = Durable(stack, tmp_path, None)
        fleet.fill()
        first = int(pid_file.read_text())
        fleet.restart_indexer()
        fleet.caught_up()
        assert fleet.matched(range(100)) == 6 and int(pid_file.read_text()) == first
        os.kill(first, signal.SIGKILL)
        fleet.generate(60_000)
        until(lambda: int(pid_file.read_text()) != first, "another server")
        fleet.caught_up()
        fleet.kept()
        fleet.indexer.terminate()
        assert fleet.indexer.wait(60) == 0 and not pid_file.exists()
        fleet.indexer = fleet.start_indexer()
        fleet.caught_up()
        assert fleet.matched(range(100)) == fleet.matched(range(60_000, 60_100)) == 6
        fleet.indexer.terminate()
        fleet.indexer.wait(60)


def test_a_stop_gives_the_lease_back(tmp_path: Path) -> None:
    """After SIGTERM everything is kept, and the next indexer need not wait for a lease to end."""
    with durable_fleet(tmp_path) as (fleet, server):
        fleet.fill()
        fleet.generate(40_000)
        fleet.caught_up()
        fleet.indexer.terminate()
        assert fleet.indexer.wait(60) == 0
        with plain_client(server) as client:
            state = client.hgetall("pointsman:v1:{default/a}:state")
            seconds, micros = client.time()
            assert int(state[b"lease_until_ms"]) <= seconds * 1000 + micros / 1000
            assert client.ttl("pointsman:v1:{default/a}:blocks") > 23 * 3600
        fleet.indexer = fleet.start_indexer()
        fleet.caught_up()
        assert fleet.matched(range(40_000, 40_100)) == 6
