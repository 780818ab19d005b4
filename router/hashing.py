"""Block hashes of a prompt, where most of the prompt was hashed before.

The next turn of a conversation repeats all earlier ones, so the chain of hashes is kept at every
``CHECKPOINT_BLOCKS`` blocks and only new blocks are computed. Rules it keeps:

* What comes out equals ``HashScheme.block_hashes`` for every prompt.
* A checkpoint is named by a cryptographic digest of everything the hashes up to it depend on: the
  scheme, the request's keys, and the raw bytes of the tokens before it, those of the lookahead
  among them. Different salts therefore never share an entry, and nobody can make two prompts meet.
* Work is done in steps of at most one checkpoint, so that whoever runs it can stop or give way.
* The cache is bounded in bytes. Of one prompt the front is forgotten last, because a checkpoint is
  found only through those before it.
"""

import json
from array import array
from collections import OrderedDict
from collections.abc import Generator, Sequence
from functools import cache
from hashlib import sha256
from itertools import repeat
from struct import Struct
from typing import Any, NamedTuple

from proto.blockhash import (
    CanonicalScheme,
    EngineScheme,
    HashScheme,
    RequestKeys,
    normalise,
    request_extra_keys,
    root_digest,
)

# 1,024 tokens at the usual block size: 4 kB for the digest that names a checkpoint.
CHECKPOINT_BLOCKS = 64
CACHE_BYTES_MAX = 64 << 20
# Found checkpoints cost some 5 us each; this many are one step.
_FOUND_PER_STEP = 32
# Measured: the objects of an entry beside its two byte strings (dict entry, headers, tuple).
_ENTRY_OVERHEAD_BYTES = 320

Steps = Generator[None, None, "array[int]"]


class _Checkpoint(NamedTuple):
    """``hashes``: of its own blocks, native 64-bit. ``parent``: what the next block chains to."""

    hashes: bytes
    parent: bytes


class PrefixHashes:
    """The cache. One thread at a time may drive its steps; steps of several prompts may mix."""

    def __init__(self, bytes_max: int = CACHE_BYTES_MAX) -> None:
        self._checkpoints: OrderedDict[bytes, _Checkpoint] = OrderedDict()
        self._bytes_max = bytes_max
        self.cached_bytes = 0
        self.found_blocks = 0
        self.computed_blocks = 0

    def __repr__(self) -> str:
        return (
            f"PrefixHashes({len(self._checkpoints)} checkpoints, {self.cached_bytes} bytes, "
            f"{self.found_blocks} blocks found, {self.computed_blocks} computed)"
        )

    def block_hashes(
        self, scheme: HashScheme, token_ids: "array[int]", keys: RequestKeys
    ) -> "array[int]":
        """All at once; ``steps`` for those that must give way."""
        steps = self.steps(scheme, token_ids, keys)
        while True:
            try:
                next(steps)
            except StopIteration as stop:
                hashes: array[int] = stop.value
                return hashes

    def steps(self, scheme: HashScheme, token_ids: "array[int]", keys: RequestKeys) -> Steps:
        """Yields between steps and returns the hashes as ``array("Q")``.

        ``token_ids`` is an ``array("I")``. ValueError where the scheme needs the path of a LoRA
        that is not known. Multimodal items and embeddings have no place here (the router hashes
        no such prompt).
        """
        assert not keys.multimodal and not keys.prompt_embeds
        chain = _Chain(scheme, keys)
        count = max(0, (len(token_ids) - chain.lookahead) // scheme.block_size)
        names = _Names(scheme, keys, token_ids, chain.lookahead)
        hashes, known = array("Q"), list[bytes]()
        for index in range(count // CHECKPOINT_BLOCKS):
            name = names.of_next()
            checkpoint = self._checkpoints.get(name)
            if checkpoint is None:
                break
            known.append(name)
            hashes.frombytes(checkpoint.hashes)
            chain.parent = checkpoint.parent
            if index % _FOUND_PER_STEP == _FOUND_PER_STEP - 1:
                yield
        self.found_blocks += len(hashes)
        self.computed_blocks += count - len(hashes)
        while len(hashes) < count:
            first = len(hashes)
            blocks = min(CHECKPOINT_BLOCKS, count - first)
            part = chain.extend(token_ids, first, blocks)
            hashes.extend(part)
            if blocks == CHECKPOINT_BLOCKS:
                name = names.at(first // CHECKPOINT_BLOCKS)
                self._keep(name, _Checkpoint(part.tobytes(), chain.parent))
                known.append(name)
            yield
        self._touch(known)
        return hashes

    def _keep(self, name: bytes, checkpoint: _Checkpoint) -> None:
        if name in self._checkpoints:
            return
        self._checkpoints[name] = checkpoint
        self.cached_bytes += _entry_bytes(name, checkpoint)
        while self.cached_bytes > self._bytes_max:
            oldest, forgotten = self._checkpoints.popitem(last=False)
            self.cached_bytes -= _entry_bytes(oldest, forgotten)

    def _touch(self, names: Sequence[bytes]) -> None:
        """From the back, so that the front of the prompt is the last to be forgotten."""
        for name in reversed(names):
            if name in self._checkpoints:
                self._checkpoints.move_to_end(name)


def _entry_bytes(name: bytes, checkpoint: _Checkpoint) -> int:
    return len(name) + sum(map(len, checkpoint)) + _ENTRY_OVERHEAD_BYTES


class _Names:
    """Names of a prompt's checkpoints, first to last, each after one more update of one digest."""

    def __init__(
        self, scheme: HashScheme, keys: RequestKeys, token_ids: "array[int]", lookahead: int
    ) -> None:
        seed = [scheme.id, keys.lora_name, keys.lora_path, keys.lora_int_id, keys.cache_salt]
        text = json.dumps(seed).encode()
        self._digest = sha256(len(text).to_bytes(8, "big") + text)
        self._tokens = memoryview(token_ids).cast("B")
        self._token_bytes = token_ids.itemsize
        self._span = CHECKPOINT_BLOCKS * scheme.block_size
        self._lookahead = lookahead
        self._fed_tokens = 0
        self._names: list[bytes] = []

    def of_next(self) -> bytes:
        end = (len(self._names) + 1) * self._span + self._lookahead
        size = self._token_bytes
        self._digest.update(self._tokens[self._fed_tokens * size : end * size])
        self._fed_tokens = end
        self._names.append(self._digest.digest())
        return self._names[-1]

    def at(self, index: int) -> bytes:
        """The name of a checkpoint that was asked for, or of the one after the last such."""
        return self._names[index] if index < len(self._names) else self.of_next()


class _Chain:
    """A scheme's chain as one thing to be continued, whatever its parents are made of."""

    def __init__(self, scheme: HashScheme, keys: RequestKeys) -> None:
        if isinstance(scheme, EngineScheme):
            self.parent = root_digest(scheme.algorithm, scheme.seed)
            self.lookahead, form = scheme.lookahead, scheme.extra_keys
        elif isinstance(scheme, CanonicalScheme):
            self.parent, self.lookahead, form = b"", 0, "untagged_mm_offset"
        else:
            raise ValueError(f"no chain is known for {scheme!r}")
        self._scheme = scheme
        # Without media the extra keys differ between the first block (salt) and all others.
        self._first_extra = request_extra_keys(form, keys, 0, 0, 0)
        self._extra = request_extra_keys(form, keys, 1, 0, 0)

    def extend(self, token_ids: "array[int]", first: int, blocks: int) -> "array[int]":
        """Hashes of the next ``blocks`` blocks, which begin with block ``first``."""
        size = self._scheme.block_size
        tokens = token_ids[first * size : (first + blocks) * size]
        extras = self._extras(token_ids, first, blocks)
        if isinstance(self._scheme, EngineScheme):
            digests = self._scheme.chain(self.parent, tokens, extras)
            self.parent = digests[-1]
            return array("Q", _low_64_bits(len(self.parent), blocks).unpack(b"".join(digests)))
        parent = normalise(self.parent) if self.parent else None
        hashes = array("Q", self._scheme.chain(parent, tokens, extras))
        self.parent = hashes[-1].to_bytes(8, "big")
        return hashes

    def _extras(
        self, token_ids: "array[int]", first: int, blocks: int
    ) -> list[tuple[Any, ...] | None]:
        extras = list(repeat(self._extra, blocks))
        if first == 0:
            extras[0] = self._first_extra
        if not self.lookahead:
            return extras
        size, ahead = self._scheme.block_size, self.lookahead
        ends = range((first + 1) * size, (first + blocks + 1) * size, size)
        return [
            (extra, *token_ids[end : end + ahead]) for extra, end in zip(extras, ends, strict=True)
        ]


@cache
def _low_64_bits(digest_bytes: int, count: int) -> Struct:
    """Unpacks the tails of joined digests; at most ``CHECKPOINT_BLOCKS`` sizes of two each."""
    return Struct(">" + f"{digest_bytes - 8}xQ" * count)
