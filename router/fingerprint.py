"""One short name for what all requests of an application have in common at their front.

The fingerprint is the first 12 hex digits of the sha256 over two digests: the sha256 of the first
system message's text, and the sha256 of the tools in canonical order. Rules it keeps:

* It does not depend on how a client writes things down: the order of tools and of keys, spaces in
  the JSON, a text as one string or as parts.
* It needs no tokenizer and no template, so that requests that cannot be hashed have one too.
* A request with neither a system message nor tools has none, and so has one whose tools the engine
  would refuse.
* Tools count where the engine puts them into the prompt: not those that it leaves out because of
  ``tool_choice`` "none".
"""

import json
from collections.abc import Mapping
from hashlib import sha256
from typing import Any, NamedTuple

from router.canonical_tools import canonical_tools_text
from router.render import without_billing_header
from router.seen import Seen

FINGERPRINT_DIGITS = 12
# Some eighty system texts of 100 kB.
KNOWN_SYSTEMS_BYTES_MAX = 8 << 20

_SYSTEM_ROLES = ("system", "developer")
_EMPTY = sha256(b"").digest()


class Front(NamedTuple):
    """``system`` and ``tools``: sha256 of what stands there; None where nothing does."""

    system: bytes | None
    tools: bytes | None

    @property
    def fingerprint(self) -> str | None:
        if self.system is None and self.tools is None:
            return None
        return sha256((self.system or _EMPTY) + (self.tools or _EMPTY)).hexdigest()[
            :FINGERPRINT_DIGITS
        ]


class KnownSystems(Seen[bytes]):
    """The sha256 of system texts, computed once for the same text."""

    def __init__(self, bytes_max: int = KNOWN_SYSTEMS_BYTES_MAX) -> None:
        super().__init__(lambda text: sha256(text).digest(), bytes_max)

    def digest(self, body: Mapping[str, Any]) -> bytes | None:
        """Of a chat body; None where it has no system message."""
        text = system_text(body)
        return None if text is None else self.made(_encoded(text))


def prefix_fingerprint(body: Mapping[str, Any]) -> str | None:
    """Of a parsed chat body, with all its tools."""
    text, tools = system_text(body), body.get("tools")
    canonical = canonical_tools_text(tools)
    if tools is not None and canonical is None:
        return None
    return Front(
        None if text is None else _digest(text), None if canonical is None else _digest(canonical)
    ).fingerprint


def system_text(body: Mapping[str, Any]) -> str | None:
    """The first system message's text, as most templates write it; None where there is none."""
    messages = body.get("messages")
    for message in messages if isinstance(messages, list) else ():
        if isinstance(message, dict) and message.get("role") in _SYSTEM_ROLES:
            return _content_text(message.get("content"))
    return None


def _content_text(content: Any) -> str:
    parts = content if isinstance(content, list) else [content]
    texts = map(_part_text, without_billing_header(parts))
    return "\n".join(text for text in texts if text)


def _part_text(part: Any) -> str:
    if isinstance(part, dict) and isinstance(part.get("text"), str):
        part = part["text"]
    if part is None or isinstance(part, str):
        return part or ""
    try:
        return json.dumps(part, sort_keys=True)
    except (RecursionError, ValueError):
        return ""


def _digest(text: str) -> bytes:
    return sha256(_encoded(text)).digest()


def _encoded(text: str) -> bytes:
    """A surrogate without its other half is nothing that UTF-8 has, and parsers take it."""
    return text.encode("utf-8", "surrogatepass")
