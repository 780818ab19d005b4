"""Proofs: which recipe an engine's own events show, and what they cannot show."""

from typing import Any

import pytest

from indexer.index import PoolName, ReplicaId
from indexer.replica import ReplicaState
from indexer.schemes import SchemeProof, StoredBlocks, Verdict, form_of_version
from indexer.stream_outputs import Apply
from proto.blockhash import (
    NO_KEYS,
    EngineScheme,
    MultiModalItem,
    RequestKeys,
)
from tests.unit.captures import CAPTURES, DP_CAPTURE, frames, lora_paths, meta, replay
from tests.unit.wire import payload, stored, stored_event

POOL = PoolName("pool")
TOKENS = list(range(100, 148))
SALT = RequestKeys(cache_salt="tenant-A")
LORA = RequestKeys(lora_name="sql", lora_path="/adapters/sql")


def state() -> ReplicaState:
    return ReplicaState(ReplicaId("r"), POOL)


def blocks_of(event: dict[str, Any]) -> StoredBlocks:
    return StoredBlocks.of(stored_event(event))


def root(scheme: EngineScheme, keys: RequestKeys = NO_KEYS, **fields: Any) -> StoredBlocks:
    """A root event as the engine writes it: keys untagged, and the LoRA's path left out."""
    hashes = scheme.block_hashes(TOKENS, keys)
    shown = [[keys.lora_name] if keys.lora_name else [] for _ in hashes]
    if keys.cache_salt:
        shown[0].append(keys.cache_salt)
    tokens = TOKENS[: len(hashes) * scheme.block_size]
    fields = {"extra_keys": [s or None for s in shown], "lora_name": keys.lora_name} | fields
    return blocks_of(stored(hashes, tokens, block_size=scheme.block_size, **fields))


def proof(version: str | None = None, paths: dict[str, str] | None = None) -> SchemeProof:
    made = SchemeProof()
    made.version, made.lora_paths = version, paths or {}
    return made


@pytest.mark.parametrize("name", [name for name in CAPTURES if name != DP_CAPTURE])
def test_a_capture_proves_its_scheme(name: str) -> None:
    """Algorithm, seed, block size and form come out as the engine was started."""
    about, replayed = meta(name), replay(state(), name)
    (scheme,) = replayed.proof.schemes
    assert (scheme.algorithm, scheme.seed) == (about["algo"], about["PYTHONHASHSEED"])
    assert (scheme.block_size, scheme.lookahead) == (about["block_size"], 0)
    assert scheme.extra_keys == form_of_version(about["vllm"])
    assert replayed.proof.disagreements == 0
    assert replayed.indexed.scheme_ids == (scheme.id,)


def test_without_a_version_a_lora_capture_proves_the_form() -> None:
    """Roots with a LoRA and a salt prove the tagged form by themselves."""
    name = "qwen3_bs16_sha256cbor_bytes_lora.jsonl"
    replayed = state()
    replayed.learn(version=None, lora_paths=lora_paths(name))
    for seq, frame in frames(name):
        replayed.apply(Apply(seq, frame))
    assert [scheme.extra_keys for scheme in replayed.proof.schemes] == ["tagged"]


@pytest.mark.parametrize(
    ("version", "form"),
    [
        ("0.33.0", "tagged"),
        ("0.31.0", "tagged"),
        ("0.32.0+cpu", "tagged"),
        ("1.0", "tagged"),
        ("0.30.1", "untagged_mm_offset"),
        ("0.19.0", "untagged_mm_offset"),
        ("0.18.2", "untagged"),
        ("0.11.1", "untagged"),
        ("0.11.0", "lora_int"),
        ("0.10.2", "lora_int"),
        ("dev", None),
        ("", None),
        (None, None),
    ],
)
def test_the_form_of_a_version(version: str | None, form: str | None) -> None:
    """Each release is assumed to use the form that it introduced or inherited."""
    assert form_of_version(version) == form


def test_the_version_decides_between_forms_that_stay_possible() -> None:
    """A plain root leaves every form possible; the version picks one, none keeps all."""
    scheme = EngineScheme("sha256", None, 16)
    for version, expected in ((None, 4), ("0.32.0", 1), ("0.20.0", 1)):
        proving = proof(version)
        assert proving.observe(root(scheme)) is Verdict.PROVEN
        assert len(proving.schemes) == expected
        if version:
            assert proving.schemes[0].extra_keys == form_of_version(version)


def test_a_root_with_keys_overrules_the_version() -> None:
    """What an engine does counts more than what its version is known to do."""
    scheme = EngineScheme("sha256", "0", 16, 0, "untagged_mm_offset")
    proving = proof("0.32.0")
    assert proving.observe(root(scheme, SALT)) is Verdict.PROVEN
    assert "tagged" not in {s.extra_keys for s in proving.schemes}
    proving = proof()
    assert proving.observe(root(scheme)) is Verdict.PROVEN
    assert proving.observe(root(scheme, SALT)) is Verdict.FORM_PROVEN
    assert proving.observe(root(scheme, SALT)) is Verdict.CONFIRMED


def test_a_lora_of_unknown_path_proves_nothing_until_it_is_known() -> None:
    """Its root is not checkable, and no disagreement; with the path it proves the scheme."""
    scheme = EngineScheme("sha256_cbor", "0", 16)
    proving = proof("0.32.0")
    assert proving.observe(root(scheme, LORA)) is Verdict.NOT_CHECKABLE
    assert not proving.schemes
    proving.observe(root(scheme))
    assert proving.observe(root(scheme, LORA)) is Verdict.NOT_CHECKABLE
    assert proving.schemes == (scheme,) and proving.disagreements == 0
    knowing = proof("0.32.0", {"sql": "/adapters/sql"})
    assert knowing.observe(root(scheme, LORA)) is Verdict.PROVEN
    assert knowing.schemes == (scheme,)


def test_a_lora_with_another_path_disagrees() -> None:
    """A path that is known and wrong is a disagreement, not silence."""
    scheme = EngineScheme("sha256", "0", 16)
    proving = proof("0.32.0", {"sql": "/adapters/other"})
    proving.observe(root(scheme))
    assert proving.observe(root(scheme, LORA)) is Verdict.DISAGREED


def test_a_disagreement_starts_over_with_that_root() -> None:
    """An engine that hashes otherwise now is proven anew at once, and counted."""
    before, after = EngineScheme("sha256", "0", 16), EngineScheme("sha256_cbor", None, 16)
    proving = proof("0.32.0")
    proving.observe(root(before))
    assert proving.observe(root(after)) is Verdict.DISAGREED
    assert proving.schemes == (after,) and proving.disagreements == 1
    wrong = root(after)
    bad = StoredBlocks(
        (1, 2, 3), wrong.token_ids, 16, 0, None, wrong.extra_keys, lora_name=None, lora_id=None
    )
    assert proving.observe(bad) is Verdict.DISAGREED
    assert proving.schemes == ()


@pytest.mark.parametrize("lookahead", [1, 3])
def test_lookahead_is_proven_from_the_event(lookahead: int) -> None:
    """The number of tokens hashed ahead is read off the event and is part of the scheme."""
    scheme = EngineScheme("sha256", None, 16, lookahead)
    hashes = scheme.block_hashes(TOKENS)
    assert len(hashes) == 2
    ahead = [TOKENS[end : end + lookahead] for end in (16, 32)]
    event = stored(hashes, TOKENS[:32], lookahead_token_ids=ahead)
    proving = proof("0.33.0")
    assert proving.observe(blocks_of(event)) is Verdict.PROVEN
    assert proving.schemes == (scheme,)
    # Ordinary names are another scheme's.
    assert proving.observe(root(EngineScheme("sha256", None, 16))) is Verdict.DISAGREED


def test_a_multimodal_root_proves_its_form() -> None:
    """The offset of an image relative to its block is in the hash as the event shows it."""
    scheme = EngineScheme("sha256_cbor", "0", 16)
    keys = RequestKeys(multimodal=(MultiModalItem("img", 4, 20),))
    hashes = scheme.block_hashes(TOKENS[:32], keys)
    event = stored(hashes, TOKENS[:32], extra_keys=[[["img", 4]], [["img", -12]]])
    proving = proof()
    assert proving.observe(blocks_of(event)) is Verdict.PROVEN
    assert proving.schemes == (scheme,)


@pytest.mark.parametrize(
    "event",
    [
        stored([1, 2], []),
        stored([], range(16)),
        stored([1], range(32)),
        stored([1], [], block_size=0),
    ],
)
def test_sparse_and_placeholder_events_prove_nothing(event: dict[str, Any]) -> None:
    """Where tokens and hashes do not correspond there is no verdict, proven or not."""
    proving = proof()
    assert proving.observe(blocks_of(event)) is Verdict.NOT_CHECKABLE
    proving.observe(root(EngineScheme("sha256", "0", 16)))
    assert proving.observe(blocks_of(event)) is Verdict.NOT_CHECKABLE
    assert proving.disagreements == 0


def test_keys_that_no_recipe_can_serialise_prove_nothing() -> None:
    """A hostile event's keys are no reason to raise."""
    nest: Any = "x"
    for _ in range(900):
        nest = [nest]
    for key in (nest, {"a": 1}, 2.5):
        event = stored([1], TOKENS[:16], extra_keys=[[key]])
        assert proof().observe(blocks_of(event)) is Verdict.NOT_CHECKABLE


def test_only_the_primary_group_feeds_the_proof() -> None:
    """A hybrid engine's other groups, with block sizes of their own, do not upset the proof."""
    fine, coarse = EngineScheme("sha256", "0", 16), EngineScheme("sha256", "0", 24)
    replica = state()
    full = {"group_idx": 0, "kv_cache_spec_kind": "full_attention"}
    window = {"group_idx": 1, "kv_cache_spec_kind": "sliding_window"}
    for seq in range(4):
        tokens = [seq * 1000 + token for token in range(48)]
        events = (
            stored(coarse.block_hashes(tokens), tokens, block_size=24, **window),
            stored(fine.block_hashes(tokens), tokens, **full),
        )
        replica.apply(Apply(seq, payload(*events)))
    assert replica.proof.disagreements == 0
    assert {scheme.block_size for scheme in replica.proof.schemes} == {16}
