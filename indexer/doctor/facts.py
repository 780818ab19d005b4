"""What was found out about one engine: the inputs of the findings, in the past tense.

Rules: None means that it was not tried, or could not be told; it never stands for "no". Texts that
say why come from whoever failed and are shown as they are.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from indexer.sources import EngineFacts, EventSource
from proto.blockhash import EngineScheme

Refusal = Literal["unreachable", "key", "not_vllm"]
# A busy engine is asked for so many of its last batches; the rest would stop its live ones.
BATCHES_OF_BUSY = 2000
# Fewer say nothing about a rate: those of a probe come within a second of an idle day.
_RATE_BATCHES_MIN = 10


@dataclass(frozen=True, slots=True)
class LogFacts:
    """What a rank has published, as far as it was read.

    ``roots`` are first blocks of prompts, of which ``unprovable`` are those that no known recipe
    gives; ``seconds`` are between the first batch and the last by the engine's clock.
    """

    batches: int = 0
    first_seq: int | None = None
    last_seq: int | None = None
    seconds: float = 0.0
    missing: int = 0
    malformed: int = 0
    unknown_tags: tuple[str, ...] = ()
    hybrid: bool = False
    roots: int = 0
    unprovable: int = 0
    schemes: tuple[EngineScheme, ...] = ()
    form_proven: bool = False

    @property
    def batches_per_second(self) -> float | None:
        if self.first_seq is None or self.last_seq is None or self.seconds <= 0:
            return None
        if self.batches < _RATE_BATCHES_MIN:
            return None
        return (self.last_seq - self.first_seq) / self.seconds


@dataclass(frozen=True, slots=True)
class ReplayFacts:
    """``stopped`` None: the end marker came. ``asked`` counts requests: each goes on from where
    the one before ended without a marker."""

    stopped: str | None
    asked_from: int = 0
    asked: int = 1


@dataclass(frozen=True, slots=True)
class EarFacts:
    """What came to where we listened for engines that connect. ``failed``: why we could not.

    ``connections`` are those of all engines; ``batches`` are this rank's, by topic and number.
    """

    endpoints: tuple[str, ...] = ()
    failed: str | None = None
    connections: int = 0
    batches: int = 0
    other_topics: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RankFacts:
    """One rank's publisher. ``lost``: why its event socket cannot be heard; None: it is heard, or
    the engine connects and it was not tried. ``replay`` None: it has no replay endpoint.

    ``buffer_steps`` None: not told. ``listens``: it is the engine that binds. ``ears`` None: it
    does, or nobody listened for it.
    """

    source: EventSource
    listens: bool
    buffer_steps: int | None
    lost: str | None
    replay: ReplayFacts | None
    log: LogFacts
    ears: EarFacts | None = None

    @property
    def rank(self) -> int:
        return self.source.rank


@dataclass(frozen=True, slots=True)
class ProbeFacts:
    """The same prompt, sent twice to one rank. ``refused``: what the engine answered instead.

    ``cached_tokens``: of the second answer; None where it reports none.
    """

    rank: int
    refused: str | None = None
    cached_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class ParityFacts:
    """One chat as both tokenize it. ``why_not`` says why one side has no ids."""

    name: str
    ours: Sequence[int] | None
    theirs: Sequence[int] | None
    why_not: str = ""


@dataclass(frozen=True, slots=True)
class Asked:
    """What the doctor was told: what bears on the findings of every engine.

    ``by_file``: with a configuration file instead of flags.
    """

    key_given: bool = False
    seeds: tuple[str, ...] = ("0",)
    probe: bool = False
    model_given: bool = False
    by_file: bool = False


@dataclass(frozen=True, slots=True)
class Examination:
    """One engine. ``refusal`` and ``why`` where it did not say what it is.

    ``unhealthy``: what /health answered, None if all is well. ``configured``: where its events are
    was told by flags or by a file, and so was ``blocks`` if it is not None.
    """

    url: str
    refusal: Refusal | None = None
    why: str = ""
    engine: EngineFacts | None = None
    unhealthy: str | None = None
    configured: bool = False
    blocks: int | None = None
    ranks: tuple[RankFacts, ...] = ()
    probes: tuple[ProbeFacts, ...] = ()
    parity: tuple[ParityFacts, ...] = ()

    @property
    def lora_paths(self) -> Mapping[str, str]:
        return {} if self.engine is None else self.engine.lora_paths
