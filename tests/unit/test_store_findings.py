"""What a store says of itself, and what that means for the index."""

from typing import Any

import pytest

from indexer.doctor.report import as_json
from indexer.doctor.store_findings import StoreFacts, store_findings

GOOD = {"redis_version": "7.2.4", "maxmemory_policy": "noeviction", "role": "master"}
VALKEY = {**GOOD, "valkey_version": "9.0.1"}


def levels(*infos: dict[str, Any]) -> dict[str, str]:
    return {each.check: each.level for each in store_findings(StoreFacts(infos=infos))}


@pytest.mark.parametrize("infos", [(GOOD,), (VALKEY,), (VALKEY, VALKEY, GOOD)])
def test_a_fit_store_is_fine(infos: tuple[dict[str, Any], ...]) -> None:
    """Alone or as the servers of a cluster."""
    assert levels(*infos) == dict.fromkeys(("store", "store_version", "store_eviction"), "ok")


@pytest.mark.parametrize(
    ("info", "check", "level"),
    [
        ({**GOOD, "maxmemory_policy": "allkeys-lru"}, "store_eviction", "warning"),
        ({**GOOD, "maxmemory_policy": "volatile-ttl"}, "store_eviction", "warning"),
        ({"redis_version": "7.0.0"}, "store_eviction", "unknown"),
        ({**GOOD, "redis_version": "6.2.14"}, "store_version", "warning"),
        ({**GOOD, "redis_version": "unknown"}, "store_version", "warning"),
        ({**GOOD, "role": "slave"}, "store_role", "problem"),
    ],
)
def test_an_unfit_one_is_named_and_so_is_one_among_many(
    info: dict[str, Any], check: str, level: str
) -> None:
    """Each with its fix, and with the level that its consequence has."""
    assert levels(info)[check] == levels(GOOD, info, VALKEY)[check] == level


@pytest.mark.parametrize(
    ("error", "fix"),
    [
        ("redis://h: AuthenticationError: WRONGPASS invalid username", "POINTSMAN_REDIS_PASSWORD"),
        ("redis://h: NoPermissionError: this user has no permissions", "pointsman:*"),
        ("redis://h: ConnectionError: refused", "its address"),
    ],
)
def test_one_that_cannot_be_used_is_a_problem(error: str, fix: str) -> None:
    """With what to do, which is different for a password."""
    (found,) = store_findings(StoreFacts(error=error))
    assert found.level == "problem" and found.why == error and fix in found.fix
    report = as_json([("http://a", [])], [("redis://h", [found])])
    assert not report["ok"] and report["problems"] == 1 and report["store"]["url"] == "redis://h"
