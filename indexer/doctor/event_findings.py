"""Where an engine's events are, who connects, whether they come, and how far back they go."""

from collections.abc import Iterator, Sequence

from indexer.doctor.connecting_findings import connecting_finding
from indexer.doctor.facts import Asked, Examination, RankFacts
from indexer.doctor.finding import Finding
from indexer.doctor.scheme_findings import scheme_finding
from indexer.sources import DiscoveryError, EngineFacts, parse_endpoint

BUFFER_STEPS_RECOMMENDED = 100_000
_CONFIG = (
    '--kv-events-config \'{"enable_kv_cache_events": true, "publisher": "zmq",'
    ' "endpoint": "tcp://*:5557", "replay_endpoint": "tcp://*:5657", "buffer_steps": 100000}\''
)


def event_findings(exam: Examination, engine: EngineFacts, asked: Asked) -> Iterator[Finding]:
    if not exam.ranks:
        yield _no_sources(engine, asked)
        return
    yield Finding("ok", "events", _published(exam))
    if exam.configured:
        yield _configured(exam, engine, asked)
    yield from _ports(exam.ranks)
    several = len(exam.ranks) > 1
    for facts in exam.ranks:
        rank = facts.rank if several else None
        yield _endpoint(facts, asked, rank)
        yield _replay(facts, rank)
        yield _buffer(facts, rank)
        yield from _batches(facts, rank)
        algorithm = engine.cache.hash_algorithm
        yield scheme_finding(facts.log, engine.version, algorithm, asked, rank)


def _published(exam: Examination) -> str:
    where = ", ".join(facts.source.endpoint for facts in exam.ranks)
    return f"KV events are {'looked for' if exam.configured else 'on'} at {where}"


def _no_sources(engine: EngineFacts, asked: Asked) -> Finding:
    if engine.sources is None and asked.by_file:
        return Finding(
            "problem",
            "events",
            f"vLLM {engine.version} does not tell where its events are, nor does the configuration",
            "only 0.31 and newer answer /kv_event_sources",
            "set event_endpoint, replay_endpoint and data_parallel_size of the replica",
        )
    if engine.sources is None:
        return Finding(
            "unknown",
            "events",
            f"vLLM {engine.version} does not tell where its events are",
            "only 0.31 and newer answer /kv_event_sources",
            "give --event-endpoint and --replay-endpoint as the engine is started with them"
            " (tcp://*:5557 stands for the URL's host)",
        )
    return Finding(
        "problem",
        "events",
        "KV events are off",
        "without them nobody knows what the engine holds: it is routed by sessions and load",
        f"start the engine with {_CONFIG}",
    )


def _configured(exam: Examination, engine: EngineFacts, asked: Asked) -> Finding:
    if asked.by_file:
        return _by_file(exam, engine)
    return Finding(
        "warning",
        "event_config",
        "pointsman has to be told where this engine's events are",
        "only 0.31 and newer answer /kv_event_sources",
        "set event_endpoint, replay_endpoint and data_parallel_size of the replica in the"
        " configuration file, or upgrade",
    )


def _by_file(exam: Examination, engine: EngineFacts) -> Finding:
    """Names of one host differ, so ports are what can be held against what the engine says."""
    told = {facts.rank: _port(facts.source.endpoint) for facts in exam.ranks if facts.listens}
    for source in engine.sources or ():
        port = _port(source.endpoint)
        if source.binds and told.get(source.rank, port) != port:
            return Finding(
                "warning",
                "event_config",
                f"rank {source.rank} publishes at port {port}, and port {told[source.rank]} is"
                " configured",
                "that is right only where something between maps the one to the other",
                "leave out event_endpoint and replay_endpoint: vLLM 0.31 and newer is asked",
            )
    return Finding("ok", "event_config", "the configuration says where its events are")


def _ports(ranks: Sequence[RankFacts]) -> Iterator[Finding]:
    """Each rank adds itself to both ports, so the two series must not run into each other."""
    events = {_port(facts.source.endpoint): facts.rank for facts in ranks if facts.listens}
    replays = [(_port(facts.source.replay_endpoint), facts.rank) for facts in ranks]
    for port, rank in replays:
        if port is not None and port in events:
            yield Finding(
                "problem",
                "ports",
                f"port {port} is rank {events[port]}'s events and rank {rank}'s replay",
                "rank r uses both ports plus r: one of the two cannot be bound",
                f"set the ports of endpoint and replay_endpoint at least {len(ranks)} apart",
            )
            return
    if len(ranks) > 1:
        yield Finding("ok", "ports", f"{len(ranks)} ranks, each with ports of its own")


def _port(endpoint: str | None) -> int | None:
    try:
        return None if endpoint is None else parse_endpoint(endpoint).port
    except DiscoveryError:
        return None


def _endpoint(facts: RankFacts, asked: Asked, rank: int | None) -> Finding:
    endpoint = facts.source.endpoint
    if not facts.listens:
        return connecting_finding(facts, asked, rank)
    if facts.lost is not None:
        return Finding(
            "problem",
            "endpoint",
            f"events cannot be heard at {endpoint}",
            facts.lost,
            "open the port to where pointsman runs, and give the engine's own URL, not that of a"
            " load balancer",
            rank,
        )
    return Finding("ok", "endpoint", f"listens at {endpoint}, and can be heard", rank=rank)


def _replay(facts: RankFacts, rank: int | None) -> Finding:
    replay, endpoint = facts.replay, facts.source.replay_endpoint
    if replay is None:
        return Finding(
            "warning",
            "replay",
            "there is no replay endpoint",
            "every gap, and every start of pointsman, forgets what the engine holds",
            'add "replay_endpoint": "tcp://*:5657" and "buffer_steps": 100000 to'
            " --kv-events-config",
            rank,
        )
    if replay.stopped is None:
        times = "" if replay.asked == 1 else f" at request {replay.asked}"
        batches = f"{facts.log.batches} batches from {replay.asked_from} on"
        return Finding("ok", "replay", f"{endpoint} answers{times}: {batches}", rank=rank)
    if facts.log.batches:
        return Finding(
            "warning",
            "replay",
            f"{endpoint} sent {facts.log.batches} batches, and no end of them",
            f"{replay.stopped}; pointsman asks again from where it stopped",
            "look at the engine's load and at the network between; 0.33 sends longer replays whole",
            rank,
        )
    return Finding(
        "problem",
        "replay",
        f"{endpoint} does not answer a replay",
        f"{replay.stopped}; every gap, and every start of pointsman, forgets what it holds",
        "open the port to where pointsman runs, and check that no other service has it",
        rank,
    )


def _buffer(facts: RankFacts, rank: int | None) -> Finding:
    steps, rate = facts.buffer_steps, facts.log.batches_per_second
    if facts.replay is None or steps is None:
        return Finding(
            "unknown",
            "buffer_steps",
            "how many batches the engine keeps for replay is not known",
            "older ones are lost when pointsman starts: its history stays incomplete for long",
            f'set "buffer_steps": {BUFFER_STEPS_RECOMMENDED} in --kv-events-config',
            rank,
        )
    lasting = "" if rate is None else f": {_duration(steps / rate)} at {rate:.3g} a second"
    text = f"{steps} batches are kept for replay{lasting}"
    if steps >= BUFFER_STEPS_RECOMMENDED:
        return Finding("ok", "buffer_steps", text, rank=rank)
    return Finding(
        "warning",
        "buffer_steps",
        text,
        "what is older when pointsman starts is lost: its history stays incomplete for long",
        f'set "buffer_steps": {BUFFER_STEPS_RECOMMENDED} in --kv-events-config',
        rank,
    )


def _duration(seconds: float) -> str:
    minutes = seconds / 60
    if minutes >= 600:
        return f"{minutes / 60:.0f} hours"
    return f"{minutes:.0f} minutes" if minutes >= 10 else f"{minutes:.2g} minutes"


def _batches(facts: RankFacts, rank: int | None) -> Iterator[Finding]:
    log = facts.log
    if log.malformed:
        yield Finding(
            "problem",
            "batches",
            f"{log.malformed} of {log.batches} batches cannot be decoded",
            "each is a hole, at which pointsman forgets what the engine holds",
            "check that the port is vLLM's; if so, record it (pointsman events record) and report",
            rank,
        )
    elif log.unknown_tags:
        yield Finding(
            "warning",
            "batches",
            f"events of unknown kinds: {', '.join(log.unknown_tags)}",
            "they may remove blocks, so the replica is degraded until its next clear",
            "look for a newer pointsman",
            rank,
        )
    if log.missing:
        yield Finding(
            "warning",
            "gaps",
            f"{log.missing} batches are missing between those that came",
            "the engine burnt their numbers, or they were lost on the way: pointsman starts over",
            "look for errors of the event publisher in the engine's log",
            rank,
        )
    if log.hybrid:
        yield Finding(
            "warning",
            "groups",
            "the engine has groups of other attention than full",
            "a hit needs all groups to agree, and only the full one is matched: an upper bound",
            "expect fewer cached tokens than predicted for this model",
            rank,
        )
