import pytest

from benchmarks.sim.chain import BlockChain
from benchmarks.sim.engine import SimulatedEngine
from benchmarks.sim.events import AllBlocksCleared, BlockRemoved, BlockStored
from benchmarks.sim.steps import Step
from proto.blockhash import EngineScheme, MultiModalItem, RequestKeys

SCHEME = EngineScheme("sha256_cbor", "0", 2)
KEYS = RequestKeys(lora_name="a", lora_path="/a", lora_int_id=1, cache_salt="s")


def run(engine: SimulatedEngine, token_ids: list[int], max_tokens: int = 1, **more) -> list[Step]:
    """Steps of one request from its arrival to its end."""
    engine.add_request("r", token_ids, max_tokens, **more)
    steps = []
    while engine.has_requests:
        steps.append(engine.step())
    return steps


def events(steps: list[Step]) -> list:
    return [event for step in steps for event in step.events or ()]


def stored(steps: list[Step]) -> list[bytes]:
    return [
        block
        for event in events(steps)
        if type(event) is BlockStored
        for block in event.block_hashes
    ]


def test_one_event_holds_all_new_blocks():
    """A prompt computed in one step is one event of its full blocks, from a nil parent."""
    engine = SimulatedEngine(SCHEME, 8)
    (event,) = events(run(engine, [1, 2, 3, 4, 5]))
    assert list(event.block_hashes) == SCHEME.block_digests([1, 2, 3, 4, 5])
    assert event.parent_block_hash is None and event.token_ids == (1, 2, 3, 4)


def test_chunks_are_announced_step_by_step():
    """Each chunk of a long prompt announces the blocks it fills, chained to those before."""
    engine = SimulatedEngine(SCHEME, 8, step_tokens_max=3)
    steps = run(engine, [1, 2, 3, 4, 5, 6, 7])
    assert [step.scheduled_tokens for step in steps] == [3, 3, 1]
    first, second = events(steps)
    assert (len(first.block_hashes), len(second.block_hashes)) == (1, 2)
    assert second.parent_block_hash == first.block_hashes[0] and steps[2].events is None


def test_generated_tokens_fill_blocks():
    """Generated tokens are cached too, but for the last one, which is never computed."""
    engine = SimulatedEngine(SCHEME, 8)
    steps = run(engine, [1, 2, 3], max_tokens=4)
    output = [made.token_id for step in steps for made in step.progress]
    assert stored(steps) == SCHEME.block_digests([1, 2, 3, *output[:3]])
    assert [len(step.events or ()) for step in steps] == [1, 1, 0, 1]


def test_aligned_full_hit_stores_last_block_again():
    """A prompt of exactly n cached blocks reuses n - 1 and announces a second copy of the last."""
    engine = SimulatedEngine(SCHEME, 12)
    first = stored(run(engine, [1, 2, 3, 4, 5, 6]))
    again = run(engine, [1, 2, 3, 4, 5, 6])
    assert again[0].progress[0].cached_tokens == 4
    (event,) = events(again)
    assert event.block_hashes == (first[2],) and event.parent_block_hash == first[1]
    assert sorted(engine.truth().values()) == [1, 1, 2]


@pytest.mark.parametrize(("length", "cached_tokens"), [(2, 0), (3, 2), (4, 2), (5, 4), (6, 4)])
def test_cached_tokens_never_cover_the_last_token(length: int, cached_tokens: int):
    """cached_tokens is min(matched, (n - 1) // block_size) whole blocks."""
    engine = SimulatedEngine(SCHEME, 12)
    run(engine, [1, 2, 3, 4, 5, 6])
    (step,) = run(engine, [1, 2, 3, 4, 5, 6][:length])
    assert step.progress[0].cached_tokens == cached_tokens


def test_skip_cache_stores_everything_again():
    """A lookup that skips the cache hits nothing and stores a second copy of every block."""
    engine = SimulatedEngine(SCHEME, 12)
    first = stored(run(engine, [1, 2, 3, 4, 5]))
    again = run(engine, [1, 2, 3, 4, 5], skip_cache=True)
    assert stored(again) == first and again[0].progress[0].cached_tokens == 0
    assert set(engine.truth().values()) == {2}


def test_report_full_adds_no_copy():
    """kv_cache_report_mode full announces the reused prefix from block 0 without storing it."""
    engine = SimulatedEngine(SCHEME, 12)
    first = stored(run(engine, [1, 2, 3, 4, 5]))
    report, news = events(run(engine, [1, 2, 3, 4, 5, 6, 7], report_full=True))
    assert list(report.block_hashes) == first and report.parent_block_hash is None
    assert news.parent_block_hash == first[-1] and set(engine.truth().values()) == {1}


def test_concurrent_equal_prompts_share_within_a_step():
    """Equal prompts admitted in one step are stored once: the later hit the first one's blocks."""
    engine = SimulatedEngine(SCHEME, 12)
    for name in "abc":
        engine.add_request(name, [1, 2, 3, 4, 5], 1)
    step = engine.step()
    assert len(events([step])) == 1
    assert [made.cached_tokens for made in step.progress] == [0, 4, 4]


def test_removals_precede_the_store_that_needed_them():
    """Within a step the blocks evicted for a request are announced before what it stores."""
    engine = SimulatedEngine(SCHEME, 4)
    run(engine, [1, 2, 3, 4, 5])
    batch = events(run(engine, [6, 7, 8, 9, 10]))
    assert [type(event) for event in batch] == [BlockRemoved, BlockRemoved, BlockStored]


def test_preempted_request_is_computed_again():
    """An exhausted pool throws out the newest request, which later ends with the same output."""

    def outputs(num_blocks: int) -> tuple[dict[str, list[int]], int]:
        engine = SimulatedEngine(SCHEME, num_blocks)
        engine.add_request("old", [1, 2, 3], 6)
        engine.add_request("new", [4, 5, 6], 6)
        made: dict[str, list[int]] = {}
        finished = []
        while engine.has_requests:
            for progress in engine.step().progress:
                made.setdefault(progress.request_id, []).append(progress.token_id)
                finished += [progress.request_id] * progress.finished
        assert finished == ["old", "new"]
        return made, engine.counters.preemptions

    plenty, none = outputs(20)
    scarce, some = outputs(6)
    assert scarce == plenty and (none, some > 0) == (0, True)


def test_preempted_request_is_the_first_to_come_back():
    """Who was thrown out goes before those that wait, and nobody is admitted in that step."""
    engine = SimulatedEngine(SCHEME, 6, sequences_max=2, step_tokens_max=4)
    engine.add_request("old", [1, 2, 3], 6)
    # It finds none of its own blocks again, so its first chunk would fit at once.
    engine.add_request("new", [4, 5, 6], 6, skip_cache=True)
    engine.add_request("next", [7], 1)
    finished = []
    while engine.has_requests:
        preemptions = engine.counters.preemptions
        step = engine.step()
        if engine.counters.preemptions > preemptions:
            assert [made.request_id for made in step.progress] == ["old"] and engine.waiting == 2
        finished += [made.request_id for made in step.progress if made.finished]
    assert finished == ["old", "next", "new"] and engine.counters.preemptions == 1


def test_abort_keeps_full_blocks():
    """An aborted request's full blocks stay cached and say nothing; its id is free again."""
    engine = SimulatedEngine(SCHEME, 8)
    engine.add_request("r", [1, 2, 3, 4, 5], 9)
    engine.step()
    assert engine.abort("r") and not engine.abort("r")
    assert len(engine.truth()) == 2 and engine.pool.used == 0
    (step,) = run(engine, [1, 2, 3, 4, 5])
    assert step.progress[0].cached_tokens == 4 and step.events is None


def test_waiting_request_can_be_aborted():
    """A request that never ran is dropped from the queue without a trace."""
    engine = SimulatedEngine(SCHEME, 8, sequences_max=1)
    engine.add_request("a", [1, 2, 3], 3)
    engine.add_request("b", [4, 5, 6], 3)
    engine.step()
    assert (engine.running, engine.waiting) == (1, 1)
    assert engine.abort("b") and (engine.running, engine.waiting) == (1, 0)


def test_clear_waits_for_the_next_step():
    """An idle engine that is reset says so only with its next request, first in the batch."""
    engine = SimulatedEngine(SCHEME, 8)
    run(engine, [1, 2, 3])
    assert engine.reset_prefix_cache() and engine.step().events is None
    batch = events(run(engine, [1, 2, 3]))
    assert [type(event) for event in batch] == [AllBlocksCleared, BlockStored]


def test_reset_of_a_busy_engine_needs_preemption():
    """A reset is refused while requests run, unless it may preempt them; they then go on."""
    engine = SimulatedEngine(SCHEME, 8)
    engine.add_request("r", [1, 2, 3], 3)
    engine.step()
    assert not engine.reset_prefix_cache() and engine.truth()
    assert engine.reset_prefix_cache(reset_running_requests=True) and not engine.truth()
    assert engine.waiting == 1
    while engine.has_requests:
        engine.step()


def test_sleeping_engine_does_nothing_until_woken():
    """Sleep aborts everything and empties the pool; requests that come meanwhile wait."""
    engine = SimulatedEngine(SCHEME, 8)
    engine.add_request("r", [1, 2, 3], 3)
    engine.step()
    assert engine.sleep() == ("r",) and engine.truth() == {}
    engine.add_request("s", [1, 2, 3], 1)
    assert engine.step().events is None and engine.has_requests
    engine.wake()
    assert [type(event) for event in engine.step().events] == [AllBlocksCleared, BlockStored]


@pytest.mark.parametrize("arguments", [("r", [], 1), ("r", [1], 0), ("r", [1] * 6, 2)])
def test_what_could_never_run_is_refused(arguments: tuple):
    """Empty prompts, no output and more blocks than the pool has are errors, not livelocks."""
    engine = SimulatedEngine(SCHEME, 4)
    with pytest.raises(ValueError):
        engine.add_request(*arguments)
    assert run(engine, [1] * 6, 1)[-1].progress[0].finished


@pytest.mark.parametrize("keys", [RequestKeys(), KEYS])
@pytest.mark.parametrize("form", ["untagged_mm_offset", "tagged"])
@pytest.mark.parametrize("lookahead", [0, 1, 3])
def test_growing_a_chain_equals_hashing_it_whole(form: str, lookahead: int, keys: RequestKeys):
    """Digests grown token by token equal those of the whole prompt, for every recipe."""
    image = RequestKeys(multimodal=(MultiModalItem("image", 5, 4),), cache_salt=keys.cache_salt)
    for each in (keys, image):
        scheme = EngineScheme("sha256", "0", 3, lookahead, form)
        chain = BlockChain(scheme, [9], each)
        for token in range(20):
            chain.append(token)
            assert chain.digests == scheme.block_digests(chain.token_ids, each)


def test_lookahead_delays_a_block_and_shows_its_tokens():
    """With lookahead a block is announced once the tokens behind it exist, and names them."""
    engine = SimulatedEngine(EngineScheme("sha256_cbor", "0", 2, lookahead=1), 8)
    (event,) = events(run(engine, [1, 2, 3, 4]))
    assert event.token_ids == (1, 2) and event.lookahead_token_ids == ((3,),)
    (event,) = events(run(engine, [5, 6], max_tokens=2))
    assert event.token_ids == (5, 6) and len(event.lookahead_token_ids[0]) == 1


def test_lookahead_shows_what_begins_behind_a_block():
    """Keys cover a block and the tokens hashed ahead, so an image right behind it is among them."""
    engine = SimulatedEngine(EngineScheme("sha256_cbor", "0", 2, lookahead=1), 8)
    keys = RequestKeys(multimodal=(MultiModalItem("image", 4, 2),))
    (event,) = events(run(engine, [1, 2, 3, 4, 5, 6], keys=keys))
    assert event.extra_keys == (None, (("image", 2),))


def test_events_show_untagged_keys():
    """Events name LoRA and salt without tags, one entry per hash, the salt on block 0 only."""
    engine = SimulatedEngine(SCHEME, 8)
    (event,) = events(run(engine, [1, 2, 3, 4, 5], keys=KEYS))
    assert event.extra_keys == (("a", "s"), ("a",))
    assert (event.lora_id, event.lora_name) == (1, "a")
    assert list(event.block_hashes) == SCHEME.block_digests([1, 2, 3, 4, 5], KEYS)
