"""A shell: what is kept of each replica, in Redis or Valkey. It decides nothing.

Three keys per replica, in one slot of a cluster: its state (a hash of texts), its blocks (a set)
and its copies (a hash; only of blocks with more than one). Block hashes are 8 raw big-endian bytes.
A flush is one script, see ``flush.lua``; so is a load, because both have to see one moment. What a
server or a network can do wrong becomes ``StoreUnavailable``, in words without a password.
"""

import asyncio
import struct
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from hashlib import sha1
from pathlib import Path
from typing import Any, NewType, cast
from urllib.parse import urlsplit

import redis.asyncio as redis
from redis.asyncio.cluster import RedisCluster
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import NoScriptError, RedisError

from indexer.doctor.store_findings import unfit_policy, unfit_version
from indexer.durability import Answer, Elsewhere, Flush, Leased, Written
from indexer.index import PoolName, ReplicaId
from indexer.saved_state import NotReadable, Saved, from_fields, to_fields

# A departed replica's keys vanish after this long.
LIFE_S = 24 * 3600
CONNECT_S_MAX = 1.0
# A full rewrite's flush takes the server a tenth of this.
ANSWER_S_MAX = 2.0
# What a load may take beyond that for each block, ten times what it does take, and in all.
LOAD_BLOCK_S_MAX = 1e-5
LOAD_S_MAX = 30.0
CLUSTER = "+cluster"
# What is loaded becomes a dict in slices, about a millisecond each: matches are served meanwhile.
SLICE_BYTES = 8 * 4_096

_FLUSH = (Path(__file__).parent / "flush.lua").read_text()
_LOAD = (Path(__file__).parent / "load.lua").read_text()
_FORMAT = "pointsman:v1"

Sha = NewType("Sha", str)


class StoreUnavailable(Exception):
    """The store did not do what it was asked, or nobody knows whether it did."""


class RedisStore:
    """``password`` wins over one in ``url``. Nothing is connected before it is used."""

    def __init__(
        self, url: str, password: str | None = None, *, answer_s_max: float = ANSWER_S_MAX
    ) -> None:
        self.url = url
        self.shown_url = without_password(url)
        self._answer_s_max = answer_s_max
        self._client = _client(url, password)
        self._shas: dict[str, Sha] = {}

    def __repr__(self) -> str:
        return f"<RedisStore {self.shown_url}>"

    async def flush(self, pool: PoolName, replica_id: ReplicaId, flush: Flush) -> Answer:
        """Writes it whole or not at all. Raises StoreUnavailable."""
        reply = await self._run(_FLUSH, keys_of(pool, replica_id), _arguments(flush))
        match reply:
            case [b"WRITTEN"]:
                return Written()
            case [b"LEASED"]:
                return Leased()
            case [b"ELSEWHERE", position]:
                return Elsewhere(_text(position))
        raise StoreUnavailable(f"{self.shown_url}: an answer that makes no sense")

    async def load(self, pool: PoolName, replica_id: ReplicaId) -> Saved | None:
        """What is kept. Raises StoreUnavailable; NotReadable where it is not to be believed."""
        keys = keys_of(pool, replica_id)
        seconds = min(LOAD_S_MAX, self._answer_s_max + LOAD_BLOCK_S_MAX * await self._size(keys[0]))
        fields, blocks, copies = await self._run(_LOAD, keys, [], seconds)
        counts: Counter[int] = Counter()
        for start in range(0, len(blocks), SLICE_BYTES):
            chunk = blocks[start : start + SLICE_BYTES]
            if len(chunk) % 8:
                raise NotReadable("a block whose name is not 8 bytes")
            # Not Counter's own, which would add them up one by one.
            dict.update(counts, dict.fromkeys(struct.unpack(f">{len(chunk) // 8}Q", chunk), 1))
            await asyncio.sleep(0)
        return saved_of(_pairs(fields), counts, _pairs(copies))

    async def _size(self, state_key: str) -> int:
        """How many blocks are said to be kept; 0 where it makes no sense."""
        client = cast(Any, self._client)
        said = await self._answer(lambda: client.hget(state_key, "blocks"), self._answer_s_max)
        return int(said) if said and said.isdigit() else 0

    async def position(self, pool: PoolName, replica_id: ReplicaId) -> str | None:
        """Where it stands. Raises StoreUnavailable."""
        client, key = cast(Any, self._client), keys_of(pool, replica_id)[0]
        said = await self._answer(lambda: client.hget(key, "position"), self._answer_s_max)
        return None if said is None else _text(said)

    async def memory_bytes(self, pool: PoolName, replica_id: ReplicaId) -> int:
        """What its three keys take there. Raises StoreUnavailable."""
        client = cast(Any, self._client)
        used = [
            await self._answer(partial(client.memory_usage, key), self._answer_s_max)
            for key in keys_of(pool, replica_id)
        ]
        return sum(size_bytes or 0 for size_bytes in used)

    async def infos(self) -> list[Mapping[str, Any]]:
        """What INFO says, of each server where there are several. Raises StoreUnavailable."""
        client = cast(Any, self._client)
        replies = await self._answer(client.info, self._answer_s_max)
        cluster = "redis_version" not in replies
        return list(replies.values()) if cluster else [replies]

    async def warnings(self) -> list[str]:
        """What is wrong with the servers themselves. Raises StoreUnavailable."""
        infos = await self.infos()
        found = [*unfit_version(infos), *unfit_policy(infos)]
        return [f"{each.what}: {each.fix}" for each in found if each.level == "warning"]

    async def close(self) -> None:
        try:
            await self._client.aclose()
        except (RedisError, OSError) as error:
            raise self._unavailable(error) from None

    async def _run(
        self,
        script: str,
        keys: list[str],
        arguments: list[bytes | str],
        seconds_max: float | None = None,
    ) -> Any:
        """By its digest; whole where the server does not know it (yet, or after a restart)."""
        client, seconds_max = cast(Any, self._client), seconds_max or self._answer_s_max

        async def ask() -> Any:
            if script in self._shas:
                try:
                    return await client.evalsha(self._shas[script], len(keys), *keys, *arguments)
                except NoScriptError:
                    pass
            return await client.eval(script, len(keys), *keys, *arguments)

        reply = await self._answer(ask, seconds_max)
        self._shas[script] = _sha1(script)
        return reply

    async def _answer(self, ask: Callable[[], Awaitable[Any]], seconds_max: float) -> Any:
        """Raises StoreUnavailable."""
        try:
            async with asyncio.timeout(seconds_max):
                return await ask()
        except TimeoutError:
            raise StoreUnavailable(
                f"{self.shown_url}: no answer within {seconds_max:g} s"
            ) from None
        except (RedisError, OSError) as error:
            raise self._unavailable(error) from None

    def _unavailable(self, error: Exception) -> StoreUnavailable:
        return StoreUnavailable(f"{self.shown_url}: {type(error).__name__}: {str(error)[:200]}")


def keys_of(pool: PoolName, replica_id: ReplicaId) -> list[str]:
    """State, blocks and copies, all in the slot that the braces name."""
    prefix = f"{_FORMAT}:{{{pool}/{replica_id}}}"
    return [f"{prefix}:state", f"{prefix}:blocks", f"{prefix}:copies"]


def without_password(url: str) -> str:
    """For logs: a user's name may be read, a password may not."""
    parts = urlsplit(url)
    user, at, host = parts.netloc.rpartition("@")
    shown = f"{user.partition(':')[0]}{at}{host}"
    return f"{parts.scheme}://{shown}{parts.path}"


def saved_of(
    fields: Mapping[bytes, bytes], counts: Counter[int], copies: Mapping[bytes, bytes]
) -> Saved | None:
    """None where nothing is kept. Raises NotReadable where the parts do not fit each other.

    ``counts``: each block once; what the copies say comes on top.
    """
    texts = {_text(name): _text(text) for name, text in fields.items()}
    if not texts.get("seq"):
        return None
    state, position = from_fields(texts), texts.get("position")
    counted = (texts.get("blocks"), texts.get("copies"))
    if counted != (str(len(counts)), str(len(copies))):
        raise NotReadable(f"{len(counts)} blocks, {len(copies)} copies; its state: {counted}")
    if not position:
        raise NotReadable("a flush broke off in it")
    for name, value in copies.items():
        block_hash, count = int.from_bytes(name, "big"), int.from_bytes(value, "big")
        if block_hash not in counts or len(name) != 8 or len(value) != 4 or count < 2:
            raise NotReadable("copies of a block that is not there")
        counts[block_hash] = count
    return Saved(position, state, counts)


def _arguments(flush: Flush) -> list[bytes | str]:
    several = {block_hash: count for block_hash, count in flush.copies.items() if count > 1}
    single = flush.copies.keys() - several.keys() if several else flush.copies
    fields = to_fields(flush.state) if flush.state is not None else {"seq": ""}
    return [
        flush.writer,
        flush.from_position,
        flush.to_position,
        "1" if flush.cleared else "0",
        str(round(flush.lease_s * 1000)),
        str(LIFE_S),
        struct.pack(f">{len(flush.removed)}Q", *flush.removed),
        struct.pack(f">{len(single)}Q", *single),
        struct.pack(f">{len(several)}Q", *several),
        struct.pack(f">{len(several)}I", *several.values()),
        str(flush.blocks),
        *(part for pair in fields.items() for part in pair),
    ]


def _text(raw: bytes) -> str:
    return raw.decode(errors="replace")


def _pairs(flat: list[bytes]) -> dict[bytes, bytes]:
    return dict(zip(flat[::2], flat[1::2], strict=True))


def _sha1(script: str) -> Sha:
    return Sha(sha1(script.encode(), usedforsecurity=False).hexdigest())


def _client(url: str, password: str | None) -> "redis.Redis | RedisCluster":
    """No retries of its own: what is asked again, and when, is the journal's to say."""
    scheme, separator, rest = url.partition("://")
    settings: dict[str, Any] = {
        "socket_connect_timeout": CONNECT_S_MAX,
        # Ours end earlier; this is for what the client asks by itself.
        "socket_timeout": LOAD_S_MAX,
    }
    if password is not None:
        settings["password"] = password
    if scheme.endswith(CLUSTER):
        plain = f"{scheme.removesuffix(CLUSTER)}{separator}{rest}"
        return RedisCluster.from_url(plain, **settings)
    return redis.Redis.from_url(url, retry=Retry(NoBackoff(), 0), **settings)
