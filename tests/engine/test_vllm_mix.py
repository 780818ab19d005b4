"""What is predicted of a real vLLM is what it reports: over a hundred requests, one by one.

Then the same mix at once, where every difference has to have a reason. The tests are in an order,
and share two engines: an index that has followed them through all of it is what is to be proven.
"""

import os
import signal
import time
from collections import Counter

from tests.engine.client import completion, send
from tests.engine.engine_log import EngineLog
from tests.engine.mix import lanes
from tests.engine.proof import told_to_client
from tests.engine.runs import at_once
from tests.engine.stage import Stage
from tests.processes import call, until

_OVER_SHARE_MAX = 0.01
_TWINS = ("conversation", "agent", "shared_document", "generated_chat", "salts", "adapter")


def test_before_the_first_request_it_is_known_that_nothing_is_held(stage: Stage) -> None:
    """Each engine has told its whole log, which is empty."""
    stage.services.evidence("fallback(nothing_stored)")


def test_every_prediction_is_what_the_engine_reports(stage: Stage) -> None:
    """From the first request on, sent one by one."""
    stage.mix.run(60)
    stage.services.evidence("exact")


def test_a_reset_of_one_engine_is_followed(stage: Stage) -> None:
    """What it drops is told with its next step, so one that nobody routed comes first."""
    stage.services.settled()
    engine, before = stage.engine("a"), stage.services.replicas()["a"]["blocks"]
    call(f"{engine.url}/reset_prefix_cache", {})
    send(engine.url, completion([7, 7, 7], max_tokens=1))
    after = stage.services.settled()["a"]
    assert after["blocks"] < before and after["evidence"] == "exact"
    stage.mix.run(20)


def test_a_restart_of_one_engine_is_followed(stage: Stage) -> None:
    """It holds nothing, under the sequence numbers of before."""
    engine = stage.engine("b")
    engine.stop()
    engine.start()
    engine.wait()

    def back() -> bool:
        replica = stage.services.replicas()["b"]
        up = call(f"{stage.services.url}/ready")["engines"]["b"] == "up"
        return up and replica["reasons"] == ["nothing_stored"] and not replica["blocks"]

    until(back, lambda: f"b is back: {stage.services.replicas()}")
    stage.mix.run(25)
    stage.services.evidence("exact")


def test_a_killed_indexer_costs_predictions_and_no_request(stage: Stage) -> None:
    """The next one has everything from the engines' replay, and is exact again."""
    services = stage.services
    services.apart()
    stage.mix.run(10)
    assert services.indexer is not None
    os.kill(services.indexer.process.pid, signal.SIGKILL)
    services.indexer.process.wait()
    for _ in range(2):
        answer, line = services.send_logged(completion("Is anybody there? " * 20))
        assert answer.status == 200
        assert line["without"] == "indexer" and line["predicted_cached_tokens"] is None
    services.start_indexer()
    services.evidence("exact")
    stage.mix.run()
    predictions = stage.mix.predictions
    judged = [each for each in predictions if not each.excused]
    print(Counter(each.excused or "exact" for each in predictions))
    assert len(predictions) >= 120 and all(each.exact for each in judged)
    assert {each.replica for each in judged} == {"a", "b"}
    assert sum(each.reported or 0 for each in judged) > 10_000


def test_all_at_once_every_difference_has_a_reason(stage: Stage) -> None:
    """At most one in a hundred finds less than was predicted, and each that differs is explained.

    An index is behind its engine by what the engine does meanwhile, and by nothing else. Some lanes
    have a twin that sends the same at the same time, so that there are differences to explain.
    ``prompt_logprobs`` is left out: beside other requests it kills vLLM 0.32 with an adapter on a
    CPU (see ``lanes``); one by one it was predicted exactly above.
    """
    services = stage.services
    services.settled()
    before, started = len(services.log_lines()), time.monotonic()
    answers = []
    # Twice, since one in a hundred of a hundred is a matter of luck.
    for seed in (2, 3):
        twins = {f"{name} (twin)": lane for name, lane in lanes(seed).items() if name in _TWINS}
        answers += at_once(services.send, lanes(seed, together=True) | twins)
    seconds = time.monotonic() - started
    lines = until(
        lambda: (
            len(services.log_lines()) - before == len(answers) and services.log_lines()[before:]
        ),
        "every request is logged",
    )
    services.settled()
    logs = {engine.name: EngineLog.of(engine.replay_endpoint()) for engine in stage.engines}
    told = [(name, answer, told_to_client(answer)) for name, answer in answers]
    judged = [(name, answer, said) for name, answer, said in told if said is not None]
    reasons = Counter[str]()
    for name, answer, predicted in judged:
        if predicted != answer.cached_tokens:
            log = logs[answer.headers["x-pointsman-replica"]]
            reason = stage.explainer.reason(answer, predicted, log) or "unexplained"
            print(f"{name:22} predicted {predicted}, reported {answer.cached_tokens}: {reason}")
            reasons[reason] += 1
    logged = [
        (x["predicted_cached_tokens"], x["cached_tokens"]) for x in lines if "prediction" in x
    ]
    over = [pair for pair in logged if pair[0] > pair[1]]
    print(f"{len(answers)} in {seconds:.1f} s, {len(logged)} judged, {len(over)} over, {reasons}")
    assert Counter(logged) == Counter((said, answer.cached_tokens) for _, answer, said in judged)
    assert not reasons["unexplained"]
    assert len(over) <= _OVER_SHARE_MAX * len(logged)
