"""What an operator may read of each replica: the JSON of ``/replicas`` and the metrics' figures."""

from typing import Any

from indexer.hub import Hub, Link
from proto.blockhash import HashScheme


def replica_report(hub: Hub, link: Link, now: float) -> dict[str, Any]:
    """One entry of ``/replicas``."""
    state, stream = link.state, link.stream
    evidence = hub.evidence(link.source.replica_id, now)
    asked_at = stream.nothing_newer_at if stream is not None else None
    journal = link.journal
    return {
        "replica": link.source.replica_id,
        "pool": link.source.pool,
        "rank": link.source.rank,
        "url": link.source.url,
        "evidence": evidence.level,
        "reasons": list(evidence.reasons),
        "connected": stream is not None and stream.connected,
        "schemes": [scheme.describe() | {"id": scheme.id} for scheme in schemes_of(link)],
        "seq": state.applied_seq if state.applied_seq >= 0 else None,
        "lag_batches": stream.lag_batches if stream is not None else None,
        # How long ago the engine was asked for what is newer than seq, and had nothing.
        "nothing_newer_s_ago": None if asked_at is None else round(now - asked_at, 3),
        "blocks": len(state.blocks.primary.counts),
        "copies": state.blocks.gpu_copies,
        "memory_bytes": state.blocks.primary.memory_bytes,
        "capacity_blocks": state.blocks.capacity,
        "history_complete": state.indexed.history_complete,
        "durable": journal is not None and journal.durable(now),
        "durable_seq": journal.written_seq if journal is not None else None,
        "store_rewrites": journal.rewrites if journal is not None else None,
        "scheme_disagreements": state.proof.disagreements,
        "vllm": state.proof.version,
        "event_endpoint": link.source.endpoint,
        "replay_endpoint": link.source.replay_endpoint,
    }


def schemes_of(link: Link) -> tuple[HashScheme, ...]:
    """The schemes that a prompt is hashed under for this replica."""
    translator = link.state.translator
    if translator is None:
        return link.state.proof.schemes
    return (translator.scheme,) if translator.scheme is not None else ()


# Counters of a rank that are exported under their own names, with what each counts.
COUNTERS = {
    "batches": "Batches applied",
    "stored": "Block copies announced",
    "removed": "Block copies removed",
    "cleared": "AllBlocksCleared events",
    "clears": "Times the index of the replica was forgotten",
    "malformed_batches": "Batches that could not be decoded",
    "unknown_events": "Events of an unknown kind",
    "drifts": "Times the copies exceeded the pool",
    "restarts": "Engine restarts noticed",
}
GAUGES = {
    "blocks": "Distinct blocks in the index",
    "copies": "Block copies in the index",
    "memory_bytes": "Memory that the blocks take, about",
    "capacity_blocks": "Blocks of the engine's pool",
    "lag_batches": "Batches known and not yet applied",
    "seq": "Sequence number of the last applied batch",
    "durable": "1 while a store keeps all of the index but its last moment",
    "durable_seq": "Sequence number of the last batch that a store keeps the result of",
    "store_rewrites": "Times the replica was written to the store from nothing",
    "scheme_disagreements": "Roots that the proven scheme did not reproduce",
}
