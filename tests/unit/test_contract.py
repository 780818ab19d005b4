"""The types that both services share."""

import pytest

from proto.blockhash import ALGORITHMS, EXTRA_KEY_FORMS, CanonicalScheme, EngineScheme, HashScheme
from proto.contract import replica_id, scheme_of

SCHEMES: list[HashScheme] = [
    EngineScheme(algorithm, "0", 16, lookahead, form)
    for algorithm in ALGORITHMS
    for form in EXTRA_KEY_FORMS
    for lookahead in (0, 1)
]
SCHEMES += [EngineScheme("sha256", None, 32), CanonicalScheme(16)]


@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
def test_a_description_gives_back_the_scheme(scheme: HashScheme) -> None:
    """The scheme of a description has the same id, with the id in the description or without."""
    assert scheme_of(scheme.describe()).id == scheme.id
    assert scheme_of(scheme.describe() | {"id": scheme.id}).id == scheme.id


@pytest.mark.parametrize(
    "change",
    [
        {"algorithm": "md5"},
        {"algorithm": "xxhash", "seed": None},
        {"block_size": 0},
        {"block_size": "16"},
        {"block_size": None},
        {"extra_keys": "plain"},
        {"lookahead": -1},
        {"salted": True},
        {"algorithm": "canonical_xxh3", "lookahead": 1},
        {"algorithm": ["sha256"]},
    ],
    ids=str,
)
def test_a_wrong_description_is_a_value_error(change: dict[str, object]) -> None:
    """Whatever is wrong with a description, ValueError says so."""
    with pytest.raises(ValueError):
        scheme_of(EngineScheme("sha256", "0", 16).describe() | change)


def test_the_ranks_of_an_engine_are_told_apart() -> None:
    """An engine of one rank goes by its name; ranks of several have theirs behind a #."""
    assert replica_id("a", 0, 1) == "a"
    assert [replica_id("a", rank, 2) for rank in range(2)] == ["a#0", "a#1"]
