"""What the doctor reads off the batches of real engines, and off those that are none."""

import pytest

from indexer.doctor.facts import BATCHES_OF_BUSY
from indexer.doctor.log import ExaminedLog, replay_start
from proto.blockhash import EngineScheme
from tests.unit.captures import frames, lora_paths, meta
from tests.unit.wire import CLEARED, payload, stored


def read(name: str, *seeds: str) -> ExaminedLog:
    log = ExaminedLog(meta(name)["vllm"], lora_paths(name), seeds)
    for seq, batch in frames(name):
        log.read(seq, batch)
    return log


@pytest.mark.parametrize(
    ("name", "scheme"),
    [
        ("qwen3_bs16_sha256_bytes.jsonl", EngineScheme("sha256", "0", 16)),
        ("qwen3_bs16_sha256_int_noseed.jsonl", EngineScheme("sha256", None, 16)),
        ("qwen3_bs16_sha256cbor_bytes_lora.jsonl", EngineScheme("sha256_cbor", "0", 16)),
        ("qwen3_bs16_xxhash_cbor_bytes.jsonl", EngineScheme("xxhash_cbor", "0", 16)),
    ],
)
def test_schemes_of_real_engines_are_proven(name: str, scheme: EngineScheme) -> None:
    """With every root in agreement, nothing missing and a rate by the engine's clock."""
    facts = read(name, "0").facts()
    assert facts.schemes == (scheme,)
    assert facts.roots and not facts.unprovable and not facts.malformed and not facts.missing
    assert facts.batches == len(frames(name)) and facts.batches_per_second


def test_an_unknown_seed_is_noticed() -> None:
    """Every root is one that no recipe gives."""
    facts = read("qwen3_bs16_xxhash_cbor_bytes.jsonl", "1").facts()
    assert facts.schemes == () and facts.unprovable > 0


def test_a_batch_counts_once() -> None:
    """Wherever it comes from again; numbers between two that came are missing."""
    log = ExaminedLog("0.33.0", {})
    for seq in 3, 4, 3, 4, 7:
        log.read(seq, payload(CLEARED))
    facts = log.facts()
    assert (facts.batches, facts.first_seq, facts.last_seq, facts.missing) == (3, 3, 7, 2)
    assert log.next_seq == 8 and facts.batches_per_second is None


def test_what_is_not_understood_is_counted() -> None:
    """Garbage, a root whose tokens are none, and events of tomorrow."""
    log = ExaminedLog("0.33.0", {})
    log.read(0, b"\xc1")
    log.read(1, payload(stored([1], ["x"])))
    log.read(2, payload({"type": "BlockMoved"}))
    facts = log.facts()
    assert (facts.malformed, facts.unknown_tags) == (2, ("BlockMoved",))


def test_only_roots_that_the_index_would_prove_from_count() -> None:
    """Not those of other tiers and of groups with other attention, which are told apart."""
    log, tokens = ExaminedLog("0.33.0", {}), range(16)
    log.read(0, payload(stored([1], tokens, medium="CPU"), stored([2], tokens, parent=1)))
    assert (log.facts().roots, log.facts().hybrid) == (0, False)
    log.read(1, payload(stored([1], tokens, group_idx=1, kv_cache_spec_kind="sliding_window")))
    assert (log.facts().roots, log.facts().hybrid) == (0, True)
    log.read(2, payload(stored([1], tokens)))
    assert (log.facts().roots, log.facts().unprovable) == (1, 1)


def test_a_busy_engine_is_spared() -> None:
    """It is asked for its last batches; an idle one for all."""
    assert replay_start(None) == 0 and replay_start(5) == 0
    assert replay_start(10**6) == 10**6 - BATCHES_OF_BUSY
