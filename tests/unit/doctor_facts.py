"""Engines in which nothing is wrong, and the one fact of theirs that a test changes."""

from dataclasses import replace
from typing import Any

from indexer.doctor.facts import (
    Asked,
    Examination,
    LogFacts,
    ParityFacts,
    ProbeFacts,
    RankFacts,
    ReplayFacts,
)
from indexer.sources import CacheFacts, EngineFacts, EventSource
from proto.blockhash import EngineScheme

ASKED = Asked(probe=True, model_given=True)
CACHE = CacheFacts(1024, 16, "sha256", True)
LOG = LogFacts(
    batches=101,
    first_seq=0,
    last_seq=100,
    seconds=10.0,
    roots=7,
    schemes=(EngineScheme("sha256", "0", 16),),
    form_proven=True,
)
SOURCE = EventSource(0, "tcp://10.0.0.7:5557", "tcp://10.0.0.7:5657", "kv", 100_000, True)
RANK = RankFacts(SOURCE, True, 100_000, None, ReplayFacts(None), LOG)
ENGINE = EngineFacts("0.33.0", (SOURCE,), ("base",), {}, CACHE, {0: "awake"})
PARITY = tuple(ParityFacts(name, [1, 2], [1, 2]) for name in ("text", "parts", "tools"))
HEALTHY = Examination(
    "http://10.0.0.7:8000",
    engine=ENGINE,
    ranks=(RANK,),
    probes=(ProbeFacts(0, cached_tokens=32),),
    parity=PARITY,
)


def exam_with(
    *, engine: dict[str, Any] | None = None, rank: dict[str, Any] | None = None, **changes: Any
) -> Examination:
    """``engine`` and ``rank``: fields of theirs; ``rank`` may have fields of its source and log."""
    if engine is not None:
        changes["engine"] = replace(ENGINE, **engine)
    if rank is not None:
        changes["ranks"] = (rank_with(**rank),)
    return replace(HEALTHY, **changes)


def rank_with(
    *, source: dict[str, Any] | None = None, log: dict[str, Any] | None = None, **changes: Any
) -> RankFacts:
    changes |= {"source": replace(SOURCE, **(source or {})), "log": replace(LOG, **(log or {}))}
    return replace(RANK, **changes)
