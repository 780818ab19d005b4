"""Canonical tools, fingerprints and the salt policy, with real processes end to end."""

import json
import random
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest

from router.fingerprint import prefix_fingerprint
from router.main import main
from tests.e2e.services import SYSTEM, Services, services

SECRET = "e2e-0123456789abcdef0123456789abcdef"
KEY = "sk-umbrella-secret-key"
PLATFORM = [{"role": "system", "content": SYSTEM * 3}, {"role": "user", "content": "Hello?"}]
PRIVATE = [{"role": "system", "content": "Our own secret prices. " * 30}, PLATFORM[1]]

POLICY = f"""
[tenancy]
tenant_header = "x-tenant"
kind_header = "x-tenant-kind"
kinds = ["enterprise", "team"]
shared_fingerprints = ["{prefix_fingerprint({"messages": PLATFORM})}"]

[[tenancy.tenants]]
name = "umbrella"
kind = "enterprise"
api_keys_sha256 = ["{sha256(KEY.encode()).hexdigest()}"]

[[tenancy.rules]]
name = "private"
tenant_kinds = ["enterprise"]
private_prompt = true
salt = "tenant"
client_salt = "mix"

[[tenancy.rules]]
name = "rest"
salt = "none"
client_salt = "refuse"
"""
ACME = {"x-tenant": "acme", "x-tenant-kind": "enterprise"}
GLOBEX = {"x-tenant": "globex", "x-tenant-kind": "enterprise"}
UMBRELLA = {"authorization": f"Bearer {KEY}"}
RED = {"x-tenant": "red", "x-tenant-kind": "team"}
BLUE = {"x-tenant": "blue", "x-tenant-kind": "team"}


def ask(fleet: Services, headers: dict[str, str], **fields: Any) -> httpx.Response:
    body = {"model": "sim", "max_tokens": 2, **fields}
    return httpx.post(f"{fleet.url}/v1/chat/completions", json=body, headers=headers, timeout=60)


def cached(fleet: Services, headers: dict[str, str], **fields: Any) -> int:
    """Cached tokens as reported, once everything that was stored before is known."""
    response = ask(fleet, headers, **fields)
    assert response.status_code == 200, response.text
    fleet.caught_up()
    return int(response.json()["usage"]["prompt_tokens_details"]["cached_tokens"])


def test_a_salted_tenant_shares_with_nobody_and_the_others_share(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The documented rule on one replica: who finds whose blocks, exactly as predicted."""
    monkeypatch.setenv("POINTSMAN_SALT_SECRET", SECRET)
    with services(tmp_path, replicas=1, pool_settings=POLICY) as fleet:
        # An enterprise's private prompt is found by itself alone, however well others know it.
        assert cached(fleet, ACME, messages=PRIVATE) == 0
        own = cached(fleet, ACME, messages=PRIVATE)
        assert own > 0
        for other in (GLOBEX, UMBRELLA, RED):
            assert cached(fleet, other, messages=PRIVATE) == 0
        assert cached(fleet, UMBRELLA, messages=PRIVATE) == own
        # Those without a salt share, the platform's prompt also with enterprises.
        assert cached(fleet, BLUE, messages=PRIVATE) == own
        assert cached(fleet, RED, messages=PLATFORM) == 0
        assert cached(fleet, ACME, messages=PLATFORM) > 0
        # A client's own salt: mixed in for the one, refused for the other.
        assert cached(fleet, ACME, messages=PRIVATE, cache_salt="x") == 0
        assert cached(fleet, ACME, messages=PRIVATE, cache_salt="x") == own
        assert ask(fleet, RED, messages=PLATFORM, cache_salt="x").status_code == 400
        twice = httpx.Headers([("x-tenant", "red"), ("x-tenant", "acme")])
        answer = httpx.post(f"{fleet.url}/v1/chat/completions", json={}, headers=twice)
        assert answer.json()["error"]["code"] == "tenant_ambiguous"

        lines = fleet.requests_after(0, 11)
        assert {line["prediction"] for line in lines} == {"exact"}
        assert [line["group"] for line in lines].count("tenant") == 5
        assert [line["tenant_kind"] for line in lines][:5] == [*["enterprise"] * 4, "team"]
        crossed = {"computed_by": "other_tenant"}
        name = "pointsman_group_cached_tokens_total"
        assert fleet.metric(name, group="tenant", **crossed) == 0
        assert fleet.metric(name, group="mixed", **crossed) == 0
        assert fleet.metric(name, group="unsalted", **crossed) > 0
        assert fleet.metric(name, group="tenant", computed_by="same_tenant") > 0
        wrong = "pointsman_group_predictions_total"
        assert fleet.metric(wrong, outcome="exact") == 11 and not fleet.metric(
            wrong, outcome="under"
        )
        log = fleet.router.output.read_text()
        salts = [value for value in (SECRET, KEY, "acme", "umbrella", "pointsman-") if value in log]
        assert salts == [], "a secret, a key, a tenant or a salt is in the log"


def test_tools_in_any_order_are_one_prefix_and_its_versions_are_one_query(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Random orders of tools and keys are full hits, predicted exactly, under one fingerprint."""
    rng = random.Random(3)

    def tools() -> list[dict[str, Any]]:
        made = []
        for name in rng.sample(["book", "cancel", "search", "refund"], 4):
            names = rng.sample(["from", "to", "day", "passengers"], 4)
            properties = {key: {"type": "string", "description": key * 9} for key in names}
            parameters = {"type": "object", "properties": properties, "required": ["from"]}
            made.append({"type": "function", "function": {"name": name, "parameters": parameters}})
        return made

    with services(tmp_path, pool_settings="canonical_tools = true") as fleet:
        answers = []
        for _ in range(4):
            answers.append(ask(fleet, {}, messages=PLATFORM, tools=tools(), user="u"))
            fleet.caught_up()
        usages = [answer.json()["usage"] for answer in answers]
        assert {usage["prompt_tokens"] for usage in usages} == {usages[0]["prompt_tokens"]}
        hits = [usage["prompt_tokens_details"]["cached_tokens"] for usage in usages]
        assert hits[0] == 0 and set(hits[1:]) == {(usages[0]["prompt_tokens"] - 1) // 16 * 16}
        assert "canonical_tools" in {a.headers["x-pointsman-transformed"] for a in answers}

        assert ask(fleet, {}, messages=PLATFORM, user="u").status_code == 200
        lines = fleet.requests_after(0, 5)
        assert [line["prediction"] for line in lines[1:4]] == ["exact"] * 3
        fingerprint = prefix_fingerprint({"messages": PLATFORM, "tools": tools()})
        assert {line["prefix_fingerprint"] for line in lines[:4]} == {fingerprint}
        signals = {"cached_tokens", "prompt_tokens", "prefix_fingerprint", "replica", "tenant_kind"}
        assert all(signals <= line.keys() for line in lines)
        assert lines[4]["tools_alternated"] and lines[0]["tenant_kind"] is None
        assert fleet.metric("pointsman_tool_alternations_total", remedy="tool_choice_none") == 1

        # One query, from the admin listener and from the log; nothing of it for clients.
        name = "pointsman_fingerprint_requests_total"
        assert fleet.metric(name, fingerprint=str(fingerprint)) == 4
        assert fleet.metric("pointsman_fingerprints_live") == 2
        assert httpx.get(f"{fleet.url}/fingerprints").status_code == 404
        for source in (fleet.admin_url, str(fleet.router.output)):
            assert main(["fingerprints", source, "--json", "--max", "1"]) == 1
            report = json.loads(capsys.readouterr().out)
            assert report["fingerprints"][0]["fingerprint"] == fingerprint
            assert report["fingerprints"][0]["share"] == 0.8
            assert report["fingerprints"][0]["cached_tokens"] == sum(hits)
