"""How a person writes down a hash scheme: ``sha256_cbor,seed=0,block_size=16``.

The algorithm comes first, the rest in any order; what is left out is what vLLM does since 0.31 with
no flag set. The JSON entry that ``pointsman events inspect`` prints under "schemes" is the same in
another form. The word none stands for an unset seed, since PYTHONHASHSEED takes no such value.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from proto.blockhash import EXTRA_KEY_FORMS, CanonicalScheme, EngineScheme, HashScheme
from proto.contract import scheme_of

DEFAULT_SCHEME = "sha256,seed=none,block_size=16,extra_keys=tagged,lookahead=0"
# What ``events inspect`` adds to a description of a scheme.
_BESIDE = frozenset({"rank", "proven", "id"})


def parse_scheme(text: str) -> HashScheme:
    """Raises ValueError; the text says what is wrong."""
    text = text.strip()
    return scheme_of(_from_json(text) if text.startswith("{") else _from_words(text))


def _from_words(text: str) -> Mapping[str, Any]:
    algorithm, *settings = [word.strip() for word in text.split(",")]
    algorithm = algorithm.removeprefix("algorithm=")
    if not algorithm or "=" in algorithm:
        raise ValueError(f"the algorithm comes first, as in {DEFAULT_SCHEME}")
    fields = _defaults(algorithm)
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not equals or name not in fields or name == "algorithm":
            known = ", ".join(f"{known}=" for known in fields if known != "algorithm")
            raise ValueError(f"{setting!r} is none of its settings: {known}")
        fields[name] = _value(name, value)
    return fields


def _defaults(algorithm: str) -> dict[str, Any]:
    if algorithm == "canonical_xxh3":
        return CanonicalScheme(16).describe()
    return EngineScheme("sha256", None, 16).describe() | {"algorithm": algorithm}


def _value(name: str, value: str) -> Any:
    if name == "seed":
        return None if value == "none" else value
    if name == "extra_keys":
        if value not in EXTRA_KEY_FORMS:
            raise ValueError(f"extra_keys={value} is none of {', '.join(EXTRA_KEY_FORMS)}")
        return value
    # More digits than a number of tokens has would be refused by ``int`` in words of its own.
    if not (value.isascii() and value.isdigit() and len(value) < 10):
        raise ValueError(f"{name}={value} is no number of tokens")
    return int(value)


def _from_json(text: str) -> Mapping[str, Any]:
    try:
        fields = msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError) as error:
        raise ValueError(f"it is no JSON object ({error})") from None
    if fields.get("algorithm") is None:
        raise ValueError('there is no "algorithm" in it: nothing was proven there')
    numbers = [fields.get(name) for name in ("block_size", "lookahead")]
    if not all(type(number) is int for number in numbers):
        raise ValueError("block_size and lookahead are numbers of tokens")
    if not isinstance(fields.get("seed"), str | None):
        raise ValueError('seed is a text, such as "0", or null')
    return {name: value for name, value in fields.items() if name not in _BESIDE}
