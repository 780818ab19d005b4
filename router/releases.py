"""Marks of releases: when something new went out that may have changed the prompts of a fleet.

A hit rate that falls is an incident where it falls behind a release, and weather otherwise; so the
mark is a metric beside the hit rate. Rules:

* Of all marks the last one is kept, and how many there were: a process does not keep a calendar.
* A name is a word of the operator's, of the characters that versions have, and it is optional.
"""

import re
from dataclasses import dataclass

NAME_CHARS_MAX = 64
_NAME = re.compile(r"[A-Za-z0-9._:/+@-]*")


class NoReleaseName(ValueError):
    """The text says what a name may be."""


@dataclass(slots=True)
class Releases:
    """``marked_at``: Unix time of the last mark, None before the first."""

    name: str = ""
    marked_at: float | None = None
    count: int = 0

    def mark(self, name: object, now: float) -> None:
        """``name`` as it was sent, None where there is none. Raises NoReleaseName."""
        name = "" if name is None else name
        if not isinstance(name, str) or len(name) > NAME_CHARS_MAX or not _NAME.fullmatch(name):
            raise NoReleaseName(
                f"name: up to {NAME_CHARS_MAX} letters, digits and ._:/+@- such as web-1.4.2"
            )
        self.name, self.marked_at, self.count = name, now, self.count + 1
