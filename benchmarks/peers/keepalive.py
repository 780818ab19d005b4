"""A shell: an HTTP/1.1 client that costs little, since it runs beside what is measured.

One connection per client, kept for all of its requests; each sends its next request when the answer
to the last has come whole. Answers have a content-length or are chunked; nothing else is measured.
"""

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

# A chunk of a stream, or an answer about 256 replicas.
_READ_BYTES_MAX = 2**24


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes


class Connection:
    """Raises OSError or EOFError where the server goes, ValueError for what it cannot read."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def open(cls, port: int) -> "Connection":
        return cls(*await asyncio.open_connection("127.0.0.1", port, limit=_READ_BYTES_MAX))

    async def ask(self, request: bytes) -> Answer:
        self._writer.write(request)
        head = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        fields = (line.partition(":") for line in head[1:] if line)
        headers = {name.strip().lower(): value.strip() for name, _, value in fields}
        return Answer(int(head[0].split()[1]), headers, await self._body(headers))

    def close(self) -> None:
        self._writer.close()

    async def _body(self, headers: dict[str, str]) -> bytes:
        if "content-length" in headers:
            return await self._reader.readexactly(int(headers["content-length"]))
        body = b""
        while True:
            size = int(await self._reader.readuntil(b"\r\n"), 16)
            body += (await self._reader.readexactly(size + 2))[:-2]
            if not size:
                return body


def post(path: str, body: bytes) -> bytes:
    """The bytes of a request as an OpenAI client sends it."""
    head = (
        f"POST {path} HTTP/1.1\r\nhost: benchmark\r\ncontent-type: application/json\r\n"
        "authorization: Bearer key\r\naccept: application/json\r\nuser-agent: benchmark\r\n"
        f"x-request-id: 0123456789abcdef\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


async def send_all(port: int, requests: Sequence[bytes], clients: int) -> list[Answer]:
    """Every request once, spread over the clients in turns; the last answer of each client."""

    async def client(share: Sequence[bytes]) -> Answer:
        connection = await Connection.open(port)
        try:
            for request in share:
                answer = await connection.ask(request)
                if answer.status != 200:
                    raise ValueError(f"answered {answer.status}: {answer.body[:200]!r}")
            return answer
        finally:
            connection.close()

    shares = [requests[first::clients] for first in range(clients)]
    return await asyncio.gather(*(client(share) for share in shares if share))
