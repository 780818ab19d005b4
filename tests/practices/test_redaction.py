"""What of a prompt may be seen."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.practices.redaction import redacted_around, redacted_begin, shape


def around(text: str, value: str) -> str:
    start = text.index(value)
    return redacted_around(text, start, start + len(value))


def test_a_value_keeps_its_shape() -> None:
    """Enough to recognise a clock by, nothing to read."""
    assert shape("2026-03-04T05:06:07Z ab-Ü9") == "0000-00-00x00:00:00x xx-x0"


def test_plain_words_of_the_line_stay() -> None:
    """A few on each side, and of its own line alone."""
    text = "Secret first line\nThe current time is 10:11:12 and this is all that you know.\nlast"
    shown = around(text, "10:11:12")
    assert shown == "The current time is 00:00:00 and this is all that you …"


@pytest.mark.parametrize(
    "secret",
    ["Jane", "jane@example.org", "sk-abcdefgh", "hunter2", "AKIAIOSFODNN", "Zürich", "a_b_c"],
)
def test_what_is_no_plain_word_is_a_shape(secret: str) -> None:
    """Names, addresses, keys and identifiers, wherever they stand."""
    shown = around(f"Known to {secret} since 10:11:12 or {secret} later", "10:11:12")
    assert secret not in shown and "since 00:00:00 or" in shown


def test_words_behind_a_label_of_secrets_are_shapes() -> None:
    """A password can be an ordinary word."""
    shown = around("The admin password is swordfish since 10:11:12 today", "10:11:12")
    assert "swordfish" not in shown
    assert "friendly" not in redacted_begin("Your codename: friendly badger is")


@given(st.text(alphabet="aB9 .@-\n\u00fc", max_size=200), st.data())
def test_no_digit_and_no_odd_word_is_ever_shown(text: str, data: st.DataObject) -> None:
    """Whatever the text: what is shown has no digit but 0, and is short."""
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, len(text)))
    for shown in (redacted_around(text, start, end), redacted_begin(text)):
        assert set(filter(str.isdigit, shown)) <= {"0"} and "ü" not in shown
        assert len(shown) < 3_000
