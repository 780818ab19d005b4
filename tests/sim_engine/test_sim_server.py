import asyncio
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import aiohttp
import pytest
import zmq

from benchmarks.sim.cost import Pace
from benchmarks.sim.endpoints import PublisherSettings
from benchmarks.sim.replica import ReplicaSettings
from benchmarks.sim.server import create_app, serve
from benchmarks.sim.simulator import Simulator
from proto.blockhash import show

PROMPT = list(range(1, 41))
EVENTS = PublisherSettings(
    endpoint="tcp://127.0.0.1:0", replay_endpoint="tcp://127.0.0.1:0", bind=True, topic="kv@sim"
)


class Client:
    """One simulator's HTTP side; every call checks the status."""

    def __init__(self, session: aiohttp.ClientSession, url: str, simulator: Simulator) -> None:
        self.session, self.url, self.simulator = session, url, simulator

    async def get(self, path: str, status: int = 200) -> str:
        async with self.session.get(self.url + path) as response:
            assert response.status == status
            return await response.text()

    async def get_json(self, path: str) -> dict:
        async with self.session.get(self.url + path) as response:
            assert response.status == 200
            return await response.json()

    async def post(self, path: str, body: dict | None = None, status: int = 200) -> str:
        async with self.session.post(self.url + path, json=body) as response:
            assert response.status == status, await response.text()
            return await response.text()

    async def generate(self, token_ids: list[int] = PROMPT, **more) -> dict:
        body = {"token_ids": token_ids, **more}
        async with self.session.post(self.url + "/sim/generate", json=body) as response:
            assert response.status == 200, await response.text()
            return await response.json()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(5):
            # The engine has no event to wait for: it is core and knows no event loop.
            while not condition():  # noqa: ASYNC110
                await asyncio.sleep(0.005)


@asynccontextmanager
async def simulated(pace: Pace | None = None, **settings) -> AsyncIterator[Client]:
    simulator = Simulator(ReplicaSettings(**settings), EVENTS, pace)
    runner, port = await serve(create_app(simulator), "127.0.0.1", 0)
    try:
        async with aiohttp.ClientSession() as session:
            yield Client(session, f"http://127.0.0.1:{port}", simulator)
    finally:
        await runner.cleanup()


async def test_generate_reports_what_was_cached():
    """A repeated prompt reports its full blocks as cached and generates the same tokens."""
    async with simulated() as client:
        first = await client.generate(max_tokens=3)
        again = await client.generate(max_tokens=3)
        assert (first["prompt_tokens"], first["cached_tokens"]) == (40, 0)
        assert again == first | {"cached_tokens": 32} and len(first["output_token_ids"]) == 3


async def test_blocks_are_the_truth_of_a_rank():
    """GET /sim/blocks names each cached block in 16 hex digits with its copies, per rank."""
    async with simulated(data_parallel_size=2) as client:
        await client.generate(rank=1)
        await client.generate(rank=1, skip_cache=True)
        expected = client.simulator.settings.scheme().block_hashes(PROMPT)
        assert await client.get_json("/sim/blocks?rank=1") == {show(b): 2 for b in expected}
        assert await client.get_json("/sim/blocks") == {}


async def test_salt_and_lora_keep_blocks_apart():
    """A salted or adapted prompt shares no block with the plain one, nor with another salt."""
    async with simulated(loras={"sql": "/adapters/sql"}) as client:
        for more in ({}, {"cache_salt": "a"}, {"cache_salt": "b"}, {"lora_name": "sql"}):
            assert (await client.generate(**more))["cached_tokens"] == 0
            assert (await client.generate(**more))["cached_tokens"] == 32
        await client.post("/sim/generate", {"token_ids": [1], "lora_name": "no"}, status=400)


@pytest.mark.parametrize(
    "body",
    [
        {"token_ids": []},
        {"token_ids": [1], "max_tokens": 0},
        {"token_ids": [1], "rank": 1},
        {"token_ids": [1], "misspelt": 1},
        {"token_ids": [1] * 100_000},
        {},
    ],
)
async def test_bad_requests_are_400(body: dict):
    """What the engine cannot run, and what is no such body, is refused and nothing is left."""
    async with simulated() as client:
        await client.post("/sim/generate", body, status=400)
        assert not client.simulator.replica.engines[0].has_requests


async def test_events_and_replay_go_over_the_reported_endpoints():
    """Each rank's entry in /kv_event_sources leads to its events and its replay."""
    async with simulated(data_parallel_size=2) as client:
        await client.generate(rank=1)
        sources = await client.get_json("/kv_event_sources")
        assert set(sources) == {"0", "1"} and sources["1"]["topic"] == "kv@sim"
        assert set(sources["1"]) == {
            "enable_kv_cache_events",
            "publisher",
            "endpoint",
            "replay_endpoint",
            "buffer_steps",
            "hwm",
            "max_queue_size",
            "topic",
        }
        assert await asyncio.to_thread(ask_replay, sources["1"]["replay_endpoint"]) == 1
        assert await asyncio.to_thread(ask_replay, sources["0"]["replay_endpoint"]) == 0


def ask_replay(endpoint: str) -> int:
    """How many batches a replay socket holds."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as asker:
        asker.linger = 0
        asker.connect(endpoint)
        asker.send_multipart([b"", bytes(8)])
        count = 0
        while asker.poll(3000) and asker.recv_multipart()[-1]:
            count += 1
        return count


@pytest.mark.parametrize(("version", "status"), [("0.23", 404), ("0.28", 404), ("0.31", 200)])
async def test_event_sources_exist_since_0_31(version: str, status: int):
    """Older versions do not know /kv_event_sources; every version says which it is."""
    async with simulated(vllm_version=version) as client:
        await client.get("/kv_event_sources", status)
        assert await client.get_json("/version") == {"version": f"{version}.0"}


async def test_metrics_are_worded_as_vllm_s():
    """Configuration, sleep state and counters are there under vLLM's names and labels."""
    async with simulated(num_blocks=64, data_parallel_size=2, model='a"b') as client:
        await client.generate(rank=1)
        await client.generate(rank=1)
        text = await client.get("/metrics")
        config = re.search(r"^vllm:cache_config_info\{(.*)\} 1\.0$", text, re.M)[1]
        assert 'block_size="16"' in config and 'num_gpu_blocks="128"' in config
        assert 'prefix_caching_hash_algo="sha256_cbor"' in config
        name = r'engine="1",model_name="a\"b"'
        for line in (
            f'vllm:engine_sleep_state{{{name},sleep_state="awake"}} 1.0',
            f'vllm:engine_sleep_state{{{name},sleep_state="discard_all"}} 0.0',
            f"vllm:prefix_cache_queries_total{{{name}}} 80.0",
            f"vllm:prefix_cache_hits_total{{{name}}} 32.0",
            f"vllm:num_requests_running{{{name}}} 0.0",
            f"vllm:kv_cache_usage_perc{{{name}}} 0.0",
        ):
            assert line in text.splitlines()


async def test_models_list_base_and_adapters():
    """An adapter's card has its path as root and the base model as parent."""
    async with simulated(model="base", loras={"sql": "/adapters/sql"}) as client:
        base, adapter = (await client.get_json("/v1/models"))["data"]
        assert (base["id"], base["root"], base["parent"]) == ("base", "base", None)
        assert (adapter["id"], adapter["root"], adapter["parent"]) == (
            "sql",
            "/adapters/sql",
            "base",
        )
        assert await client.get("/health") == ""


async def test_reset_is_refused_while_a_request_runs():
    """/reset_prefix_cache says whether it happened; it may preempt what runs, which goes on."""
    async with simulated(Pace(step_seconds=0.01)) as client:
        running = asyncio.create_task(client.generate(max_tokens=30))
        engine = client.simulator.replica.engines[0]
        await client.until(lambda: engine.running == 1)
        assert await client.post("/reset_prefix_cache") == '{"success": false}'
        path = "/reset_prefix_cache?reset_running_requests=true"
        assert await client.post(path) == '{"success": true}'
        assert len((await running)["output_token_ids"]) == 30


async def test_sleep_aborts_and_waking_goes_on():
    """Sleep aborts what runs and empties the cache; a request made asleep waits for wake_up."""
    async with simulated(Pace(step_seconds=0.01)) as client:
        body = {"token_ids": PROMPT, "max_tokens": 1000}
        aborted = asyncio.create_task(client.post("/sim/generate", body, status=503))
        engine = client.simulator.replica.engines[0]
        await client.until(lambda: engine.running == 1)
        await client.post("/sleep?level=2")
        await aborted
        assert await client.get_json("/is_sleeping") == {"is_sleeping": True}
        assert await client.get_json("/sim/blocks") == {}
        assert 'sleep_state="discard_all"} 1.0' in await client.get("/metrics")
        waiting = asyncio.create_task(client.generate())
        await client.until(lambda: engine.waiting == 1)
        await client.post("/wake_up")
        assert (await waiting)["cached_tokens"] == 0
        await client.post("/sleep?level=3", status=400)


async def test_client_that_goes_away_aborts_its_request():
    """A request is aborted when its client disconnects; its full blocks stay cached."""
    async with simulated(Pace(step_seconds=0.01)) as client:
        body = {"token_ids": PROMPT, "max_tokens": 10_000}
        task = asyncio.create_task(client.post("/sim/generate", body))
        engine = client.simulator.replica.engines[0]
        await client.until(lambda: engine.running == 1)
        task.cancel()
        await client.until(lambda: not engine.has_requests)
        assert len(await client.get_json("/sim/blocks")) >= 2


async def test_faults_over_http():
    """Lost batches cannot be replayed, a restart empties pool and buffer and aborts requests."""
    async with simulated(Pace(step_seconds=0.01)) as client:
        publisher = client.simulator.publishers[0]
        await client.post("/sim/fault", {"kind": "lose", "batches": 1})
        await client.generate()
        await client.generate(PROMPT[::-1])
        await client.post("/sim/fault", {"kind": "garbage"})
        assert publisher.next_seq == 3
        assert await asyncio.to_thread(ask_replay, publisher.replay_endpoint) == 2
        body = {"token_ids": PROMPT, "max_tokens": 1000}
        lost = asyncio.create_task(client.post("/sim/generate", body, status=503))
        await client.until(lambda: client.simulator.replica.engines[0].running == 1)
        await client.post("/sim/fault", {"kind": "restart"})
        await lost
        assert publisher.next_seq == 0 and await client.get_json("/sim/blocks") == {}
        await client.post("/sim/fault", {"kind": "meteorite"}, status=400)
        await client.post("/sim/fault", {"kind": "drop", "rank": 7}, status=400)


async def test_taken_http_port_leaves_nothing_behind():
    """A simulator whose HTTP port is taken closes its sockets and says so."""
    async with simulated() as client:
        port = int(client.url.rpartition(":")[2])
        simulator = Simulator(ReplicaSettings(), EVENTS)
        with pytest.raises(OSError):
            await serve(create_app(simulator), "127.0.0.1", port)
        with pytest.raises(OSError):
            simulator.publishers[0]._wake_writer.send(b"")
