"""Where `pointsman serve` keeps the index unless it is told: a folder for each configuration.

Rules it keeps:

* What is configured wins: an address, a folder, or that nothing shall be kept.
* A configuration is its file, or without one the address that clients use: whoever starts it again
  finds its data, and two of them on one machine never share a server.
* What changes within a configuration needs no folder of its own: replicas have keys of their own,
  and nothing that is kept is believed before the engine has proven it.
"""

import re
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path

import msgspec

from indexer.config import RedisConfig
from proto.config_file import ConfigError

# The socket's name in it has a limit of its own, which is a hundred or so.
_NAME_CHARS_MAX = 24
_DIGEST_CHARS = 8


def default_folder(identity: str, environment: Mapping[str, str]) -> Path | None:
    """Below the user's state folder; None where there is no such thing.

    ``identity``: the path of the configuration's file, or the address that clients use.
    """
    state, home = environment.get("XDG_STATE_HOME", ""), environment.get("HOME", "")
    # The standard: a path that is not absolute is to be ignored.
    if Path(state).is_absolute():
        base = Path(state)
    elif Path(home).is_absolute():
        base = Path(home) / ".local" / "state"
    else:
        return None
    name = re.sub(r"[^A-Za-z0-9.-]+", "-", Path(identity).stem if "/" in identity else identity)
    digest = sha256(identity.encode()).hexdigest()[:_DIGEST_CHARS]
    return base / "pointsman" / f"{name[:_NAME_CHARS_MAX].strip('-.') or 'data'}-{digest}"


def redis_of_serve(
    configured: RedisConfig,
    identity: str,
    environment: Mapping[str, str],
    *,
    data: str | None = None,
    no_data: bool = False,
) -> RedisConfig:
    """``data`` and ``no_data`` are the flags. Raises ConfigError where they contradict the file."""
    if no_data:
        return RedisConfig(enabled=False)
    if data is not None:
        if configured.url is not None:
            raise ConfigError("--data: redis.url says where the index is kept; leave one of them")
        return RedisConfig(folder=data)
    if not configured.enabled or configured.url is not None or configured.folder is not None:
        return configured
    folder = default_folder(identity, environment)
    if folder is None:
        return configured
    return msgspec.structs.replace(configured, folder=str(folder))
