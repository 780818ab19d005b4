"""What a journal tells a store, and when: against the specified store, on a clock of the test's."""

import pytest

from indexer.durability import (
    BEHIND_BLOCKS_MAX,
    LEASE_S,
    LIMITS,
    NOWHERE,
    RENEW_S,
    RETRY_S,
    Elsewhere,
    Journal,
    JournalLimits,
    Leased,
    Writer,
    Written,
)
from indexer.index import PoolName, ReplicaId
from indexer.replica import ReplicaState
from indexer.saved_state import NotReadable, from_fields, to_fields
from indexer.stream_outputs import Apply, Clear
from tests.simulation.store import SpecifiedStore
from tests.unit.wire import payload as batch
from tests.unit.wire import removed, stored

R = "replica"


def new_state() -> ReplicaState:
    return ReplicaState(ReplicaId(R), PoolName("pool"), track_changes=True)


class Kept:
    """One replica, its journal, and a store that answers at once when asked to."""

    def __init__(self, limits: JournalLimits = LIMITS) -> None:
        self.state, self.store = new_state(), SpecifiedStore()
        self.journal = Journal(self.state, Writer("w"), limits=limits)
        self.seq = 0

    def says(self, *events: object) -> None:
        self.state.apply(Apply(self.seq, batch(*events)))
        self.seq += 1

    def flush(self, now: float) -> bool:
        """Whether the journal wanted something."""
        flush = self.journal.next(now)
        if flush is None:
            return False
        self.store.now = now
        self.journal.answered(flush, self.store.flush(R, flush), now)
        return True

    def held(self) -> dict[int, int]:
        saved = self.store.load(R)
        return {} if saved is None else dict(saved.counts)


def test_what_changed_is_asked_once_and_the_lease_renewed() -> None:
    """A change is told at the next opportunity; without one, a flush a second."""
    kept = Kept()
    kept.says(stored([1, 2]), stored([2], parent=1))
    assert kept.flush(0.0) and kept.held() == {1: 1, 2: 2}
    assert kept.journal.durable(0.0) and not kept.flush(RENEW_S / 2)
    assert kept.flush(RENEW_S)
    kept.says(removed([2]))
    assert kept.flush(RENEW_S + 0.1) and kept.held() == {1: 1, 2: 1}
    assert not kept.journal.durable(RENEW_S + LEASE_S + 0.2)


def test_an_unanswered_flush_is_asked_again_unchanged() -> None:
    """After a while, however much has changed since; that comes behind it."""
    kept = Kept()
    kept.says(stored([1]))
    first = kept.journal.next(0.0)
    assert first is not None
    kept.journal.unanswered(first, 0.0)
    kept.says(stored([2], parent=1))
    assert kept.journal.next(RETRY_S / 2) is None
    assert kept.journal.next(RETRY_S) is first
    kept.journal.answered(first, kept.store.flush(R, first), RETRY_S)
    assert kept.held() == {1: 1} and kept.flush(RETRY_S) and kept.held() == {1: 1, 2: 1}


def test_a_lease_of_another_is_waited_for() -> None:
    """The same flush is asked again after a second; nothing is durable until it is written."""
    kept = Kept()
    kept.says(stored([1]))
    flush = kept.journal.next(0.0)
    assert flush is not None
    kept.journal.answered(flush, Leased(), 0.0)
    assert kept.journal.next(RENEW_S / 2) is None and not kept.journal.durable(0.0)
    assert kept.journal.next(RENEW_S) is flush


@pytest.mark.parametrize("found", [NOWHERE, "w:0", "x:7"])
def test_a_store_that_stands_elsewhere_is_written_anew(found: str) -> None:
    """From where it stands, cleared, with everything that is held."""
    kept = Kept()
    kept.says(stored([1, 2]))
    kept.flush(0.0)
    kept.says(stored([3], parent=2))
    flush = kept.journal.next(0.1)
    assert flush is not None and flush.copies == {3: 1}
    kept.journal.answered(flush, Elsewhere(found), 0.1)
    assert not kept.journal.durable(0.1)
    anew = kept.journal.next(0.1)
    assert anew is not None and anew.from_position == found and anew.cleared
    assert anew.copies == {1: 1, 2: 1, 3: 1}


def test_a_rewrite_in_parts_is_complete_with_its_last() -> None:
    """Each part is a state to go on from: only with the last is the history called complete."""
    kept = Kept(JournalLimits(rewrite_blocks_max=3))
    kept.says(stored(list(range(10))))
    sizes = []
    while not kept.journal.durable(0.0):
        assert kept.flush(0.0)
        saved = kept.store.load(R)
        assert saved is not None and saved.state.history_complete == (len(saved.counts) == 10)
        sizes.append(len(saved.counts))
    assert sizes == [3, 6, 9, 10] and kept.journal.rewrites == 1


def test_more_changes_than_are_remembered_become_a_rewrite() -> None:
    """While the store is away memory stays bounded; afterwards it holds what the index holds."""
    kept = Kept(JournalLimits(changes_max=50))
    kept.says(stored([1]))
    lost = kept.journal.next(0.0)
    assert lost is not None
    for number in range(100, 400, 10):
        kept.says(stored(list(range(number, number + 10))), removed([number]))
        kept.journal.bound_changes()
        assert kept.state.blocks.changes <= 50
    now = RETRY_S
    while kept.flush(now):
        now += 0.01
    assert kept.held() == dict(kept.state.blocks.primary.counts) and kept.journal.rewrites >= 1


def test_a_clear_is_told_and_a_cut_keeps_nothing() -> None:
    """Behind a cut no batch is known that the blocks are the result of: there is none to prove."""
    kept = Kept()
    kept.says(stored([1]))
    kept.flush(0.0)
    kept.state.clear(Clear("a gap"))
    assert kept.flush(0.1) and kept.store.load(R) is None
    kept.says(stored([5]))
    assert kept.flush(0.2) and kept.held() == {5: 1}


def test_many_changes_do_not_wait_for_the_clock() -> None:
    """From so many blocks on the shell is to ask at once."""
    kept = Kept()
    kept.says(stored(list(range(BEHIND_BLOCKS_MAX - 1))))
    assert not kept.journal.behind
    kept.says(stored([BEHIND_BLOCKS_MAX], parent=1))
    assert kept.journal.behind
    kept.flush(0.0)
    assert not kept.journal.behind


def test_the_last_flush_gives_the_lease_back() -> None:
    """What is under way comes first, unchanged; then all the rest."""
    kept = Kept()
    kept.says(stored([1]))
    first = kept.journal.next(0.0)
    kept.says(stored([2], parent=1))
    assert first is not None and kept.journal.last(0.1) is first
    kept.journal.answered(first, Written(), 0.1)
    last = kept.journal.last(0.1)
    assert last.lease_s == 0 and last.copies == {2: 1}


def test_a_restored_replica_is_what_was_saved() -> None:
    """Blocks, copies, place in the log and evidence; restoring it is no change to be told."""
    kept = Kept()
    kept.says(stored([1, 2]), stored([2], parent=1))
    kept.flush(0.0)
    saved = kept.store.load(R)
    assert saved is not None and from_fields(to_fields(saved.state)) == saved.state
    state = new_state()
    state.restore(saved)
    assert state.save() == kept.state.save() and state.blocks.changes == 0
    assert state.blocks.primary.counts == kept.state.blocks.primary.counts
    state.apply(Apply(1, batch(removed([1, 2]))))
    assert dict(state.blocks.primary.counts) == {2: 1} and state.blocks.copies == 1


def test_lower_tiers_are_not_kept_and_so_not_complete() -> None:
    """A restart would forget what CPU memory holds: the evidence must say so."""
    kept = Kept()
    kept.says(stored([1]), stored([1], medium="CPU"))
    assert kept.state.indexed.history_complete
    saved = kept.state.save()
    assert saved is not None and not saved.history_complete


@pytest.mark.parametrize(
    ("field", "text"),
    [
        ("seq", "x"),
        ("digest", "zz"),
        ("history_complete", "yes"),
        ("algorithm", "md5"),
        ("tier", "[1]"),
        ("forms", "a,b"),
    ],
)
def test_fields_that_make_no_sense_are_refused(field: str, text: str) -> None:
    """With the one error that a loader knows."""
    kept = Kept()
    kept.says(stored([1]))
    saved = kept.state.save()
    assert saved is not None
    with pytest.raises(NotReadable):
        from_fields(to_fields(saved) | {field: text})
