"""Many replicas beside a real Valkey: what is served before it is proven, and who has departed."""

import urllib.request
from contextlib import ExitStack
from pathlib import Path

import grpc

from proto import indexer_pb2 as pb
from proto.indexer_pb2_grpc import IndexerStub
from tests.fleet import Fleet
from tests.ports import free_ports
from tests.processes import until
from tests.tcp_relay import relays
from tests.test_durable_process import FLAGS, Durable
from tests.valkey import plain_client, valkey

RANKS = 8
LATER = 5


class ManyRanks(Durable):
    """One engine with ranks whose replays can be kept from the indexer; each is a replica."""

    def __init__(self, stack: ExitStack, folder: Path, port: int) -> None:
        self.ranks, self.relayed = range(RANKS), free_ports(RANKS)
        redis = f'[redis]\nurl = "redis://127.0.0.1:{port}"'
        # Not Durable's own, whose engine has one rank.
        Fleet.__init__(
            self,
            stack,
            folder,
            ranks=RANKS,
            configured=False,
            sim_flags=FLAGS,
            settings=redis,
        )

    def more_settings(self) -> str:
        """Replays are asked for behind relays."""
        self.relays = self.stack.enter_context(relays(self.relayed, self.replay, RANKS))
        return (
            f'[[replicas]]\nname = "a"\nurl = "{self.url}"\n'
            f'event_endpoint = "tcp://127.0.0.1:{self.events}"\n'
            f'replay_endpoint = "tcp://127.0.0.1:{self.relayed}"\n'
            f'topic = "kv@a"\ndata_parallel_size = {RANKS}\n'
        )

    def oldest(self, rank: int) -> range:
        return range(100_000 * rank, 100_000 * rank + 100)

    def fill_ranks(self) -> None:
        until(lambda: [r["connected"] for r in self.replicas()] == [True] * RANKS, "connected")
        for rank in self.ranks:
            for number in range(LATER):
                self.generate(self.oldest(rank).start + 1_000 * number, rank)
        for rank in self.ranks:
            self.caught_up(rank)
        until(
            lambda: all(r["durable"] and r["durable_seq"] == r["seq"] for r in self.replicas()),
            "all is kept",
        )


def test_what_was_loaded_is_served_before_it_is_proven(tmp_path: Path) -> None:
    """While no replay answers, each rank's oldest prefix is found, and said to be unproven."""
    with ExitStack() as stack:
        server = stack.enter_context(valkey(tmp_path / "valkey"))
        fleet = ManyRanks(stack, tmp_path, server.port)
        fleet.fill_ranks()
        fleet.kill_indexer()
        for relay in fleet.relays:
            relay.close()
        fleet.indexer = fleet.start_indexer()
        until(
            lambda: [r["reasons"] for r in fleet.replicas()] == [["recovering"]] * RANKS,
            lambda: f"recovering: {fleet.replicas()}",
        )
        assert [fleet.matched(fleet.oldest(rank)) for rank in fleet.ranks] == [6] * RANKS
        for relay in fleet.relays:
            relay.open()
        for rank in fleet.ranks:
            fleet.caught_up(rank)
        assert all(replica["store_rewrites"] == 0 for replica in fleet.replicas())


def test_a_departed_replica_s_keys_and_metrics_vanish(tmp_path: Path) -> None:
    """While it is followed its keys are renewed; then nobody does, and no series is left."""
    with ExitStack() as stack:
        server = stack.enter_context(valkey(tmp_path / "valkey"))
        fleet = Fleet(
            stack,
            tmp_path,
            configured=False,
            settings=f'[redis]\nurl = "redis://127.0.0.1:{server.port}"',
        )
        channel = stack.enter_context(grpc.insecure_channel(f"127.0.0.1:{fleet.grpc_port}"))
        client = stack.enter_context(plain_client(server))
        stub = IndexerStub(channel)
        stub.RegisterReplica(pb.RegisterReplicaRequest(name="a", url=fleet.url), timeout=60)
        fleet.generate(0)
        fleet.caught_up()
        until(lambda: client.exists("pointsman:v1:{default/a}:blocks"), "it is kept")
        assert 'replica="a"' in metrics(fleet)
        keys = client.keys()
        for key in keys:
            client.pexpire(key, 60_000)
        until(lambda: min(map(client.ttl, keys)) > 23 * 3600, "renewed")
        stub.DeregisterReplica(pb.DeregisterReplicaRequest(name="a"), timeout=60)
        assert 'replica="a"' not in metrics(fleet)
        for key in keys:
            client.pexpire(key, 2_000)
        until(lambda: not client.keys(), "its keys have vanished")


def metrics(fleet: Fleet) -> str:
    url = f"http://127.0.0.1:{fleet.indexer_port}/metrics"
    with urllib.request.urlopen(url, timeout=60) as response:
        return str(response.read().decode())
