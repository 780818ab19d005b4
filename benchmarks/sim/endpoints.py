"""Where one rank publishes and answers replays: vLLM's --kv-events-config and its port rules.

Whether the PUB socket binds is read off the endpoint, as vLLM reads it: ``tcp://0.0.0.0:5557``
connects. Each data-parallel rank adds itself to both tcp ports; port 0 stands for any free port.
"""

from dataclasses import dataclass
from typing import Any

# vLLM's max_queue_size: batches between the scheduler and the thread that sends them.
QUEUED_MAX = 100_000


@dataclass(frozen=True)
class PublisherSettings:
    """vLLM's --kv-events-config; ``bind`` None leaves the choice to the endpoint."""

    endpoint: str = "tcp://*:5557"
    replay_endpoint: str | None = None
    topic: str = ""
    buffer_steps: int = 10_000
    hwm: int = 100_000
    bind: bool | None = None

    def source(self, endpoint: str, replay_endpoint: str | None) -> dict[str, Any]:
        """One rank's entry in the answer of GET /kv_event_sources, with its own endpoints.

        A publisher that was told to bind a plain address is reported as one that binds, which in
        vLLM's notation takes a "*": whoever reads it must not wait for it to connect.
        """
        if self.binds and not _reads_as_bound(endpoint):
            endpoint = f"tcp://*:{endpoint.rpartition(':')[2]}"
        return {
            "enable_kv_cache_events": True,
            "publisher": "zmq",
            "endpoint": endpoint,
            "replay_endpoint": replay_endpoint,
            "buffer_steps": self.buffer_steps,
            "hwm": self.hwm,
            "max_queue_size": QUEUED_MAX,
            "topic": self.topic,
        }

    @property
    def binds(self) -> bool:
        if self.bind is not None:
            return self.bind
        return _reads_as_bound(self.endpoint)


def _reads_as_bound(endpoint: str) -> bool:
    return "*" in endpoint or "::" in endpoint or endpoint.startswith(("ipc://", "inproc://"))


def offset_endpoint(endpoint: str, rank: int) -> str:
    """The endpoint of a rank. Raises ValueError for an ipc endpoint of any rank but 0."""
    if endpoint.startswith("inproc://"):
        return f"{endpoint}_dp{rank}"
    if not endpoint.startswith("tcp://"):
        if rank:
            raise ValueError(f"{endpoint}: only tcp and inproc endpoints have ranks")
        return endpoint
    host, _, port = endpoint.rpartition(":")
    if not port.isdigit() or int(port) + rank > 0xFFFF:
        raise ValueError(f"{endpoint}: rank {rank} has no port there")
    return f"{host}:{int(port) + rank if int(port) else 0}"
