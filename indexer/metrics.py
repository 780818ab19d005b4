"""A shell: the hub's plain numbers as Prometheus metrics, read when they are scraped."""

import time
from collections.abc import Callable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from indexer.evidence import Level, Reason
from indexer.hub import Hub
from indexer.report import COUNTERS, GAUGES, replica_report
from indexer.subscriber import SubscriberStats

_LABELS = ("replica", "pool")


class HubCollector(Collector):
    """Series exist for the replicas there are; those of a departed one vanish with it."""

    def __init__(self, hub: Hub, stats: Callable[[], SubscriberStats]) -> None:
        self._hub, self._stats = hub, stats

    def collect(self) -> Iterator[Metric]:
        now = time.monotonic()
        reports = [replica_report(self._hub, link, now) for link in self._hub.links.values()]
        for name, text in GAUGES.items():
            gauge = GaugeMetricFamily(f"pointsman_indexer_{name}", text, labels=_LABELS)
            for report in reports:
                if report[name] is not None:
                    gauge.add_metric((report["replica"], report["pool"]), report[name])
            yield gauge
        for name, text in COUNTERS.items():
            counter = CounterMetricFamily(f"pointsman_indexer_{name}", text, labels=_LABELS)
            for link in self._hub.links.values():
                labels = (link.source.replica_id, link.source.pool)
                counter.add_metric(labels, getattr(link.state.counters, name))
            yield counter
        yield from self._evidence(reports)
        yield from self._queue()

    def _evidence(self, reports: list[dict[str, object]]) -> Iterator[Metric]:
        level = GaugeMetricFamily(
            "pointsman_indexer_evidence",
            "1 for the level of evidence a replica has",
            labels=(*_LABELS, "level"),
        )
        reason = GaugeMetricFamily(
            "pointsman_indexer_evidence_reason",
            "1 for each reason why evidence is not exact",
            labels=(*_LABELS, "reason"),
        )
        for report in reports:
            labels = (str(report["replica"]), str(report["pool"]))
            for each in Level:
                level.add_metric((*labels, each), float(report["evidence"] == each))
            reasons = report["reasons"]
            assert isinstance(reasons, list)
            for why in Reason:
                reason.add_metric((*labels, why), float(why in reasons))
        yield level
        yield reason

    def _queue(self) -> Iterator[Metric]:
        stats = self._stats()
        for name, text, value in (
            ("queue_frames", "Arrivals read and not yet handled", stats.queued_frames),
            ("queue_bytes", "Bytes of those", stats.queued_bytes),
            ("queue_full", "1 while reading has stopped because the queue is full", stats.full),
        ):
            yield GaugeMetricFamily(f"pointsman_indexer_{name}", text, value=float(value))
        for name, text, total in (
            ("queue_full_times", "Times the queue was full", stats.full_total),
            ("messages_received", "Messages read from the engines", stats.received_total),
            (
                "messages_unattributed",
                "Messages dropped since their connection was not certain",
                stats.unattributed_total,
            ),
        ):
            yield CounterMetricFamily(f"pointsman_indexer_{name}", text, value=float(total))
