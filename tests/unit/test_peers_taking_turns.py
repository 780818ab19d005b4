"""Peers in turns: the order, and that one broken peer stops no other."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from benchmarks.peers.figures import Figure, NotMeasured, Skipped
from benchmarks.peers.taking_turns import Round, take_turns


class Stage:
    """Peers that note when they are measured and when they end."""

    def __init__(self) -> None:
        self.measured: list[str] = []
        self.ended: list[str] = []

    def entrant(
        self, peer: str, breaks_in_round: int | None = None
    ) -> Callable[[], AbstractContextManager[Round]]:
        @contextmanager
        def entered() -> Iterator[Round]:
            if breaks_in_round == 0:
                raise NotMeasured("cannot be installed")
            rounds = 0

            def measure() -> dict[str, float]:
                nonlocal rounds
                rounds += 1
                if rounds == breaks_in_round:
                    raise ConnectionResetError("gone")
                self.measured.append(peer)
                return {"cpu": float(rounds)}

            try:
                yield measure
            finally:
                self.ended.append(peer)

        return entered


def test_everyone_is_measured_in_every_round_and_goes_first_in_turn() -> None:
    """Rounds interleave, so a slow moment hits every peer."""
    stage = Stage()
    entrants = {peer: stage.entrant(peer) for peer in "abc"}
    lines = list(take_turns("relaying", {"cpu": "us"}, entrants, 3))
    assert stage.measured == [*"abc", *"bca", *"cab"]
    assert lines == [Figure.of("cpu", peer, "us", [1.0, 2.0, 3.0]) for peer in "abc"]


def test_a_peer_that_cannot_be_set_up_or_breaks_is_skipped_with_its_reason() -> None:
    """The others are measured to the end, and everyone that was set up ends."""
    stage = Stage()
    entrants = {
        "absent": stage.entrant("absent", 0),
        "fine": stage.entrant("fine"),
        "broken": stage.entrant("broken", 2),
    }
    lines = list(take_turns("relaying", {"cpu": "us"}, entrants, 3))
    assert lines == [
        Skipped("relaying", "absent", "cannot be installed"),
        Skipped("relaying", "broken", "gone"),
        Figure.of("cpu", "fine", "us", [1.0, 2.0, 3.0]),
    ]
    assert sorted(stage.ended) == ["broken", "fine"]
