"""Where to look for an engine's events, and what came of it."""

from collections.abc import Iterator
from dataclasses import dataclass

from indexer.doctor.facts import LogFacts, RankFacts, ReplayFacts
from indexer.sources import (
    RANK_MAX,
    DiscoveryError,
    EngineFacts,
    EventSource,
    offset_endpoint,
    parse_endpoint,
    substitute_host,
)


@dataclass(frozen=True, slots=True)
class ToldEndpoints:
    """What the flags say of engines that say nothing themselves (vLLM before 0.31): of rank 0.

    ``*`` stands for the engine's own host. Raises DiscoveryError where they are no endpoints.
    """

    event_endpoint: str | None = None
    replay_endpoint: str | None = None
    ranks: int | None = None

    def __post_init__(self) -> None:
        ranks = 1 if self.ranks is None else self.ranks
        if not 1 <= ranks <= RANK_MAX + 1:
            raise DiscoveryError(f"{ranks} ranks are not 1 to {RANK_MAX + 1}")
        for endpoint in (self.event_endpoint, self.replay_endpoint):
            if endpoint is not None:
                parse_endpoint(endpoint)
                offset_endpoint(endpoint, ranks - 1)
        if self.event_endpoint is None and (self.replay_endpoint or self.ranks is not None):
            raise DiscoveryError("give --event-endpoint with it")


def sources_of(engine: EngineFacts, host: str, told: ToldEndpoints) -> tuple[EventSource, ...]:
    """What the engine says, or else what the flags do. Ranks are counted by the engine's metrics.

    An address of 0.0.0.0 is left as one that the engine connects to, as vLLM reads it.
    """
    if engine.sources is not None:
        return engine.sources
    if told.event_endpoint is None:
        return ()
    ranks = told.ranks or max(1, len(engine.sleep_states))
    return tuple(_told(told.event_endpoint, told.replay_endpoint, host, ranks))


def _told(events: str, replay: str | None, host: str, ranks: int) -> Iterator[EventSource]:
    for rank in range(ranks):
        at = replay and substitute_host(offset_endpoint(replay, rank), host)
        yield EventSource(
            rank=rank,
            endpoint=substitute_host(offset_endpoint(events, rank), host),
            replay_endpoint=at,
            topic="",
            buffer_steps=0,
            binds=parse_endpoint(events).host != "0.0.0.0",
        )


def is_dialled(source: EventSource) -> bool:
    """Whether connecting to the event socket may tell anything."""
    return source.binds or source.may_be_resolved


def rank_facts(
    source: EventSource,
    *,
    told: bool,
    lost: str | None,
    replay: ReplayFacts | None,
    log: LogFacts,
) -> RankFacts:
    """``lost`` None: the event socket was heard, or not dialled. ``told``: by flags."""
    listens = source.binds or (source.may_be_resolved and lost is None)
    return RankFacts(
        source=source,
        listens=listens,
        buffer_steps=None if told else source.buffer_steps,
        lost=lost if listens else None,
        replay=replay,
        log=log,
    )
