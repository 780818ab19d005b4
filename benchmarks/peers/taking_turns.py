"""Peers that are measured in turns: each in every round, and one that breaks stops no other."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack

from benchmarks.peers.figures import Figure, Line, Skipped

Round = Callable[[], dict[str, float]]
"""Measures once: a value by the name of its figure."""
Entrant = Callable[[], AbstractContextManager[Round]]
"""Sets a peer up for as long as the context lasts."""


def take_turns(
    subject: str, units: Mapping[str, str], entrants: Mapping[str, Entrant], rounds: int
) -> Iterator[Line]:
    """Figures by name and peer, after a line for each peer that was skipped and why.

    ``subject`` names all of the figures where there is nothing but a reason. Who goes first changes
    from round to round, so that nobody always follows the same neighbour.
    """
    runs: dict[str, list[dict[str, float]]] = {}
    with ExitStack() as everyone:
        entered: dict[str, Round] = {}
        for peer, entrant in entrants.items():
            try:
                entered[peer] = everyone.enter_context(entrant())
            # Whatever a foreign program or its absence brings about is a reason to skip it.
            except Exception as error:
                yield Skipped.because(subject, peer, error)
        for number in range(rounds):
            peers = list(entered)
            first = number % max(1, len(peers))
            for peer in peers[first:] + peers[:first]:
                try:
                    runs.setdefault(peer, []).append(entered[peer]())
                except Exception as error:
                    del entered[peer]
                    yield Skipped.because(subject, peer, error)
        measured = [peer for peer in entrants if peer in entered]
    for name, unit in units.items():
        for peer in measured:
            yield Figure.of(name, peer, unit, [run[name] for run in runs[peer]])
