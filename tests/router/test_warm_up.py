"""Who is held while it is warmed up, and what a warm-up came to."""

import random

from router.replicas import (
    FAILED_PROBES,
    Engine,
    EngineConfig,
    ProbeAnswer,
    ReplicaSet,
    ServedModel,
)
from router.warm_up import Warmed, WarmUpReport

ANSWER = ProbeAnswer((ServedModel("base"),))
DONE = WarmUpReport({}, 1.0)


def replica_set(names: str, *, warm_up: bool = True) -> ReplicaSet:
    replicas = ReplicaSet()
    replicas.reset(EngineConfig(name, f"http://{name}:1", "p", warm_up=warm_up) for name in names)
    return replicas


def ids(replicas: ReplicaSet) -> str:
    return "".join(replica.id for replica in replicas.candidates("p", "base"))


def in_service(replicas: ReplicaSet, names: str) -> None:
    """Up and warm."""
    for name in names:
        engine = replicas.engines[name]
        while not engine.up:
            replicas.answered(engine, ANSWER)
        engine.warmed(engine.joins, DONE)


def test_a_replica_that_joins_gets_no_request_until_it_is_warm() -> None:
    """Somebody warm is there to serve meanwhile."""
    replicas = replica_set("ab")
    in_service(replicas, "a")
    joining = replicas.engines["b"]
    replicas.answered(joining, ANSWER)
    assert (joining.up, joining.warming, joining.state, ids(replicas)) == (
        True,
        True,
        "warming",
        "a",
    )
    assert joining.warmed(joining.joins, DONE)
    assert (joining.warming, joining.state, ids(replicas)) == (False, "up", "ab")


def test_a_warm_up_that_failed_keeps_nobody_out() -> None:
    """It is said, and the replica takes traffic."""
    replicas = replica_set("ab")
    in_service(replicas, "a")
    joining = replicas.engines["b"]
    replicas.answered(joining, ANSWER)
    joining.warmed(joining.joins, WarmUpReport({}, 60.0, "not done within 60 s"))
    assert ids(replicas) == "ab"
    assert joining.warm_up_state["last"]["outcome"] == "failed"


def test_a_fleet_that_is_cold_as_a_whole_takes_traffic_at_once() -> None:
    """Nobody waits for it, and who began to serve goes on when the first is warm."""
    replicas = replica_set("abc")
    for name in "ab":
        replicas.answered(replicas.engines[name], ANSWER)
    assert ids(replicas) == "ab" and replicas.engines["a"].warming
    first = replicas.engines["a"]
    first.warmed(first.joins, DONE)
    assert ids(replicas) == "ab"
    replicas.answered(replicas.engines["c"], ANSWER)
    assert ids(replicas) == "ab" and replicas.engines["c"].state == "warming"


def test_who_is_held_serves_when_all_others_have_gone() -> None:
    """A cold answer is better than none."""
    replicas = replica_set("ab")
    in_service(replicas, "a")
    replicas.answered(replicas.engines["b"], ANSWER)
    replicas.engines["a"].request_failed("refused")
    assert ids(replicas) == "b"


def test_an_adapter_that_only_a_held_replica_lists_is_served_there() -> None:
    """Another would refuse the model."""
    replicas = replica_set("ab")
    in_service(replicas, "a")
    adapter = ServedModel("sql", "/adapters/sql")
    replicas.answered(replicas.engines["b"], ProbeAnswer((*ANSWER.models, adapter)))
    assert [replica.id for replica in replicas.candidates("p", "sql")] == ["b"]
    assert ids(replicas) == "a"


def test_who_comes_back_is_warmed_again() -> None:
    """Its cache is taken for empty, whatever took it out; the old warm-up means nothing now."""
    replicas = replica_set("ab")
    in_service(replicas, "ab")
    engine = replicas.engines["b"]
    for take_out in (
        lambda: engine.request_failed("refused"),
        lambda: [engine.probe_failed("silent") for _ in range(FAILED_PROBES)],
    ):
        stale = engine.joins
        take_out()
        assert not engine.up and ids(replicas) == "a"
        while not engine.up:
            replicas.answered(engine, ANSWER)
        assert engine.held and ids(replicas) == "a"
        assert not engine.warmed(stale, DONE)
        assert engine.held and ids(replicas) == "a"
        assert engine.warmed(engine.joins, DONE)
        assert ids(replicas) == "ab"


def test_without_bodies_nobody_is_held() -> None:
    """A pool that has none is as it was."""
    replicas = replica_set("ab", warm_up=False)
    for name in "ab":
        replicas.answered(replicas.engines[name], ANSWER)
    assert ids(replicas) == "ab"
    assert not any(engine.warming or engine.held for engine in replicas.engines.values())


def _happen(rng: random.Random, replicas: ReplicaSet, warm: dict[str, bool]) -> None:
    """One thing that can happen to a fleet. ``warm``: what a test knows of each cache."""
    engine: Engine = replicas.engines[rng.choice(sorted(replicas.engines))]
    name = engine.config.name
    match rng.randrange(5):
        case 0 | 1:
            replicas.answered(engine, ANSWER)
        case 2:
            engine.probe_failed("silent")
        case 3:
            engine.request_failed("refused")
        case 4:
            join = engine.joins - rng.randrange(2)
            if engine.warmed(join, DONE):
                warm[name] = True
    if not engine.up:
        warm[name] = False


def test_whatever_happens_held_replicas_serve_only_where_nobody_else_can() -> None:
    """Held ones are cold, in service and warming; where anybody is up there is a candidate, and
    one that is warm is always among them."""
    for seed in range(300):
        rng, replicas = random.Random(seed), replica_set("abcd")
        warm = dict.fromkeys("abcd", False)
        for step in range(120):
            _happen(rng, replicas, warm)
            engines, found = replicas.engines.values(), ids(replicas)
            where = f"seed {seed}, step {step}: {engines}"
            held = {e.config.name for e in engines if e.held}
            assert all(e.up and e.warming for e in engines if e.held), where
            assert not any(warm[name] for name in held), where
            assert bool(found) == any(e.up for e in engines), where
            assert {name for name in "abcd" if warm[name]} <= set(found), where
            if any(e.up and not e.held for e in engines):
                assert not held & set(found), where


def test_what_came_of_a_warm_up_is_in_one_word_and_in_blocks() -> None:
    """Partly is where some body was answered and another not, or it ended early."""
    good = Warmed("a", prompt_tokens=100, resident_blocks=5, prompt_blocks=6)
    bad, unknown = Warmed("b", "answered 404"), Warmed("c", prompt_tokens=50)
    cases = {
        "ok": WarmUpReport({"r": [good, unknown]}, 1.0),
        "partly": WarmUpReport({"r": [good, bad]}, 1.0),
        "failed": WarmUpReport({"r": [bad]}, 1.0),
    }
    assert {word: report.outcome for word, report in cases.items()} == {w: w for w in cases}
    assert WarmUpReport({"r": [good]}, 1.0, "late").outcome == "partly"
    assert cases["partly"].blocks("r") == (5, 6) and cases["failed"].blocks("r") is None
    assert cases["partly"].described()["replicas"]["r"] == [
        {"body": "a", "prompt_tokens": 100, "resident_blocks": 5, "prompt_blocks": 6},
        {"body": "b", "error": "answered 404"},
    ]
