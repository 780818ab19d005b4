"""Where to look for an engine's events, and what came of it."""

from dataclasses import dataclass

from indexer.doctor.facts import EarFacts, LogFacts, RankFacts, ReplayFacts
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
    """Where an engine's events are, of rank 0. Raises DiscoveryError where they are no endpoints.

    Of flags it is what engines are given that say nothing themselves (vLLM before 0.31): ``*``
    stands for the engine's own host. ``by_file``: as the indexer takes it, which asks no engine
    then; with a ``topic`` and no endpoint the engine connects to us.
    """

    event_endpoint: str | None = None
    replay_endpoint: str | None = None
    ranks: int | None = None
    topic: str | None = None
    by_file: bool = False

    def __post_init__(self) -> None:
        ranks = 1 if self.ranks is None else self.ranks
        if not 1 <= ranks <= RANK_MAX + 1:
            raise DiscoveryError(f"{ranks} ranks are not 1 to {RANK_MAX + 1}")
        for endpoint in (self.event_endpoint, self.replay_endpoint):
            if endpoint is not None:
                parse_endpoint(endpoint)
                offset_endpoint(endpoint, ranks - 1)
        if self.event_endpoint is not None or self.topic is not None:
            return
        if self.replay_endpoint or self.ranks is not None:
            raise DiscoveryError("give --event-endpoint with it")


def sources_of(engine: EngineFacts, host: str, told: ToldEndpoints) -> tuple[EventSource, ...]:
    """What the engine says, or else what the flags do; but first of all what a file does.

    Ranks are counted by the engine's metrics. An address of 0.0.0.0 is left as one that the engine
    connects to, as vLLM reads it.
    """
    if engine.sources is not None and not told.by_file:
        return engine.sources
    if told.event_endpoint is None and told.topic is None:
        return ()
    ranks = told.ranks or max(1, len(engine.sleep_states))
    said = {source.rank: source for source in engine.sources or ()}
    return tuple(_told_source(told, rank, host, said.get(rank)) for rank in range(ranks))


def _told_source(
    told: ToldEndpoints, rank: int, host: str, said: EventSource | None
) -> EventSource:
    """``said``: what the engine says of it, where a file says otherwise."""

    def at(endpoint: str | None) -> str | None:
        if endpoint is None:
            return None
        moved = offset_endpoint(endpoint, rank)
        return moved if told.by_file else substitute_host(moved, host)

    events = told.event_endpoint
    return EventSource(
        rank=rank,
        endpoint=at(events) or (said.endpoint if said else "an address of ours"),
        replay_endpoint=at(told.replay_endpoint),
        topic=told.topic or "",
        buffer_steps=said.buffer_steps if said else 0,
        binds=events is not None and parse_endpoint(events).host != "0.0.0.0",
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
    ears: EarFacts | None = None,
) -> RankFacts:
    """``lost`` None: the event socket was heard, or not dialled. ``told``: by flags."""
    listens = source.binds or (source.may_be_resolved and lost is None)
    return RankFacts(
        source=source,
        listens=listens,
        buffer_steps=(source.buffer_steps or None) if told else source.buffer_steps,
        lost=lost if listens else None,
        replay=replay,
        log=log,
        ears=None if listens else ears,
    )
