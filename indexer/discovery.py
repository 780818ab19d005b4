"""Asks one replica what it is: event sources, version, models, cache and sleep state.

Fetches with limits and leaves the reading to ``sources``. Rules it keeps:

* One deadline for all requests; bodies of at most 4 MiB, uncompressed, so that a small answer
  cannot become a large one; redirects are not followed.
* A 404 of ``/kv_event_sources`` means an engine older than 0.31, and of ``/metrics`` one whose
  cache is unknown. Every other failure is a ``DiscoveryError``; ``ReplicaUnavailable`` is the
  kind that time may heal.
* Only the lines of two metrics are given to the parser, and a limited number of them.
"""

import asyncio
from collections.abc import Iterator

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from indexer.sources import (
    RANK_MAX,
    DiscoveryError,
    EngineFacts,
    MetricSample,
    host_of,
    parse_cache,
    parse_models,
    parse_sleep_states,
    parse_sources,
    parse_version,
)

__all__ = [
    "DiscoveryError",
    "EngineFacts",
    "KeyRefused",
    "ReplicaUnavailable",
    "discover",
    "fetch",
]

BODY_BYTES_MAX = 4 * 2**20
_CHUNK_BYTES = 64 * 2**10
_METRICS = ("vllm:cache_config_info{", "vllm:engine_sleep_state{")
_METRIC_LINE_CHARS_MAX = 16 * 2**10
# Per rank one line about its cache and one for each of three sleep states.
_METRIC_LINES_MAX = 4 * (RANK_MAX + 1)


class ReplicaUnavailable(DiscoveryError):
    """It does not answer, or says that it cannot now: ask again later."""


class KeyRefused(DiscoveryError):
    """It asks for an API key, or does not take the one that was sent."""


async def discover(
    session: aiohttp.ClientSession, replica_url: str, timeout_s: float
) -> EngineFacts:
    """Raises ``DiscoveryError``. Sends what the session sends, so credentials belong there."""
    host = host_of(replica_url)
    try:
        async with asyncio.timeout(timeout_s):
            version = parse_version(_required(await fetch(session, replica_url, "/version")))
            sources = await fetch(session, replica_url, "/kv_event_sources")
            models = _required(await fetch(session, replica_url, "/v1/models"))
            metrics = await fetch(session, replica_url, "/metrics")
    except TimeoutError as error:
        raise ReplicaUnavailable(
            f"{replica_url} did not answer within {timeout_s} s; check that it is up and reachable"
        ) from error
    samples = read_samples(metrics or b"")
    bases, lora_paths = parse_models(models)
    return EngineFacts(
        version=version,
        sources=None if sources is None else parse_sources(sources, host, version),
        models=bases,
        lora_paths=lora_paths,
        cache=parse_cache(samples),
        sleep_states=parse_sleep_states(samples),
    )


def read_samples(body: bytes) -> list[MetricSample]:
    """The samples this package reads, of a body in Prometheus' text format."""
    lines = list(_lines_of_interest(body.decode(errors="replace")))
    if len(lines) > _METRIC_LINES_MAX:
        raise DiscoveryError(f"/metrics has {len(lines)} lines about cache and sleep state")
    try:
        return [
            MetricSample(sample.name, sample.labels, sample.value)
            for family in text_string_to_metric_families("\n".join(lines) + "\n")
            for sample in family.samples
        ]
    except Exception as error:  # The parser raises whatever its string operations raise.
        raise DiscoveryError(
            f"/metrics is not in Prometheus' text format ({error!r}); check that the replica's "
            "URL leads to a vLLM server"
        ) from error


def _lines_of_interest(text: str) -> Iterator[str]:
    for line in text.split("\n"):
        if line.startswith(_METRICS) and len(line) <= _METRIC_LINE_CHARS_MAX:
            yield line.rstrip("\r")


def _required(body: bytes | None) -> bytes:
    if body is None:
        raise DiscoveryError(
            "no /version or /v1/models there (404); check that the replica's URL is the root of "
            "a vLLM server, without /v1"
        )
    return body


async def fetch(session: aiohttp.ClientSession, replica_url: str, path: str) -> bytes | None:
    """The body of one page; None for a 404. Raises ``DiscoveryError``, or TimeoutError."""
    url = replica_url.rstrip("/") + path
    try:
        async with session.get(
            url,
            allow_redirects=False,
            auto_decompress=False,
            headers={"Accept-Encoding": "identity"},
        ) as response:
            if response.status == 404:
                return None
            _check_status(url, response.status)
            return await _read_limited(response, url)
    except aiohttp.InvalidURL as error:
        raise DiscoveryError(f"not a URL: {url!r}; use http://HOST:PORT") from error
    except (aiohttp.ClientError, OSError) as error:
        if isinstance(error, TimeoutError):
            raise
        raise ReplicaUnavailable(
            f"{url} cannot be fetched ({str(error) or type(error).__name__});"
            " check that the replica is up and reachable"
        ) from error


def _check_status(url: str, status: int) -> None:
    if status == 200:
        return
    if status in (401, 403):
        raise KeyRefused(f"{url} answered {status}; configure the replica's API key")
    if status >= 500 or status == 429:
        raise ReplicaUnavailable(f"{url} answered {status}; see the replica's log")
    raise DiscoveryError(
        f"{url} answered {status}; check that the replica's URL leads to a vLLM server directly"
    )


async def _read_limited(response: aiohttp.ClientResponse, url: str) -> bytes:
    body = bytearray()
    async for chunk in response.content.iter_chunked(_CHUNK_BYTES):
        body += chunk
        if len(body) > BODY_BYTES_MAX:
            raise DiscoveryError(f"{url} answered more than {BODY_BYTES_MAX} bytes; not vLLM?")
    return bytes(body)
