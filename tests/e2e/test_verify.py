"""`pointsman verify` as a process, against routers, replicas, and servers that misbehave."""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.engine_relay import Behaviour, relayed
from tests.e2e.services import Services, services
from tests.ports import free_port_pair
from tests.processes import MAIN, ROOT

SMALL = ("--prefix-tokens", "700")
STEPS = ["control", "fixed prefix", "repeat", "conversation", "salted control"]


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Services]:
    with services(tmp_path_factory.mktemp("fleet"), together=True) as made:
        yield made


def verified(url: str, *flags: str, **environment: str) -> tuple[int, str, str]:
    keys = {"VLLM_API_KEY": "", "OPENAI_API_KEY": ""}
    done = subprocess.run(
        (*MAIN, "verify", url, *(SMALL if "--prefix-tokens" not in flags else ()), *flags),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ | keys | environment,
    )
    return done.returncode, done.stdout, done.stderr


def report(url: str, *flags: str) -> tuple[int, dict[str, dict[str, Any]]]:
    status, out, err = verified(url, "--json", *flags)
    assert out, err
    return status, {step["step"]: step for step in json.loads(out)["steps"]}


def test_a_router_that_routes_by_prefix_passes_twice(fleet: Services) -> None:
    """The second run finds nothing of the first: all its controls are cold again."""
    for _ in range(2):
        status, steps = report(fleet.url)
        assert list(steps) == STEPS
        assert {step["level"] for step in steps.values()} == {"pass"}, steps
        assert status == 0
        prefix = steps["fixed prefix"]["requests"]
        assert len({request["replica"] for request in prefix}) == 1
        assert [request["reason"] for request in prefix[1:]] == ["prefix"] * 5
        assert prefix[0]["cached_tokens"] == 0 and prefix[0]["ttft_ms"] > 0
    salted = steps["salted control"]["requests"]
    assert salted[0]["cached_tokens"] == 0 < salted[1]["cached_tokens"]


def test_a_replica_passes_and_a_repeat_is_explained(fleet: Services) -> None:
    """cached_tokens of a repeat are those of the full blocks before the last token."""
    status, out, err = verified(fleet.sim_url("a"))
    assert status == 0 and "5 passed" in out
    assert [line.split(": ")[1] for line in err.splitlines()] == [
        f"{step} ..." for step in ["first request", *STEPS]
    ]
    assert "the last token is always computed" in " ".join(out.split())
    _, steps = report(fleet.sim_url("a"))
    repeat = steps["repeat"]["requests"][1]
    assert repeat["cached_tokens"] == (repeat["prompt_tokens"] - 1) // 16 * 16


def test_round_robin_over_two_replicas_fails(tmp_path: Path) -> None:
    """Each replica computes the prefix once, which is named; the controls pass all the same."""
    with services(tmp_path, together=True, settings='policy = "round_robin"') as fleet:
        status, out, _ = verified(fleet.url)
        assert status == 1
        text = " ".join(out.split())
        assert "fail fixed prefix 1 of 5 did not find the prefix; request 2 found 0 of" in text
        assert "the requests went to 2 replicas (a, b)" in text
        assert "pass control" in text


@pytest.mark.parametrize("policy", ["drop", "refuse"])
def test_a_router_that_keeps_salts_for_itself_is_no_failure(tmp_path: Path, policy: str) -> None:
    """What its policy does to a client's salt is named; the other steps pass."""
    rule = f'[[tenancy.rules]]\nname = "all"\nsalt = "none"\nclient_salt = "{policy}"'
    with services(tmp_path, replicas=1, together=True, settings=rule) as fleet:
        status, steps = report(fleet.url, "--requests", "2")
    assert status == 0, steps
    levels = [step["level"] for step in steps.values()]
    assert levels == ["pass", "pass", "pass", "pass", "skipped"]
    says = {"drop": "x-pointsman-transformed: cache_salt", "refuse": "a cache_salt is refused: 4"}
    assert says[policy] in steps["salted control"]["what"]


def test_an_engine_that_does_not_report_is_judged_by_its_counters(fleet: Services) -> None:
    """Its /metrics count the same tokens; a salt that it refuses is no failure."""
    behaviour = Behaviour(fleet.sim_url("a"), reports_cached=False, takes_salts=False)
    with relayed(behaviour) as url:
        status, steps = report(url)
    assert status == 0
    levels = [step["level"] for step in steps.values()]
    assert levels == ["pass", "pass", "pass", "pass", "skipped"]
    assert steps["fixed prefix"]["source"] == "metrics"
    assert "cache_salt is not supported" in steps["salted control"]["what"]
    found = steps["repeat"]["requests"][1]
    assert found["cached_tokens"] == (found["prompt_tokens"] - 1) // 16 * 16


def test_without_counters_it_is_unknown_and_never_passed(fleet: Services) -> None:
    """Exit status 3, with the flag that an engine needs."""
    behaviour = Behaviour(fleet.sim_url("a"), reports_cached=False, has_metrics=False)
    with relayed(behaviour) as url:
        status, out, _ = verified(url)
    assert status == 3
    assert "5 unknown" in out and "--enable-prompt-tokens-details" in out
    assert "first token after" in out


def test_a_server_that_fails_in_the_middle_fails_the_steps_from_there(fleet: Services) -> None:
    """After the first request, three controls and two with the prefix."""
    with relayed(Behaviour(fleet.sim_url("a"), chats_max=6)) as url:
        status, steps = report(url)
    assert status == 1
    levels = [step["level"] for step in steps.values()]
    assert levels == ["pass", "fail", "fail", "fail", "fail"]
    assert steps["fixed prefix"]["what"] == "request 3: 503 out of service"


def test_a_run_ends_in_its_time(fleet: Services) -> None:
    """What was not come to is unknown; what was, is judged."""
    with relayed(Behaviour(fleet.sim_url("a"), delay_s=0.5)) as url:
        status, steps = report(url, "--seconds-max", "9", "--requests", "40")
    assert status == 3
    assert steps["control"]["level"] == "pass"
    assert steps["salted control"]["level"] == "unknown"
    assert "--seconds-max" in steps["salted control"]["what"]


def test_keys_headers_models_and_numbers_are_as_they_are_told(fleet: Services) -> None:
    """The environment's key, a header, and the model's name, in every request."""
    behaviour = Behaviour(fleet.sim_url("a"), key="secret")
    with relayed(behaviour) as url:
        flags = ("--model", "sim", "--requests", "2", "--header", "X-Tenant: t1", "--json")
        status, out, _ = verified(f"{url}/v1/", *flags, VLLM_API_KEY="secret")
        assert status == 0 and json.loads(out)["model"] == "sim"
        assert {body["model"] for body in behaviour.bodies} == {"sim"}
        assert {headers["X-Tenant"] for headers in behaviour.headers} == {"t1"}
        assert len(behaviour.bodies) == 1 + 2 + 2 + 2 + 4 + 2
        status, _, err = verified(url)
        assert status == 2 and "401 Unauthorized (a key is read from VLLM_API_KEY" in err
        status, _, _ = verified(url, "--requests", "2", OPENAI_API_KEY="secret")
        assert status == 0


def test_what_cannot_be_asked_is_status_2(fleet: Services) -> None:
    """Nobody listens, no such host, no such model, no server of models: each in one line."""
    for url, flags, says in (
        (f"http://127.0.0.1:{free_port_pair()}", (), "no connection: Connection refused"),
        ("http://nowhere.invalid:8000", (), "there is no such host"),
        (fleet.url, ("--model", "gpt"), "'gpt' is not served; there are sim"),
        (f"http://127.0.0.1:{fleet.http_port}", (), "/v1/models: 404"),
        (fleet.url, ("--prefix-tokens", "900000"), "the model's context has room for"),
        ("localhost:8080", (), "is not http://HOST:PORT"),
        (fleet.url, ("--requests", "1"), "is no whole number from 2 to 1000"),
        (fleet.url, ("--header", "x"), "is not NAME:VALUE"),
    ):
        status, out, err = verified(url, *flags)
        assert (status, out) == (2, "") and says in err, err
