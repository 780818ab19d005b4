"""Who shares blocks with whom."""

from hashlib import sha256
from typing import Any

import pytest
from multidict import CIMultiDict

from proto.config_file import ConfigError
from router.openai_errors import BadRequest
from router.salting import NoSalt, PromptSalt, Tenancy, tenancy_of
from router.tenancy_config import RuleConfig, TenancyConfig, TenantConfig

SECRET = "0123456789abcdef0123456789abcdef"
SHARED, PRIVATE = "a" * 12, "b" * 12


def key_sha256(key: str) -> str:
    return sha256(key.encode()).hexdigest()


def documented(**changes: Any) -> TenancyConfig:
    """Enterprise tenants with a private prompt are salted, everybody else shares."""
    fields: dict[str, Any] = {
        "tenant_header": "x-tenant",
        "kind_header": "x-tenant-kind",
        "kinds": ["enterprise", "team"],
        "shared_fingerprints": [SHARED],
        "tenants": [TenantConfig("acme", [key_sha256("acme-key")], "enterprise")],
        "rules": [
            RuleConfig(
                "private", "tenant", "mix", tenant_kinds=["enterprise"], private_prompt=True
            ),
            RuleConfig("everybody else", "none", "refuse"),
        ],
    }
    return TenancyConfig(**(fields | changes))


TENANCY = Tenancy(documented(), SECRET)


def salt(
    fingerprint: str | None = PRIVATE,
    tenancy: Tenancy = TENANCY,
    client_salt: Any = None,
    **headers: str,
) -> str | None:
    """The salt of a request with these headers; _ in their names stands for -."""
    named = CIMultiDict({name.replace("_", "-"): value for name, value in headers.items()})
    salting = tenancy.judge(named, "m", fingerprint, client_salt).salting
    return salting.salt if isinstance(salting, PromptSalt) else None


def enterprise(name: str) -> dict[str, str]:
    return {"x_tenant": name, "x_tenant_kind": "enterprise"}


def test_the_documented_rule() -> None:
    """An enterprise tenant with a prompt of its own has a salt of its own; all others share."""
    acme, globex = salt(**enterprise("acme")), salt(**enterprise("globex"))
    assert acme and globex and acme != globex
    assert salt(**enterprise("acme")) == acme
    assert salt(SHARED, **enterprise("acme")) is None
    assert salt(x_tenant="acme", x_tenant_kind="team") is None
    assert salt() is None


def test_a_prompt_without_a_fingerprint_is_private() -> None:
    """What is not known to be shared is not shared."""
    assert salt(None, **enterprise("acme")) == salt(**enterprise("acme"))


def test_an_api_key_names_its_tenant_and_its_kind() -> None:
    """The same tenant by its key and by the gateway's header has the same salt."""
    by_key = salt(authorization="Bearer acme-key")
    assert by_key == salt(**enterprise("acme"))
    assert salt(authorization="bearer  acme-key ") == by_key
    assert salt(authorization="Bearer another-key") is None
    assert salt(authorization="Basic acme-key") is None
    everyone = Tenancy(documented(rules=[RuleConfig("all", "tenant", "mix")]), SECRET)
    assert salt(tenancy=everyone, authorization="Bearer another-key") is not None


def test_a_salt_is_one_that_engines_take_and_nobody_can_compute() -> None:
    """At most 128 characters, none of those refused; another secret gives another salt."""
    acme = salt(**enterprise("acme"))
    assert acme is not None and len(acme) <= 128 and not set("@/\\\0") & set(acme)
    assert "acme" not in acme
    other = Tenancy(documented(), SECRET[::-1])
    assert salt(tenancy=other, **enterprise("acme")) != acme
    assert other.secret_id != TENANCY.secret_id and SECRET not in repr(TENANCY.__dict__["_tenants"])


def test_no_client_can_name_the_salt_of_a_tenant() -> None:
    """Sent as a client's own, mixed or kept, a tenant's salt never leads into its group."""
    acme = salt(**enterprise("acme"))
    assert salt(client_salt=acme, **enterprise("globex")) != acme
    kept = Tenancy(documented(rules=[RuleConfig("all", "none", "keep")]))
    assert salt(tenancy=kept, client_salt="mine") == "mine"
    with pytest.raises(BadRequest):
        salt(tenancy=kept, client_salt=acme)


def test_a_mixed_salt_divides_a_tenant_and_joins_no_two() -> None:
    """One client salt of two tenants is two groups, and boundaries between the parts count."""
    mixed = salt(client_salt="x", **enterprise("acme"))
    assert mixed != salt(client_salt="x", **enterprise("globex"))
    assert mixed != salt(client_salt="y", **enterprise("acme")) != salt(**enterprise("acme"))
    assert salt(client_salt="ex", **enterprise("acm")) != mixed
    assert salt(client_salt='e", "x', **enterprise("acm")) != mixed
    assert salt(client_salt="x", **enterprise("acme")) == mixed


@pytest.mark.parametrize("client_salt", ["s", 5, "", [], True])
def test_a_refused_client_salt_is_a_400(client_salt: Any) -> None:
    """With words that tell the client what to do, and without the salt in them."""
    with pytest.raises(BadRequest) as refused:
        salt(SHARED, client_salt=client_salt)
    assert (refused.value.status, refused.value.code) == (400, "cache_salt_refused")


@pytest.mark.parametrize("client_salt", [5, "", [], True, {}])
def test_a_salt_that_is_none_is_not_mixed(client_salt: Any) -> None:
    """It is no text: the engine would refuse it, and so it is refused here."""
    with pytest.raises(BadRequest):
        salt(client_salt=client_salt, **enterprise("acme"))


def test_a_dropped_client_salt_is_gone() -> None:
    """A client that salts each request by habit shares all the same."""
    tenancy = Tenancy(documented(rules=[RuleConfig("all", "none", "drop")]))
    verdict = tenancy.judge(CIMultiDict(), "m", None, "random-1")
    assert verdict.salting == NoSalt(removes_client_salt=True)


def test_a_request_of_nobody_is_refused_where_a_tenant_is_needed() -> None:
    """Nothing is shared by mistake, and the answer says what is missing."""
    with pytest.raises(BadRequest) as refused:
        salt(x_tenant_kind="enterprise")
    assert refused.value.code == "tenant_required"
    assert "x-tenant" in refused.value.message


@pytest.mark.parametrize("name", ["x-tenant", "X-Tenant-Kind", "Authorization"])
def test_a_header_that_identifies_and_occurs_twice_is_refused(name: str) -> None:
    """A gateway that adds its header behind the client's own leaves two."""
    headers = CIMultiDict([(name, "Bearer a"), (name, "Bearer b")])
    with pytest.raises(BadRequest) as refused:
        TENANCY.judge(headers, "m", PRIVATE, None)
    assert refused.value.code == "tenant_ambiguous"


def test_every_condition_has_to_hold() -> None:
    """Key, header, model, kind and prompt; of each list one."""
    everything = RuleConfig(
        "one",
        "tenant",
        "mix",
        api_keys_sha256=[key_sha256("k")],
        headers={"X-Plan": ["gold", "silver"]},
        models=["m", "n"],
        tenant_kinds=["team"],
        private_prompt=False,
    )
    rules = [everything, RuleConfig("rest", "none", "refuse")]
    tenancy = Tenancy(documented(rules=rules, trusted_headers=["x-plan"]), SECRET)
    given = {"authorization": "Bearer k", "x-plan": "silver", "x-tenant-kind": "team"}

    def rule(fingerprint: str = SHARED, model: str | None = "n", **changes: str) -> str:
        headers = CIMultiDict(given | {k.replace("_", "-"): v for k, v in changes.items()})
        return tenancy.judge(headers, model, fingerprint, None).rule

    assert rule() == "one"
    assert rule(authorization="Bearer l") == "rest"
    assert rule(x_plan="bronze") == rule(x_plan="") == "rest"
    assert rule(model="o") == rule(model=None) == "rest"
    assert rule(x_tenant_kind="enterprise") == rule(x_tenant_kind="") == "rest"
    assert rule(PRIVATE) == "rest"


def test_a_kind_that_is_not_declared_is_other() -> None:
    """Kinds are labels of metrics: nobody makes them without end."""
    headers = CIMultiDict({"x-tenant-kind": "<script>"})
    assert TENANCY.tenant_of(headers).kind == "other"
    assert TENANCY.tenant_of(CIMultiDict()).kind is None


@pytest.mark.parametrize("environment", [{}, {"POINTSMAN_SALT_SECRET": "short"}])
def test_rules_that_salt_need_a_secret(environment: dict[str, str]) -> None:
    """A missing or guessable one stops the router before it serves."""
    with pytest.raises(ConfigError, match="POINTSMAN_SALT_SECRET"):
        tenancy_of(documented(), environment)
    tenancy_of(documented(rules=[RuleConfig("all", "none", "drop")]), environment)
