"""A shell: keeps samples of requests, in a thread of its own, and never at a request's cost.

The event loop decides and hands over; encoding and writing happen in the thread. What the thread
does not keep up with, and what cannot be written, is dropped, counted and logged.
"""

import os
import threading
import time
from collections import Counter, deque
from collections.abc import Iterator

import structlog
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from router.config import SampleConfig
from router.openai import ParsedRequest
from router.relay_contract import RelayResult
from router.sample_files import SampleFiles
from router.samples import Sample, is_sampled, sample_line, tag_under

_log = structlog.get_logger("router")

# Bodies that wait for the thread. A disk that is slower for long is one to drop samples for.
WAITING_BYTES_MAX = 32 << 20
_CLOSE_S_MAX = 5.0
# A full disk is said once in a while, not with every request.
_LOG_INTERVAL_S = 60.0
# What failed is sent again by most clients, and would be in the log twice.
_KEPT = ("ok", "client_gone")
OUTCOMES = ("written", "overload", "unwritable", "failed")


class Sampler:
    """``offer`` each finished request; ``close`` at the end. Raises OSError where the folder cannot
    be written to."""

    def __init__(self, config: SampleConfig, *, waiting_bytes_max: int = WAITING_BYTES_MAX) -> None:
        assert config.folder
        self._share, self._waiting_bytes_max = config.share, waiting_bytes_max
        self._files = SampleFiles(config.folder, config.file_bytes_max, config.bytes_max)
        self._files.prepare()
        self._tag = tag_under(os.urandom(32))
        self._waiting: deque[Sample] = deque()
        self._waiting_bytes = 0
        self._changed = threading.Condition()
        self._closing = False
        self._logged_at = float("-inf")
        self.counts: Counter[str] = Counter(dict.fromkeys(OUTCOMES, 0))
        self._thread = threading.Thread(target=self._run, name="samples", daemon=True)
        self._thread.start()

    def offer(
        self, request: ParsedRequest, replica: str, predicted: int | None, result: RelayResult
    ) -> None:
        """Called on the event loop with what was placed: never waits for a disk."""
        if result.outcome not in _KEPT or not is_sampled(request, self._share):
            return
        usage = result.usage
        sample = Sample.of(
            request,
            {
                "time": round(time.time(), 3),
                "prompt_tokens": usage and usage.prompt_tokens,
                "cached_tokens": usage and usage.cached_tokens,
                "predicted": predicted,
                "replica": replica,
            },
        )
        with self._changed:
            if self._waiting_bytes + len(sample.body) > self._waiting_bytes_max:
                self._lost("overload", "more than the disk keeps up with")
                return
            self._waiting.append(sample)
            self._waiting_bytes += len(sample.body)
            self._changed.notify()

    def close(self) -> None:
        """Write what waits, within limits."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(_CLOSE_S_MAX)

    def _run(self) -> None:
        while (sample := self._next()) is not None:
            try:
                self._write(sample)
            # A bug of ours must not end the thread, and with it the samples, unseen.
            except Exception as error:
                self._lost("failed", repr(error)[:200])
        try:
            self._files.close()
        except OSError as error:
            self._lost("unwritable", str(error))

    def _next(self) -> Sample | None:
        with self._changed:
            while not self._waiting:
                if self._closing:
                    return None
                self._changed.wait()
            sample = self._waiting.popleft()
            self._waiting_bytes -= len(sample.body)
            return sample

    def _write(self, sample: Sample) -> None:
        try:
            self._files.append(sample_line(sample, self._tag))
        except OSError as error:
            self._lost("unwritable", str(error))
        except ValueError as error:
            self._lost("failed", str(error))
        else:
            self.counts["written"] += 1

    def _lost(self, outcome: str, why: str) -> None:
        self.counts[outcome] += 1
        now = time.monotonic()
        if now - self._logged_at >= _LOG_INTERVAL_S:
            self._logged_at = now
            _log.warning("samples_lost", outcome=outcome, why=why, counts=dict(self.counts))


class SampleCollector(Collector):
    """Samples by what became of them."""

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler

    def collect(self) -> Iterator[Metric]:
        samples = CounterMetricFamily(
            "pointsman_samples", "Sampled requests, by what became of them", labels=["outcome"]
        )
        for outcome in OUTCOMES:
            samples.add_metric([outcome], self._sampler.counts[outcome])
        yield samples
