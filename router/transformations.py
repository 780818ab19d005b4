"""What is changed in a body on its way to the engine, each change under its name.

All names are in ``x-pointsman-transformed``. Rules it keeps:

* Without a change the body goes on as the very bytes received. With one, every other value keeps
  its own bytes; what stands between the members of the outermost object does not: spaces, and a
  member that a later one of the same key hides.
* A body that is no strict JSON has no raw spans to keep: it is written anew.
* Whether there is something to change is decided on the parsed object, since a key can be written
  with escapes.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from router.openai_errors import BadRequest

# Removed from vllm_xargs: with it the engine announces blocks again without a new copy of them.
REPORT_MODE = "kv_cache_report_mode"
# Tools in their canonical order, where the pool is configured so.
CANONICAL_TOOLS = "canonical_tools"
# The salt that the policy gives a request, in place of the client's or of none.
CACHE_SALT = "cache_salt"

Spans = Mapping[str, msgspec.Raw]

_EXTRA = "vllm_xargs"
_SPANS = msgspec.json.Decoder(dict[str, msgspec.Raw])


class Change(NamedTuple):
    """``value``: JSON for the member ``key`` of the outermost object; None removes the member."""

    name: str
    key: str
    value: bytes | None


def spans_of(body: bytes) -> dict[str, msgspec.Raw]:
    """The bytes of each member. Raises msgspec.DecodeError and RecursionError."""
    return _SPANS.decode(body)


def changed(
    body: bytes,
    fields: Mapping[str, Any],
    changes: Sequence[Change],
    *,
    strict: bool,
    spans: Spans | None = None,
) -> bytes:
    """The body with these changes. ``spans``: of this body, where they are at hand.

    Raises BadRequest for what only the reader of lenient JSON takes, and its writer does not.
    """
    if not changes:
        return body
    if not strict:
        return _changed_leniently(fields, changes)
    members = dict(spans_of(body) if spans is None else spans)
    for _, key, value in changes:
        if value is None:
            members.pop(key, None)
        else:
            members[key] = msgspec.Raw(value)
    return msgspec.json.encode(members)


def report_mode_change(fields: Mapping[str, Any], body: bytes, strict: bool) -> Change | None:
    """Removes ``vllm_xargs.kv_cache_report_mode``; the other arguments keep their bytes."""
    extra = fields.get(_EXTRA)
    if not isinstance(extra, dict) or REPORT_MODE not in extra:
        return None
    if not strict:
        kept = {key: value for key, value in extra.items() if key != REPORT_MODE}
        return Change(REPORT_MODE, _EXTRA, _written_leniently(kept))
    extra_spans = _SPANS.decode(spans_of(body)[_EXTRA])
    del extra_spans[REPORT_MODE]
    return Change(REPORT_MODE, _EXTRA, msgspec.json.encode(extra_spans))


def _changed_leniently(fields: Mapping[str, Any], changes: Sequence[Change]) -> bytes:
    members = dict(fields)
    for _, key, value in changes:
        if value is None:
            members.pop(key, None)
        else:
            members[key] = json.loads(value)
    return _written_leniently(members)


def _written_leniently(value: Any) -> bytes:
    try:
        return json.dumps(value).encode()
    except RecursionError:
        raise BadRequest("The request body is nested too deeply.") from None
    except ValueError as error:
        raise BadRequest(f"The request body cannot be written again: {error}"[:300]) from None
