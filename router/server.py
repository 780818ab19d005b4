"""A shell: the router's HTTP side: which path does what, and the line that is logged of a request.

The two completion paths are relayed; ``/v1/models`` and what an operator reads are answered here.
Errors have the shape that OpenAI's clients understand.
"""

import time
from functools import partial
from typing import Any

import structlog
from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from router.fingerprint_table import FingerprintTable
from router.fleet import NOT_HASHED, HashedRequest
from router.http_server import BodyBroken, BodyTooLarge, read_body
from router.metrics import RouterMetrics, RoutingCollector, prediction_outcome
from router.openai import CHAT_PATH, COMPLETIONS_PATH, BadRequest, error_body, parse_request
from router.paths import Handlers, answer
from router.placement import Placement
from router.prefix_metrics import PrefixMetrics, unused_tools_mismatch
from router.preparation import Preparation, Prepared
from router.proxy import RelayResult, relay
from router.routing import Routing, Walk
from router.sampling import SampleCollector, Sampler
from router.upstream import Upstream
from router.usage import Usage

_log = structlog.get_logger("router")


class RouterServer:
    """``handle`` answers every request; hand it to ``http_server.make_runner``."""

    def __init__(
        self,
        routing: Routing,
        upstream: Upstream,
        *,
        body_bytes_max: int,
        sampler: Sampler | None = None,
        preparation: Preparation | None = None,
        fingerprints: FingerprintTable | None = None,
    ) -> None:
        self.routing = routing
        self._upstream = upstream
        self._preparation = preparation or Preparation()
        self._body_bytes_max = body_bytes_max
        self.registry = CollectorRegistry()
        self.registry.register(RoutingCollector(lambda: self.routing))
        self._metrics = RouterMetrics(self.registry)
        self._sampler = sampler
        if sampler is not None:
            self.registry.register(SampleCollector(sampler))
        # An empty table is no table that is missing.
        table = FingerprintTable() if fingerprints is None else fingerprints
        self._prefixes = PrefixMetrics(self.registry, table)
        self._handlers: Handlers = {
            ("POST", CHAT_PATH): self._complete,
            ("POST", COMPLETIONS_PATH): self._complete,
            ("GET", "/v1/models"): self._models,
            ("GET", "/health"): self._health,
            ("GET", "/ready"): self._ready,
            ("GET", "/metrics"): self._prometheus,
        }

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        not_found = f"There is no {request.path[:200]}; README lists what there is."
        return await answer(request, self._handlers, _error, not_found)

    # Completions.

    async def _complete(self, request: web.BaseRequest) -> web.StreamResponse:
        try:
            body = await read_body(request, self._body_bytes_max)
            prepared = self._prepared(request, body)
        except BodyTooLarge:
            return _error(413, f"The body is longer than {self._body_bytes_max} bytes.")
        except BodyBroken as error:
            return _error(400, f"The body did not arrive whole: {error}"[:300])
        except BadRequest as error:
            return web.json_response(error.body(), status=error.status)
        walk = self.routing.walk(prepared.request, _rank(request))
        finished = partial(self._finished, prepared, walk)
        return await relay(request, prepared.request.body, walk, self._upstream, finished)

    def _prepared(self, request: web.BaseRequest, body: bytes) -> Prepared:
        """Raises BadRequest."""
        preparation = self._preparation
        parsed = parse_request(request.path, body, request.headers, preparation.known_tools)
        pool = self.routing.fleet.replicas.pool_of(parsed.model)
        try:
            return preparation.prepare(parsed, pool, request.headers)
        except BadRequest as error:
            self._prefixes.refused(error.code)
            _log.info("request_refused", path=request.path, code=error.code)
            raise

    def _finished(self, prepared: Prepared, walk: Walk, result: RelayResult) -> None:
        hashed = walk.hashed
        prompt_tokens = hashed.prompt_tokens if hashed is not None and hashed.prefixes else None
        self._metrics.finished(result, walk.placement, prompt_tokens)
        if walk.placement is not None:
            self._prefixes.finished(
                prepared, walk.placement, hashed or NOT_HASHED, result.usage, time.time()
            )
        log = _log.info if result.outcome in ("ok", "client_gone") else _log.warning
        log("request", **_log_fields(prepared, walk, result))
        placed = walk.placement
        if self._sampler is not None and placed is not None:
            predicted = placed.predicted_cached_tokens
            self._sampler.offer(walk.request, placed.replica, predicted, result)

    # What is answered here.

    async def _models(self, request: web.BaseRequest) -> web.Response:
        models = self.routing.fleet.replicas.models()
        return web.json_response({"object": "list", "data": [m.entry for m in models]})

    async def _health(self, request: web.BaseRequest) -> web.Response:
        return web.json_response({"status": "ok"})

    async def _ready(self, request: web.BaseRequest) -> web.Response:
        """Ready where every pool has a replica in service; the rest is there to be read."""
        fleet = self.routing.fleet
        engines = fleet.replicas.engines.values()
        pools = {engine.config.pool: False for engine in engines}
        for engine in engines:
            pools[engine.config.pool] |= engine.up
        ready = all(pools.values())
        report: dict[str, Any] = {"ready": ready, "pools": pools}
        report["engines"] = {e.config.name: e.state for e in engines}
        report["evidence"] = {r.id: fleet.evidence(r.id) for r in fleet.replicas.replicas}
        warmed = {e.config.name: e.warm_up_state for e in engines if e.config.warm_up}
        if warmed:
            report["warm_up"] = warmed
        return web.json_response(report, status=200 if ready else 503)

    async def _prometheus(self, request: web.BaseRequest) -> web.Response:
        body = generate_latest(self.registry)
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})


def _error(status: int, message: str) -> web.Response:
    body = error_body(message, "invalid_request_error")
    return web.Response(body=body, status=status, content_type="application/json")


def _rank(request: web.BaseRequest) -> int | None:
    """The rank a client asks for; vLLM ignores what is no number."""
    text = request.headers.get("X-data-parallel-rank", "")
    return int(text) if text.isdecimal() and len(text) < 6 else None


def _log_fields(prepared: Prepared, walk: Walk, result: RelayResult) -> dict[str, Any]:
    """One line per request. No prompt, no salt, no session, no tenant: only figures and words of
    ours. The five signals of a request are always there, null where they are not known."""
    placement, usage = walk.placement, result.usage
    fields: dict[str, Any] = {
        "path": walk.request.path,
        "outcome": result.outcome,
        "status": result.status,
        "attempts": result.attempts,
        "stream": walk.request.stream,
        "response_bytes": result.response_bytes,
        "ttft_ms": _ms(result.ttft_s),
        "phases_ms": {k: round(v, 3) for k, v in {**walk.phases_ms, **result.phases_ms}.items()},
        "cached_tokens": usage.cached_tokens if usage is not None else None,
        "prompt_tokens": usage.prompt_tokens if usage is not None else None,
        "prefix_fingerprint": prepared.fingerprint,
        "replica": placement.replica if placement is not None else None,
        "tenant_kind": prepared.tenant_kind,
    }
    if placement is not None:
        fields |= _placement_fields(placement, usage)
    if walk.without is not None:
        fields["without"] = walk.without
    if walk.request.transformed:
        fields["transformed"] = list(walk.request.transformed)
    if result.failures:
        fields["failures"] = result.failures
    return fields | _practice_fields(prepared, walk.hashed or NOT_HASHED, usage)


def _placement_fields(placement: Placement, usage: Usage | None) -> dict[str, Any]:
    predicted = placement.predicted_cached_tokens
    fields: dict[str, Any] = {
        "reason": placement.decision.reason,
        "evidence": placement.evidence,
        "matched_blocks": placement.matched_blocks,
        "prompt_blocks": placement.prompt_blocks,
        "predicted_cached_tokens": predicted,
    }
    if predicted is not None and usage is not None and usage.cached_tokens is not None:
        fields["prediction"] = prediction_outcome(predicted, usage.cached_tokens)
    return fields


def _practice_fields(
    prepared: Prepared, hashed: HashedRequest, usage: Usage | None
) -> dict[str, Any]:
    """What the policy decided, and what the client or the engine does that costs hits."""
    fields: dict[str, Any] = {}
    if prepared.verdict is not None:
        fields |= {"group": prepared.verdict.salting.group, "salt_rule": prepared.verdict.rule}
    if prepared.tools_alternated:
        fields["tools_alternated"] = True
    if unused_tools_mismatch(prepared, hashed, usage.prompt_tokens if usage else None):
        fields["unused_tools_mismatch"] = True
    return fields


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1e3, 3)
