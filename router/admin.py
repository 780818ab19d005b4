"""A shell: the admin listener: what an operator tells or asks the router, and no client may.

Rules it keeps:

* It is a site of its own, on the loopback unless the configuration says otherwise. Nothing of it is
  on the clients' listener. It asks for no key: keep it inside.
* A page that an operator's browser has open cannot act here: what a browser sends on behalf of a
  page carries ``Origin``, and is refused.
* What there is is one table of method and path, which whoever has something to answer adds to.
"""

import time
from typing import Any

import msgspec
import structlog
from aiohttp import web

from router.fingerprint_table import FingerprintTable
from router.http_server import BodyBroken, BodyTooLarge, read_body
from router.paths import Handlers, answer
from router.releases import NoReleaseName, Releases

_log = structlog.get_logger("router")

_BODY_BYTES_MAX = 64 * 2**10


class AdminServer:
    """``handle`` answers every request of the listener; hand it to ``http_server.make_runner``."""

    def __init__(self, handlers: Handlers) -> None:
        self._handlers = dict(handlers)

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.headers.get("Origin") is not None:
            return admin_error(403, "A browser's page has no business here.")
        there = ", ".join(f"{known} {path}" for known, path in self._handlers)
        not_found = f"There is no {request.path[:200]} here, but {there}."
        return await answer(request, self._handlers, admin_error, not_found)


def release_handlers(releases: Releases) -> Handlers:
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


def fingerprint_handlers(fingerprints: FingerprintTable) -> Handlers:
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
