"""The tools of a request, their canonical form and its digest, made once for the same bytes."""

import json
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import msgspec

from router.canonical_tools import canonical_tools_text, compact_json
from router.seen import Seen

# What is parsed takes some ten times the bytes: 80 MB, for eighty sets of 100 kB.
KNOWN_TOOLS_BYTES_MAX = 8 << 20


@dataclass(frozen=True, slots=True)
class ToolForms:
    """``given`` is shared by all requests with these bytes: nobody changes it.

    ``canonical`` and ``text`` None: the engine would refuse these tools. ``digest``: sha256 of the
    canonical text, b"" where there is none. ``is_canonical``: they are in that order already.
    """

    given: Any
    canonical: list[Any] | None
    text: bytes | None
    digest: bytes
    is_canonical: bool = False

    @classmethod
    def of(cls, given: Any) -> "ToolForms":
        """Of a parsed value."""
        canonical_text = canonical_tools_text(given)
        try:
            canonical = None if canonical_text is None else json.loads(canonical_text)
        except RecursionError:
            canonical = None
        if canonical_text is None or canonical is None:
            return cls(given, None, None, b"")
        # A surrogate without its other half is nothing that UTF-8 has, and parsers take it.
        text = canonical_text.encode("utf-8", "surrogatepass")
        in_order = canonical_text == compact_json(given, sort_keys=False)
        return cls(given, canonical, text, sha256(text).digest(), in_order)


class KnownTools(Seen[ToolForms]):
    """By the bytes of ``tools`` in a body. Raises msgspec.DecodeError where they are no JSON."""

    def __init__(self, bytes_max: int = KNOWN_TOOLS_BYTES_MAX) -> None:
        super().__init__(lambda raw: ToolForms.of(msgspec.json.decode(raw)), bytes_max)
