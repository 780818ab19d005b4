"""A shell: what Prometheus may read of shared prefixes: who has which, and who breaks them.

Labels are replicas, pools, words of ours, declared kinds of tenants, and a bounded number of
fingerprints: never a tenant, a session or a salt.
"""

import time
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from router.fingerprint_table import FingerprintTable
from router.fleet import HashedRequest
from router.metrics import prediction_outcome
from router.placement import Placement
from router.preparation import Prepared
from router.sharing import BlockOwners
from router.usage import Usage

_NO_KIND = "none"
_GROUP = ["tenant_kind", "group"]


class PrefixMetrics:
    """Counters of placed requests that have come to their end. ``fingerprints``: the table."""

    def __init__(self, registry: CollectorRegistry, fingerprints: FingerprintTable) -> None:
        def counter(name: str, text: str, labels: list[str]) -> Counter:
            return Counter(f"pointsman_{name}", text, labels, registry=registry)

        self.fingerprints, self._owners = fingerprints, BlockOwners()
        registry.register(_FingerprintCollector(fingerprints))
        self._alternations = counter(
            "tool_alternations",
            "Steps with tools behind one without in a conversation, or the reverse, by what keeps"
            " the prefix: tool_choice none, or engines without"
            " --exclude-tools-when-tool-choice-none",
            ["pool", "remedy"],
        )
        self._unused_tools = counter(
            "unused_tools_mismatches",
            "Prompts with tool_choice none whose tokens say that the engine does not do with the"
            " tools what exclude_tools_when_tool_choice_none of its pool says",
            ["replica"],
        )
        self._refused = counter("policy_refusals", "Requests that the tenancy refused", ["code"])
        self._prompt = counter("group_prompt_tokens", "Prompt tokens, as reported", _GROUP)
        self._cached = counter(
            "group_cached_tokens",
            "Cached prompt tokens, as reported, by whose request computed them",
            [*_GROUP, "computed_by"],
        )
        self._predictions = counter(
            "group_predictions",
            "Predicted cached tokens against what the engine reported; a group that is isolated"
            " has none that are under",
            [*_GROUP, "outcome"],
        )

    def refused(self, code: str | None) -> None:
        self._refused.labels(code or "cache_salt").inc()

    def finished(
        self,
        prepared: Prepared,
        placement: Placement,
        hashed: HashedRequest,
        usage: Usage | None,
        now_s: float,
    ) -> None:
        """``hashed``: NOT_HASHED where the prompt was not. ``now_s``: Unix time."""
        prompt_tokens = usage.prompt_tokens if usage is not None else None
        cached_tokens = usage.cached_tokens if usage is not None else None
        self.fingerprints.count(prepared.fingerprint, now_s, prompt_tokens, cached_tokens)
        if prepared.tools_alternated:
            engines = prepared.practices.excludes_unused_tools
            remedy = "engine_flag" if engines else "tool_choice_none"
            self._alternations.labels(prepared.pool or "", remedy).inc()
        if unused_tools_mismatch(prepared, hashed, prompt_tokens):
            self._unused_tools.labels(placement.replica).inc()
        if prompt_tokens is not None and cached_tokens is not None:
            self._count_group(prepared, placement, hashed, prompt_tokens, cached_tokens)

    def _count_group(
        self,
        prepared: Prepared,
        placement: Placement,
        hashed: HashedRequest,
        prompt_tokens: int,
        cached_tokens: int,
    ) -> None:
        if (verdict := prepared.verdict) is None:
            return
        labels = (verdict.tenant.kind or _NO_KIND, verdict.salting.group)
        self._prompt.labels(*labels).inc(prompt_tokens)
        predicted = placement.predicted_cached_tokens
        if predicted is not None:
            outcome = prediction_outcome(predicted, cached_tokens)
            self._predictions.labels(*labels, outcome).inc()
        if not hashed.prefixes:
            self._cached.labels(*labels, "unknown").inc(cached_tokens)
            return
        # One scheme's names are enough: a pool's replicas nearly always have one.
        block_hashes, block_size = hashed.prefixes[0].block_hashes, hashed.schemes[0].block_size
        tenant = verdict.tenant.identity
        origins = self._owners.finished(tenant, block_hashes, block_size, cached_tokens)
        self._cached.labels(*labels, "same_tenant").inc(origins.own_tokens)
        self._cached.labels(*labels, "other_tenant").inc(origins.other_tokens)
        self._cached.labels(*labels, "unknown").inc(origins.unknown_tokens)


def unused_tools_mismatch(
    prepared: Prepared, hashed: HashedRequest, prompt_tokens: int | None
) -> bool:
    """Whether the engine's count is off to the side that its flag would explain."""
    if not prepared.unused_tools or not hashed.prefixes or prompt_tokens is None:
        return False
    if prepared.practices.excludes_unused_tools:
        return prompt_tokens > hashed.prompt_tokens
    return prompt_tokens < hashed.prompt_tokens


class _FingerprintCollector(Collector):
    """The table's rows, read when they are asked for; those that it forgot are in "other"."""

    def __init__(self, fingerprints: FingerprintTable) -> None:
        self._fingerprints = fingerprints

    def collect(self) -> Iterator[Metric]:
        table = self._fingerprints
        texts = {
            "requests": "Requests, by prefix fingerprint",
            "prompt_tokens": "Prompt tokens as reported, by prefix fingerprint",
            "cached_tokens": "Cached prompt tokens as reported, by prefix fingerprint",
        }
        for what, text in texts.items():
            family = CounterMetricFamily(
                f"pointsman_fingerprint_{what}", text, labels=["fingerprint"]
            )
            for name, row in table.rows().items():
                family.add_metric([name], getattr(row, what))
            yield family
        yield GaugeMetricFamily(
            "pointsman_fingerprints_live",
            "Prefix fingerprints that were seen within the last hour",
            value=table.live(time.time()),
        )
        yield CounterMetricFamily(
            "pointsman_fingerprints_new",
            "Requests whose prefix fingerprint was not in the table",
            value=table.new,
        )
