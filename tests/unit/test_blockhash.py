"""The names of blocks, against vectors that vLLM's own functions gave."""

import json
import os
import pickle
import subprocess
import sys
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from typing import Any

import cbor2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proto.blockhash import (
    ALGORITHMS,
    CanonicalScheme,
    EngineScheme,
    ExtraKeyForm,
    MultiModalItem,
    RequestKeys,
    normalise,
    request_extra_keys,
    root_digest,
    scheme_id,
    show,
)

VECTORS: list[dict[str, Any]] = json.loads(
    (Path(__file__).parent.parent / "vectors" / "golden_vectors.json").read_text()
)["vectors"]
FORMS: dict[str, ExtraKeyForm] = {
    "tagged": "tagged",
    "untagged_mmoff": "untagged_mm_offset",
    "untagged": "untagged",
    "lora_int": "lora_int",
}
# Small ids, those around each width of CBOR's heads, and ids beyond the table of encoded tokens.
TOKENS = st.one_of(
    st.integers(0, 300),
    st.sampled_from([23, 24, 255, 256, 65535, 65536, 2**18 - 1, 2**18, 2**32 - 1, 2**32]),
    st.integers(0, 2**64 - 1),
)
TABLE_TOKENS = st.one_of(
    st.integers(0, 300),
    st.sampled_from([23, 24, 255, 256, 65535, 65536, 2**18 - 1]),
    st.integers(0, 2**18 - 1),
)
KEYS = st.one_of(
    st.none(),
    st.lists(
        st.one_of(st.text(), st.binary(), st.tuples(st.text(), st.integers())), min_size=1
    ).map(tuple),
)


def scheme_of(vector: dict[str, Any]) -> EngineScheme:
    return EngineScheme(
        vector["algo"],
        vector["PYTHONHASHSEED"],
        vector["block_size"],
        vector["lookahead"],
        FORMS[vector["scheme"]],
    )


def keys_of(vector: dict[str, Any]) -> RequestKeys:
    return RequestKeys(
        lora_name=vector["lora_name"],
        lora_path=vector["lora_path"],
        lora_int_id=vector["lora_int_id"],
        cache_salt=vector["cache_salt"],
        multimodal=tuple(MultiModalItem(*item) for item in vector["mm"]),
    )


def test_there_are_28_golden_vectors() -> None:
    """No vector is lost, and every form of extra keys and every algorithm has some."""
    assert len(VECTORS) == 28
    assert {vector["scheme"] for vector in VECTORS} == set(FORMS)
    assert {vector["algo"] for vector in VECTORS} == set(ALGORITHMS)


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["name"])
def test_golden_vector(vector: dict[str, Any]) -> None:
    """Root, digests and wire ints are vLLM's, to the last bit."""
    scheme, keys = scheme_of(vector), keys_of(vector)
    digests = scheme.block_digests(vector["token_ids"], keys)
    assert root_digest(scheme.algorithm, scheme.seed).hex() == vector["none_hash"]
    assert [digest.hex() for digest in digests] == vector["block_hashes"]
    assert scheme.block_hashes(vector["token_ids"], keys) == vector["wire_int"]
    assert [normalise(digest) for digest in digests] == vector["wire_int"]
    assert [normalise(signed) for signed in vector["wire_int_as_i64"]] == vector["wire_int"]


@given(
    data=st.data(),
    block_size=st.one_of(st.integers(1, 40), st.sampled_from([255, 256, 300])),
    blocks=st.integers(0, 4),
    repeated=st.sampled_from([1, 1, 30]),
    beyond_the_table=st.booleans(),
)
@settings(max_examples=300, deadline=None)
def test_the_fast_cbor_path_is_canonical(
    data: st.DataObject, block_size: int, blocks: int, repeated: int, beyond_the_table: bool
) -> None:
    """Short prompts and long ones hash as ``cbor2.dumps(..., canonical=True)`` does."""
    blocks *= repeated
    count = block_size * blocks
    ids = data.draw(st.lists(TOKENS if beyond_the_table else TABLE_TOKENS, min_size=1, max_size=60))
    tokens = [ids[position % len(ids)] for position in range(count)]
    keys = data.draw(st.lists(KEYS, min_size=1, max_size=4))
    extras = [keys[index % len(keys)] for index in range(blocks)]
    scheme = EngineScheme("sha256_cbor", "0", block_size)
    parent, expected = root_digest("sha256_cbor", "0"), []
    for index, extra in enumerate(extras):
        block = tokens[index * block_size : (index + 1) * block_size]
        parent = sha256(cbor2.dumps([parent, block, extra], canonical=True)).digest()
        expected.append(parent)
    assert scheme.chain(root_digest("sha256_cbor", "0"), tokens, extras) == expected


@given(
    tokens=st.lists(TOKENS, max_size=60),
    block_size=st.integers(1, 20),
    lookahead=st.integers(0, 3),
    algorithm=st.sampled_from(ALGORITHMS),
)
@settings(max_examples=100, deadline=None)
def test_a_longer_prompt_keeps_the_names_of_its_prefix(
    tokens: list[int], block_size: int, lookahead: int, algorithm: Any
) -> None:
    """A prompt's blocks are those of any longer prompt, and only full blocks have a name."""
    scheme = EngineScheme(algorithm, "0", block_size, lookahead)
    hashes = scheme.block_hashes(tokens)
    assert len(hashes) == max(0, len(tokens) - lookahead) // block_size
    assert scheme.block_hashes([*tokens, *range(block_size)])[: len(hashes)] == hashes


@pytest.mark.parametrize("algorithm", ["sha256_cbor", "xxhash_cbor"])
@pytest.mark.parametrize("bad", [-1, -(2**40), 2**64])
def test_what_is_no_token_id_is_refused(algorithm: Any, bad: int) -> None:
    """A negative or oversized id raises ValueError instead of naming some other block."""
    with pytest.raises(ValueError, match="no token id"):
        EngineScheme(algorithm, "0", 4).block_hashes([1, 2, bad, 3])


@pytest.mark.parametrize("algorithm", ["xxhash", "xxhash_cbor"])
def test_a_random_root_has_no_scheme(algorithm: Any) -> None:
    """xxhash without a seed raises: its root is another one in every engine process."""
    with pytest.raises(ValueError, match="random root"):
        EngineScheme(algorithm, None, 16)


def test_equal_strings_are_distinct_objects_to_pickle() -> None:
    """A LoRA whose name equals its path hashes as in the engine: as two objects, not one."""
    name = "".join(["sql", "-lora"])
    keys = RequestKeys(lora_name=name, lora_path=name)
    (_, first, second), *_ = request_extra_keys("tagged", keys, 0, 0, 16) or ()
    assert first == second and first is not second
    root, tokens = root_digest("sha256", "0"), tuple(range(16))
    memoised = pickle.dumps((root, tokens, (("lora", name, name),)), protocol=5)
    digest = EngineScheme("sha256", "0", 16).block_digests(range(16), keys)[0]
    assert digest != sha256(memoised).digest()


def test_tagged_lora_needs_its_path() -> None:
    """Without the path there is no name, rather than a wrong one."""
    with pytest.raises(ValueError, match="path of LoRA 'a'"):
        EngineScheme("sha256", "0", 4).block_hashes(range(8), RequestKeys(lora_name="a"))


def test_ids_are_equal_in_every_process() -> None:
    """A scheme's id does not depend on the process that computes it."""
    code = (
        "from proto.blockhash import *;"
        "print(EngineScheme('sha256', None, 16, 1).id, CanonicalScheme(16).id)"
    )
    expected = f"{EngineScheme('sha256', None, 16, 1).id} {CanonicalScheme(16).id}"
    for seed in ("1", "random"):
        environment = os.environ | {"PYTHONHASHSEED": seed}
        done = subprocess.run(
            [sys.executable, "-c", code],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout.strip() == expected


def test_ids_tell_schemes_apart() -> None:
    """Any difference in the description is a difference in the id."""
    schemes = [
        EngineScheme("sha256", "0", 16),
        EngineScheme("sha256", "1", 16),
        EngineScheme("sha256", None, 16),
        EngineScheme("sha256_cbor", "0", 16),
        EngineScheme("sha256", "0", 32),
        EngineScheme("sha256", "0", 16, 1),
        EngineScheme("sha256", "0", 16, 0, "untagged"),
        CanonicalScheme(16),
    ]
    assert len({scheme.id for scheme in schemes}) == len(schemes)
    assert scheme_id({"a": 1, "b": 2}) == scheme_id({"b": 2, "a": 1})


def test_canonical_names_depend_on_everything_before() -> None:
    """Tokens, parent, salt and LoRA each change a canonical name and all that follow."""
    scheme, tokens = CanonicalScheme(4), list(range(12))
    prompts = [
        scheme.block_hashes(tokens),
        scheme.block_hashes([99, *tokens[1:]]),
        scheme.block_hashes(tokens, RequestKeys(cache_salt="s")),
        scheme.block_hashes(tokens, RequestKeys(lora_name="l")),
    ]
    for position in range(3):
        assert len({hashes[position] for hashes in prompts}) == len(prompts)
    assert all(a != b for a, b in pairwise(prompts[0]))


@given(st.integers(0, 2**64 - 1))
def test_every_wire_form_is_one_name(value: int) -> None:
    """Unsigned, negative and digest forms of a hash normalise to the same 16 hex digits."""
    signed = value - 2**64 if value >= 2**63 else value
    digest = b"\x5a" * 24 + value.to_bytes(8, "big")
    assert normalise(value) == normalise(signed) == normalise(digest) == value
    assert show(normalise(signed)) == digest[-8:].hex()
