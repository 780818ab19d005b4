"""The micro-benchmarks, with next to nothing to do: that they run, not how fast."""

import json

import pytest

from benchmarks.micro.__main__ import SUBJECTS

KEYS = ["name", "value", "unit", "n", "median", "min", "max"]


@pytest.mark.parametrize("subject", SUBJECTS)
def test_every_line_has_exactly_the_keys_that_its_readers_expect(subject: str) -> None:
    """Each subject gives lines of the agreed form, whose value is the median of its runs."""
    lines = [json.loads(each.line()) for each in SUBJECTS[subject](0.001)]
    assert lines
    for line in lines:
        assert list(line) == KEYS
        assert line["n"] >= 1
        assert line["min"] <= line["median"] == line["value"] <= line["max"]
    assert len({line["name"] for line in lines}) == len(lines)
