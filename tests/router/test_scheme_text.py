"""A hash scheme in the words of a person, and in those of `events inspect`."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proto.blockhash import ALGORITHMS, EXTRA_KEY_FORMS, CanonicalScheme, EngineScheme
from router.scheme_text import DEFAULT_SCHEME, parse_scheme


def test_what_is_left_out_is_vllms_default() -> None:
    """The default that --help shows says the same as the algorithm alone."""
    default = EngineScheme("sha256", None, 16, 0, "tagged")
    assert parse_scheme(DEFAULT_SCHEME) == parse_scheme("sha256") == default


@given(
    st.sampled_from(ALGORITHMS),
    st.sampled_from(["0", "", "random", "4294967295"]),
    st.integers(1, 10**9 - 1),
    st.sampled_from(EXTRA_KEY_FORMS),
    st.integers(0, 8),
    st.randoms(use_true_random=False),
)
def test_every_scheme_can_be_written(algorithm, seed, block_size, form, lookahead, random) -> None:
    """Settings in any order, or the entry of an inspection, give that very scheme."""
    scheme = EngineScheme(algorithm, seed, block_size, lookahead, form)
    settings = [f"{k}={v}" for k, v in scheme.describe().items() if k != "algorithm"]
    random.shuffle(settings)
    assert parse_scheme(",".join((algorithm, *settings))) == scheme
    entry = {"rank": 0} | scheme.describe() | {"id": scheme.id, "proven": True}
    assert parse_scheme(json.dumps(entry)) == scheme


def test_translated_names_have_a_scheme_too() -> None:
    """pointsman's own names for blocks whose engine hashes nobody can compute."""
    assert parse_scheme("canonical_xxh3,block_size=32") == CanonicalScheme(32)
    assert parse_scheme(json.dumps(CanonicalScheme(8).describe())) == CanonicalScheme(8)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "the algorithm comes first"),
        ("seed=0", "the algorithm comes first"),
        ("md5", "unknown algorithm 'md5'; known: sha256, "),
        ("sha256,blocksize=16", "'blocksize=16' is none of its settings: seed=, block_size="),
        ("sha256,block_size=-1", "block_size=-1 is no number"),
        ("sha256,block_size=0", "too small"),
        ("sha256,block_size=1e9", "no number"),
        ("sha256,extra_keys=tags", "is none of lora_int, untagged"),
        ("xxhash", "random root"),
        ("{", "no JSON object"),
        ('{"algorithm": null, "proven": false}', "nothing was proven"),
        ('{"algorithm": "sha256"}', "numbers of tokens"),
        ('{"algorithm": "sha256", "block_size": 16, "lookahead": 0, "seed": 0}', "seed is a text"),
        ('{"algorithm": "sha256", "block_size": 4, "lookahead": 0, "x": 1}', "no description"),
    ],
)
def test_what_is_no_scheme_is_said(text: str, says: str) -> None:
    """Nothing is guessed."""
    with pytest.raises(ValueError, match=says.replace("(", r"\(")):
        parse_scheme(text)
