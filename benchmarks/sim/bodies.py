"""What callers ask of a simulator: the bodies of its own endpoints, and how fast it goes.

Unknown fields are refused: a misspelt one would silently test something else.
"""

from dataclasses import dataclass

import msgspec


@dataclass(frozen=True)
class Pace:
    """How long a step takes: a base, and more for each token it computes."""

    step_seconds: float = 0.0
    token_seconds: float = 0.0


class GenerateBody(msgspec.Struct, forbid_unknown_fields=True):
    token_ids: list[int]
    max_tokens: int = 1
    cache_salt: str | None = None
    lora_name: str | None = None
    skip_cache: bool = False
    report_full: bool = False
    rank: int = 0


class FaultBody(msgspec.Struct, forbid_unknown_fields=True):
    """``batches`` is of drop and lose, ``seconds`` of stall; restart has every rank in it."""

    kind: str
    batches: int = 1
    seconds: float = 1.0
    rank: int = 0
