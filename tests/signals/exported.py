"""What a fleet that runs really exports: every metric, its labels and their values."""

import json
from collections import defaultdict
from pathlib import Path

import httpx2 as httpx
from prometheus_client.parser import text_string_to_metric_families

from tests.e2e.services import SYSTEM, services
from tests.processes import call, until

Labels = dict[str, set[str]]
_TOOLS = [{"type": "function", "function": {"name": "search"}}]
_TENANCY = """
[tenancy]
tenant_header = "x-tenant"
[[tenancy.rules]]
name = "all"
salt = "none"
client_salt = "refuse"
"""
_SUFFIXES = {"counter": ("_total",), "gauge": ("",), "histogram": ("_bucket", "_sum", "_count")}


class Exported:
    """By the name of a sample: its labels and the values that they had."""

    def __init__(self) -> None:
        self.metrics: dict[str, Labels] = {}
        # Declared, but there was nothing to count yet: their labels are not known.
        self.without_samples: set[str] = set()

    def add(self, text: str) -> None:
        for family in text_string_to_metric_families(text):
            for suffix in _SUFFIXES.get(family.type, ("",)):
                self.without_samples.add(family.name + suffix)
            for sample in family.samples:
                labels = self.metrics.setdefault(sample.name, defaultdict(set))
                for label, value in sample.labels.items():
                    labels[label].add(value)
        self.without_samples -= self.metrics.keys()


def exported_by_a_fleet(folder: Path) -> Exported:
    """Two replicas that are warmed up, an indexer with a store, a release, and a conversation that
    alternates between tools and none.
    """
    bodies = folder / "bodies"
    bodies.mkdir()
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": "Hi"}]
    (bodies / "platform.json").write_text(json.dumps({"model": "sim", "messages": messages}))
    pool = f"warm_up = {json.dumps(str(bodies))}\n{_TENANCY}"
    exported = Exported()
    with services(folder, keeps=True, pool_settings=pool) as fleet:
        for name in fleet.names:
            until(
                lambda name=name: (
                    fleet.metric("pointsman_warm_ups_total", engine=name, outcome="ok") == 1
                ),
                "warm",
            )
        call(f"{fleet.admin_url}/admin/release", {"name": "web-1.4.2"})
        for fields in ({"tools": _TOOLS}, {}, {"tools": _TOOLS}):
            fleet.caught_up()
            assert fleet.chat("Which seats are left?", user="u", **fields).status_code == 200
        fleet.requests_after(0, 3)
        for url in (fleet.url, f"http://127.0.0.1:{fleet.http_port}", fleet.sim_url("a")):
            exported.add(httpx.get(f"{url}/metrics").text)
    return exported
