"""The section [tenancy]: what is wrong with it is said before anything starts."""

from pathlib import Path

import pytest
from multidict import CIMultiDict

from proto.config_file import ConfigError
from router.config import parse_router_config
from router.salting import Tenancy

REPLICAS = """
[[replicas]]
name = "a"
url = "http://a:1"
[router]
policy = "sticky"
"""
PAGE = Path(__file__).parents[2] / "docs" / "practices" / "salts.md"
DOCUMENTED = PAGE.read_text().partition("```toml\n")[2].partition("```")[0]
KEY = DOCUMENTED.partition("api_keys_sha256 = [")[2].partition("]")[0].strip('"')


def test_the_documented_example_is_right() -> None:
    """What docs/practices/salts.md shows is the rule that it says."""
    tenancy = parse_router_config((REPLICAS + DOCUMENTED).encode()).tenancy
    assert [rule.name for rule in tenancy.rules] == ["private", "rest"]
    (shared,) = tenancy.shared_fingerprints
    policy, acme = Tenancy(tenancy, "s" * 32), {"x-tenant": "acme", "x-tenant-kind": "enterprise"}

    def group(fingerprint: str, **headers: str) -> str:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return policy.judge(CIMultiDict(acme | named), "m", fingerprint, None).salting.group

    assert group("0" * 12) == "tenant"
    assert group(shared) == "unsalted"
    assert group("0" * 12, x_tenant_kind="team") == "unsalted"


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
        ('["ff64073acfa9"]', '["FF64073ACFA9"]', "shared_fingerprints"),
        ('["ff64073acfa9"]', "[]", "pointsman fingerprints"),
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
