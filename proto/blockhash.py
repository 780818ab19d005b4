"""What a block is called: the one definition both services share.

vLLM names a full block of tokens by a chained hash: ``H((parent, tokens, extra_keys))``, where the
parent of the first block is a root (``NONE_HASH``). This module computes those names for every
recipe vLLM has used since 0.10.2, and decides nothing else. Rules it keeps:

* A ``BlockHash`` is the low 64 bits of the engine's digest, unsigned: exactly what the engine
  publishes in its int form, and the tail of what it publishes in its bytes form. The chain itself
  always runs over whole digests.
* Only full blocks have a name. With ``lookahead`` L, a block also needs the L tokens behind it.
* The pickled forms depend on object identity: pickle memoises by ``is``, not by ``==``. The engine
  decodes every string of a request from msgpack, so each is an object of its own; here each is
  copied for the same reason. The tags ("lora", "mm", ...) are literals in the engine, hence one
  object however often they occur.
* CBOR is canonical; ``proto.cborchain`` builds it fast.
"""

import pickle
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from hashlib import sha256
from typing import Any, Literal, NewType, Protocol, get_args

import cbor2
import xxhash

from proto.cborchain import Hash, cbor_chain

BlockHash = NewType("BlockHash", int)
Algorithm = Literal["sha256", "sha256_cbor", "xxhash", "xxhash_cbor"]
ExtraKeyForm = Literal["lora_int", "untagged", "untagged_mm_offset", "tagged"]

ALGORITHMS: tuple[Algorithm, ...] = get_args(Algorithm)
EXTRA_KEY_FORMS: tuple[ExtraKeyForm, ...] = get_args(ExtraKeyForm)

LOW_64_BITS = 2**64 - 1
# vLLM >= 0.29 hashes this string where PYTHONHASHSEED is unset, and only for the sha256 algorithms.
_UNSET_SEED = "vllm-none-hash"
# What ``chain`` raises for extra keys of an event that no recipe can serialise: events are
# untrusted, and cbor2's and pickle's errors are none of Python's own.
UNSERIALISABLE = (
    ValueError,
    TypeError,
    RecursionError,
    cbor2.CBOREncodeError,
    pickle.PicklingError,
)


def show(block_hash: int) -> str:
    """Sixteen hex digits: how a block hash is written wherever a person reads it."""
    return f"{block_hash:016x}"


def normalise(wire_hash: int | bytes) -> BlockHash:
    """The ``BlockHash`` of any form on the wire: int (old engines: also negative) or digest."""
    if isinstance(wire_hash, bytes):
        wire_hash = int.from_bytes(wire_hash[-8:], "big")
    return BlockHash(wire_hash & LOW_64_BITS)


@dataclass(frozen=True, slots=True)
class MultiModalItem:
    """One image, audio or video in a prompt; ``offset`` and ``length`` in tokens."""

    identifier: str
    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class RequestKeys:
    """What beside its tokens tells one request's blocks from another's.

    ``prompt_embeds`` has one entry per block: the digest the engine puts there, or None.
    """

    lora_name: str | None = None
    lora_path: str | None = None
    lora_int_id: int | None = None
    cache_salt: str | None = None
    multimodal: tuple[MultiModalItem, ...] = ()
    prompt_embeds: tuple[bytes | None, ...] = ()


NO_KEYS = RequestKeys()


class HashScheme(Protocol):
    """How one replica names its blocks. Equal descriptions have equal ids in every process."""

    @property
    def id(self) -> str: ...
    @property
    def block_size(self) -> int: ...
    def describe(self) -> dict[str, Any]: ...
    def block_hashes(
        self, token_ids: Sequence[int], keys: RequestKeys = NO_KEYS
    ) -> list[BlockHash]: ...


def scheme_id(description: Mapping[str, Any]) -> str:
    """First 16 hex digits of the sha256 of a description, keys in canonical order."""
    return sha256(cbor2.dumps(dict(description), canonical=True)).hexdigest()[:16]


@dataclass(frozen=True)
class EngineScheme:
    """vLLM's own recipe. ``seed`` is PYTHONHASHSEED as the engine sees it, None where unset.

    Raises ValueError where the root cannot be known: xxhash without a seed is random per process.
    """

    algorithm: Algorithm
    seed: str | None
    block_size: int
    lookahead: int = 0
    extra_keys: ExtraKeyForm = "tagged"

    def __post_init__(self) -> None:
        if self.block_size < 1 or self.lookahead < 0:
            raise ValueError(f"block_size {self.block_size}, lookahead {self.lookahead}: too small")
        root_digest(self.algorithm, self.seed)

    @cached_property
    def id(self) -> str:
        return scheme_id(self.describe() | {"root": root_digest(self.algorithm, self.seed)})

    def describe(self) -> dict[str, Any]:
        return {
            "algorithm": self.algorithm,
            "seed": self.seed,
            "block_size": self.block_size,
            "extra_keys": self.extra_keys,
            "lookahead": self.lookahead,
        }

    def block_hashes(
        self, token_ids: Sequence[int], keys: RequestKeys = NO_KEYS
    ) -> list[BlockHash]:
        digests = self.block_digests(token_ids, keys)
        ignored = f"{len(digests[0]) - 8}x" if digests else ""
        return list(struct.unpack(">" + f"{ignored}Q" * len(digests), b"".join(digests)))

    def block_digests(self, token_ids: Sequence[int], keys: RequestKeys = NO_KEYS) -> list[bytes]:
        """Whole digests of every full block of a prompt, first to last."""
        count = max(0, (len(token_ids) - self.lookahead) // self.block_size)
        if keys == NO_KEYS and not self.lookahead:
            extras: list[Any] = [None] * count
        else:
            extras = [_extra_keys(self, token_ids, keys, index) for index in range(count)]
        return self.chain(root_digest(self.algorithm, self.seed), token_ids, extras)

    def chain(
        self, parent: bytes, token_ids: Sequence[int], extras: Sequence[tuple[Any, ...] | None]
    ) -> list[bytes]:
        """Digests of ``len(extras)`` blocks that follow ``parent``, each with its extra keys."""
        if self.algorithm.endswith("_cbor"):
            return cbor_chain(
                _hash_function(self.algorithm), parent, token_ids, self.block_size, extras
            )
        hash_function, size = _hash_function(self.algorithm), self.block_size
        digests, ids = [], tuple(token_ids)
        for index, extra in enumerate(extras):
            tokens = ids[index * size : (index + 1) * size]
            parent = hash_function(pickle.dumps((parent, tokens, extra), protocol=5)).digest()
            digests.append(parent)
        return digests


@dataclass(frozen=True)
class CanonicalScheme:
    """pointsman's own names, for engines whose root nobody can know: xxh3 over 64-bit parents."""

    block_size: int

    @cached_property
    def id(self) -> str:
        return scheme_id(self.describe())

    def describe(self) -> dict[str, Any]:
        return {
            "algorithm": "canonical_xxh3",
            "seed": None,
            "block_size": self.block_size,
            "extra_keys": "untagged_mm_offset",
            "lookahead": 0,
        }

    def block_hashes(
        self, token_ids: Sequence[int], keys: RequestKeys = NO_KEYS
    ) -> list[BlockHash]:
        size = self.block_size
        extras = [
            request_extra_keys("untagged_mm_offset", keys, index, index * size, (index + 1) * size)
            for index in range(len(token_ids) // size)
        ]
        return self.chain(None, token_ids, extras)

    def chain(
        self,
        parent: BlockHash | None,
        token_ids: Sequence[int],
        extras: Sequence[tuple[Any, ...] | None],
    ) -> list[BlockHash]:
        """Canonical hashes of ``len(extras)`` blocks that follow ``parent``.

        The extra keys are those that the engine's events show, so the LoRA name is among them.
        """
        size, previous = self.block_size, b"" if parent is None else parent.to_bytes(8, "big")
        hashes = []
        for index, extra in enumerate(extras):
            tokens = list(token_ids[index * size : (index + 1) * size])
            value = xxhash.xxh3_64_intdigest(cbor2.dumps([previous, tokens, extra], canonical=True))
            previous = value.to_bytes(8, "big")
            hashes.append(BlockHash(value))
        return hashes


@cache
def root_digest(algorithm: Algorithm, seed: str | None) -> bytes:
    """``NONE_HASH``: the parent of a first block (vLLM ``init_none_hash``)."""
    if algorithm not in ALGORITHMS:
        raise ValueError(f"unknown algorithm {algorithm!r}; known: {', '.join(ALGORITHMS)}")
    if seed is None and algorithm.startswith("xxhash"):
        raise ValueError(f"{algorithm} without a seed has a random root in every engine process")
    value = _UNSET_SEED if seed is None else seed
    if algorithm.endswith("_cbor"):
        return _hash_function(algorithm)(cbor2.dumps(value, canonical=True)).digest()
    return _hash_function(algorithm)(pickle.dumps(value, protocol=5)).digest()


def _hash_function(algorithm: Algorithm) -> Callable[[bytes], Hash]:
    return sha256 if algorithm.startswith("sha256") else xxhash.xxh3_128


def request_extra_keys(
    form: ExtraKeyForm, keys: RequestKeys, block_index: int, start: int, end: int
) -> tuple[Any, ...] | None:
    """The extra keys of the block ``[start, end)`` in tokens, or None (reference 4.4).

    Order: LoRA, multimodal items that overlap the block, salt (block 0 only), prompt embeds.
    """
    parts: list[Any] = []
    if form == "lora_int":
        if keys.lora_int_id:
            parts.append(keys.lora_int_id)
    elif keys.lora_name is not None:
        parts.append(_lora_key(form, keys.lora_name, keys.lora_path))
    for item in keys.multimodal:
        if end > item.offset and start < item.offset + item.length:
            parts.append(_multimodal_key(form, item, start))
    tagged = form == "tagged"
    if keys.cache_salt and block_index == 0:
        salt = _own(keys.cache_salt)
        parts.append(("cache_salt", salt) if tagged else salt)
    if block_index < len(keys.prompt_embeds):
        embeds = keys.prompt_embeds[block_index]
        if embeds is not None:
            parts.append(("prompt_embeds", embeds) if tagged else embeds)
    return tuple(parts) or None


def _lora_key(form: ExtraKeyForm, name: str, path: str | None) -> Any:
    if form != "tagged":
        return _own(name)
    if path is None:
        raise ValueError(f"the path of LoRA {name!r} is in its block hashes, but is not known")
    return ("lora", _own(name), _own(path))


def _multimodal_key(form: ExtraKeyForm, item: MultiModalItem, start: int) -> Any:
    identifier = _own(item.identifier)
    if form == "tagged":
        return ("mm", identifier, item.offset - start)
    if form == "untagged_mm_offset":
        return (identifier, item.offset - start)
    return identifier


def _own(text: str) -> str:
    """A copy that is an object of its own, as a string decoded from a message is."""
    return str(text.encode(), "utf-8")


def _extra_keys(
    scheme: EngineScheme, token_ids: Sequence[int], keys: RequestKeys, index: int
) -> tuple[Any, ...] | None:
    """Extra keys with the lookahead tokens of vLLM >= 0.33 appended (reference 4.6)."""
    start, lookahead = index * scheme.block_size, scheme.lookahead
    end = start + scheme.block_size
    extra = request_extra_keys(scheme.extra_keys, keys, index, start, end + lookahead)
    return (extra, *token_ids[end : end + lookahead]) if lookahead else extra
