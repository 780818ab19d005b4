"""What a mark of a release is."""

import pytest

from router.releases import NAME_CHARS_MAX, NoReleaseName, Releases


def test_the_last_mark_is_kept_and_all_are_counted() -> None:
    """A mark without a name takes the name of the one before away."""
    releases = Releases()
    assert (releases.marked_at, releases.count) == (None, 0)
    releases.mark("web-1.4.2", 100.0)
    releases.mark(None, 200.0)
    assert (releases.name, releases.marked_at, releases.count) == ("", 200.0, 2)


@pytest.mark.parametrize("name", [7, ["a"], "a b", 'a"', "a\n", "ä", "a" * (NAME_CHARS_MAX + 1)])
def test_a_name_that_is_none_marks_nothing(name: object) -> None:
    """It would be a label, so it has a form and a length."""
    releases = Releases()
    with pytest.raises(NoReleaseName, match="name: up to 64 letters"):
        releases.mark(name, 100.0)
    assert releases.count == 0
