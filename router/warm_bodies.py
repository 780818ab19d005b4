"""The bodies that warm a replica up: request bodies of which only the prompt matters.

A body is what a client would send, with the platform's prompt and its tools. Rules:

* What decides the prompt stays: messages, tools, model, salt, template arguments. What only decides
  the answer is set so that it is one token, whole: the prefill is what is wanted.
* A folder is read whole before anything starts, in the order of the files' names, which is the
  order in which they are sent: where a pool is too small for all of them, the last ones stay.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from multidict import CIMultiDict

from router.openai import BadRequest, ParsedRequest, parse_request
from router.preparation import PoolPractices, Preparation
from router.prompts import CHAT_PATH, COMPLETIONS_PATH

# Each costs a prefill before the replica takes traffic; hundreds are a batch job, not a warm-up.
BODIES_MAX = 64
BODY_BYTES_MAX = 16 * 2**20

_FORCED: dict[str, Any] = {"max_tokens": 1, "stream": False}
# Of these, some contradict the forced ones, and the others ask for more than one answer.
_LEFT_OUT = frozenset(
    ("max_completion_tokens", "min_tokens", "stream_options", "n", "best_of", "use_beam_search")
)


class NoWarmBodies(ValueError):
    """The text names the file, and says what is wrong with it."""


@dataclass(frozen=True, slots=True)
class WarmBody:
    """``name``: of its file. ``request``: what is sent, as the router reads it."""

    name: str
    request: ParsedRequest


def warm_body(name: str, text: bytes) -> WarmBody:
    """One file's body. Raises NoWarmBodies."""
    try:
        fields = json.loads(text)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise NoWarmBodies(f"{name}: no JSON: {error.msg} at {where}") from None
    except (UnicodeDecodeError, RecursionError, ValueError) as error:
        raise NoWarmBodies(f"{name}: no JSON: {error}"[:300]) from None
    path = _path_of(fields)
    if path is None:
        raise NoWarmBodies(f"{name}: it is no request body: it has neither messages nor a prompt")
    kept = {key: value for key, value in fields.items() if key not in _LEFT_OUT}
    try:
        request = parse_request(path, json.dumps(kept | _FORCED).encode(), {})
    except BadRequest as error:
        raise NoWarmBodies(f"{name}: {error.message}") from None
    return WarmBody(name, request)


def _path_of(fields: Any) -> str | None:
    if isinstance(fields, dict):
        if "messages" in fields:
            return CHAT_PATH
        if "prompt" in fields:
            return COMPLETIONS_PATH
    return None


def load_warm_bodies(folder: str) -> tuple[WarmBody, ...]:
    """Every ``*.json`` of a folder, by name. Raises NoWarmBodies."""
    try:
        files = sorted(path for path in Path(folder).iterdir() if path.suffix == ".json")
    except OSError as error:
        raise NoWarmBodies(f"{folder}: {error.strerror or error}") from None
    if not files:
        raise NoWarmBodies(f"{folder}: there is no *.json in it; put one request body in a file")
    if len(files) > BODIES_MAX:
        raise NoWarmBodies(f"{folder}: {len(files)} bodies; at most {BODIES_MAX} are sent")
    return tuple(warm_body(path.name, _read(path)) for path in files)


def prepared_warm_bodies(
    bodies: Sequence[WarmBody], practices: PoolPractices
) -> tuple[WarmBody, ...]:
    """As the pool's clients' bodies reach the engine: what is warmed up is what they will ask."""
    preparation = Preparation({"": practices})
    return tuple(
        replace(body, request=preparation.prepare(body.request, "", CIMultiDict()).request)
        for body in bodies
    )


def _read(path: Path) -> bytes:
    try:
        if path.stat().st_size > BODY_BYTES_MAX:
            raise NoWarmBodies(f"{path.name}: longer than {BODY_BYTES_MAX} bytes")
        return path.read_bytes()
    except OSError as error:
        raise NoWarmBodies(f"{path.name}: {error.strerror or error}") from None
