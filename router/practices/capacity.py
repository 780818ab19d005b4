"""How much a KV cache holds: blocks, sessions at rest, and how long one stays before it is evicted.

Rules it keeps, each as vLLM has it (``kv_cache_utils``, seen in 0.32):

* Layers of one kind that all fit into a block share one block table. Where kinds are mixed, layers
  are put into groups of one size, that of the rarest kind, or of the commonest where there are less
  than 1.5 times as many; every group draws its blocks from the one pool.
* The pool is what is left for the cache, in whole blocks; one of them is never used.
* Only full blocks are cached, and the one that was used longest ago is evicted first. Blocks of
  running requests are not evicted.
* A group with a sliding window of w needs, for a hit, the blocks of the last w - 1 tokens.
"""

from dataclasses import dataclass

from router.practices.model_layers import LayerKind, ModelLayers

# vLLM pads the rarest kind of layer rather than splitting the commonest, up to this ratio.
_PADDED_RATIO_MAX = 1.5


@dataclass(frozen=True, slots=True)
class Shape:
    """Of a session when it is idle: all its tokens, of which the first are the same in all."""

    session_tokens: int
    shared_tokens: int = 0

    def __post_init__(self) -> None:
        assert 0 <= self.shared_tokens <= self.session_tokens


@dataclass(frozen=True, slots=True)
class Load:
    """``new_tokens``: of each request, what was not cached before: prompt and answer."""

    requests_per_s: float
    new_tokens: int


@dataclass(frozen=True, slots=True)
class Group:
    """Block tables of layers of one kind; ``window_tokens`` as of the kind."""

    count: int
    window_tokens: int | None


@dataclass(frozen=True, slots=True)
class Pool:
    block_size: int
    block_bytes: int
    blocks: int
    groups: tuple[Group, ...]

    @property
    def usable_blocks(self) -> int:
        return max(0, self.blocks - 1)

    @property
    def tokens(self) -> int:
        """The longest prefix that fits; with nothing but windows, what the blocks hold."""
        full = sum(group.count for group in self.groups if group.window_tokens is None)
        if not full:
            return self.usable_blocks // self._tables * self.block_size
        window_blocks = sum(
            group.count * self._window_blocks(group.window_tokens)
            for group in self.groups
            if group.window_tokens is not None
        )
        return max(0, self.usable_blocks - window_blocks) // full * self.block_size

    def kept_blocks(self, tokens: int) -> int:
        """What has to stay for a full hit on a prefix of so many tokens."""
        return sum(group.count * self._kept(tokens, group.window_tokens) for group in self.groups)

    def own_blocks(self, shape: Shape) -> int:
        """What a session keeps beside what it shares."""
        own = 0
        for group in self.groups:
            blocks, shared = shape.session_tokens // self.block_size, self._shared(shape)
            kept = self._kept(shape.session_tokens, group.window_tokens)
            own += group.count * min(kept, blocks - shared)
        return own

    def sessions(self, shape: Shape, running: int = 0) -> int:
        """How many stay idle and whole, beside so many of the same shape that are running."""
        own = self.own_blocks(shape)
        left = self.usable_blocks - self.kept_blocks(shape.shared_tokens) - running * own
        return max(0, left) // own if own else 0

    def survival_s(self, shape: Shape, load: Load, running: int = 0) -> float:
        """Until an idle session begins to lose its end. 0 where there is no room for it."""
        own = self.own_blocks(shape)
        left = self.usable_blocks - self.kept_blocks(shape.shared_tokens) - (running + 1) * own
        blocks_per_s = load.requests_per_s * load.new_tokens * self._tables / self.block_size
        return max(0, left) / blocks_per_s

    def request_blocks(self, tokens: int, batched_tokens: int) -> int:
        """What one request of so many tokens may hold while it runs, as vLLM reckons."""
        held = 0
        for group in self.groups:
            if group.window_tokens is None:
                held += group.count * -(-tokens // self.block_size)
            else:
                in_window = min(group.window_tokens - 1 + batched_tokens, tokens)
                held += group.count * (-(-in_window // self.block_size) + 1)
        return held

    def longest_request_tokens(self, tokens_max: int, batched_tokens: int) -> int:
        """The largest --max-model-len up to ``tokens_max`` with which vLLM starts; 0: none."""
        low, high = 0, tokens_max
        while low < high:
            middle = (low + high + 1) // 2
            if self.request_blocks(middle, batched_tokens) <= self.usable_blocks:
                low = middle
            else:
                high = middle - 1
        return low

    @property
    def _tables(self) -> int:
        return sum(group.count for group in self.groups)

    def _shared(self, shape: Shape) -> int:
        return shape.shared_tokens // self.block_size

    def _kept(self, tokens: int, window_tokens: int | None) -> int:
        blocks = tokens // self.block_size
        return blocks if window_tokens is None else min(blocks, self._window_blocks(window_tokens))

    def _window_blocks(self, window_tokens: int) -> int:
        return -(-(window_tokens - 1) // self.block_size)


def pool_of(layers: ModelLayers, block_size: int, kv_bytes: int) -> Pool:
    """``kv_bytes``: for the cache, on each GPU."""
    group_layers = _group_layers(layers.kinds)
    block_bytes = group_layers * layers.kinds[0].token_bytes * block_size
    groups = tuple(
        Group(-(-kind.layers // group_layers), kind.window_tokens) for kind in layers.kinds
    )
    return Pool(block_size, block_bytes, max(0, kv_bytes) // block_bytes, groups)


def _group_layers(kinds: tuple[LayerKind, ...]) -> int:
    # Blocks of different sizes would not fit into one pool.
    assert len({kind.token_bytes for kind in kinds}) == 1
    rarest, commonest = min(k.layers for k in kinds), max(k.layers for k in kinds)
    return commonest if commonest < rarest * _PADDED_RATIO_MAX else rarest
