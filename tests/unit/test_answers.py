"""Answers over a hub: who holds what, by hashes and by tokens."""

from array import array

import pytest

from indexer.answers import (
    HASHES_MAX,
    HASHINGS_MAX,
    PREFIXES_MAX,
    STATUS_S,
    TOKENS_MAX,
    Answers,
    MalformedAsk,
)
from indexer.index import ReplicaId
from proto.blockhash import CanonicalScheme, EngineScheme, RequestKeys
from proto.contract import HashedPrefix, ReplicaMatch
from tests.followed_hub import NOW, SHA, XXH, follow, new_hub

PROMPT = list(range(1000, 1200))


def prefix(scheme: EngineScheme = SHA, tokens: list[int] = PROMPT, **keys: str) -> HashedPrefix:
    hashes = scheme.block_hashes(tokens, RequestKeys(**keys))
    return HashedPrefix(scheme.id, array("Q", hashes))


def gpu(matches: list[ReplicaMatch]) -> dict[str, int]:
    return {match.replica: match.gpu_blocks for match in matches}


def test_only_those_who_hold_something_are_in_a_match() -> None:
    """Each holder is there with its depth; others, and other pools, leave the answer small."""
    hub = new_hub()
    for name, depth in (("a", 200), ("b", 64), ("c", 15)):
        follow(hub, name).holds(PROMPT[:depth])
    follow(hub, "d").holds([7] * 64)
    follow(hub, "e", pool="other").holds(PROMPT)
    matches = Answers(hub).match_prefix("", [prefix()], NOW)
    assert gpu(matches) == {"a": 12, "b": 4}
    assert matches[0] == ("a", 12, 12, 12, 16, "exact", (), 0)
    assert gpu(Answers(hub).match_prefix("other", [prefix()], NOW)) == {"e": 12}
    assert Answers(hub).match_prefix("nobody's", [prefix()], NOW) == []


def test_each_scheme_finds_its_own_replicas() -> None:
    """One entry per scheme in use; a scheme that nobody uses finds nobody."""
    hub = new_hub()
    follow(hub, "sha").holds(PROMPT)
    follow(hub, "xxh", XXH).holds(PROMPT)
    answers = Answers(hub)
    both = answers.match_prefix("", [prefix(SHA), prefix(XXH)], NOW)
    assert {match.replica: (match.gpu_blocks, match.block_size) for match in both} == {
        "sha": (12, 16),
        "xxh": (6, 32),
    }
    assert gpu(answers.match_prefix("", [prefix(SHA)], NOW)) == {"sha": 12}
    assert answers.match_prefix("", [HashedPrefix("ffff", [1, 2])], NOW) == []
    assert answers.match_prefix("", [HashedPrefix(SHA.id, [])], NOW) == []
    assert answers.match_prefix("", [], NOW) == []


def test_of_entries_of_one_scheme_the_larger_match_counts() -> None:
    """In whichever order they come, and for each replica by itself."""
    hub = new_hub()
    follow(hub, "a").holds(PROMPT[:64])
    follow(hub, "b").holds(PROMPT[:160], RequestKeys(cache_salt="s"))
    follow(hub, "b2").holds(PROMPT)
    entries = [prefix(), prefix(cache_salt="s"), prefix(XXH), prefix(tokens=PROMPT[:32])]
    for order in (entries, entries[::-1]):
        assert gpu(Answers(hub).match_prefix("", order, NOW)) == {"a": 4, "b": 10, "b2": 12}


def test_a_replica_with_nothing_to_match_with_is_left_out() -> None:
    """Two publishers under one name: FALLBACK, whatever its index says."""
    hub = new_hub()
    replica = follow(hub, "a")
    replica.holds(PROMPT)
    replica.link.state.duplicate_publisher = True
    assert Answers(hub).match_prefix("", [prefix()], NOW) == []


def test_evidence_is_as_old_as_it_says() -> None:
    """A change of evidence shows within STATUS_S; a replica of the same name at once."""
    hub = new_hub()
    replica = follow(hub, "a")
    replica.holds(PROMPT)
    answers = Answers(hub)
    assert answers.match_prefix("", [prefix()], NOW)[0].evidence == "exact"
    replica.leaves()
    later = answers.match_prefix("", [prefix()], NOW + STATUS_S)[0]
    assert (later.evidence, later.reasons, later.gpu_blocks) == ("degraded", ("recovering",), 12)
    hub.remove(replica.link.source.replica_id)
    again = follow(hub, "a", EngineScheme("sha256_cbor", "0", 64))
    again.holds(PROMPT)
    match = answers.match_prefix("", [prefix(again.scheme)], NOW + STATUS_S)[0]
    assert (match.evidence, match.block_size, match.seq) == ("exact", 64, 0)


@pytest.mark.parametrize(
    ("prefixes", "complaint"),
    [
        ([HashedPrefix("x", [])] * (PREFIXES_MAX + 1), "at most 64"),
        (
            [HashedPrefix("x", [1] * (HASHES_MAX // 2)), HashedPrefix("y", [1] * HASHES_MAX)],
            "393216",
        ),
    ],
)
def test_too_much_is_refused(prefixes: list[HashedPrefix], complaint: str) -> None:
    """The limits hold for a request altogether, and are in the text."""
    with pytest.raises(MalformedAsk, match=complaint):
        Answers(new_hub()).match_prefix("", prefixes, NOW)


def test_the_largest_ask_is_answered() -> None:
    """Exactly at the limits nothing is refused."""
    hub = new_hub()
    follow(hub, "a").holds(PROMPT)
    words = array("Q", bytes(8 * HASHES_MAX))
    assert Answers(hub).match_prefix("", [HashedPrefix(SHA.id, words)], NOW) == []


def tokens_match(hub_answers: Answers, lora: str | None = None, salt: str | None = None) -> object:
    return gpu(hub_answers.match_tokens("", PROMPT, lora, salt, NOW))


def test_tokens_are_hashed_as_each_replica_does() -> None:
    """Every scheme of the pool, the translated one too, and the salt."""
    hub = new_hub()
    follow(hub, "sha").holds(PROMPT)
    follow(hub, "xxh", XXH).holds(PROMPT)
    follow(hub, "salted").holds(PROMPT, RequestKeys(cache_salt="s"))
    random = follow(hub, "random", EngineScheme("xxhash_cbor", "chosen by nobody", 16))
    for _ in range(2):
        # What the first root says begins the translation, and has to be said again.
        random.holds(PROMPT)
    answers = Answers(hub)
    assert tokens_match(answers) == {"sha": 12, "xxh": 6, "random": 12}
    assert tokens_match(answers, salt="s") == {"salted": 12}
    assert tokens_match(answers, salt="other") == {}
    assert isinstance(answers.list_replicas("", NOW)[3].schemes[0], CanonicalScheme)


def test_a_lora_is_where_it_is_listed() -> None:
    """Under each replica's own path; not where it is no more listed, nor for the base model."""
    hub = new_hub()
    for name, path in (("a", "/1"), ("b", "/2"), ("gone", "/1"), ("plain", None)):
        paths = {"l": path} if path else {}
        replica = follow(hub, name, lora_paths=paths)
        replica.holds([9] * 16)
        replica.holds(PROMPT, RequestKeys(lora_name="l", lora_path=path) if path else RequestKeys())
    hub.links[ReplicaId("gone")].state.learn(version="0.33.0", lora_paths={})
    assert tokens_match(Answers(hub), lora="l") == {"a": 12, "b": 12}
    assert tokens_match(Answers(hub)) == {"plain": 12}
    assert tokens_match(Answers(hub), lora="unheard of") == {}


def test_a_lora_s_number_is_known_to_nobody() -> None:
    """Where only a number of the LoRA is hashed, blocks of the base model are no match for it."""
    hub = new_hub()
    scheme = EngineScheme("sha256", "0", 16, extra_keys="lora_int")
    replica = follow(hub, "old", scheme, lora_paths={"l": "/1"}, version="0.10.2")
    replica.holds(PROMPT)
    assert [scheme.extra_keys for scheme in replica.link.state.proof.schemes] == ["lora_int"]
    assert tokens_match(Answers(hub), lora="l") == {}
    assert tokens_match(Answers(hub)) == {"old": 12}


def test_a_prompt_is_hashed_once_per_recipe() -> None:
    """However many replicas share it; with as many paths of a LoRA as are allowed."""
    hub = new_hub()
    for number in range(20):
        follow(hub, f"a{number}", lora_paths={"l": "/same", "m": f"/{number}"}).holds(PROMPT)
    answers = Answers(hub)
    assert len(answers.hashings("", PROMPT, None, None)) == 1
    assert len(answers.hashings("", PROMPT, "l", None)) == 1
    assert len(answers.hashings("", PROMPT, "m", None)) == HASHINGS_MAX


@pytest.mark.parametrize(
    ("tokens", "lora", "salt", "complaint"),
    [
        (range(TOKENS_MAX + 1), None, None, "token ids"),
        ([1], "l" * 5000, None, "lora_name"),
        ([1], None, "s" * 5000, "cache_salt"),
    ],
)
def test_a_prompt_has_bounds(
    tokens: list[int], lora: str | None, salt: str | None, complaint: str
) -> None:
    """More tokens than any model takes, and endless names, are refused by name."""
    with pytest.raises(MalformedAsk, match=complaint):
        Answers(new_hub()).match_tokens("", tokens, lora, salt, NOW)


def test_replicas_are_listed_with_all_that_is_known() -> None:
    """Also those that nothing is known of yet; one pool, or all."""
    hub = new_hub()
    follow(hub, "a").holds(PROMPT)
    follow(hub, "b", pool="other")
    views = Answers(hub).list_replicas("", NOW)
    first, second = views
    assert (first.replica, first.pool, first.url, first.rank) == ("a", "default", "http://a", 0)
    assert (first.evidence, first.reasons, first.seq, first.lag_batches) == ("exact", (), 0, 0)
    assert (first.blocks, first.capacity_blocks) == (12, 0)
    assert first.schemes[0].block_hashes(PROMPT) == SHA.block_hashes(PROMPT)
    assert (second.evidence, second.reasons, second.schemes) == ("fallback", ("not_proven",), ())
    assert (second.seq, second.blocks) == (-1, 0)
    assert Answers(hub).list_replicas("other", NOW) == (second,)


def test_the_shape_changes_with_what_a_watcher_acts_on() -> None:
    """Membership, schemes and evidence; not with blocks."""
    hub = new_hub()
    answers = Answers(hub)
    shapes = [answers.shape(NOW)]
    replica = follow(hub, "a")
    shapes.append(answers.shape(NOW))
    replica.holds(PROMPT)
    shapes.append(answers.shape(NOW + 1))
    replica.leaves()
    shapes.append(answers.shape(NOW + 2))
    hub.remove(replica.link.source.replica_id)
    shapes.append(answers.shape(NOW + 3))
    assert len(set(shapes[:-1])) == 4 and shapes[-1] == shapes[0]
    replica = follow(hub, "a")
    replica.holds(PROMPT)
    before = answers.shape(NOW + 4)
    replica.holds([5] * 160)
    assert answers.shape(NOW + 5) == before
