"""An engine that connects to us instead of listening: does it get here, and is it told apart."""

from indexer.doctor.facts import Asked, EarFacts, RankFacts
from indexer.doctor.finding import Finding

_WHY = "vLLM listens only where the endpoint has a * (or ::, or is ipc)"
_TOPICS_SHOWN_MAX = 4


def connecting_finding(facts: RankFacts, asked: Asked, rank: int | None) -> Finding:
    endpoint = facts.source.endpoint
    if endpoint.startswith("tcp://0.0.0.0:"):
        return Finding(
            "problem",
            "endpoint",
            f"the engine connects to {endpoint} and is heard by nobody",
            _WHY,
            f"write {endpoint.replace('0.0.0.0', '*')} into --kv-events-config",
            rank,
        )
    if facts.ears is None:
        return _not_tried(endpoint, asked, rank)
    return _heard(facts, facts.ears, asked, rank)


def _not_tried(endpoint: str, asked: Asked, rank: int | None) -> Finding:
    if asked.by_file:
        return Finding(
            "problem",
            "endpoint",
            f"the engine connects to {endpoint}, and nobody listens",
            "events.bind is not set",
            "set events.bind to an address that the engine reaches at its endpoint; or put a *"
            " into its endpoint",
            rank,
        )
    return Finding(
        "warning",
        "endpoint",
        f"the engine connects to {endpoint} instead of listening",
        _WHY,
        "put a * in place of the host; or let pointsman listen there (events.bind), and give each"
        " engine a topic of its own; --bind tries it",
        rank,
    )


def _heard(facts: RankFacts, ears: EarFacts, asked: Asked, rank: int | None) -> Finding:
    endpoint, here = facts.source.endpoint, ", ".join(ears.endpoints)
    if ears.batches:
        what = f"connects to {endpoint}: {ears.batches} batches were heard at {here}"
        return Finding("ok", "endpoint", what, rank=rank)
    if ears.failed is not None:
        return Finding(
            "unknown",
            "endpoint",
            f"whether what connects to {endpoint} arrives is not known",
            ears.failed,
            "if it is pointsman that listens there, ask its /replicas, or stop it while the doctor"
            " looks",
            rank,
        )
    if not ears.connections:
        return Finding(
            "problem",
            "endpoint",
            f"the engine connects to {endpoint}, and nobody connected to {here}",
            "its endpoint does not lead here; rank r of an engine connects to its port + r",
            "set endpoint in --kv-events-config to an address of this machine with a port that is"
            " listened at (events.bind, --bind), and open that port",
            rank,
        )
    return _silent(facts, ears, asked, rank)


def _silent(facts: RankFacts, ears: EarFacts, asked: Asked, rank: int | None) -> Finding:
    """Somebody has connected, who need not be this engine."""
    topic, number = facts.source.topic, facts.rank
    what = f"nothing came with the topic {topic!r} and rank {number}"
    if asked.probe or ears.other_topics:
        others = ", ".join(map(repr, ears.other_topics[:_TOPICS_SHOWN_MAX])) or "none"
        return Finding(
            "problem" if asked.probe else "unknown",
            "endpoint",
            what,
            f"{ears.connections} connected; other topics that were heard: {others}",
            "check topic and port of the engine's endpoint, and topic of the replica in the"
            " configuration file: both have to be the same",
            rank,
        )
    return Finding(
        "unknown",
        "endpoint",
        what,
        f"{ears.connections} connected, but an idle engine publishes nothing",
        "give --probe, which makes it publish",
        rank,
    )
