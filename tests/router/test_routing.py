"""The walk of a request, with a fake hasher and a fake indexer."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress

import pytest

from proto.blockhash import EngineScheme, HashScheme, RequestKeys
from proto.contract import HashedPrefix, IndexerUnavailable, ReplicaMatch, ReplicaView
from router.fleet import Fleet
from router.load import InflightLoad
from router.openai import CHAT_PATH, ParsedRequest, parse_request
from router.policy import PolicySettings, PrefixPolicy
from router.prompts import Prompt
from router.proxy import NoReplica
from router.replicas import EngineConfig, ProbeAnswer, ServedModel
from router.routing import PoolRouting, Routing
from router.tokenizer import HashedPrompt, NotTokenized
from router.waiting import WaitingRoom
from tests.cancellation import Cancelling, at_every_await

SCHEME = EngineScheme("sha256_cbor", "0", 16)
TOKENS = tuple(range(100))


class FakeHasher:
    """Hashes TOKENS, whatever the prompt; or cannot."""

    def __init__(self) -> None:
        self.cannot: NotTokenized | None = None
        self.asked: list[tuple[tuple[RequestKeys, ...], str | None]] = []

    async def hash(
        self,
        prompt: Prompt,
        schemes: Sequence[HashScheme],
        variants: Sequence[RequestKeys],
        session: str | None,
    ) -> HashedPrompt:
        self.asked.append((tuple(variants), session))
        await asyncio.sleep(0)
        if self.cannot is not None:
            raise self.cannot
        prefixes = tuple(
            HashedPrefix(scheme.id, scheme.block_hashes(TOKENS, keys))
            for scheme in schemes
            for keys in variants
        )
        return HashedPrompt(len(TOKENS), prefixes, {"hash_ms": 1.0})


class FakeIndexer:
    """Knows what it is told."""

    def __init__(self) -> None:
        self.blocks: dict[str, int] = {}
        self.away = False
        self.asked = 0

    async def match(self, pool: str, prefixes: Sequence[HashedPrefix]) -> dict[str, ReplicaMatch]:
        self.asked += 1
        await asyncio.sleep(0)
        if self.away:
            raise IndexerUnavailable("away")
        return {
            name: ReplicaMatch(name, held, held, held, 16, "exact", (), 3)
            for name, held in self.blocks.items()
        }

    async def watch(self) -> AsyncIterator[tuple[ReplicaView, ...]]:
        yield ()


class World:
    """Two replicas in service, with room for ``inflight_max`` requests each."""

    def __init__(self, inflight_max: int = 256, waiting_max: int = 8, wait_s_max: float = 30.0):
        self.hasher, self.indexer = FakeHasher(), FakeIndexer()
        self.fleet = Fleet(InflightLoad(inflight_max))
        self.fleet.replicas.reset(
            EngineConfig(name, f"http://{name}:1", "default") for name in ("a", "b")
        )
        self.serve(ServedModel("m"))
        self.fleet.learn(
            ReplicaView(name, "default", "", 0, "exact", (), (SCHEME,), 3, 0, 0, 0)
            for name in ("a", "b")
        )
        pool = PoolRouting(self.hasher, WaitingRoom(waiting_max))
        self.routing = Routing(
            self.fleet,
            {"default": pool},
            self.indexer,
            PrefixPolicy(PolicySettings()),
            wait_s_max=wait_s_max,
            expose_matches=True,
        )
        self.fleet.load.on_release = self.routing.wake_one

    def serve(self, *models: ServedModel) -> None:
        for engine in self.fleet.replicas.engines.values():
            engine.answered(ProbeAnswer(models))


def request(model: str = "m", **fields: object) -> ParsedRequest:
    body = {"model": model, "messages": [{"role": "user", "content": "hello"}], **fields}
    return parse_request(CHAT_PATH, json.dumps(body).encode(), {})


NOBODY = frozenset[str]()


async def until_waiting(world: World, count: int) -> None:
    for _ in range(1_000):
        if world.routing.waiting == count:
            return
        await asyncio.sleep(0)
    raise AssertionError(f"{world.routing.waiting} are waiting, not {count}")


async def test_the_replica_that_holds_the_prefix_is_chosen_and_says_why() -> None:
    """Its matched blocks, its evidence and the prediction are with the placement."""
    world = World()
    world.indexer.blocks = {"b": 5}
    placement = await world.routing.walk(request()).place(NOBODY)
    assert (placement.replica, placement.url) == ("b", "http://b:1")
    assert (placement.matched_blocks, placement.prompt_blocks) == (5, 6)
    assert placement.predicted_cached_tokens == 80
    assert dict(placement.headers) == {
        "x-pointsman-replica": "b",
        "x-pointsman-reason": "prefix",
        "x-pointsman-evidence": "exact",
        "x-pointsman-transformed": "none",
        "x-pointsman-matched-blocks": "5",
        "x-pointsman-prompt-blocks": "6",
    }
    placement.release()
    assert world.fleet.load.inflight == 0


async def test_matches_are_shown_only_when_that_is_configured() -> None:
    """They would tell one tenant what another has sent."""
    world = World()
    world.routing.expose_matches = False
    placement = await world.routing.walk(request()).place(NOBODY)
    assert not any("blocks" in name for name, _ in placement.headers)


@pytest.mark.parametrize("what", ["indexer", "deadline"])
async def test_what_is_late_or_away_costs_hits_and_no_request(what: str) -> None:
    """Fail open: the request is placed, nothing is predicted, and it is said and counted."""
    world = World()
    world.indexer.away = what == "indexer"
    world.hasher.cannot = NotTokenized("deadline") if what == "deadline" else None
    walk = world.routing.walk(request())
    placement = await walk.place(NOBODY)
    assert placement.predicted_cached_tokens is None
    assert (walk.without, world.routing.went_without[what]) == (what, 1)


async def test_salt_and_adapter_enter_the_hashes() -> None:
    """An adapter is hashed with every path that some replica has it from."""
    world = World()
    world.serve(ServedModel("m"), ServedModel("sql", "/adapters/sql"))
    await world.routing.walk(request("sql", cache_salt="s", user="u")).place(NOBODY)
    keys = RequestKeys(lora_name="sql", lora_path="/adapters/sql", cache_salt="s")
    assert world.hasher.asked == [((keys,), "u")]
    await world.routing.walk(request(cache_salt="s")).place(NOBODY)
    assert world.hasher.asked[1] == ((RequestKeys(cache_salt="s"),), None)


async def test_a_prompt_whose_cache_is_not_read_is_predicted_to_find_nothing() -> None:
    """prompt_logprobs has everything computed anew; several sequences are not judged."""
    world = World()
    world.indexer.blocks = {"b": 5}
    placement = await world.routing.walk(request(prompt_logprobs=1)).place(NOBODY)
    assert placement.predicted_cached_tokens == 0
    placement = await world.routing.walk(request(n=2)).place(NOBODY)
    assert placement.predicted_cached_tokens is None
    assert world.fleet.load.inflight == 3


async def test_a_replica_that_has_stored_nothing_is_predicted_to_have_nothing() -> None:
    """Before the first request nothing is proven, and yet all is known that matters."""
    for reasons, predicted in ((("nothing_stored",), 0), (("not_proven",), None)):
        world = World()
        view = ReplicaView("a", "default", "", 0, "fallback", reasons, (), -1, 0, 0, 0)
        world.fleet.learn([view])
        placement = await world.routing.walk(request()).place(frozenset({"b"}))
        assert placement.replica == "a"
        assert placement.predicted_cached_tokens == predicted


async def test_a_retry_goes_elsewhere_and_takes_its_bookings_back() -> None:
    """Siblings must not follow to a replica that refused."""
    world = World()
    world.indexer.blocks = {"b": 5}
    walk = world.routing.walk(request())
    first = await walk.place(NOBODY)
    first.failed("refused")
    first.release()
    assert len(world.fleet.optimistic) == 0
    assert not world.fleet.replicas.engines["b"].up
    second = await walk.place(frozenset({"b"}))
    assert second.replica == "a"
    assert len(world.hasher.asked) == 1
    second.failed("overloaded")
    assert world.fleet.replicas.engines["a"].up
    second.release()
    with pytest.raises(NoReplica) as nobody:
        await walk.place(frozenset({"a", "b"}))
    assert nobody.value.status == 503


async def test_a_rank_that_the_client_asks_for_is_obeyed() -> None:
    """Its own header goes to the engine, so the books have to be the same rank's."""
    world = World()
    for engine in world.fleet.replicas.engines.values():
        engine.answered(ProbeAnswer((ServedModel("m"),), ranks=(0, 1)))
    world.indexer.blocks = {"a#0": 6, "b#0": 6}
    placement = await world.routing.walk(request(), rank=1).place(NOBODY)
    assert placement.rank_header == 1
    placement.release()


async def test_without_a_replica_in_service_there_is_an_answer_at_once() -> None:
    """Nobody waits for what may never come back; the client is told to ask again."""
    world = World()
    for engine in world.fleet.replicas.engines.values():
        engine.request_failed("refused")
    with pytest.raises(NoReplica) as nobody:
        await world.routing.walk(request()).place(NOBODY)
    assert (nobody.value.status, nobody.value.retry_after_s) == (503, 1)


async def test_when_all_are_full_a_request_waits_and_walks_again() -> None:
    """What it matched before it had to wait may be gone."""
    world = World(inflight_max=1)
    held = [await world.routing.walk(request()).place(NOBODY) for _ in "ab"]
    waiting = asyncio.create_task(world.routing.walk(request()).place(NOBODY))
    await until_waiting(world, 1)
    asked = world.indexer.asked
    held[0].release()
    placement = await waiting
    assert placement.replica == held[0].replica
    assert world.indexer.asked == asked + 1
    for each in (placement, held[1]):
        each.release()
    assert world.fleet.load.inflight == 0


async def test_waiters_are_served_in_order_and_newcomers_queue_behind_them() -> None:
    """Room that is released is not taken by whoever comes just then."""
    world, order = World(inflight_max=1), list[int]()

    async def go(number: int) -> None:
        placement = await world.routing.walk(request()).place(NOBODY)
        order.append(number)
        await asyncio.sleep(0)
        placement.release()

    held = [await world.routing.walk(request()).place(NOBODY) for _ in "ab"]
    async with asyncio.TaskGroup() as group:
        for number in range(6):
            group.create_task(go(number))
            await until_waiting(world, number + 1)
        held[0].release()
        group.create_task(go(6))
        await asyncio.sleep(0.01)
        held[1].release()
    assert order[:5] == [0, 1, 2, 3, 4]
    assert sorted(order) == list(range(7))
    assert world.fleet.load.inflight == 0


async def test_too_many_waiting_or_too_long_is_a_503_with_retry_after() -> None:
    """Overload sheds load and says so."""
    world = World(inflight_max=1, waiting_max=1, wait_s_max=0.05)
    for _ in "ab":
        await world.routing.walk(request()).place(NOBODY)
    patient = asyncio.create_task(world.routing.walk(request()).place(NOBODY))
    await until_waiting(world, 1)
    for refused in (world.routing.walk(request()).place(NOBODY), patient):
        with pytest.raises(NoReplica) as full:
            await refused
        assert (full.value.status, full.value.retry_after_s) == (503, 1)
    assert world.routing.waiting == 0


async def test_a_model_that_no_pool_serves_is_for_the_engine_to_refuse() -> None:
    """With one pool there is no doubt whose business it is."""
    world = World()
    placement = await world.routing.walk(request("unknown")).place(NOBODY)
    assert placement.replica in ("a", "b")
    world.fleet.replicas.reset(EngineConfig(name, f"http://{name}:1", name) for name in ("a", "b"))
    with pytest.raises(NoReplica) as nobody:
        await world.routing.walk(request("unknown")).place(NOBODY)
    assert nobody.value.status == 404


@pytest.mark.parametrize("full", [False, True])
async def test_a_walk_that_is_cancelled_anywhere_leaves_nothing_behind(full: bool) -> None:
    """No lease, no booking, no place in the queue, at whichever await the client goes away."""

    async def scenario(cancelling: Cancelling) -> None:
        world = World(inflight_max=1)
        held = [await world.routing.walk(request()).place(NOBODY) for _ in "ab"] if full else []
        booked = len(world.fleet.optimistic)
        later = asyncio.get_running_loop().call_later(0.005, lambda: held and held.pop().release())
        with suppress(asyncio.CancelledError):
            placement = await cancelling(world.routing.walk(request()).place(NOBODY))
            placement.release()
        later.cancel()
        for placement in held:
            placement.release()
        assert world.fleet.load.inflight == 0
        assert world.routing.waiting == 0
        assert len(world.fleet.optimistic) == booked or not cancelling.cancelled

    assert await at_every_await(scenario) >= (3 if full else 2)


async def test_a_booking_is_for_its_own_salt_alone() -> None:
    """What one tenant has just sent does not draw another's request, and no header tells of it."""
    world = World()

    async def candidates(salt: str | None) -> set[int]:
        placement = await world.routing.walk(request(cache_salt=salt, user="same")).place(NOBODY)
        return {candidate.matched_blocks for candidate in placement.decision.candidates}

    assert await candidates("a") == {0}
    assert await candidates("a") == {0, 6}
    assert await candidates("b") == await candidates(None) == {0}
