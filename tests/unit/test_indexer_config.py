"""The indexer's configuration file."""

import pytest

from indexer.config import parse_config
from proto.config_file import ConfigError


def test_an_empty_file_is_a_configuration() -> None:
    """Replicas may all be registered later, and every other key has a default."""
    config = parse_config(b"")
    assert config.replicas == [] and config.grpc.listen == "127.0.0.1:50051"


def test_the_router_s_sections_are_its_own() -> None:
    """One file serves both services: whatever the router's sections contain is accepted here."""
    config = parse_config(
        b'[router]\nlisten = "x"\npolicy.name = 3\n[pools.default]\nmodel = "m"\n'
    )
    assert config.pools == {"default": {"model": "m"}}


@pytest.mark.parametrize("url", ["http://", "a:8000", "ftp://a", "http://a:99999", "http://[a"])
def test_a_url_has_to_be_one(url: str) -> None:
    """What no HTTP client could use is refused by name."""
    with pytest.raises(ConfigError, match="replicas 'a', url"):
        parse_config(f'[[replicas]]\nname = "a"\nurl = "{url}"\n'.encode())
