"""One form for texts that a reader takes for the same."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.practices.text_forms import difference, normalised

TEXTS = st.text(alphabet="ab \t\n\r\u00a0\u200b\u0301\u00e1\u2028e", max_size=40)


@pytest.mark.parametrize(
    ("first", "second", "name"),
    [
        ("a\nb", "a\r\nb", "line ends"),
        ("a b", "a\u00a0b", "unusual spaces"),
        ("ab", "a\u200bb", "invisible characters"),
        ("caf\u00e9", "cafe\u0301", "unicode forms"),
        ("a\nb", "a  \nb", "spaces at the ends of lines"),
        ("a b", "a   b", "runs of spaces"),
        ("a\n\nb", "a\n\n\n\nb", "blank lines"),
    ],
)
def test_two_writings_of_one_text(first: str, second: str, name: str) -> None:
    """They have one normal form, and what sets them apart has a name."""
    assert normalised(first) == normalised(second) == first
    assert difference(first, second) == difference(second, first) == name


@pytest.mark.parametrize(
    "text", ["a\n  b", "a\n\tb", "a\n\nb", "na\u00efve", "\U0001f469\u200d\U0001f52c"]
)
def test_what_can_carry_meaning_stays(text: str) -> None:
    """Indentation, one blank line, letters, joined emoji."""
    assert normalised(text) == text


@given(TEXTS)
def test_the_normal_form_is_one(text: str) -> None:
    """To normalise twice changes nothing more."""
    assert normalised(normalised(text)) == normalised(text)
