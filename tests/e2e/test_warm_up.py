"""Replicas that join, and the bodies that they get before anything else."""

import json
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2 as httpx

from tests.e2e.services import SYSTEM, Services, fault, services
from tests.processes import MAIN, ROOT, Running, call, until

PLATFORM = SYSTEM + " ".join(
    f" Rule {number}: be brief, {number * number}." for number in range(60)
)
TOOL = {"name": "search", "description": "Finds flights.", "parameters": {"type": "object"}}
TOOLS = [{"type": "function", "function": TOOL}]


def body(question: str, **fields: Any) -> dict[str, Any]:
    messages = [{"role": "system", "content": PLATFORM}, {"role": "user", "content": question}]
    return {"model": "sim", "messages": messages, "tools": TOOLS, **fields}


@contextmanager
def warmed(
    folder: Path, bodies: dict[str, Any], pool_settings: str = "", **more: Any
) -> Iterator[Services]:
    """A fleet whose replicas get these bodies, by the names of their files."""
    place = folder / "bodies"
    place.mkdir()
    for name, fields in bodies.items():
        (place / f"{name}.json").write_text(json.dumps(fields))
    pool = f"warm_up = {json.dumps(str(place))}\n{pool_settings}"
    with services(folder, pool_settings=pool, **more) as fleet:
        yield fleet


def over(router: Running, engine: str, times: int) -> dict[str, Any]:
    """The log line of an engine's warm-up, once there have been so many."""

    def last() -> dict[str, Any] | None:
        lines = [line for line in router.events("warm_up_over") if line["engine"] == engine]
        return lines[times - 1] if len(lines) >= times else None

    return until(last, lambda: f"{times} warm-ups of {engine}: {router.events('warm_up_over')}")


def restarted(fleet: Services, name: str, count: Callable[[], int] = lambda: 0) -> int:
    """An engine goes out of service, and comes back with nothing in its cache; what was counted
    while it was out.
    """
    url = fleet.sim_url(name)
    fault(url, kind="unavailable", seconds=600.0)
    until(lambda: "503" in call(f"{fleet.url}/ready")["engines"][name], f"{name} is out")
    counted = count()
    fault(url, kind="restart")
    fault(url, kind="unavailable", seconds=0.0)
    return counted


class Traffic:
    """A client that asks one question after the other, in a thread of its own, until it is left."""

    def __init__(self, fleet: Services) -> None:
        self.answers: list[tuple[str, float]] = []
        self._fleet, self._stop = fleet, threading.Event()
        self._thread = threading.Thread(target=self._ask)

    def __enter__(self) -> "Traffic":
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join()

    def _ask(self) -> None:
        url = f"{self._fleet.url}/v1/chat/completions"
        while not self._stop.wait(0.02):
            fields = body(f"Question {len(self.answers)}", max_tokens=2)
            response = httpx.post(url, json=fields, timeout=60)
            assert response.status_code == 200
            usage = response.json()["usage"]
            share = usage["prompt_tokens_details"]["cached_tokens"] / usage["prompt_tokens"]
            self.answers.append((response.headers["x-pointsman-replica"], share))

    def of(self, replica: str) -> list[float]:
        """The cached share of each answer of a replica, in order."""
        return [share for name, share in self.answers if name == replica]


def test_a_restarted_replica_is_warm_before_its_first_request(tmp_path: Path) -> None:
    """Requests go on all the time and in turns, and not one meets the cold cache: their prefix is
    that of the last body, which is not there yet while the others are sent.
    """
    flags, policy = ("--step-ms", "40"), 'policy = "round_robin"'
    bodies: dict[str, Any] = {f"{n}-other": {"prompt": f"Number {n}. {SYSTEM}"} for n in range(9)}
    bodies["9-platform"] = body("Hi")
    with warmed(tmp_path, bodies, sim_flags=flags, settings=policy) as fleet:
        for name in "ab":
            over(fleet.router, name, 1)
        with Traffic(fleet) as traffic:
            until(lambda: traffic.of("a"), "a serves")
            before = restarted(fleet, "a", lambda: len(traffic.of("a")))
            line = over(fleet.router, "a", 2)
            until(lambda: len(traffic.of("a")) > before + 3, "a serves again")
        assert min(traffic.of("a")[before:]) > 0.8, traffic.of("a")
        platform = line["replicas"]["a"][-1]
        assert platform["cached_tokens"] == 0
        assert platform["resident_blocks"] == platform["prompt_blocks"] > 20
        joined = [e for e in fleet.router.events("engine_in_service") if e["engine"] == "a"]
        assert len(joined) == 2 and joined[-1]["state"] == "warming"


def test_what_became_resident_is_in_ready_and_in_the_metrics(tmp_path: Path) -> None:
    """By body and rank, as the indexer has it: the second body shares all but its question."""
    bodies = {"1-first": body("Hi"), "2-second": body("Bye"), "3-wrong": body("Hi", model="none")}
    flags = ("--data-parallel-size", "2")
    with warmed(tmp_path, bodies, replicas=1, sim_flags=flags, together=True) as fleet:
        assert over(fleet.router, "a", 1)["outcome"] == "partly"
        report = call(f"{fleet.url}/ready")["warm_up"]["a"]
        assert not report["warming"] and set(report["last"]["replicas"]) == {"a#0", "a#1"}
        for rank in ("a#0", "a#1"):
            first, second, wrong = report["last"]["replicas"][rank]
            assert first["cached_tokens"] == 0 < second["cached_tokens"]
            assert "does not exist" in wrong["error"] and "404" in wrong["error"]
            blocks = first["prompt_blocks"] + second["prompt_blocks"]
            assert first["resident_blocks"] + second["resident_blocks"] == blocks
            assert fleet.metric("pointsman_warm_up_resident_blocks", replica=rank) == blocks
            assert fleet.metric("pointsman_warm_up_prompt_blocks", replica=rank) == blocks
        assert fleet.metric("pointsman_warm_ups_total", engine="a", outcome="partly") == 1
        assert fleet.metric("pointsman_warm_ups_total", engine="a", outcome="ok") == 0
        assert fleet.metric("pointsman_engine_warming", engine="a") == 0
        answer = httpx.post(f"{fleet.url}/v1/chat/completions", json=body("Now?"), timeout=60)
        assert answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"] > 300


def test_a_warm_up_that_fails_or_hangs_keeps_nobody_out(tmp_path: Path) -> None:
    """Bodies that are refused, and an engine that does not answer in time: both are said, and the
    replica takes traffic."""
    pool = {"pool_settings": "warm_up_s_max = 1.0\n"}
    with warmed(tmp_path, {"platform": body("Hi", model="none")}, **pool) as fleet:
        for name in "ab":
            assert over(fleet.router, name, 1)["outcome"] == "failed"
        restarted(fleet, "a")
        assert over(fleet.router, "a", 2)["outcome"] == "failed"
        until(fleet.all_in_service, "it is in service")
        assert fleet.metric("pointsman_warm_ups_total", engine="a", outcome="failed") == 2


def test_a_warm_up_ends_in_time(tmp_path: Path) -> None:
    """An engine that hangs is given up, and takes traffic."""
    pool = {"pool_settings": "warm_up_s_max = 1.0\n"}
    with warmed(tmp_path, {"platform": body("Hi")}, **pool) as fleet:
        over(fleet.router, "a", 1)
        fault(fleet.sim_url("a"), kind="unavailable", seconds=1.5)
        fault(fleet.sim_url("a"), kind="hang", tokens=0, requests=1, seconds=600.0)
        line = over(fleet.router, "a", 2)
        assert (line["outcome"], line["error"]) == ("failed", "not done within 1 s")
        until(fleet.all_in_service, "it is in service")


def test_bodies_that_are_none_stop_the_start(tmp_path: Path) -> None:
    """With the key, the file, and where in it: before anything listens."""
    (tmp_path / "broken.json").write_text('{"messages": [\n}')
    config = tmp_path / "p.toml"
    config.write_text(
        '[[replicas]]\nname = "a"\nurl = "http://127.0.0.1:1"\n[pools.default]\n'
        f'tokenizer = "benchmarks/data"\nwarm_up = {json.dumps(str(tmp_path))}\n'
    )
    for command in ("router", "serve"):
        done = subprocess.run(
            (*MAIN, command, "--config", str(config)), capture_output=True, text=True, cwd=ROOT
        )
        assert (done.returncode, done.stdout) == (2, "")
        assert "pools.default.warm_up: broken.json: no JSON" in done.stderr
        assert "line 2, column 1" in done.stderr
