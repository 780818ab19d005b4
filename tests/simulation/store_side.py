"""From journals to a store: flushes are lost, repeated, reordered, and the store itself crashes."""

import random

from indexer.durability import Flush
from indexer.hub import Hub
from indexer.index import ReplicaId
from indexer.link import Link
from tests.simulation.store import Kept, SpecifiedStore

SNAPSHOTS_MAX = 4


class StoreSide:
    """``reliable`` switches every fault off."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.store = SpecifiedStore()
        self.reliable = False
        self.late: list[tuple[ReplicaId, Flush]] = []
        self.snapshots: list[dict[str, Kept]] = [{}]
        # Of which nothing could be loaded: they are not written to, until it could or is given up.
        self.unloaded: set[str] = set()

    def flush(self, hub: Hub, now: float) -> None:
        """Whatever the journals want written, each with a fate of its own."""
        self.store.now = now
        for link in hub.links.values():
            if link.journal is None:
                continue
            if link.source.replica_id in self.unloaded:
                link.journal.bound_changes()
            else:
                self._flush(link, now)

    def _flush(self, link: Link, now: float) -> None:
        journal, replica = link.journal, link.source.replica_id
        assert journal is not None
        assert not self.store.mismatches, "a flush says how many blocks the store then holds"
        flush = journal.next(now)
        if flush is None:
            return
        fate = 1.0 if self.reliable else self.rng.random()
        if fate < 0.1:
            self.late.append((replica, flush))
        elif fate < 0.2:
            self.store.flush(replica, flush)
            self.late.append((replica, flush))
        elif fate >= 0.3:
            journal.answered(flush, self.store.flush(replica, flush), now)
            return
        journal.unanswered(flush, now)

    def act(self, hub: Hub, now: float) -> None:
        """One more thing that can happen on this side."""
        self.store.now = now
        chance = self.rng.random()
        if chance < 0.5:
            self.flush(hub, now)
        elif chance < 0.7:
            self.deliver_late(hub, now)
        elif chance < 0.8:
            self.snapshots = [*self.snapshots[-SNAPSHOTS_MAX:], dict(self.store.kept)]
        elif chance < 0.84:
            self.store.kept = dict(self.rng.choice(self.snapshots))

    def deliver_late(self, hub: Hub, now: float) -> None:
        """A flush that was given up arrives after all; its answer reaches whoever still waits."""
        if not self.late:
            return
        replica, flush = self.late.pop(self.rng.randrange(len(self.late)))
        answer = self.store.flush(replica, flush)
        link = hub.links.get(replica)
        if link is not None and link.journal is not None and self.rng.random() < 0.5:
            link.journal.answered(flush, answer, now)
