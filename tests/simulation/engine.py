"""A replica in the simulated world: the real engine simulator behind a log that can be lossy.

It remembers, for each batch it ever published, what its pool held when it was published: the truth
that an index which has applied exactly this batch is held against.
"""

import random
from collections import deque
from collections.abc import Sequence
from hashlib import sha256

import msgspec

from benchmarks.sim.engine import SimulatedEngine
from benchmarks.sim.events import BlockStored, KVEvent
from benchmarks.sim.wire import VLLM_VERSIONS, WireFormat
from proto.blockhash import (
    ALGORITHMS,
    BlockHash,
    CanonicalScheme,
    EngineScheme,
    RequestKeys,
    normalise,
)

SALTS = (None, None, None, "tenant-a", "tenant-b")


class WorldEngine:
    """One engine (one rank). ``incarnation`` counts its starts."""

    def __init__(self, rng: random.Random, name: str) -> None:
        self.rng, self.name = rng, name
        self.wire = WireFormat(rng.choice(VLLM_VERSIONS), int_hashes=rng.random() < 0.7)
        self.known_seed = rng.random() < 0.9
        self.scheme = EngineScheme(
            rng.choice(ALGORITHMS),
            "0" if self.known_seed else "nobody knows",
            rng.choice((2, 3, 4)),
            extra_keys=self.wire.extra_keys,
        )
        self.blocks = rng.randint(8, 24)
        self.buffer_steps = rng.choice((4, 16, 1000))
        self.topic = name.encode()
        # A replay endpoint that nobody answers, as behind a firewall.
        self.replay_is_dead = rng.random() < 0.08
        # Prompts that read no cache store copies of what is resident: then a block's ancestors may
        # be evicted before it, so matches are checked only where nobody does this.
        self.skips_cache = rng.random() < 0.3
        self.clock = 0.0
        self.incarnation = 0
        self.truth_of: dict[bytes, dict[BlockHash, int]] = {}
        # A clear that the indexer made of its own, which only the engine's next clear repairs.
        self.index_was_cleared = False
        self.unknown: set[bytes] = set()
        self.canonical: dict[BlockHash, BlockHash] = {}
        self._prefix_of: dict[bytes, tuple[tuple[int, ...], str | None]] = {}
        self.tokens = [[rng.randrange(50) for _ in range(24)] for _ in range(3)]
        self.start()

    def start(self) -> None:
        """A new process: empty pool, sequence numbers from 0, nothing to replay."""
        self.engine = SimulatedEngine(
            self.scheme, self.blocks, step_tokens_max=self.rng.choice((4, 16, 64)), sequences_max=3
        )
        self.incarnation += 1
        self.seq = 0
        self.requests = 0
        self.proxied = False
        self.published_truth = self.truth()
        self.log_is_whole = True
        self.published_unreadable = False
        self.buffer: deque[tuple[int, bytes]] = deque(maxlen=self.buffer_steps)

    @property
    def capacity(self) -> int:
        return self.blocks - 1

    def submit(self) -> None:
        """A request that shares a prefix with earlier ones more often than not."""
        rng = self.rng
        base = rng.choice(self.tokens)
        prompt = base[: rng.randint(1, len(base))]
        if rng.random() < 0.4:
            prompt = prompt + [rng.randrange(50) for _ in range(rng.randint(1, 8))]
        generated = rng.choice((1, 1, 2, 6))
        room = self.capacity * self.scheme.block_size
        prompt = prompt[: max(1, room - generated)]
        self.requests += 1
        self.engine.add_request(
            f"{self.incarnation}/{self.requests}",
            prompt,
            generated,
            RequestKeys(cache_salt=rng.choice(SALTS)),
            skip_cache=self.skips_cache and rng.random() < 0.2,
        )

    def abort_one(self) -> None:
        if self.requests:
            self.engine.abort(f"{self.incarnation}/{self.rng.randint(1, self.requests)}")

    def step(self, fate: str = "sent") -> tuple[int, bytes] | None:
        """One engine step; what it publishes live, or None. ``fate``: sent, dropped, burnt.

        dropped: buffered for replay, never sent. burnt: neither; the number is used up.
        """
        events = self.engine.step().events
        if not events:
            return None
        self._learn_names(events)
        self.published_truth = self.truth()
        return self._publish(self._encode(events), fate)

    def publish_garbage(self) -> tuple[int, bytes] | None:
        """Bytes that are no batch, in place of one; what the engine did in it nobody learns."""
        self.published_unreadable = True
        self._learn_names(self.engine.step().events or ())
        self.published_truth = self.truth()
        return self._publish(self.rng.randbytes(self.rng.randint(0, 20)) + b"\xc1", "sent")

    def publish_unknown(self) -> tuple[int, bytes] | None:
        """A batch with one event of a kind that does not exist yet."""
        batch = msgspec.msgpack.decode(self._encode(()))
        batch[1].append({"type": "BlockMoved", "block_hashes": [1]})
        payload = msgspec.msgpack.encode(batch)
        self.unknown.add(payload)
        return self._publish(payload, "sent")

    def _encode(self, events: Sequence[KVEvent]) -> bytes:
        # The engine's clock is what makes each batch's bytes unique, across restarts too.
        self.clock += 0.25
        return self.wire.encode(self.clock, events, 0)

    def _publish(self, payload: bytes, fate: str) -> tuple[int, bytes] | None:
        seq, self.seq = self.seq, self.seq + 1
        self.truth_of[payload] = self.published_truth
        if fate == "burnt":
            self.log_is_whole = False
            return None
        self.buffer.append((seq, payload))
        return (seq, payload) if fate == "sent" else None

    def truth(self) -> dict[BlockHash, int]:
        """Copies of each block, by the engine's names."""
        return dict(self.engine.truth())

    def truth_of_digest(self, digest: bytes) -> dict[BlockHash, int]:
        """What the pool held when the batch with this sha256 was published."""
        return next(t for p, t in self.truth_of.items() if sha256(p).digest() == digest)

    def translated(self, truth: dict[BlockHash, int]) -> dict[BlockHash, int]:
        """The same by canonical names."""
        return {self.canonical[h]: n for h, n in truth.items()}

    def _learn_names(self, events: Sequence[KVEvent]) -> None:
        """Canonical names, each from the whole token sequence: not how the index gets at them."""
        if self.known_seed:
            return
        scheme, size = CanonicalScheme(self.scheme.block_size), self.scheme.block_size
        for event in events:
            if not isinstance(event, BlockStored):
                continue
            tokens, salt = self._prefix_of.get(event.parent_block_hash or b"", ((), None))
            if event.parent_block_hash is None and event.extra_keys[0]:
                salt = event.extra_keys[0][0]
            for index, digest in enumerate(event.block_hashes):
                tokens = (*tokens, *event.token_ids[index * size : (index + 1) * size])
                self._prefix_of[digest] = (tokens, salt)
                name = scheme.block_hashes(tokens, RequestKeys(cache_salt=salt))[-1]
                self.canonical[normalise(digest)] = name

    def names(self, token_ids: Sequence[int]) -> list[BlockHash]:
        """A prompt's block hashes as the index should know them."""
        if self.known_seed:
            return self.scheme.block_hashes(token_ids)
        return CanonicalScheme(self.scheme.block_size).block_hashes(token_ids)
