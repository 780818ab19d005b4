"""How a configuration file of ours is read: TOML into frozen structs, checked whole at once.

An unknown key is an error, so a typing mistake never passes for a default. Every error names the
key as it is written in the file and says what to put there.
"""

from typing import TypeVar

import msgspec

_Config = TypeVar("_Config")


class ConfigError(ValueError):
    """The text names the key and says what to put there."""


def decode_config(text: bytes, kind: type[_Config]) -> _Config:
    """Raises ConfigError for the first thing that has the wrong type or name."""
    try:
        return msgspec.toml.decode(text, type=kind)
    except msgspec.ValidationError as error:
        raise ConfigError(readable(str(error))) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"not TOML: {error}") from None


def parse_listen(listen: str, key: str) -> tuple[str, int]:
    """Host and port of an address to listen on; port 0 lets the kernel choose."""
    host, colon, port = listen.rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port) > 65535:
        raise ConfigError(f"{key}: {listen!r} is not HOST:PORT, such as 127.0.0.1:9464")
    return host.strip("[]"), int(port)


def readable(message: str) -> str:
    """msgspec's "... - at `$.a.b`" with the key in front, as it is written in the file."""
    text, at, path = message.rpartition(" - at `$")
    if not at:
        return message
    return f"{path.rstrip('`').lstrip('.')}: {text}" if path.strip("`") else text
