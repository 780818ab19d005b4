import asyncio

import aiohttp
import openai
import pytest

from benchmarks.sim.bodies import FaultBody
from benchmarks.sim.cost import Pace
from benchmarks.sim.faults import HttpFaults
from tests.sim_engine.simulated import TextReplica, text_replica

BODY = {"prompt": "Once upon a time", "max_tokens": 5, "model": "sim"}
TEXT = "/v1/completions"


def client_of(replica: TextReplica) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=replica.url + "/v1", api_key="-", max_retries=0)


def test_faults_of_time_end_by_themselves():
    """A fault lasts for its seconds, a later one of its kind replaces it, others are untouched."""
    faults = HttpFaults()
    faults.begin(FaultBody("unavailable", seconds=5), now=100)
    assert faults.lasts("unavailable", 104.9) and not faults.lasts("unavailable", 105)
    faults.begin(FaultBody("unavailable", seconds=1), now=101)
    assert not faults.lasts("unavailable", 102) and not faults.lasts("refuse", 101)


def test_slow_multiplies_the_time_of_steps():
    """While slow, a step takes so many times longer, and one that takes no time does take some."""
    faults = HttpFaults()
    faults.begin(FaultBody("slow", seconds=5, factor=4), now=0)
    assert faults.step_seconds(0.5, 4) == 2 and faults.step_seconds(0.5, 5) == 0.5
    assert faults.step_seconds(0, 4) > 0 == faults.step_seconds(0, 5)


def test_stream_faults_go_one_to_a_request():
    """Each of the next requests takes one fault, in order."""
    faults = HttpFaults()
    faults.begin(FaultBody("hang", tokens=3, seconds=7, requests=2), now=0)
    faults.begin(FaultBody("reset", tokens=0), now=0)
    taken = [faults.take_stream() for _ in range(4)]
    assert [(fault.tokens, fault.seconds) for fault in taken[:3]] == [(3, 7), (3, 7), (0, None)]
    assert taken[3] is None


@pytest.mark.parametrize(
    "fault",
    [
        {"kind": "slow", "factor": 0.5},
        {"kind": "refuse", "seconds": -1},
        {"kind": "hang", "tokens": -1},
        {"kind": "reset", "requests": 0},
    ],
)
async def test_senseless_faults_are_400(fault: dict):
    """A fault that makes no sense is refused and changes nothing."""
    async with text_replica() as replica:
        await replica.post("/sim/fault", fault, status=400)
        await replica.post(TEXT, BODY)


async def test_unavailable_is_503_everywhere():
    """Health and requests are 503 while it lasts; the simulator's own endpoints still answer."""
    async with text_replica() as replica:
        await replica.fault("unavailable", seconds=3600)
        async with replica.session.get(replica.url + "/health") as response:
            assert response.status == 503
        async with client_of(replica) as client:
            with pytest.raises(openai.InternalServerError):
                await client.completions.create(**BODY)
        await replica.fault("unavailable", seconds=0)
        async with replica.session.get(replica.url + "/health") as response:
            assert response.status == 200
        await replica.post(TEXT, BODY)


async def test_refuse_closes_the_port_for_a_while():
    """New connections are refused, old ones cut off at their next request; then it is back."""
    async with text_replica() as replica:
        async with aiohttp.ClientSession() as other:
            async with other.get(replica.url + "/health") as response:
                assert response.status == 200
            await replica.fault("refuse", seconds=0.3)
            for session in (other, aiohttp.ClientSession()):
                with pytest.raises(aiohttp.ClientConnectionError):
                    await session.post(replica.url + TEXT, json=BODY)
                await session.close()
        async with asyncio.timeout(5):
            while True:
                try:
                    async with aiohttp.ClientSession() as session:
                        async with session.post(replica.url + TEXT, json=BODY) as response:
                            assert response.status == 200
                            return
                except aiohttp.ClientConnectionError:
                    await asyncio.sleep(0.02)


async def test_refused_for_ever_can_be_shut_down():
    """A replica that still refuses connections is shut down like any other."""
    async with text_replica() as replica:
        await replica.fault("refuse", seconds=3600)


@pytest.mark.parametrize("tokens", [0, 2])
async def test_reset_cuts_the_connection(tokens: int):
    """The connection is reset after so many tokens, or before the first byte; the next is fine."""
    async with text_replica() as replica:
        await replica.fault("reset", tokens=tokens)
        received = 0
        with pytest.raises(aiohttp.ClientConnectionError if not tokens else Exception):
            url = replica.url + TEXT
            async with replica.session.post(url, json=BODY | {"stream": True}) as response:
                async for line in response.content:
                    received += line.startswith(b"data: ")
        assert received == tokens
        await replica.until(lambda: not replica.engine.has_requests)
        await replica.post(TEXT, BODY)


async def test_hang_stops_sending():
    """A stream goes silent after so many tokens; its client may leave, and nothing is left."""
    async with text_replica() as replica, client_of(replica) as client:
        await replica.fault("hang", tokens=2, seconds=3600)
        stream = aiter(await client.completions.create(**BODY, stream=True))
        assert [(await anext(stream)).choices[0].text != "" for _ in range(2)] == [True, True]
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await anext(stream)
        await replica.until(lambda: not replica.simulator._waiters)
        whole = await client.completions.create(**BODY)
        assert whole.usage.completion_tokens == 5


async def test_hang_goes_on_afterwards():
    """After its seconds a stream goes on and misses nothing."""
    async with text_replica(Pace(step_seconds=0.001)) as replica, client_of(replica) as client:
        await replica.fault("hang", tokens=2, seconds=0.05)
        stream = await client.completions.create(**BODY, stream=True)
        assert len([chunk async for chunk in stream]) == 5
