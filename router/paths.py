"""A shell: which method and path is whose, for every listener of the router.

HEAD is answered as GET. A handler that raises has met a bug of ours: the log has it, and the client
an error of the shape that it knows.
"""

from collections.abc import Callable, Mapping

import structlog
from aiohttp import web

from router.http_server import Handler

_log = structlog.get_logger("router")

Handlers = Mapping[tuple[str, str], Handler]


async def answer(
    request: web.BaseRequest,
    handlers: Handlers,
    error: Callable[[int, str], web.Response],
    not_found: str,
) -> web.StreamResponse:
    """What the handler of the request's method and path says. ``error`` makes an answer of a status
    and a message; ``not_found`` is the message where no method has that path."""
    method = "GET" if request.method == "HEAD" else request.method
    handler = handlers.get((method, request.path))
    if handler is not None:
        try:
            return await handler(request)
        except Exception:
            _log.exception("handler_failed", path=request.path)
            return error(500, "pointsman has a bug here; its log has the details.")
    allowed = [known for known, path in handlers if path == request.path]
    if allowed:
        response = error(405, f"{request.path} wants {' or '.join(allowed)}.")
        response.headers["Allow"] = ", ".join(allowed)
        return response
    return error(404, not_found)
