"""Which replays run: one at a time per engine, and a few in all.

A replay stalls the engine's own publishing, so a rank waits until no other rank of its engine is
being replayed. What is asked for again replaces what waits; ranks are served in the order in which
the hub began to follow them.
"""

from collections.abc import Mapping
from typing import Protocol

from indexer.arrivals import ReplayId
from indexer.index import ReplicaId
from indexer.link import Link
from indexer.stream_outputs import RequestReplay

REPLAYS_MAX = 4


class ReplayTransport(Protocol):
    """What this asks of the world."""

    def replay(self, endpoint: str, start_seq: int) -> ReplayId: ...
    def cancel_replay(self, replay: ReplayId) -> None: ...


class ReplayQueue:
    """See the module's rules. ``links`` is the hub's, in its order."""

    def __init__(
        self, transport: ReplayTransport, links: Mapping[ReplicaId, Link], replays_max: int
    ) -> None:
        self._transport = transport
        self._links = links
        self._replays_max = replays_max
        self._running: dict[ReplayId, Link] = {}

    def __repr__(self) -> str:
        return f"<ReplayQueue {len(self._running)} of {self._replays_max} running>"

    def ask(self, link: Link, request: RequestReplay) -> None:
        """At once if it may run, else as soon as it may."""
        link.wanted = request
        self.start()

    def start(self) -> None:
        """Starts what waits and may run."""
        busy = {link.source.engine for link in self._running.values()}
        for link in self._links.values():
            if len(self._running) >= self._replays_max:
                return
            endpoint = link.source.replay_endpoint
            if link.wanted is None or endpoint is None or link.source.engine in busy:
                continue
            replay = self._transport.replay(endpoint, link.wanted.start_seq)
            link.replay = (replay, link.wanted.request)
            link.wanted = None
            self._running[replay] = link
            busy.add(link.source.engine)

    def running(self, replay: ReplayId) -> tuple[Link, int] | None:
        """Whose replay this is and which request of its stream; None where it was dropped."""
        link = self._running.get(replay)
        if link is None or link.replay is None:
            return None
        return link, link.replay[1]

    def over(self, replay: ReplayId) -> tuple[Link, int] | None:
        """As ``running``, of a replay that has come to its end."""
        found = self.running(replay)
        if found is not None:
            del self._running[replay]
            found[0].replay = None
        return found

    def drop(self, link: Link) -> None:
        """The rank wants no replay any more."""
        link.wanted = None
        if link.replay is not None:
            self._running.pop(link.replay[0], None)
            self._transport.cancel_replay(link.replay[0])
            link.replay = None
