"""Both services as processes in front of simulated replicas."""

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx2 as httpx
import pytest

from tests.e2e.services import Services, dumped, fault, services
from tests.processes import call, until


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Services]:
    """For tests that leave the fleet as it was, but for what is cached."""
    with services(tmp_path_factory.mktemp("fleet")) as made:
        yield made


def long_text(seed: str, words: int = 150) -> str:
    return " ".join(f"{seed}{number * number % 997}" for number in range(words))


def test_a_conversation_stays_and_every_prediction_is_what_the_engine_reports(
    fleet: Services,
) -> None:
    """Each turn goes where the one before went, and finds what was said to be there."""
    history, homes = [long_text("alpha")], set[str]()
    before = len(fleet.requests())
    for turn in range(4):
        fleet.caught_up()
        response = fleet.chat(*history)
        homes.add(response.headers["x-pointsman-replica"])
        answer = response.json()["choices"][0]["message"]["content"]
        history += [answer, long_text(f"turn{turn}", 20)]
    assert len(homes) == 1
    lines = fleet.requests_after(before, 4)
    assert [line["reason"] for line in lines[1:]] == ["prefix"] * 3
    assert [line["evidence"] for line in lines[1:]] == ["exact"] * 3
    for line in lines[1:]:
        assert line["predicted_cached_tokens"] == line["cached_tokens"] > 0
        assert line["prediction"] == "exact"
        assert set(line["phases_ms"]) >= {"queue_ms", "tokenize_ms", "hash_ms", "match_ms"}
        assert line["ttft_ms"] > 0


def test_a_shared_prefix_is_found_by_another_session(fleet: Services) -> None:
    """Two users of one long document meet on the replica that has it."""
    document = long_text("document")
    first = fleet.chat(document + " What does it say?", user="one")
    fleet.caught_up()
    second = fleet.chat(document + " Who wrote it?", user="two")
    assert second.headers["x-pointsman-replica"] == first.headers["x-pointsman-replica"]
    matched = int(second.headers["x-pointsman-matched-blocks"])
    assert 0.5 < matched / int(second.headers["x-pointsman-prompt-blocks"]) < 1


def test_a_salted_prompt_shares_nothing_with_an_unsalted_one(fleet: Services) -> None:
    """The salt is in the hashes: no tenant finds what another has sent."""
    text = long_text("secret")
    fleet.chat(text)
    fleet.caught_up()
    salted = fleet.chat(text, cache_salt="tenant-a")
    assert salted.headers["x-pointsman-matched-blocks"] == "0"
    assert salted.json()["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    fleet.caught_up()
    again = fleet.chat(text, cache_salt="tenant-a")
    assert int(again.headers["x-pointsman-matched-blocks"]) > 0


def test_the_report_mode_is_taken_out_and_said_to_be(fleet: Services) -> None:
    """With it the engine would announce blocks again that it has not stored again."""
    text = long_text("report")
    fleet.chat(text)
    response = fleet.chat(text, vllm_xargs={"kv_cache_report_mode": "full", "other": 1})
    assert response.status_code == 200
    assert response.headers["x-pointsman-transformed"] == "kv_cache_report_mode"
    fleet.caught_up()


def test_completions_by_text_by_ids_and_by_lists(fleet: Services) -> None:
    """All forms of a prompt are answered; one prompt of ids is hashed as it stands."""
    url = f"{fleet.url}/v1/completions"
    ids = list(range(500, 600))
    for prompt in (long_text("text"), [long_text("one"), "two"], ids, [ids, ids[:50]]):
        body = {"model": "sim", "prompt": prompt, "max_tokens": 2}
        assert httpx.post(url, json=body, timeout=60).status_code == 200
    fleet.caught_up()
    again = httpx.post(url, json={"model": "sim", "prompt": ids, "max_tokens": 2}, timeout=60)
    assert again.headers["x-pointsman-matched-blocks"] == "6"
    assert again.json()["usage"]["prompt_tokens_details"]["cached_tokens"] == 96
    fleet.at_rest()


def test_what_the_engine_refuses_is_the_engines_to_say(fleet: Services) -> None:
    """A model that nobody serves, and a prompt that is none: the engine's own words."""
    unknown = fleet.chat("hello", model="no-such-model")
    assert unknown.status_code == 404
    assert "no-such-model" in unknown.json()["error"]["message"]
    assert "x-pointsman-replica" in unknown.headers
    assert fleet.chat("hello", max_tokens="many").status_code == 400


def test_models_health_ready_and_metrics_are_the_routers_own(fleet: Services) -> None:
    """What an operator and an SDK ask first."""
    assert [m["id"] for m in call(f"{fleet.url}/v1/models")["data"]] == ["sim"]
    assert call(f"{fleet.url}/health") == {"status": "ok"}
    ready = call(f"{fleet.url}/ready")
    assert ready["ready"] and set(ready["evidence"]) == {"a", "b"}
    assert "pointsman_requests_total" in httpx.get(f"{fleet.url}/metrics").text
    nowhere = httpx.get(f"{fleet.url}/v1/nothing")
    assert nowhere.status_code == 404 and "error" in nowhere.json()
    assert httpx.get(f"{fleet.url}/v1/completions").status_code == 405


@pytest.mark.parametrize("phase", ["before_the_body", "before_the_answer", "mid_stream"])
def test_a_client_that_goes_away_leaves_no_count_behind(fleet: Services, phase: str) -> None:
    """At whichever phase: the engine's request ends too, and the counters return to zero."""
    body = dumped(
        {
            "model": "sim",
            "messages": [{"role": "user", "content": long_text(phase)}],
            "max_tokens": 5_000,
            "stream": phase == "mid_stream",
        }
    )
    for name in fleet.names:
        fault(fleet.sim_url(name), kind="slow", factor=20.0, seconds=60.0)
    with socket.create_connection(("127.0.0.1", fleet.router_port)) as client:
        head = (
            f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        client.sendall(head.encode() + (body[:50] if phase == "before_the_body" else body))
        if phase == "mid_stream":
            assert b"200 OK" in client.recv(4096)
        elif phase == "before_the_answer":
            until(lambda: fleet.metric("pointsman_inflight_requests") == 1, "it is in flight")
    fleet.at_rest()
    for name in fleet.names:
        fault(fleet.sim_url(name), kind="slow", factor=1.0, seconds=0.0)
        until(lambda name=name: _running(fleet, name) == 0, "the engine gave it up")


def _running(fleet: Services, name: str) -> float:
    text = httpx.get(f"{fleet.sim_url(name)}/metrics").text
    lines = [line for line in text.splitlines() if line.startswith("vllm:num_requests_running")]
    return sum(float(line.rpartition(" ")[2]) for line in lines)


def test_eviction_is_followed(tmp_path: Path) -> None:
    """What an engine has thrown out is not predicted any more."""
    with services(tmp_path, replicas=1, sim_flags=("--blocks", "64")) as fleet:
        first = long_text("first", 60)
        fleet.chat(first)
        fleet.caught_up()
        assert int(fleet.chat(first).headers["x-pointsman-matched-blocks"]) > 10
        for number in range(6):
            fleet.chat(long_text(f"other{number}", 60))
        fleet.caught_up()
        again = fleet.chat(first)
        cached = again.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
        assert int(again.headers["x-pointsman-matched-blocks"]) * 16 == cached < 160


def test_the_indexer_dies_and_traffic_goes_on(tmp_path: Path) -> None:
    """It costs hits, never a request; when it is back, prefixes are found again."""
    with services(tmp_path) as fleet:
        text = long_text("before")
        fleet.chat(text)
        fleet.caught_up()
        fleet.indexer.kill()
        for number in range(10):
            response = fleet.chat(long_text(f"meanwhile{number}"))
            assert response.status_code == 200
        assert fleet.metric("pointsman_placed_without_total", what="indexer") > 0
        fleet.indexer = fleet.start("indexer", "indexer_started")

        def found_again() -> bool:
            return int(fleet.chat(text).headers["x-pointsman-matched-blocks"]) > 0

        until(found_again, "the prefix is found again")
        fleet.at_rest()


def test_a_replica_that_dies_mid_stream_ends_that_stream_and_no_other_request(
    tmp_path: Path,
) -> None:
    """The broken answer is broken for the client too; the next request goes elsewhere at once."""
    flags = ("--step-ms", "20")
    with services(tmp_path, sim_flags=flags) as fleet:
        text = long_text("stream")
        home = fleet.chat(text).headers["x-pointsman-replica"]
        fleet.caught_up()
        body = {
            "model": "sim",
            "messages": [{"role": "user", "content": text}],
            "max_tokens": 400,
            "stream": True,
        }
        url = f"{fleet.url}/v1/chat/completions"
        with pytest.raises(httpx.RemoteProtocolError):
            with httpx.stream("POST", url, json=body, timeout=60) as response:
                home = response.headers["x-pointsman-replica"]
                for number, _ in enumerate(response.iter_raw()):
                    if number == 3:
                        fleet.sims[home].kill()
        after = fleet.chat(text)
        assert after.status_code == 200
        assert after.headers["x-pointsman-replica"] != home
        fleet.at_rest()
        outcomes = [line["outcome"] for line in fleet.requests()]
        assert outcomes.count("broken_midstream") == 1
        fleet.sims[home] = fleet.start_sim(home)
        until(fleet.all_in_service, "the replica is back by itself")
        assert fleet.chat(text).status_code == 200


def test_a_replica_that_refuses_costs_no_request(tmp_path: Path) -> None:
    """One retry elsewhere before the first byte; the client notices nothing."""
    with services(tmp_path, settings="probe_timeout_s = 30.0") as fleet:
        text = long_text("refused")
        home = fleet.chat(text).headers["x-pointsman-replica"]
        fleet.caught_up()
        fleet.sims[home].kill()
        retried = fleet.chat(text)
        assert retried.status_code == 200
        assert retried.headers["x-pointsman-replica"] != home
        fleet.at_rest()


def test_when_all_are_full_requests_wait_and_none_is_lost(tmp_path: Path) -> None:
    """Eight at once on two replicas with room for one each are all answered, in their turn."""
    flags = ("--step-ms", "5")
    with services(tmp_path, sim_flags=flags, settings="inflight_max = 1") as fleet:
        statuses: list[int] = []

        def go(number: int) -> None:
            statuses.append(fleet.chat(long_text(f"full{number}", 30)).status_code)

        threads = [threading.Thread(target=go, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert statuses == [200] * 8
        assert any("wait_ms" in line["phases_ms"] for line in fleet.requests())
        fleet.at_rest()


def test_data_parallel_ranks_are_pinned_by_header(tmp_path: Path) -> None:
    """A prompt goes back to the rank that has it, which the engine alone would not know."""
    flags = ("--data-parallel-size", "2")
    with services(tmp_path, replicas=1, sim_flags=flags) as fleet:
        until(lambda: len(call(f"{fleet.url}/ready")["evidence"]) == 2, "both ranks are known")
        homes = {}
        for number in range(4):
            homes[number] = fleet.chat(long_text(f"rank{number}")).headers["x-pointsman-replica"]
        assert set(homes.values()) == {"a#0", "a#1"}
        until(
            lambda: (
                sum(replica["copies"] for replica in fleet.replicas().values())
                == sum(
                    sum(call(f"{fleet.sim_url('a')}/sim/blocks?rank={rank}").values())
                    for rank in (0, 1)
                )
            ),
            "both ranks are caught up",
        )
        for number, home in homes.items():
            again = fleet.chat(long_text(f"rank{number}"))
            assert again.headers["x-pointsman-replica"] == home
            assert again.json()["usage"]["prompt_tokens_details"]["cached_tokens"] > 0


def test_an_adapters_prompts_are_hashed_with_its_name_and_path(tmp_path: Path) -> None:
    """They are predicted exactly, and never taken for the base model's."""
    with services(tmp_path, sim_flags=("--lora", "sql=/adapters/sql")) as fleet:
        models = {model["id"] for model in call(f"{fleet.url}/v1/models")["data"]}
        assert models == {"sim", "sql"}
        text = long_text("adapter")
        fleet.chat(text)
        fleet.caught_up()
        assert fleet.chat(text, model="sql").headers["x-pointsman-matched-blocks"] == "0"
        fleet.caught_up()
        again = fleet.chat(text, model="sql")
        assert int(again.headers["x-pointsman-matched-blocks"]) > 0
        last = fleet.requests_after(0, 3)[2]
        assert last["predicted_cached_tokens"] == last["cached_tokens"] > 0


def test_both_services_in_one_process_and_a_clean_stop(tmp_path: Path) -> None:
    """`pointsman serve`: the same, without a network between the two; SIGTERM ends it with 0."""
    with services(tmp_path, together=True) as fleet:
        text = long_text("together")
        fleet.chat(text)
        fleet.caught_up()
        again = fleet.chat(text)
        assert int(again.headers["x-pointsman-matched-blocks"]) > 0
        line = fleet.requests_after(0, 2)[1]
        assert line["predicted_cached_tokens"] == line["cached_tokens"] > 0
        assert fleet.router.stop() == 0
        events = [each["event"] for each in fleet.router.lines()]
        assert events[-2:] == ["router_stopped", "indexer_stopped"]


def test_a_stop_lets_answers_that_have_begun_come_to_their_end(tmp_path: Path) -> None:
    """Nobody new is let in, and nobody is cut off: a deployment is replaced under traffic."""
    with services(tmp_path, together=True, sim_flags=("--step-ms", "20")) as fleet:
        body = {
            "model": "sim",
            "messages": [{"role": "user", "content": "hello"}],
            "max_tokens": 60,
            "stream": True,
        }
        url, seen = f"{fleet.url}/v1/chat/completions", b""
        with httpx.stream("POST", url, json=body, timeout=60) as response:
            for chunk in response.iter_raw():
                if not seen:
                    fleet.router.process.terminate()
                seen += chunk
        assert seen.rstrip().endswith(b"data: [DONE]")
        assert fleet.router.process.wait(60) == 0
        with pytest.raises(httpx.ConnectError):
            fleet.chat("too late")
