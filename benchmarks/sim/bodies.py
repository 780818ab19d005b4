"""What callers ask of a simulator: the bodies of its own endpoints.

Unknown fields are refused: a misspelt one would silently test something else.
"""

import msgspec


class GenerateBody(msgspec.Struct, forbid_unknown_fields=True):
    token_ids: list[int]
    max_tokens: int = 1
    cache_salt: str | None = None
    lora_name: str | None = None
    skip_cache: bool = False
    report_full: bool = False
    rank: int = 0


class FaultBody(msgspec.Struct, forbid_unknown_fields=True):
    """What shall go wrong.

    Of the events, on one rank: ``drop`` and ``lose`` so many ``batches``, ``stall`` for
    ``seconds``, ``garbage``. Of the whole replica: ``restart``; for ``seconds``, ``refuse``
    connections, be ``unavailable`` (503) or ``slow`` by a ``factor``. Of the next ``requests`` for
    text, after so many ``tokens``: ``hang`` for ``seconds``, or ``reset`` the connection.
    """

    kind: str
    batches: int = 1
    seconds: float = 1.0
    rank: int = 0
    factor: float = 10.0
    tokens: int = 1
    requests: int = 1
