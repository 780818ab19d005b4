"""One thing that was looked at, how it is, and what to do about it."""

from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "warning", "problem", "unknown"]


@dataclass(frozen=True, slots=True)
class Finding:
    """``check`` names what was looked at and stays the same between versions.

    A problem keeps prefixes from being found or requests from being answered; a warning costs
    something or will one day; unknown is what could not be told. All three have a fix.
    """

    level: Level
    check: str
    what: str
    why: str = ""
    fix: str = ""
    rank: int | None = None

    def __post_init__(self) -> None:
        assert self.level == "ok" or self.fix, f"{self.check} without a fix"
