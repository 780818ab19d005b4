"""``python -m benchmarks.peers.bare PORT URL...``: the shortest pass-through that aiohttp offers.

The engines take turns. It looks at nothing: what any router in Python over aiohttp pays at least.
"""

import itertools
import sys
from collections.abc import AsyncIterator

import aiohttp
import uvloop
from aiohttp import web


def application_for(urls: list[str]) -> web.Application:
    turns = itertools.cycle(urls)

    async def relay(request: web.Request) -> web.StreamResponse:
        body = await request.read()
        headers = {k: v for k, v in request.headers.items() if k not in ("Content-Length", "Host")}
        target = next(turns) + request.path
        asked = sessions[0].request(request.method, target, data=body, headers=headers)
        async with asked as answer:
            relayed = web.StreamResponse(status=answer.status)
            relayed.content_type = answer.content_type
            relayed.content_length = answer.content_length
            await relayed.prepare(request)
            async for chunk in answer.content.iter_any():
                await relayed.write(chunk)
            await relayed.write_eof()
            return relayed

    sessions: list[aiohttp.ClientSession] = []

    async def session(_: web.Application) -> AsyncIterator[None]:
        async with aiohttp.ClientSession(auto_decompress=False) as opened:
            sessions.append(opened)
            yield

    application = web.Application()
    application.cleanup_ctx.append(session)
    application.router.add_route("*", "/{path:.*}", relay)
    return application


def main() -> None:
    port, urls = int(sys.argv[1]), sys.argv[2:]
    web.run_app(
        application_for(urls),
        host="127.0.0.1",
        port=port,
        access_log=None,
        print=None,
        handler_cancellation=True,
        loop=uvloop.new_event_loop(),
    )


if __name__ == "__main__":
    main()
