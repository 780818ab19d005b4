"""What is made once for contents that come again."""

import pytest

from router import seen
from router.seen import Seen
from router.tool_steps import ToolSteps


def counting(bytes_max: int) -> tuple[Seen[bytes], list[bytes]]:
    made: list[bytes] = []

    def make(content: bytes) -> bytes:
        made.append(content)
        return content.upper()

    return Seen(make, bytes_max), made


def test_it_is_made_once_for_the_same_bytes() -> None:
    """Equal bytes in another object are the same content."""
    cache, made = counting(1000)
    assert cache.made(b"abc") == cache.made(bytes(bytearray(b"abc"))) == b"ABC"
    assert made == [b"abc"]


def test_contents_that_meet_in_the_hash_are_not_mixed_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever makes two contents with one hash gets what belongs to each."""
    monkeypatch.setattr(seen.xxhash, "xxh3_64_intdigest", lambda content: 7)
    cache, _ = counting(1000)
    assert [cache.made(each) for each in (b"a", b"b", b"a")] == [b"A", b"B", b"A"]
    assert cache.held_bytes == 1


def test_it_is_bounded_and_keeps_what_is_used() -> None:
    """The least recently used goes first; what is large beside the bound is never kept."""
    cache, made = counting(80)
    for number in range(100):
        cache.made(b"0" * 10)
        cache.made(b"%010d" % number)
        assert cache.held_bytes <= 80
    assert made.count(b"0" * 10) == 2 - (b"%010d" % 0 == b"0" * 10)
    cache.made(b"x" * 11)
    assert cache.made(b"x" * 11) and made.count(b"x" * 11) == 2


def test_conversations_are_bounded() -> None:
    """The one that has been silent for longest is forgotten."""
    steps = ToolSteps(conversations_max=3)
    for conversation in range(5):
        assert not steps.alternates(conversation, True)
    assert len(steps) == 3
    assert steps.alternates(4, False) and not steps.alternates(0, False)
