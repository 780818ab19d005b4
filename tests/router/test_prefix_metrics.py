"""What is counted of groups, and of tools that the engine treats otherwise than configured."""

from dataclasses import replace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from proto.blockhash import EngineScheme
from proto.contract import HashedPrefix
from router.fingerprint_table import FingerprintTable
from router.fleet import NOT_HASHED, HashedRequest
from router.openai import CHAT_PATH, parse_request
from router.placement import Placement
from router.prefix_metrics import PrefixMetrics, unused_tools_mismatch
from router.preparation import PoolPractices, Prepared
from router.salting import NoSalt, PromptSalt, Tenant, Verdict
from router.usage import Usage

SCHEME = EngineScheme("sha256_cbor", "0", 16)
TOKENS = list(range(160))
PREPARED = Prepared(parse_request(CHAT_PATH, b'{"messages":[]}', {}), "p", unused_tools=True)


def hashed(salt: str | None = None, prompt_tokens: int = 160) -> HashedRequest:
    hashes = [number * 7 + len(salt or "") for number in range(10)]
    return HashedRequest(prompt_tokens, (SCHEME,), (HashedPrefix(SCHEME.id, hashes),))


class Predicted:
    """As much of a placement as is asked for."""

    replica = "a"

    def __init__(self, predicted_cached_tokens: int | None) -> None:
        self.predicted_cached_tokens = predicted_cached_tokens


@pytest.mark.parametrize(
    ("excludes", "ours", "engines", "differs"),
    [
        (False, 160, 160, False),
        (False, 160, 40, True),
        (False, 160, 200, False),
        (True, 40, 160, True),
        (True, 40, 40, False),
        (True, 40, 30, False),
    ],
)
def test_an_engine_that_leaves_out_tools_shows_it(
    excludes: bool, ours: int, engines: int, differs: bool
) -> None:
    """Only a difference to the side that its flag explains; another template differs otherwise."""
    prepared = replace(PREPARED, practices=PoolPractices(excludes_unused_tools=excludes))
    assert unused_tools_mismatch(prepared, hashed(prompt_tokens=ours), engines) is differs
    assert not unused_tools_mismatch(replace(prepared, unused_tools=False), hashed(), 1)
    assert not unused_tools_mismatch(prepared, NOT_HASHED, 1)
    assert not unused_tools_mismatch(prepared, hashed(), None)


def test_hits_are_counted_by_kind_group_and_origin() -> None:
    """A leak would be a hit above the prediction, and a hit on another's blocks: both are seen."""
    registry = CollectorRegistry()
    metrics = PrefixMetrics(registry, FingerprintTable())

    def finished(tenant: str, salting: Any, cached_tokens: int, predicted: int | None) -> None:
        verdict = Verdict(Tenant(f"name:{tenant}", "enterprise"), "r", salting)
        placement: Placement = Predicted(predicted)  # type: ignore[assignment]
        prepared = replace(PREPARED, verdict=verdict)
        metrics.finished(prepared, placement, hashed(), Usage(160, cached_tokens, 1), 0.0)

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(
            f"pointsman_group_{name}_total", {"tenant_kind": "enterprise", **labels}
        )

    finished("a", NoSalt(), 0, 0)
    finished("b", NoSalt(), 160, 160)
    finished("a", NoSalt(), 160, None)
    finished("c", PromptSalt("s", "tenant"), 160, 0)
    assert value("prompt_tokens", group="unsalted") == 480
    assert value("cached_tokens", group="unsalted", computed_by="other_tenant") == 160
    assert value("cached_tokens", group="unsalted", computed_by="same_tenant") == 160
    assert value("predictions", group="unsalted", outcome="exact") == 2
    assert value("cached_tokens", group="tenant", computed_by="other_tenant") == 160
    assert value("predictions", group="tenant", outcome="under") == 1
