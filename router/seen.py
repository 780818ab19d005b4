"""What was made of a content before, for contents that come again and again.

System texts and tools are the same bytes in thousands of requests, and up to 100 kB of them. Rules
it keeps:

* A content is found by a fast hash and then compared byte for byte, so that nobody can make two
  contents meet and be given what belongs to another.
* It is bounded in bytes, the least recently used goes first; what is large beside the bound is not
  kept at all.
"""

from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

import xxhash

_Made = TypeVar("_Made")

# Of the bound, that one content may take.
_SHARE_MAX = 8


class Seen(Generic[_Made]):
    """``made(content)`` is ``make(content)``, or what that was before."""

    def __init__(self, make: Callable[[bytes], _Made], bytes_max: int) -> None:
        self._make, self._bytes_max = make, bytes_max
        self._entries: OrderedDict[int, tuple[bytes, _Made]] = OrderedDict()
        self.held_bytes = 0

    def __repr__(self) -> str:
        return f"Seen({len(self._entries)} contents, {self.held_bytes} bytes)"

    def made(self, content: bytes) -> _Made:
        """Raises what ``make`` raises."""
        key = xxhash.xxh3_64_intdigest(content)
        entry = self._entries.get(key)
        if entry is not None and entry[0] == content:
            self._entries.move_to_end(key)
            return entry[1]
        made = self._make(content)
        if len(content) * _SHARE_MAX <= self._bytes_max:
            self._keep(key, content, made)
        return made

    def _keep(self, key: int, content: bytes, made: _Made) -> None:
        replaced = self._entries.pop(key, None)
        if replaced is not None:
            self.held_bytes -= len(replaced[0])
        self._entries[key] = (content, made)
        self.held_bytes += len(content)
        while self.held_bytes > self._bytes_max:
            _, (oldest, _) = self._entries.popitem(last=False)
            self.held_bytes -= len(oldest)
