"""What happens to an engine, or to its connections, in a world that is not gentle."""

import random
from collections.abc import Mapping

from indexer.hub import Hub
from indexer.index import ReplicaId
from tests.simulation.engine import WorldEngine
from tests.simulation.network import Network


class Faults:
    """A part of the world; the rest of it says what these are."""

    rng: random.Random
    network: Network
    hub: Hub
    dials_in: Mapping[str, bool]

    def _step(self, engine: WorldEngine) -> None:
        raise NotImplementedError

    def _fault(self, engine: WorldEngine) -> None:
        self.rng.choice(
            (
                self._restart,
                self._restart_behind_proxy,
                self._reset,
                lambda engine: engine.abort_one(),
                lambda engine: self.network.publish(engine, engine.publish_garbage()),
                lambda engine: self.network.publish(engine, engine.publish_unknown()),
                self._drop_connections,
                self._half_open_connections,
                self._stall_connections,
                self._report_sleep,
            )
        )(engine)

    def _restart(self, engine: WorldEngine) -> None:
        self.network.process_died(engine)
        engine.start()
        if self.dials_in[engine.name]:
            self.network.dial_in(engine)

    def _restart_behind_proxy(self, engine: WorldEngine) -> None:
        """The connection outlives the process: only numbers that fall back tell."""
        engine.start()
        engine.proxied = True
        for connection in self.network.connections.values():
            if connection.engine is engine and connection.half_open_since is None:
                connection.incarnation = engine.incarnation

    def _reset(self, engine: WorldEngine) -> None:
        if engine.engine.reset_prefix_cache() and self.rng.random() < 0.7:
            engine.submit()
            self._step(engine)

    def _drop_connections(self, engine: WorldEngine) -> None:
        for connection in self.network.of(engine):
            self.network.drop(connection, self.rng.randint(0, 4))
            if self.dials_in[engine.name]:
                self.network.dial_in(engine)

    def _half_open_connections(self, engine: WorldEngine) -> None:
        for connection in self.network.of(engine):
            self.network.half_open(connection)
            if self.dials_in[engine.name]:
                self.network.dial_in(engine)

    def _stall_connections(self, engine: WorldEngine) -> None:
        for connection in self.network.of(engine):
            connection.stalled_until = self.network.now + self.rng.choice((0.5, 3.0, 9.0))

    def _report_sleep(self, engine: WorldEngine) -> None:
        """Discovery says that the engine sleeps, rightly or late."""
        link = self.hub.links[ReplicaId(engine.name)]
        engine.index_was_cleared = True
        link.state.slept()
