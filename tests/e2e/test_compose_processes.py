"""compose.yaml's profile `sim`: the same commands with the same environment, as processes.

One start serves all tests of this file; the last one stops what it started.
"""

import time
from collections.abc import Iterator
from contextlib import ExitStack

import httpx2 as httpx
import pytest
import redis

from tests.compose import Project, can_be_bound
from tests.processes import call, until

SECRETS = {"POINTSMAN_REDIS_PASSWORD": "it's a $ecret", "VLLM_API_KEY": "not for clients"}
PORTS = (6379, 8000, 5557, 5657, 8080, 9464, 9465, 50051)
# In the order in which compose stops them: nobody before those that depend on it.
NAMES = ("router-sim", "indexer-sim", "sim-a", "sim-b", "sim-c", "valkey")


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    with ExitStack() as stack:
        made = Project(stack, tmp_path_factory.mktemp("compose"), "sim", SECRETS)
        taken = [port for port in PORTS if not can_be_bound(made["valkey"].address, port)]
        if taken:
            pytest.skip(f"another process has {taken} on every address of this machine")
        assert sorted(made.services) == sorted(NAMES)
        assert not any(service.healthy() for service in made.services.values())
        made.up()
        yield made


def chat(project: Project, text: str) -> httpx.Response:
    body = {"model": "sim", "max_tokens": 4, "messages": [{"role": "user", "content": text}]}
    url = f"http://{project['router-sim'].address}:8080/v1/chat/completions"
    return httpx.post(url, json=body, timeout=60)


def is_found(project: Project, text: str) -> bool:
    return int(chat(project, text).headers["x-pointsman-matched-blocks"]) > 0


def kept(project: Project) -> int:
    """How many copies Valkey has, once it has all of them."""

    def copies() -> int:
        reports = indexer(project, "replicas")["replicas"]
        everything = all(r["durable"] and r["durable_seq"] == r["seq"] for r in reports)
        return sum(r["copies"] for r in reports) if everything else 0

    return until(copies, lambda: f"kept: {indexer(project, 'replicas')}")


def indexer(project: Project, path: str) -> dict[str, object]:
    return dict(call(f"http://{project['indexer-sim'].address}:9464/{path}"))


def test_it_serves_and_matches(project: Project) -> None:
    """From nothing to healthy; a prompt that was sent is found, on one of three replicas."""
    text = " ".join(f"word{number}" for number in range(200))
    assert chat(project, text).status_code == 200
    until(lambda: is_found(project, text), "the prompt is found")
    assert len(indexer(project, "replicas")["replicas"]) == 3
    until(lambda: indexer(project, "ready")["durable"], "durable")


def test_valkey_keeps_it_on_disk_and_asks_for_the_password(project: Project) -> None:
    """With the settings that the file gives it; the password came through the environment."""
    chat(project, " ".join(f"kept{number}" for number in range(200)))
    kept(project)
    address = project["valkey"].address
    with pytest.raises(redis.AuthenticationError), redis.Redis(address) as stranger:
        stranger.ping()
    with redis.Redis(address, password=SECRETS["POINTSMAN_REDIS_PASSWORD"]) as client:
        wanted = {
            "maxmemory-policy": "noeviction",
            "appendonly": "yes",
            "appendfsync": "everysec",
        }
        assert client.config_get(*wanted) == wanted
        assert any(key.endswith(b":state") for key in client.keys())
    assert any(project.folder.joinpath("volume-valkey").rglob("*.aof"))


def test_what_was_kept_is_loaded_after_a_crash(project: Project) -> None:
    """kill -9 of the indexer and of Valkey: started again as the file says, nothing is lost."""
    text = " ".join(f"crash{number}" for number in range(200))
    chat(project, text)
    before = kept(project)
    # Its file is written within a second.
    time.sleep(1.5)
    for name in ("indexer-sim", "valkey"):
        project[name].end()
        assert not project[name].healthy(), name
        project[name].process = None
    project.up()
    restored = '"replica_restored"'
    until(lambda: restored in project["indexer-sim"].output.read_text(), "restored")
    assert kept(project) == before
    until(lambda: is_found(project, text), "found again")


def test_everything_stops_in_its_time(project: Project) -> None:
    """With status 0, no file written outside of volumes and /tmp, and no secret in any log."""
    for name in NAMES:
        assert project[name].stop() == 0, name
    assert [list(service.home.iterdir()) for service in project.services.values()] == [[]] * 6
    logs = "".join(service.output.read_text() for service in project.services.values())
    assert not any(secret in logs for secret in SECRETS.values())
