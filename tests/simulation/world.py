"""One simulated world from a seed: engines, a bad network, the hub, and the invariant.

The invariant (design): at every step the index of a replica is a subset, copy by copy, of the
engine's pool as of the last applied batch, and equal to it where the history is said to be
complete; so is what a store keeps of it, as of the batch that it names. After quiet it has caught
up, and is complete wherever the engine can still tell its whole log; and an indexer that is killed
then and started again knows all of it.
"""

import random
from collections.abc import Mapping

from indexer.arrivals import Arrival, FrameReceived
from indexer.durability import JournalLimits
from indexer.evidence import Level
from indexer.hub import Hub, Link, RankSource
from indexer.index import PoolName, ReplicaId, match_replica
from indexer.saved_state import Saved
from indexer.stream_outputs import Apply
from proto.blockhash import BlockHash
from tests.simulation.engine import WorldEngine
from tests.simulation.faults import Faults
from tests.simulation.network import Network
from tests.simulation.store_side import StoreSide

POOL = PoolName("pool")
ACTIONS = 60


class World(Faults):
    """``run`` raises AssertionError where the invariant does not hold."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        names = [f"engine-{n}" for n in range(rng.choice((1, 1, 2)))]
        self.engines = {name: WorldEngine(rng, name) for name in names}
        self.network = Network(rng, self.engines)
        self.storage = StoreSide(rng) if rng.random() < 0.6 else None
        self.starts = 0
        self.hub = self._new_hub()
        self.dials_in = {name: rng.random() < 0.3 for name in names}
        self.has_replay = {name: rng.random() < 0.85 for name in names}
        self.knows_pool = {name: rng.random() < 0.8 for name in names}
        self.gentle = rng.random() < 0.3
        for name in names:
            self._follow(name, None)

    def _new_hub(self) -> Hub:
        self.starts += 1
        return Hub(
            self.network,
            replays_max=self.network.replays_max,
            writer=f"writer-{self.starts}" if self.storage is not None else None,
            limits=JournalLimits(changes_max=12, rewrite_blocks_max=5),
        )

    def _follow(self, name: str, saved: Saved | None) -> None:
        engine = self.engines[name]
        if self.dials_in[name]:
            self.network.dial_in(engine)
        source = RankSource(
            ReplicaId(name),
            POOL,
            engine=name,
            endpoint=None if self.dials_in[name] else name,
            replay_endpoint=name if self.has_replay[name] else None,
            topic=engine.topic,
            blocks=engine.capacity if self.knows_pool[name] else None,
        )
        link = self.hub.add(source, self.network.now, saved)
        link.state.learn(version=engine.wire.version + ".0", lora_paths={})
        if saved is not None:
            self._check_saved(engine, saved)
            # What was incomplete stays so until the engine's next clear.
            engine.index_was_cleared |= not saved.state.history_complete
            evidence = self.hub.evidence(ReplicaId(name), self.network.now)
            assert evidence.level is not Level.EXACT, "not proven yet"

    def run(self) -> None:
        for _ in range(ACTIONS):
            self._act()
        self._quiet()

    # What happens.

    def _act(self) -> None:
        rng, engine = self.rng, self.rng.choice(list(self.engines.values()))
        chance = rng.random()
        if chance < 0.35:
            engine.submit()
            self._step(engine)
        elif chance < 0.55:
            self._step(engine)
        elif chance < 0.80:
            self._deliver(rng.randint(1, 12))
        elif chance < 0.90:
            self.network.advance(rng.choice((0.05, 0.5, 2.1, 7.0)))
            self.hub.tick(self.network.now)
        elif not self.gentle:
            self._fault(engine)
        self._work(rng.randint(0, 6))
        if self.storage is not None:
            self.storage.act(self.hub, self.network.now)
            if rng.random() < 0.02:
                self._crash()

    def _crash(self) -> None:
        """kill -9 of the indexer; until it is back, nobody hears what the engines say."""
        assert self.storage is not None
        self.network.indexer_died()
        if not self.network.reliable:
            for engine in self.engines.values():
                self._go_on_unheard(engine)
        self.hub = self._new_hub()
        for name in self.engines:
            away = not self.network.reliable and self.rng.random() < 0.25
            self._follow(name, None if away else self.storage.store.load(name))
            self.storage.unloaded.discard(name)
            if away and self.has_replay[name]:
                self.storage.unloaded.add(name)

    def _load_late(self, name: str) -> None:
        """A store that was away at the start is there now, and knows more than the memory may."""
        assert self.storage is not None
        self.storage.unloaded.discard(name)
        link = self.hub.links[ReplicaId(name)]
        saved = self.storage.store.load(name)
        if saved is None or link.state.indexed.history_complete or self.rng.random() < 0.1:
            return
        engine = self.engines[name]
        self._check_saved(engine, saved)
        engine.index_was_cleared |= not saved.state.history_complete
        self.hub.begin_anew(ReplicaId(name), saved, self.network.now)
        evidence = self.hub.evidence(ReplicaId(name), self.network.now)
        assert evidence.level is not Level.EXACT, "not proven yet"

    def _go_on_unheard(self, engine: WorldEngine) -> None:
        if self.rng.random() < 0.3:
            engine.start()
        for _ in range(self.rng.choice((0, 1, 3, 12))):
            engine.submit()
            engine.step()

    def _step(self, engine: WorldEngine) -> None:
        # Behind a proxy the first number has to arrive: nothing else gives the restart away.
        gentle = self.gentle or (engine.proxied and engine.seq < 1)
        fates = ("sent",) if gentle else ("sent",) * 14 + ("dropped", "burnt")
        self.network.publish(engine, engine.step(self.rng.choice(fates)))

    def _deliver(self, count: int) -> None:
        for _ in range(count):
            arrival = self.network.deliver_one()
            if arrival is not None:
                self.hub.handle(arrival, self.network.now)
                self._check_rank(arrival)

    def _check_rank(self, arrival: Arrival) -> None:
        if isinstance(arrival, FrameReceived):
            assert arrival.topic.startswith(b"engine-")

    def _work(self, count: int) -> None:
        for _ in range(count):
            if not self.hub.waiting:
                return
            link, output = self.hub._work[0]
            self.hub.step()
            if isinstance(output, Apply):
                self._check_applied(link, output)
            else:
                assert not link.state.blocks.primary.counts, "a clear left blocks"

    # What must hold.

    def _check_applied(self, link: Link, output: Apply) -> None:
        engine = self.engines[link.source.engine]
        truth = self._expected(link, engine.truth_of[output.payload])
        index = link.state.blocks.primary.counts
        assert_subset(index, truth)
        evidence = self.hub.evidence(link.source.replica_id, self.network.now)
        if link.state.indexed.history_complete and not link.state.facts(None, 0).unknown_event:
            assert dict(index) == truth, "complete history, yet not equal to the pool"
        if evidence.level is Level.EXACT:
            assert dict(index) == truth and engine.known_seed
        if output.payload in engine.unknown:
            assert evidence.level is not Level.EXACT, "an unknown event may have removed blocks"
        if link.state.blocks.capacity is not None:
            assert sum(index.values()) <= engine.capacity
        self._check_matches(link)

    def _expected(self, link: Link, truth: dict[BlockHash, int]) -> dict[BlockHash, int]:
        """The truth under the names that the index uses for this engine."""
        engine = self.engines[link.source.engine]
        return truth if link.state.translator is None else engine.translated(truth)

    def _check_matches(self, link: Link) -> None:
        """Bisection and scan against the plain definition, on prompts the engine has seen."""
        engine = self.engines[link.source.engine]
        scheme = engine.scheme if engine.known_seed else link.state.translator
        if scheme is None or not link.state.indexed.scheme_ids:
            return
        resident = link.state.blocks.primary.counts
        hashes = engine.names(self.rng.choice(engine.tokens))
        expected = max((n for n, h in enumerate(hashes, 1) if h in resident), default=0)
        if not engine.skips_cache:
            assert match_replica(link.state.indexed, hashes).gpu == expected

    def _check_saved(self, engine: WorldEngine, saved: Saved) -> None:
        """What a store keeps is the truth as of the batch that it names, or less of it."""
        truth = engine.truth_of_digest(saved.state.digest)
        assert_subset(saved.counts, truth)
        if saved.state.history_complete and not saved.state.unknown_event:
            assert dict(saved.counts) == truth, "kept as complete, yet not equal to the pool"

    def _quiet(self) -> None:
        """Everything is delivered, every engine has told all it has to tell, one probe answered."""
        self.network.reliable = True
        if self.storage is not None:
            self.storage.reliable = True
            for name in sorted(self.storage.unloaded):
                self._load_late(name)
        self._settle(15.0)
        self._speak()
        self._settle(20.0)
        for replica_id, link in self.hub.links.items():
            self._check_quiet(replica_id, link)
        if self.storage is not None:
            self._check_restart()

    def _speak(self, pause_s: float = 0.0) -> None:
        for engine in self.engines.values():
            # A clear that an idle engine holds back comes with its next step (design, invariant),
            # and that a last batch was burnt shows when another one follows.
            before = engine.seq
            while engine.seq == before or engine.engine.has_requests:
                engine.submit()
                while engine.engine.has_requests:
                    self.network.publish(engine, engine.step())
                    self._settle(pause_s)

    def _check_restart(self) -> None:
        """Killed and started again, the indexer knows what it knew."""
        before = {name: self._known(name) for name in self.hub.links}
        evidence = {name: self.hub.evidence(name, self.network.now) for name in self.hub.links}
        kept = [name for name in self.hub.links if self._is_kept(name)]
        for name in kept:
            journal = self.hub.links[name].journal
            assert journal is not None and journal.durable(self.network.now), "not durable"
        self._crash()
        self._settle(8.0)
        for name in kept:
            assert self._known(name) == before[name], "a restart forgot something"
        # An engine that connects to us is known to be there once it says something.
        self._speak(pause_s=1.0)
        self._settle(8.0)
        for name in kept:
            now_known = self.hub.evidence(name, self.network.now)
            if evidence[name].level is not Level.FALLBACK:
                assert set(now_known.reasons) <= set(evidence[name].reasons), f"{now_known}"
            self._check_quiet(name, self.hub.links[name])

    def _known(self, name: ReplicaId) -> tuple[object, ...]:
        state = self.hub.links[name].state
        return dict(state.blocks.primary.counts), state.indexed.scheme_ids

    def _is_kept(self, name: ReplicaId) -> bool:
        """Translated blocks are not kept, and what no replay proves is not believed."""
        link = self.hub.links[name]
        proves = self.has_replay[name] and not self.engines[name].replay_is_dead
        return proves and link.state.translator is None

    def _settle(self, seconds: float) -> None:
        until = self.network.now + seconds
        while self.network.now < until:
            self.network.advance(0.5)
            self.hub.tick(self.network.now)
            self._deliver_all()
            if self.storage is not None:
                self.storage.flush(self.hub, self.network.now)

    def _deliver_all(self) -> None:
        for _ in range(3):
            while any(r.queue or not r.served for r in self.network.replays.values()) or any(
                c.queue and c.stalled_until <= self.network.now
                for c in self.network.connections.values()
            ):
                self._deliver(1)
            self._work(10_000)

    def _check_quiet(self, replica_id: ReplicaId, link: Link) -> None:
        engine = self.engines[link.source.engine]
        index = dict(link.state.blocks.primary.counts)
        truth = self._expected(link, engine.truth())
        assert_subset(index, truth)
        stream = link.stream
        assert stream is not None, "not connected after quiet"
        assert stream.last is not None and stream.last.seq == engine.seq - 1, "did not catch up"
        if self.has_replay[engine.name] and not engine.replay_is_dead:
            # Behind a proxy two incarnations share a connection, and patience with one is used up.
            whole = engine.log_is_whole and len(engine.buffer) == engine.seq and not engine.proxied
            if whole and not engine.published_unreadable and not engine.index_was_cleared:
                assert link.state.indexed.history_complete, "the whole log was there to be replayed"
        if link.state.indexed.history_complete and not link.state.facts(None, 0).unknown_event:
            assert index == truth
        evidence = self.hub.evidence(replica_id, self.network.now)
        assert (evidence.level is Level.EXACT) <= (index == truth)


def assert_subset(index: Mapping[int, int], truth: Mapping[BlockHash, int]) -> None:
    for block_hash, copies in index.items():
        held = truth.get(BlockHash(block_hash), 0)
        assert copies <= held, f"{copies} copies of {block_hash:016x}, the engine has {held}"
