from collections.abc import Sequence

from benchmarks.sim.events import KVEvent
from benchmarks.sim.replica import ReplicaSettings, SimulatedReplica
from proto.blockhash import NO_KEYS


class ListOutlet:
    """Batches since the last restart."""

    def __init__(self) -> None:
        self.batches: list[Sequence[KVEvent]] = []

    def publish(self, events: Sequence[KVEvent]) -> None:
        self.batches.append(events)

    def restart(self) -> None:
        self.batches = []


def test_step_is_published_when_it_has_had_its_time():
    """What a step says leaves when it is published, not when it is computed."""
    outlet = ListOutlet()
    replica = SimulatedReplica(ReplicaSettings(), [outlet])
    replica.add_request(0, "r", range(40), 1, NO_KEYS)
    engine, step = replica.compute(0)
    assert step.events and outlet.batches == []
    replica.publish(0, engine, step)
    assert outlet.batches == [step.events]


def test_restart_overtakes_a_step():
    """A step of an engine that was restarted meanwhile is never published."""
    outlet = ListOutlet()
    replica = SimulatedReplica(ReplicaSettings(), [outlet])
    replica.add_request(0, "r", range(40), 1, NO_KEYS)
    engine, step = replica.compute(0)
    replica.restart()
    replica.publish(0, engine, step)
    assert outlet.batches == []
