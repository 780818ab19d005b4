"""A shell: what Prometheus may read of the router."""

from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from router.placement import Placement
from router.proxy import RelayResult
from router.releases import Releases
from router.replicas import Engine
from router.routing import Routing
from router.warm_up import OUTCOMES

# From a full hit on an idle engine to a long prompt in a queue.
_TTFT_BUCKETS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
_REPLICA = ["replica"]


class RouterMetrics:
    """Counters of finished requests. Labels are replicas and words of ours, never a client's."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, text: str, labels: list[str]) -> Counter:
            return Counter(f"pointsman_{name}", text, labels, registry=registry)

        self._requests = counter("requests", "Requests, by how they ended", ["outcome", "status"])
        self._placed = counter("placed", "Requests placed, by reason", ["replica", "reason"])
        self._retries = counter("retries", "Attempts that another replica had to make good", [])
        self._predictions = counter(
            "predictions",
            "Predicted cached tokens against what the engine reported",
            ["replica", "outcome"],
        )
        self._prompt = counter("prompt_tokens", "Prompt tokens, as reported", _REPLICA)
        self._cached = counter("cached_tokens", "Cached prompt tokens, as reported", _REPLICA)
        self._predicted = counter("predicted_cached_tokens", "The same, as predicted", _REPLICA)
        self._token_counts = counter(
            "prompt_token_counts",
            "Our count of a prompt's tokens against the engine's",
            ["outcome"],
        )
        self._ttft = Histogram(
            "pointsman_ttft_seconds",
            "From the request's arrival to the first byte of a body",
            buckets=_TTFT_BUCKETS_S,
            registry=registry,
        )

    def finished(
        self, result: RelayResult, placement: Placement | None, prompt_tokens: int | None
    ) -> None:
        """Count one request. ``prompt_tokens``: our own count, None where there was none."""
        self._requests.labels(result.outcome, str(result.status or 0)).inc()
        if result.attempts > 1:
            self._retries.inc(result.attempts - 1)
        if result.ttft_s is not None:
            self._ttft.observe(result.ttft_s)
        if placement is None:
            return
        self._placed.labels(placement.replica, placement.decision.reason).inc()
        usage = result.usage
        if usage is None or usage.prompt_tokens is None:
            return
        self._prompt.labels(placement.replica).inc(usage.prompt_tokens)
        if prompt_tokens is not None:
            outcome = "equal" if prompt_tokens == usage.prompt_tokens else "different"
            self._token_counts.labels(outcome).inc()
        if usage.cached_tokens is not None:
            self._cached.labels(placement.replica).inc(usage.cached_tokens)
            self._prediction(placement, usage.cached_tokens)

    def _prediction(self, placement: Placement, reported: int) -> None:
        predicted = placement.predicted_cached_tokens
        if predicted is not None:
            self._predicted.labels(placement.replica).inc(predicted)
            outcome = prediction_outcome(predicted, reported)
            self._predictions.labels(placement.replica, outcome).inc()


def prediction_outcome(predicted: int, reported: int) -> str:
    """ "over": more was predicted than the engine found."""
    if predicted == reported:
        return "exact"
    return "over" if predicted > reported else "under"


class RoutingCollector(Collector):
    """What is true at this moment, read when it is asked for."""

    def __init__(self, routing: Callable[[], Routing]) -> None:
        self._routing = routing

    def collect(self) -> Iterator[Metric]:
        routing = self._routing()
        inflight = GaugeMetricFamily(
            "pointsman_inflight_requests", "Sequences in flight", labels=_REPLICA
        )
        outstanding = GaugeMetricFamily(
            "pointsman_outstanding_tokens", "Prompt tokens being computed", labels=_REPLICA
        )
        for replica in routing.fleet.replicas.replicas:
            load = routing.fleet.load.of(replica.id, 0.0)
            inflight.add_metric([replica.id], load.inflight)
            outstanding.add_metric([replica.id], load.outstanding_tokens)
        up = GaugeMetricFamily("pointsman_engine_up", "1: in service", labels=["engine"])
        for engine in routing.fleet.replicas.engines.values():
            up.add_metric([engine.config.name], engine.up)
        without = CounterMetricFamily(
            "pointsman_placed_without", "Requests placed without knowing matches", labels=["what"]
        )
        for what, times in routing.went_without.items():
            without.add_metric([what], times)
        yield from (inflight, outstanding, up, without)
        yield from _warm_ups(routing.fleet.replicas.engines.values())
        yield GaugeMetricFamily(
            "pointsman_waiting_requests", "Requests waiting for room", value=routing.waiting
        )
        yield GaugeMetricFamily(
            "pointsman_optimistic_blocks",
            "Blocks booked until their event",
            value=len(routing.fleet.optimistic),
        )


def _warm_ups(engines: Iterable[Engine]) -> Iterator[Metric]:
    """Of engines that are warmed up; the figures of a last warm-up stay until the next."""

    def gauge(name: str, text: str, label: str) -> GaugeMetricFamily:
        return GaugeMetricFamily(f"pointsman_{name}", text, labels=[label])

    warming = gauge("engine_warming", "1 while its warm-up bodies are being sent", "engine")
    seconds = gauge("warm_up_seconds", "Time that the last warm-up took", "engine")
    resident = gauge("warm_up_resident_blocks", "Blocks seen after the last warm-up", "replica")
    blocks = gauge("warm_up_prompt_blocks", "Full blocks of the bodies of it", "replica")
    ended = CounterMetricFamily(
        "pointsman_warm_ups", "Warm-ups, by outcome", labels=["engine", "outcome"]
    )
    for engine in engines:
        if not engine.config.warm_up:
            continue
        warming.add_metric([engine.config.name], engine.warming)
        for outcome in OUTCOMES:
            ended.add_metric([engine.config.name, outcome], engine.warm_ups[outcome])
        if (report := engine.warmed_up) is not None:
            seconds.add_metric([engine.config.name], report.seconds)
            for replica in report.replicas:
                if (known := report.blocks(replica)) is not None:
                    resident.add_metric([replica], known[0])
                    blocks.add_metric([replica], known[1])
    yield from (warming, seconds, resident, blocks, ended)


class ReleaseCollector(Collector):
    """The last mark alone has a series of its name, so that names stay bounded."""

    def __init__(self, releases: Releases) -> None:
        self._releases = releases

    def collect(self) -> Iterator[Metric]:
        releases = self._releases
        yield CounterMetricFamily("pointsman_releases", "Releases marked", value=releases.count)
        at = GaugeMetricFamily(
            "pointsman_release_timestamp_seconds",
            "Unix time of the last release that was marked",
            labels=["release"],
        )
        if releases.marked_at is not None:
            at.add_metric([releases.name], releases.marked_at)
        yield at
