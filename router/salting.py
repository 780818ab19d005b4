"""Who shares blocks with whom: the tenant of a request, and the salt that the policy gives it.

An engine finds a block only under the salt it was computed with, so requests with one salt are a
group that nobody outside can measure by its timing, and requests without one are a group, too.
Rules it keeps:

* A tenant's salt is an HMAC-SHA256 of the tenant under a secret: who does not have the secret can
  neither compute it nor learn the tenant from it. A client can send none that looks like ours.
* Two tenants never get one salt: what names them, and a client's own salt that is mixed in, enter
  the HMAC with their boundaries.
* A request that a rule wants to be of a tenant, and that names none, is refused. Nothing is shared
  by mistake.
* A header that identifies and occurs twice is refused: one of the two is the client's own.
* The salt that is decided here is the one that is forwarded and the one that is hashed.

A salt is one for the whole prompt today. ``Salting`` is where a salt for a region of it belongs,
once engines have such.
"""

import hmac
import json
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Literal

from multidict import MultiMapping

from proto.config_file import ConfigError
from router.openai_errors import BadRequest
from router.tenancy_config import OTHER_KIND, RuleConfig, TenancyConfig

SECRET_VARIABLE = "POINTSMAN_SALT_SECRET"
SECRET_CHARS_MIN = 32

# What no client may send, and none of the characters that engines refuse in a salt.
_SALT_PREFIX = "pointsman-"
_BEARER = "bearer "

# How a request is salted; a label of metrics.
Group = Literal["unsalted", "tenant", "client", "mixed"]


@dataclass(frozen=True, slots=True)
class Tenant:
    """``identity`` tells tenants apart and says how each is known; None: nobody knows whose."""

    identity: str | None = None
    kind: str | None = None
    api_key_sha256: str | None = None


@dataclass(frozen=True, slots=True)
class NoSalt:
    """The prompt is shared with all others that have none; the client's own salt may have to go."""

    removes_client_salt: bool = False
    group: Group = "unsalted"


@dataclass(frozen=True, slots=True)
class PromptSalt:
    """One salt from the first token on."""

    salt: str
    group: Group


Salting = NoSalt | PromptSalt


@dataclass(frozen=True, slots=True)
class Verdict:
    """``rule``: the name of the one that decided."""

    tenant: Tenant
    rule: str
    salting: Salting


class Tenancy:
    """The policy, as configured and checked. ``secret_id`` tells operators, and nobody else, that
    two routers have one secret."""

    def __init__(self, config: TenancyConfig, secret: str | None = None) -> None:
        """Raises ConfigError where the rules need a secret that is missing or too short."""
        if config.needs_secret and len(secret or "") < SECRET_CHARS_MIN:
            raise ConfigError(
                f"tenancy.rules: salts are made with a secret: set {SECRET_VARIABLE} to at least"
                f" {SECRET_CHARS_MIN} characters, such as `openssl rand -hex 32` prints, the same"
                " for all routers"
            )
        self._config, self._secret = config, (secret or "").encode()
        self._tenants = {
            key: Tenant(f"name:{tenant.name}", tenant.kind, key)
            for tenant in config.tenants
            for key in tenant.api_keys_sha256
        }
        self._kinds = frozenset(config.kinds)
        self._shared = frozenset(config.shared_fingerprints)
        self.secret_id = self._hmac("secret id")[:8] if self._secret else None

    def __repr__(self) -> str:
        return f"Tenancy({len(self._config.rules)} rules, {len(self._tenants)} known keys)"

    # Whose request it is.

    def tenant_of(self, headers: MultiMapping[str]) -> Tenant:
        """By the gateway's headers, else by the API key. Raises BadRequest."""
        key = _api_key_sha256(headers)
        known = self._tenants.get(key or "", Tenant(f"key:{key}" if key else None, None, key))
        name = _only(headers, self._config.tenant_header)
        kind = _only(headers, self._config.kind_header)
        if kind is not None and kind not in self._kinds:
            kind = OTHER_KIND
        return Tenant(f"name:{name}" if name else known.identity, kind or known.kind, key)

    # What it shares.

    def judge(
        self,
        headers: MultiMapping[str],
        model: str | None,
        fingerprint: str | None,
        client_salt: Any,
    ) -> Verdict:
        """``client_salt``: as it stands in the body. Raises BadRequest."""
        tenant = self.tenant_of(headers)
        for rule in self._config.rules:
            if self._holds(rule, tenant, headers, model, fingerprint):
                return Verdict(tenant, rule.name, self._salting(rule, tenant, client_salt))
        return Verdict(tenant, "", _kept(client_salt))

    def _holds(
        self,
        rule: RuleConfig,
        tenant: Tenant,
        headers: MultiMapping[str],
        model: str | None,
        fingerprint: str | None,
    ) -> bool:
        if rule.api_keys_sha256 and tenant.api_key_sha256 not in rule.api_keys_sha256:
            return False
        if rule.models and model not in rule.models:
            return False
        if rule.tenant_kinds and tenant.kind not in rule.tenant_kinds:
            return False
        if rule.private_prompt is not None:
            if rule.private_prompt is (fingerprint in self._shared):
                return False
        return all(_only(headers, name) in values for name, values in rule.headers.items())

    def _salting(self, rule: RuleConfig, tenant: Tenant, client_salt: Any) -> Salting:
        if client_salt is not None and rule.client_salt != "keep":
            _check_client_salt(rule, client_salt)
        mixed = client_salt if rule.client_salt == "mix" else None
        if rule.client_salt == "keep" and client_salt is not None:
            return _kept(client_salt)
        if rule.salt == "none" and mixed is None:
            return NoSalt(removes_client_salt=rule.client_salt == "drop")
        if tenant.identity is None:
            raise BadRequest(
                "This request has to be of a tenant and names none: it needs"
                f" {_identified_by(self._config)}.",
                code="tenant_required",
            )
        salt = f"{_SALT_PREFIX}{self.secret_id}-{self._hmac('salt', tenant.identity, mixed)}"
        return PromptSalt(salt, "tenant" if mixed is None else "mixed")

    def _hmac(self, *parts: str | None) -> str:
        """JSON keeps the boundaries of the parts; None is no text."""
        return hmac.new(self._secret, json.dumps(parts).encode(), sha256).hexdigest()


def tenancy_of(config: TenancyConfig, environment: Mapping[str, str]) -> Tenancy:
    """Raises ConfigError."""
    return Tenancy(config, environment.get(SECRET_VARIABLE))


def _kept(client_salt: Any) -> Salting:
    """What is no salt that an engine takes stays where it is: the engine refuses it."""
    if not isinstance(client_salt, str) or not client_salt:
        return NoSalt()
    if client_salt.startswith(_SALT_PREFIX):
        raise BadRequest(f"cache_salt: {_SALT_PREFIX}… is not for clients.", param="cache_salt")
    return PromptSalt(client_salt, "client")


def _check_client_salt(rule: RuleConfig, client_salt: Any) -> None:
    if rule.client_salt == "refuse":
        raise BadRequest(
            "cache_salt: this service decides who shares a cache; leave it out.",
            param="cache_salt",
            code="cache_salt_refused",
        )
    if rule.client_salt == "mix" and (not isinstance(client_salt, str) or not client_salt):
        raise BadRequest("cache_salt: it must be a text that is not empty.", param="cache_salt")


def _api_key_sha256(headers: MultiMapping[str]) -> str | None:
    value = _only(headers, "Authorization") or ""
    if value[: len(_BEARER)].lower() != _BEARER or not value[len(_BEARER) :].strip():
        return None
    key = value[len(_BEARER) :].strip()
    return sha256(key.encode("utf-8", "surrogateescape")).hexdigest()


def _only(headers: MultiMapping[str], name: str | None) -> str | None:
    """The value of a header that may occur once; None where it is empty or not there."""
    values = headers.getall(name, []) if name is not None else []
    if len(values) > 1:
        raise BadRequest(f"The header {name} occurs {len(values)} times.", code="tenant_ambiguous")
    return values[0] if values and values[0] else None


def _identified_by(config: TenancyConfig) -> str:
    if config.tenant_header is not None:
        return f"the header {config.tenant_header}, or an API key"
    return "an API key (Authorization: Bearer ...)"
