"""The section ``[tenancy]``: who a request is of, and which requests share blocks with whom.

Checked whole before anything starts, because a rule that never applies is a hole in a wall. Rules
of the format:

* Everything that a rule names is declared once: kinds in ``kinds``, headers as ``tenant_header``,
  ``kind_header`` or in ``trusted_headers``. To name a header there is to say that the gateway in
  front sets or removes it: a client that could set it itself would choose its tenant.
* The last rule, and no other, has no conditions, so that what happens to everybody else is written.
* API keys are written as the sha256 of the key, in hex: a configuration is no place for secrets.
"""

import re
from collections.abc import Iterable
from typing import Annotated, Literal

from msgspec import Meta, Struct

from proto.config_file import ConfigError

TENANTS_MAX = 100_000
RULES_MAX = 1_000
KINDS_MAX = 64
SHARED_MAX = 1_000

# The kind of a tenant whose kind is not declared; every kind is a label of a metric.
OTHER_KIND = "other"

_Word = Annotated[str, Meta(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9._:-]+\Z")]
_Sha256 = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
_Fingerprint = Annotated[str, Meta(pattern=r"^[0-9a-f]{12}\Z")]
_Text = Annotated[str, Meta(min_length=1, max_length=256)]

_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
# Their values are secrets, or say nothing about whose request it is.
_NO_IDENTITY = frozenset(
    "authorization cookie proxy-authorization x-api-key host connection content-length "
    "content-type transfer-encoding".split()
)


class TenantConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """A tenant that is known by its API keys."""

    name: _Word
    api_keys_sha256: Annotated[list[_Sha256], Meta(min_length=1, max_length=1_000)]
    kind: _Word | None = None


class RuleConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """All conditions have to hold; of a list, one entry. The first rule that holds decides.

    ``private_prompt``: the prefix fingerprint is none of ``shared_fingerprints``. ``salt``:
    "tenant" gives each tenant one of its own. ``client_salt``: what becomes of a ``cache_salt``
    that the client sends: "keep" it, "refuse" the request, "drop" it, or "mix" it into one that
    only this tenant can have.
    """

    name: _Word
    salt: Literal["none", "tenant"]
    client_salt: Literal["keep", "refuse", "drop", "mix"]
    api_keys_sha256: list[_Sha256] = []
    headers: dict[str, list[_Text]] = {}
    models: list[_Text] = []
    tenant_kinds: list[_Word] = []
    private_prompt: bool | None = None

    @property
    def is_for_all(self) -> bool:
        lists = (self.api_keys_sha256, self.headers, self.models, self.tenant_kinds)
        return not any(lists) and self.private_prompt is None

    @property
    def needs_secret(self) -> bool:
        return self.salt == "tenant" or self.client_salt == "mix"


class TenancyConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """Without ``rules`` nothing is salted and a client's own salt is kept."""

    tenant_header: str | None = None
    kind_header: str | None = None
    trusted_headers: Annotated[list[str], Meta(max_length=64)] = []
    kinds: Annotated[list[_Word], Meta(max_length=KINDS_MAX)] = []
    shared_fingerprints: Annotated[list[_Fingerprint], Meta(max_length=SHARED_MAX)] = []
    tenants: Annotated[list[TenantConfig], Meta(max_length=TENANTS_MAX)] = []
    rules: Annotated[list[RuleConfig], Meta(max_length=RULES_MAX)] = []

    @property
    def needs_secret(self) -> bool:
        return any(rule.needs_secret for rule in self.rules)


def check_tenancy(config: TenancyConfig) -> None:
    """Raises ConfigError for the first thing that types alone do not refuse."""
    headers = _declared_headers(config)
    if OTHER_KIND in config.kinds:
        raise ConfigError(f"tenancy.kinds: {OTHER_KIND!r} is what undeclared kinds are counted as")
    if config.kind_header and not config.kinds:
        raise ConfigError("tenancy.kinds: declare the values that kind_header can have")
    _check_tenants(config)
    for position, rule in enumerate(config.rules):
        _check_rule(config, rule, headers, is_last=position == len(config.rules) - 1)
    _check_unique("rules.name", (rule.name for rule in config.rules))


def _declared_headers(config: TenancyConfig) -> frozenset[str]:
    named = {"tenant_header": [config.tenant_header], "kind_header": [config.kind_header]}
    named["trusted_headers"] = [*config.trusted_headers]
    declared = set()
    for key, headers in named.items():
        for header in headers:
            if header is None:
                continue
            if not _HEADER.fullmatch(header):
                raise ConfigError(f"tenancy.{key}: {header!r} is no name of a header")
            if header.lower() in _NO_IDENTITY:
                raise ConfigError(
                    f"tenancy.{key}: {header!r} is no header to tell tenants by; API keys are"
                    " matched by api_keys_sha256"
                )
            declared.add(header.lower())
    return frozenset(declared)


def _check_tenants(config: TenancyConfig) -> None:
    for tenant in config.tenants:
        if tenant.kind is not None and tenant.kind not in config.kinds:
            raise ConfigError(
                f"tenancy.tenants {tenant.name!r}, kind: {tenant.kind!r} is not in tenancy.kinds"
            )
    _check_unique("tenants.name", (tenant.name for tenant in config.tenants))
    keys = (key for tenant in config.tenants for key in tenant.api_keys_sha256)
    _check_unique("tenants.api_keys_sha256", keys)


def _check_rule(
    config: TenancyConfig, rule: RuleConfig, headers: frozenset[str], *, is_last: bool
) -> None:
    where = f"tenancy.rules {rule.name!r}"
    if is_last and not rule.is_for_all:
        raise ConfigError(f"{where}: the last rule has no conditions: it is for everybody else")
    if rule.is_for_all and not is_last:
        raise ConfigError(f"{where}: it has no conditions, so no rule behind it would ever apply")
    for header, values in rule.headers.items():
        if header.lower() not in headers:
            raise ConfigError(
                f"{where}, headers: {header!r} is not declared; name it in tenancy.trusted_headers"
                " if the gateway sets it, and never leaves it to clients"
            )
        if not values:
            raise ConfigError(f"{where}, headers.{header}: list the values that it may have")
    for kind in rule.tenant_kinds:
        if kind not in config.kinds:
            raise ConfigError(f"{where}, tenant_kinds: {kind!r} is not in tenancy.kinds")
    if rule.salt == "tenant" and rule.client_salt == "keep":
        raise ConfigError(
            f"{where}, client_salt: with 'keep' a client leaves its tenant's group; use 'mix'"
        )
    if rule.private_prompt is not None and not config.shared_fingerprints:
        raise ConfigError(
            f"{where}, private_prompt: list the prompts that are shared in"
            " tenancy.shared_fingerprints; `pointsman fingerprints` shows them"
        )


def _check_unique(key: str, values: Iterable[str]) -> None:
    seen = set()
    for value in values:
        if value in seen:
            raise ConfigError(f"tenancy.{key}: {value!r} occurs twice")
        seen.add(value)
