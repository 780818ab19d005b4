"""The indexer as a process, asked over gRPC what a simulated replica holds."""

import asyncio
import json
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import grpc
import pytest

from proto import indexer_pb2 as pb
from proto.contract import HashedPrefix, IndexerUnavailable
from proto.indexer_pb2_grpc import IndexerStub
from router.indexer_client import GrpcIndexer
from tests.fleet import Fleet, process
from tests.processes import MAIN, ROOT, WAIT_S, until


@contextmanager
def asking(fleet: Fleet) -> Iterator[IndexerStub]:
    with grpc.insecure_channel(f"127.0.0.1:{fleet.grpc_port}") as channel:
        yield IndexerStub(channel)


def matched(stub: IndexerStub, start: int, **keys: str) -> dict[str, int]:
    """Who holds how many blocks of the prompt that ``Fleet.generate`` sends."""
    request = pb.MatchTokensRequest(token_ids=range(start, start + 100), **keys)
    return {match.replica: match.matched_blocks_gpu for match in stub.MatchTokens(request).matches}


def test_tokens_find_what_was_generated(tmp_path: Path) -> None:
    """Of the base model, with a salt and with a LoRA: each under its own keys only."""
    with ExitStack() as stack:
        fleet = Fleet(stack, tmp_path, sim_flags=["--lora", "l=/models/l"])
        stub = stack.enter_context(asking(fleet))
        fleet.generate(0)
        fleet.generate(1000, cache_salt="s")
        fleet.generate(2000, lora_name="l")
        fleet.caught_up()
        assert matched(stub, 0) == matched(stub, 1000, cache_salt="s") == {"a": 6}
        assert matched(stub, 2000, lora_name="l") == {"a": 6}
        assert matched(stub, 0, cache_salt="s") == matched(stub, 0, lora_name="l") == {}
        assert matched(stub, 1000) == matched(stub, 2000) == matched(stub, 9000) == {}


def test_replicas_come_and_go_while_it_runs(tmp_path: Path) -> None:
    """An indexer without any follows the one that is registered, and forgets it when told to."""
    with ExitStack() as stack:
        fleet = Fleet(stack, tmp_path, configured=False)
        stub = stack.enter_context(asking(fleet))
        assert not stub.ListReplicas(pb.ListReplicasRequest()).replicas
        assert stub.RegisterReplica(pb.RegisterReplicaRequest(name="a", url=fleet.url)).added
        fleet.generate(0)
        fleet.caught_up()
        (replica,) = stub.ListReplicas(pb.ListReplicasRequest()).replicas
        assert (replica.replica, replica.url, replica.capacity_blocks) == ("a", fleet.url, 63)
        assert matched(stub, 0) == {"a": 6}
        stub.DeregisterReplica(pb.DeregisterReplicaRequest(name="a"))
        assert matched(stub, 0) == {} and fleet.replicas() == []
        assert stub.RegisterReplica(pb.RegisterReplicaRequest(name="a", url=fleet.url)).added
        until(lambda: matched(stub, 0) == {"a": 6}, "its log is replayed")


async def test_a_killed_indexer_is_done_without(tmp_path: Path) -> None:
    """After kill -9 a question fails long before its deadline; after a restart it is answered."""
    with ExitStack() as stack:
        fleet = await asyncio.to_thread(Fleet, stack, tmp_path)
        await asyncio.to_thread(fleet.generate, 0)
        await asyncio.to_thread(fleet.caught_up)
        client = GrpcIndexer(f"127.0.0.1:{fleet.grpc_port}", deadline_s=2 * WAIT_S)
        watch = client.watch()
        (view,) = await anext(watch)
        prefixes = [
            HashedPrefix(scheme.id, scheme.block_hashes(range(100))) for scheme in view.schemes
        ]

        async def found() -> None:
            """Until the replica is a holder."""
            while True:
                with suppress(IndexerUnavailable):
                    if list(await client.match("default", prefixes)) == ["a"]:
                        return
                await asyncio.sleep(0.05)

        async with asyncio.timeout(WAIT_S):
            await found()
            fleet.indexer.kill()
            while client.connected:  # noqa: ASYNC110  # the connection has no event
                await asyncio.sleep(0.01)
            with pytest.raises(IndexerUnavailable):
                await client.match("default", prefixes)
            command = ("indexer", "--config", str(fleet.config))
            await asyncio.to_thread(stack.enter_context, process(*command))
            await found()
        await watch.aclose()
        await client.close()


def test_it_says_where_it_listens(tmp_path: Path) -> None:
    """The first log line has both addresses."""
    config = tmp_path / "indexer.toml"
    config.write_text('[http]\nlisten = "127.0.0.1:0"\n[grpc]\nlisten = "127.0.0.1:0"\n')
    command = (*MAIN, "indexer", "--config", str(config))
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as indexer:
        assert indexer.stdout is not None
        started = json.loads(indexer.stdout.readline())
        assert started["event"] == "indexer_started" and started["listen"][1] > 0
        with grpc.insecure_channel(started["grpc"]) as channel:
            assert not IndexerStub(channel).ListReplicas(pb.ListReplicasRequest()).replicas
        indexer.kill()
