"""The section [tenancy]: what is wrong with it is said before anything starts."""

import pytest

from proto.config_file import ConfigError
from router.config import parse_router_config

REPLICAS = """
[[replicas]]
name = "a"
url = "http://a:1"
[router]
policy = "sticky"
"""
KEY = "0" * 64
DOCUMENTED = f"""
[tenancy]
tenant_header = "x-tenant"
kind_header = "x-tenant-kind"
kinds = ["enterprise", "team"]
shared_fingerprints = ["0123456789ab"]

[[tenancy.tenants]]
name = "acme"
kind = "enterprise"
api_keys_sha256 = ["{KEY}"]

[[tenancy.rules]]
name = "private prompts of enterprises"
tenant_kinds = ["enterprise"]
private_prompt = true
salt = "tenant"
client_salt = "mix"

[[tenancy.rules]]
name = "everybody else"
salt = "none"
client_salt = "refuse"
""".replace("private prompts of enterprises", "private").replace("everybody else", "rest")


def test_the_documented_example_is_right() -> None:
    """It is what docs/practices/salts.md shows."""
    file = parse_router_config((REPLICAS + DOCUMENTED).encode())
    assert [rule.name for rule in file.tenancy.rules] == ["private", "rest"]


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('"x-tenant"', '"x tenant"', "no name of a header"),
        ('"x-tenant"', '"Authorization"', "api_keys_sha256"),
        ('kinds = ["enterprise", "team"]', "", "kinds"),
        ('"team"', '"other"', "'other'"),
        ('kind = "enterprise"', 'kind = "gold"', "'gold' is not in tenancy.kinds"),
        ('tenant_kinds = ["enterprise"]', 'tenant_kinds = ["gold"]', "'gold' is not in"),
        ('tenant_kinds = ["enterprise"]', 'headers = {x-plan = ["a"]}', "trusted_headers"),
        ('tenant_kinds = ["enterprise"]', "headers = {x-tenant = []}", "list the values"),
        ("private_prompt = true", "private_prompts = true", "private_prompts"),
        ('["0123456789ab"]', '["0123456789AB"]', "shared_fingerprints"),
        ('["0123456789ab"]', "[]", "pointsman fingerprints"),
        (f'["{KEY}"]', '["sk-plain-key"]', "api_keys_sha256"),
        (f'["{KEY}"]', f'["{KEY}", "{KEY}"]', "occurs twice"),
        ('client_salt = "mix"', 'client_salt = "keep"', "'mix'"),
        ('client_salt = "refuse"', "", "client_salt"),
        ('name = "rest"', 'name = "rest"\nmodels = ["m"]', "the last rule"),
        ('tenant_kinds = ["enterprise"]\nprivate_prompt = true', "", "would ever apply"),
        ('name = "rest"', 'name = "private"', "occurs twice"),
    ],
)
def test_what_is_wrong_is_named(old: str, new: str, says: str) -> None:
    """Each error names its key; a rule that could never apply is an error, too."""
    assert old in DOCUMENTED
    with pytest.raises(ConfigError, match=says):
        parse_router_config((REPLICAS + DOCUMENTED.replace(old, new, 1)).encode())
