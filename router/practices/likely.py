"""In which order causes are looked for, from the most certain to what is left."""

from router.practices.causes import Cause, Find, Parted, cause_of_settings
from router.practices.message_causes import (
    cause_in_history,
    cause_in_last_message,
    cause_in_system,
    cause_in_template,
    cause_of_another_conversation,
    cause_of_continuing,
)
from router.practices.text_causes import cause_in_order, cause_in_value, cause_in_variant
from router.practices.tool_causes import cause_in_tools

# What the requests say of themselves, wherever the texts part.
_CERTAIN: tuple[Find, ...] = (
    cause_in_tools,
    cause_of_settings,
    cause_of_continuing,
    cause_in_template,
)


def likely_cause(parted: Parted) -> Cause:
    """Of two prompts whose tokens part."""
    for find in _CERTAIN:
        found = find(parted)
        if found is not None and found.kind == "tool_changed":
            return cause_in_value(parted) or found
        if found is not None:
            return found
    last = cause_in_last_message(parted)
    if last is not None:
        return cause_in_variant(parted) or _in_last_message(parted) or last
    return (
        cause_in_value(parted)
        or cause_in_variant(parted)
        or _in_system(parted)
        or cause_in_history(parted)
        or cause_in_order(parted)
        or cause_of_another_conversation(parted)
    )


def _in_last_message(parted: Parted) -> Cause | None:
    """Another question is as it should be, unless what stays the same stands behind it."""
    order = cause_in_order(parted)
    return None if order is None else cause_in_value(parted) or order


def _in_system(parted: Parted) -> Cause | None:
    found = cause_in_system(parted)
    if found is None or found.kind == "system_missing":
        return found
    return cause_in_order(parted) or found
