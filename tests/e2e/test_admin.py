"""The admin listener of a router that runs."""

import time
from collections.abc import Iterator
from pathlib import Path

import httpx2 as httpx
import pytest

from tests.e2e.services import Services, services
from tests.processes import running


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Services]:
    with services(tmp_path_factory.mktemp("fleet"), replicas=1, together=True) as made:
        yield made


def test_a_marked_release_is_in_the_metrics_and_in_the_log(fleet: Services) -> None:
    """With its name and the time at which it was marked, beside the hit rate that it may change."""
    assert fleet.metric("pointsman_releases_total") == 0
    assert fleet.metric("pointsman_release_timestamp_seconds") == 0
    before = time.time()
    marked = httpx.post(f"{fleet.admin_url}/admin/release", json={"name": "web-1.4.2"})
    assert marked.status_code == 200 and marked.json()["name"] == "web-1.4.2"
    at = fleet.metric("pointsman_release_timestamp_seconds", release="web-1.4.2")
    assert before <= at == marked.json()["marked_at"] <= time.time()
    assert httpx.post(f"{fleet.admin_url}/admin/release").status_code == 200
    assert fleet.metric("pointsman_release_timestamp_seconds", release="web-1.4.2") == 0
    assert fleet.metric("pointsman_release_timestamp_seconds", release="") >= at
    assert fleet.metric("pointsman_releases_total") == 2
    names = [line["name"] for line in fleet.router.events("release_marked")]
    assert names == ["web-1.4.2", ""]


def test_nothing_of_it_is_on_the_clients_listener(fleet: Services) -> None:
    """Who may send prompts may not mark releases; and the other way round."""
    assert httpx.post(f"{fleet.url}/admin/release").status_code == 404
    for path in ("/v1/chat/completions", "/v1/completions"):
        assert httpx.post(f"{fleet.admin_url}{path}", json={}).status_code == 404


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b'{"name": "a b"}', "name: up to 64"),
        (b'{"name": 1}', "name: up to 64"),
        (b'{"nam": "a"}', 'the body is {"name": "..."}'),
        (b"[]", 'the body is {"name": "..."}'),
        (b"{", "the body is no JSON"),
        (b" " * 70_000, "longer than 65536"),
    ],
)
def test_what_is_no_release_marks_none(fleet: Services, body: bytes, says: str) -> None:
    """The answer says what would be one."""
    before = fleet.metric("pointsman_releases_total")
    answer = httpx.post(f"{fleet.admin_url}/admin/release", content=body)
    assert answer.status_code in (400, 413) and says in answer.json()["error"]
    assert fleet.metric("pointsman_releases_total") == before


def test_wrong_paths_methods_and_browsers_are_told_so(fleet: Services) -> None:
    """What is there is listed; a page that a browser shows cannot act."""
    nowhere = httpx.get(f"{fleet.admin_url}/nothing")
    assert nowhere.status_code == 404 and "POST /admin/release" in nowhere.json()["error"]
    got = httpx.get(f"{fleet.admin_url}/admin/release")
    assert got.status_code == 405 and got.headers["Allow"] == "POST"
    page = {"Origin": "http://example.com"}
    assert httpx.post(f"{fleet.admin_url}/admin/release", headers=page).status_code == 403


def test_a_taken_port_is_named_by_its_key_and_an_empty_one_listens_nowhere(
    fleet: Services, tmp_path: Path
) -> None:
    """With several listeners in a process, which of them failed is half the answer."""
    config = tmp_path / "router.toml"
    rest = fleet.config.read_text().replace(f":{fleet.router_port}", ":0")
    config.write_text(rest)
    with (
        pytest.raises(AssertionError, match=r"admin\.listen: "),
        running(tmp_path, "router", "--config", str(config), ready="router_started"),
    ):
        pass
    config.write_text(rest.replace(f'"127.0.0.1:{fleet.admin_port}"', '""'))
    with running(tmp_path, "router", "--config", str(config), ready="router_started") as router:
        (started,) = router.events("router_started")
        assert started["admin"] is None
