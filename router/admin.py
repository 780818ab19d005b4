"""A shell: the admin listener: what an operator tells or asks the router, and no client may.

Rules it keeps:

* It is a site of its own, on the loopback unless the configuration says otherwise. Nothing of it is
  on the clients' listener. It asks for no key: keep it inside.
* A page that an operator's browser has open cannot act here: what a browser sends on behalf of a
  page carries ``Origin``, and is refused.
* What there is is one table of method and path, which whoever has something to answer adds to.
"""

import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec
import structlog
from aiohttp import web

from router.fingerprint_table import FingerprintTable
from router.http_server import BodyBroken, BodyTooLarge, read_body
from router.releases import NoReleaseName, Releases

_log = structlog.get_logger("router")

_BODY_BYTES_MAX = 64 * 2**10

AdminHandler = Callable[[web.BaseRequest], Awaitable[web.Response]]
AdminHandlers = Mapping[tuple[str, str], AdminHandler]


class AdminServer:
    """``handle`` answers every request of the listener; hand it to ``http_server.make_runner``."""

    def __init__(self, handlers: AdminHandlers) -> None:
        self._handlers = dict(handlers)

    async def handle(self, request: web.BaseRequest) -> web.Response:
        method = "GET" if request.method == "HEAD" else request.method
        handler = self._handlers.get((method, request.path))
        if request.headers.get("Origin") is not None:
            return admin_error(403, "A browser's page has no business here.")
        if handler is not None:
            try:
                return await handler(request)
            except Exception:
                # A bug of ours.
                _log.exception("handler_failed", path=request.path)
                return admin_error(500, "pointsman has a bug here; its log has the details.")
        allowed = [known for known, path in self._handlers if path == request.path]
        if allowed:
            response = admin_error(405, f"{request.path} wants {' or '.join(allowed)}.")
            response.headers["Allow"] = ", ".join(allowed)
            return response
        there = ", ".join(f"{known} {path}" for known, path in self._handlers)
        return admin_error(404, f"There is no {request.path[:200]} here, but {there}.")


def release_handlers(releases: Releases) -> AdminHandlers:
    """``POST /admin/release``, with nothing or with ``{"name": "..."}``, marks a release."""

    async def mark(request: web.BaseRequest) -> web.Response:
        try:
            releases.mark(await _name_in(request), time.time())
        except (NoReleaseName, BodyBroken) as error:
            return admin_error(400, str(error))
        except BodyTooLarge:
            return admin_error(413, f"The body is longer than {_BODY_BYTES_MAX} bytes.")
        _log.info("release_marked", name=releases.name, releases=releases.count)
        marked: dict[str, Any] = {"name": releases.name, "marked_at": releases.marked_at}
        return web.json_response(marked)

    return {("POST", "/admin/release"): mark}


def fingerprint_handlers(fingerprints: FingerprintTable) -> AdminHandlers:
    """``GET /fingerprints``: which versions of the shared prefix are live, as ``pointsman
    fingerprints`` reads them."""

    async def report(request: web.BaseRequest) -> web.Response:
        return web.json_response(fingerprints.report(time.time()))

    return {("GET", "/fingerprints"): report}


async def _name_in(request: web.BaseRequest) -> object:
    """Raises NoReleaseName for a body that is something else, and what reading raises."""
    body = await read_body(request, _BODY_BYTES_MAX)
    if not body:
        return None
    try:
        fields = msgspec.json.decode(body)
    except msgspec.DecodeError as error:
        raise NoReleaseName(f"the body is no JSON: {error}") from None
    if not isinstance(fields, dict) or not fields.keys() <= {"name"}:
        raise NoReleaseName('the body is {"name": "..."}, or there is none')
    return fields.get("name")


def admin_error(status: int, message: str) -> web.Response:
    """What every path of this listener answers where it cannot do what it was asked."""
    return web.json_response({"error": message}, status=status)
