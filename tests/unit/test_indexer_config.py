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


@pytest.mark.parametrize(
    "url",
    [
        "redis://h",
        "redis://user@h:6379/2",
        "rediss://h?ssl_ca_certs=/etc/ca.pem",
        "unix:///run/s?db=3",
        "redis+cluster://h:7000",
        "rediss+cluster://h:7000",
    ],
)
def test_a_store_s_address(url: str) -> None:
    """Every kind that redis-py has a client for."""
    assert parse_config(f'[redis]\nurl = "{url}"\n'.encode()).redis.url == url


@pytest.mark.parametrize(
    ("keys", "complaint"),
    [
        ('url = "http://h"', "not one of redis://"),
        ('url = "redis://"', "not one of redis://"),
        ('url = "unix://"', "not one of redis://"),
        ('url = "redis://h:port"', "not well formed"),
        ('url = "redis://[h"', "not well formed"),
        ('url = "redis://h?db=x"', "not well formed"),
        ('url = "redis://user:secret"', "not well formed"),
        ('url = "redis://user:secret@h"', "POINTSMAN_REDIS_PASSWORD"),
        ('url = "redis://h?password=secret"', "POINTSMAN_REDIS_PASSWORD"),
        ('url = "redis://h?nonsense=1"', "it may set db"),
        ('url = "redis://h"\nfolder = "f"', "not both"),
    ],
)
def test_a_store_s_address_has_to_be_one(keys: str, complaint: str) -> None:
    """It is refused by name, and a secret in it is neither accepted nor repeated."""
    with pytest.raises(ConfigError, match=complaint) as error:
        parse_config(f"[redis]\n{keys}\n".encode())
    assert "secret" not in str(error.value)
