"""Membership and health."""

from router.replicas import (
    FAILED_PROBES,
    GOOD_PROBES,
    EngineConfig,
    ProbeAnswer,
    ReplicaSet,
    ServedModel,
)

BASE = ServedModel("base")
ANSWER = ProbeAnswer((BASE,))


def replica_set(*names: str, pool: str = "p") -> ReplicaSet:
    replicas = ReplicaSet()
    replicas.reset(EngineConfig(name, f"http://{name}:1", pool) for name in names)
    return replicas


def ids(replicas: ReplicaSet, model: str = "base", pool: str = "p") -> list[str]:
    return [replica.id for replica in replicas.candidates(pool, model)]


def test_an_engine_is_in_service_from_its_first_good_probe() -> None:
    """It begins out: nobody is sent to what has never answered."""
    replicas = replica_set("a", "b")
    assert ids(replicas) == []
    replicas.engines["a"].answered(ANSWER)
    assert ids(replicas) == ["a"]


def test_one_failed_request_takes_an_engine_out_and_good_probes_bring_it_back() -> None:
    """Nobody has to do anything about it, and one lucky probe is not enough."""
    replicas = replica_set("a")
    engine = replicas.engines["a"]
    engine.answered(ANSWER)
    engine.request_failed("refused")
    assert ids(replicas) == []
    for number in range(1, GOOD_PROBES + 1):
        engine.answered(ANSWER)
        assert ids(replicas) == (["a"] if number == GOOD_PROBES else [])


def test_a_few_slow_probes_change_nothing_and_several_in_a_row_do() -> None:
    """Hysteresis: a busy engine may miss a probe."""
    replicas = replica_set("a")
    engine = replicas.engines["a"]
    engine.answered(ANSWER)
    for _ in range(5):
        for _ in range(FAILED_PROBES - 1):
            engine.probe_failed("no answer")
        assert engine.up
        engine.answered(ANSWER)
    for _ in range(FAILED_PROBES):
        engine.probe_failed("no answer")
    assert not engine.up and engine.error == "no answer"


def test_a_request_for_an_adapter_goes_only_where_it_is_listed() -> None:
    """One that does not list the LoRA is no candidate; what nobody lists anyone may refuse."""
    replicas = replica_set("a", "b")
    replicas.engines["a"].answered(ProbeAnswer((BASE, ServedModel("sql", "/adapters/sql"))))
    replicas.engines["b"].answered(ANSWER)
    assert ids(replicas, "sql") == ["a"]
    assert ids(replicas, "no-such-model") == ["a", "b"]
    assert replicas.lora_paths("p", "sql") == ("/adapters/sql",)
    assert replicas.lora_paths("p", "base") == ()


def test_an_adapter_has_every_path_that_some_replica_has_it_from() -> None:
    """The path is in the hashes, so a prompt is hashed for each."""
    replicas = replica_set("a", "b", "c")
    for name, path in (("a", "/x"), ("b", "/y"), ("c", "/x")):
        replicas.engines[name].answered(ProbeAnswer((ServedModel("sql", path),)))
    assert replicas.lora_paths("p", "sql") == ("/x", "/y")


def test_each_rank_is_a_replica_and_the_header_counts_from_the_front_ends_first() -> None:
    """Rank 9 of a front end that serves ranks 8 to 10 is its local rank 1."""
    replicas = replica_set("a")
    replicas.engines["a"].answered(ProbeAnswer((BASE,), ranks=(8, 9, 10)))
    found = [(r.id, r.rank, r.header_rank) for r in replicas.candidates("p", "base")]
    assert found == [("a#8", 8, 0), ("a#9", 9, 1), ("a#10", 10, 2)]


def test_one_rank_needs_no_header() -> None:
    """A single rank is the engine."""
    replicas = replica_set("a")
    replicas.engines["a"].answered(ProbeAnswer((BASE,), ranks=(3,)))
    assert [(r.id, r.header_rank) for r in replicas.candidates("p", "base")] == [("a", None)]


def test_a_model_names_its_pool_and_with_one_pool_every_model_does() -> None:
    """What nobody serves is for an engine to refuse, if there is no doubt which."""
    replicas = ReplicaSet()
    replicas.reset([EngineConfig("a", "http://a", "p"), EngineConfig("b", "http://b", "q")])
    replicas.engines["b"].answered(ProbeAnswer((ServedModel("other"),)))
    assert replicas.pool_of("other") == "q"
    assert replicas.pool_of("unknown") is None
    assert replica_set("a").pool_of("unknown") == "p"


def test_a_reset_keeps_the_state_of_engines_that_stay() -> None:
    """A changed entry is a new engine; an unchanged one notices nothing."""
    replicas = replica_set("a", "b")
    replicas.engines["a"].answered(ANSWER)
    came, left = replicas.reset(
        [EngineConfig("a", "http://a:1", "p"), EngineConfig("b", "http://elsewhere:1", "p")]
    )
    assert (came, left) == (["b"], ["b"])
    assert ids(replicas) == ["a"]
