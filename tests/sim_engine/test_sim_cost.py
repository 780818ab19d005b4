import pytest

from benchmarks.sim.cost import COST_MODELS, CostModel, CostPace, Pace
from benchmarks.sim.engine import SimulatedEngine
from benchmarks.sim.steps import IDLE, Step
from proto.blockhash import EngineScheme

SCHEME = EngineScheme("sha256_cbor", "0", 2)
# Coefficients that are told apart in any sum.
MODEL = CostModel(1000.0, 10.0, 0.5, 2000.0, 3.0, 0.001)
FP8 = COST_MODELS["qwen3-32b-h100-fp8"]


def steps(engine: SimulatedEngine) -> list[Step]:
    made = []
    while engine.has_requests:
        made.append(engine.step())
    return made


def test_formulas_by_hand():
    """8,000 new tokens behind 2,000, and 10 sequences with 100,000 tokens, on an H100 with FP8."""
    prefill = 16.8 + 0.05474 * 8000 + 3.321e-6 * 8000 * (2000 + 4000)
    assert FP8.prefill_ms(8000, 2000) == pytest.approx(prefill) == pytest.approx(614.128)
    decode = 22.28 + 0.1010 * 10 + 4.748e-5 * 100_000
    assert FP8.decode_ms(10, 100_000) == pytest.approx(decode) == pytest.approx(28.038)


def test_steps_cost_what_the_formulas_say():
    """A prompt costs its prefill, with what is cached as context, and each next token its itl."""
    engine = SimulatedEngine(SCHEME, 64)
    engine.add_request("first", list(range(10)), 3)
    prefill, *decoding = steps(engine)
    assert MODEL.step_ms(prefill) == MODEL.prefill_ms(10, 0) == 1000 + 100 + 0.5 * 10 * 5
    assert [MODEL.step_ms(step) for step in decoding] == [
        MODEL.decode_ms(1, 10),
        MODEL.decode_ms(1, 11),
    ]
    engine.add_request("again", [*range(10), 70, 71], 1)
    (again,) = steps(engine)
    assert MODEL.step_ms(again) == MODEL.prefill_ms(2, 10)


def test_chunks_add_up_to_the_whole():
    """A prompt in three chunks costs two more bases than at once, and nothing else."""
    whole, chunked = (SimulatedEngine(SCHEME, 64, step_tokens_max=size) for size in (100, 5))
    for engine in (whole, chunked):
        engine.add_request("r", list(range(12)), 1)
    (once,) = steps(whole)
    pieces = [MODEL.step_ms(step) for step in steps(chunked)]
    assert len(pieces) == 3
    assert sum(pieces) == pytest.approx(MODEL.step_ms(once) + 2 * MODEL.prefill_base_ms)


def test_mixed_step_reads_the_weights_once():
    """A step that prefills and decodes costs the larger base and the rest of both."""
    engine = SimulatedEngine(SCHEME, 64)
    engine.add_request("old", list(range(6)), 2)
    engine.step()
    engine.add_request("new", list(range(20, 24)), 1)
    engine.add_request("other", list(range(30, 34)), 1)
    mixed = engine.step()
    assert (mixed.prefill_tokens, mixed.decoding_sequences, mixed.context_tokens) == (8, 1, 6)
    rest = 10.0 * 8 + 0.5 * (4 * 2 + 4 * 2) + 3.0 + 0.001 * 6
    assert MODEL.step_ms(mixed) == pytest.approx(2000 + rest)
    assert mixed.scheduled_tokens == 9


def test_preempted_output_is_prefill_again():
    """What is computed again after a preemption costs prefill, generated tokens included."""
    engine = SimulatedEngine(SCHEME, 16)
    engine.add_request("r", [1, 2, 3], 6)
    engine.step(), engine.step()
    engine.reset_prefix_cache(reset_running_requests=True)
    again = engine.step()
    assert (again.prefill_tokens, again.decoding_sequences) == (5, 0)


def test_pace_and_speedup():
    """A pace counts a base and tokens, a speed-up divides, and doing nothing takes no time."""
    step = Step(None, (), 100, 100, 5000.0)
    assert Pace(0.5, 0.01).seconds(step) == pytest.approx(1.5)
    assert CostPace(MODEL, 10).seconds(step) == pytest.approx((1000 + 1000 + 2500) / 1e4)
    assert Pace(0.5).seconds(IDLE) == CostPace(MODEL).seconds(IDLE) == 0
    with pytest.raises(ValueError):
        CostPace(MODEL, 0)
