"""The arithmetic of pools, held against a cache that is simulated block by block."""

from collections import OrderedDict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.practices.capacity import Load, Pool, Shape, pool_of
from router.practices.model_layers import LayerKind, ModelLayers, model_layers
from router.practices.model_weights import parameters, weight_bytes
from router.practices.sizes import parse_size, shown_size, shown_time
from tests.router import model_configs as models


def plain_pool(blocks: int, block_size: int = 16) -> Pool:
    layers = ModelLayers((LayerKind("full", 1, 1),), "float16")
    return pool_of(layers, block_size, blocks * block_size)


class LruCache:
    """Blocks of idle sessions, the least recently used first out; a session's end before it."""

    def __init__(self, blocks: int) -> None:
        self.room, self.blocks = blocks, OrderedDict[object, None]()

    def use(self, names: list[object]) -> None:
        for name in reversed(names):
            self.blocks.pop(name, None)
            self.blocks[name] = None
        while len(self.blocks) > self.room:
            self.blocks.popitem(last=False)

    def holds(self, names: list[object]) -> bool:
        return all(name in self.blocks for name in names)


def session(number: int, shape: Shape, block_size: int) -> list[object]:
    blocks, shared = shape.session_tokens // block_size, shape.shared_tokens // block_size
    return [("shared", n) if n < shared else (number, n) for n in range(blocks)]


@given(
    blocks=st.integers(5, 60),
    block_size=st.sampled_from([1, 4, 16]),
    session_blocks=st.integers(1, 12),
    shared_blocks=st.integers(0, 12),
    rest=st.integers(0, 15),
)
def test_as_many_sessions_as_are_said_stay_whole_and_not_one_more(
    blocks: int, block_size: int, session_blocks: int, shared_blocks: int, rest: int
) -> None:
    """Used one after the other, in a cache of as many blocks."""
    shared = min(shared_blocks, session_blocks - 1) * block_size
    shape = Shape(session_blocks * block_size + rest % block_size, shared)
    pool = plain_pool(blocks, block_size)
    count = pool.sessions(shape)
    for sessions, fits in ((count, True), (count + 1, False)):
        cache = LruCache(pool.usable_blocks)
        for number in range(sessions):
            cache.use(session(number, shape, block_size))
        kept = [cache.holds(session(n, shape, block_size)) for n in range(sessions)]
        assert all(kept) is fits


@given(blocks=st.integers(20, 80), session_blocks=st.integers(1, 10), new_blocks=st.integers(1, 6))
def test_an_idle_session_stays_as_long_as_is_said(
    blocks: int, session_blocks: int, new_blocks: int
) -> None:
    """One request a second, each with blocks of its own: whole until then, and not after it."""
    pool, shape = plain_pool(blocks), Shape(session_blocks * 16)
    survival_s = pool.survival_s(shape, Load(1.0, new_blocks * 16))
    cache = LruCache(pool.usable_blocks)
    cache.use(session(0, shape, 16))
    for second in range(1, int(survival_s) + 3):
        cache.use([("new", second, n) for n in range(new_blocks)])
        if second <= survival_s:
            assert cache.holds(session(0, shape, 16))
        elif second >= survival_s + 1:
            assert not cache.holds(session(0, shape, 16))


def test_windows_need_less_of_a_long_session() -> None:
    """gpt-oss: of 12 layers all blocks, of the others those of the last 127 tokens."""
    pool = pool_of(model_layers(models.GPT_OSS_20B), 16, 2**30)
    assert [(group.count, group.window_tokens) for group in pool.groups] == [(1, None), (1, 128)]
    assert pool.kept_blocks(16_000) == 1000 + 8
    assert pool.kept_blocks(64) == 4 + 4
    # What is shared reaches into the window of a session that is hardly longer.
    assert pool.own_blocks(Shape(16_000, 15_968)) == 2 + 2
    assert pool.own_blocks(Shape(16_000, 8_000)) == 500 + 8
    assert pool.tokens == (pool.usable_blocks - 8) * 16


def test_layers_that_use_the_keys_of_others_keep_none() -> None:
    """Gemma 3n: of its last layers neither keys nor values are kept."""
    types = (["sliding_attention"] * 4 + ["full_attention"]) * 2
    config = {
        **models.LLAMA_31_8B,
        "num_hidden_layers": 10,
        "layer_types": types,
        "sliding_window": 512,
        "num_kv_shared_layers": 5,
    }
    assert [kind.layers for kind in model_layers(config).kinds] == [1, 4]


@pytest.mark.parametrize(
    ("full", "windowed", "tables"), [(10, 52, (1, 6)), (13, 12, (1, 1)), (5, 29, (1, 6))]
)
def test_layers_are_grouped_as_vllm_groups_them(
    full: int, windowed: int, tables: tuple[int, int]
) -> None:
    """By the rarest kind, but for kinds that are nearly equal in number."""
    kinds = (LayerKind("full", full, 1024), LayerKind("window", windowed, 1024, 128))
    pool = pool_of(ModelLayers(kinds, "float16"), 16, 2**30)
    assert tuple(group.count for group in pool.groups) == tables


@pytest.mark.parametrize(
    ("config", "billions"),
    [
        (models.QWEN3_32B, 32.76),
        (models.LLAMA_31_8B, 8.03),
        (models.MISTRAL_7B_V01, 7.24),
        (models.DEEPSEEK_V3, 671.0),
        (models.MIXTRAL_8X7B, 46.7),
        (models.QWEN3_30B_A3B, 30.53),
        (models.GPT_OSS_20B, 20.91),
    ],
)
def test_parameters_are_those_that_are_published(
    config: dict[str, object], billions: float
) -> None:
    """On the model cards, within one percent."""
    assert parameters(config) == pytest.approx(billions * 1e9, rel=0.01)


def test_quantized_weights_are_smaller() -> None:
    """DeepSeek-V3 in fp8 is 689 GB, gpt-oss-20b in mxfp4 13.8 GB, on the Hub; within 3 %."""
    assert weight_bytes(models.DEEPSEEK_V3) == pytest.approx(689e9, rel=0.03)
    assert weight_bytes(models.GPT_OSS_20B) == pytest.approx(13.76e9, rel=0.03)


@pytest.mark.parametrize(
    ("text", "size"), [("80GB", 80 * 2**30), ("1.5 GiB", 3 * 2**29), ("512m", 2**29)]
)
def test_sizes_are_read_in_powers_of_two(text: str, size: int) -> None:
    """As GPUs are sold."""
    assert parse_size(text) == size


def test_sizes_and_times_are_shown_short() -> None:
    """In the unit that a person would take."""
    shown = [shown_size(size) for size in (512, 2**18, 387 * 2**22, 2**41)]
    assert shown == ["512 B", "256 KiB", "1.51 GiB", "2 TiB"]
    assert [shown_time(s) for s in (0.04, 77.5, 160, 3000, 9000)] == [
        "0.0 s",
        "78 s",
        "2.7 min",
        "50 min",
        "2.5 h",
    ]
