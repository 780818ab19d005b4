"""Where `pointsman serve` keeps the index unless it is told."""

from pathlib import Path

import pytest

from indexer.config import ConfigError, RedisConfig, parse_config
from indexer.default_folder import default_folder, redis_of_serve

HOME = {"HOME": "/home/me"}
FILE = "/etc/pointsman/pointsman.toml"


def test_each_configuration_has_a_folder_of_its_own() -> None:
    """The same one every time, whatever is in the file; other files and addresses have others."""
    identities = [FILE, "/srv/pointsman.toml", "127.0.0.1:8080", "127.0.0.1:8081", "[::1]:8080"]
    folders = [default_folder(identity, HOME) for identity in identities]
    assert folders == [default_folder(identity, HOME) for identity in identities]
    assert len(set(folders)) == len(folders)
    assert all(folder is not None and folder.name.isascii() for folder in folders)


def test_the_folder_is_where_the_standard_says() -> None:
    """$XDG_STATE_HOME where it is absolute, else in the home; without either there is none."""
    state = {"XDG_STATE_HOME": "/var/state", **HOME}
    found = default_folder(FILE, state)
    assert found is not None and found.parent == Path("/var/state/pointsman")
    for environment in (HOME, {"XDG_STATE_HOME": "relative", **HOME}):
        found = default_folder(FILE, environment)
        assert found is not None and found.parent == Path("/home/me/.local/state/pointsman")
    assert default_folder(FILE, {}) is None


def test_a_name_of_any_length_leaves_room_for_the_socket() -> None:
    """The folder's name is short and has no odd characters, whatever the file is called."""
    for name in ("x" * 300, "ä ö/ü", "..", "$(reboot)"):
        found = default_folder(f"/etc/{name}.toml", HOME)
        assert found is not None and len(found.name) <= 33
        assert set(found.name) <= set("abcdefghijklmnopqrstuvwxyz0123456789.-")


@pytest.mark.parametrize(
    "configured",
    [
        RedisConfig(url="redis://10.0.0.1"),
        RedisConfig(folder="/data"),
        RedisConfig(enabled=False),
        RedisConfig(enabled=False, url="redis://10.0.0.1"),
    ],
)
def test_what_is_configured_wins(configured: RedisConfig) -> None:
    """An address, a folder, and that nothing shall be kept."""
    assert redis_of_serve(configured, FILE, HOME) == configured


def test_flags_win() -> None:
    """--data over a folder, --no-data over everything; an address is contradicted, not ignored."""
    both = RedisConfig(enabled=False, folder="/data")
    assert redis_of_serve(both, FILE, HOME, data="/d") == RedisConfig(folder="/d")
    address = RedisConfig(url="redis://10.0.0.1")
    assert redis_of_serve(address, FILE, HOME, no_data=True) == RedisConfig(enabled=False)
    with pytest.raises(ConfigError, match=r"--data: redis\.url"):
        redis_of_serve(address, FILE, HOME, data="/d")


def test_without_a_home_nothing_is_kept() -> None:
    """It is no reason not to start."""
    assert redis_of_serve(RedisConfig(), FILE, {}) == RedisConfig()


def test_it_is_switched_off_by_a_key() -> None:
    """Which stands beside an address without taking it away."""
    config = parse_config(b'[redis]\nenabled = false\nurl = "redis://10.0.0.1"\n')
    assert config.redis == RedisConfig(enabled=False, url="redis://10.0.0.1")
