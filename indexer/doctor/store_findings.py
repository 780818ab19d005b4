"""What a store's own words about itself mean for the index that is to be kept there.

One that cannot be written to is a problem: the next restart of the indexer forgets. A policy that
evicts is a warning, and so is a version that nobody has tested.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from indexer.doctor.finding import Finding

# Redis 7 and every Valkey; what else answers is not tested.
VERSION_MIN = 7
EVICTING_NOTHING = "noeviction"
_PASSWORD_ERRORS = ("NOAUTH", "WRONGPASS", "Authentication", "NoPermission", "invalid username")


@dataclass(frozen=True, slots=True)
class StoreFacts:
    """``error``: why it could not be asked. ``infos``: what INFO says, one for each server."""

    error: str | None = None
    infos: tuple[Mapping[str, Any], ...] = ()


def store_findings(facts: StoreFacts) -> list[Finding]:
    if facts.error is not None:
        return [_refused(facts.error)]
    names = sorted({f"{_kind(info)} {_version(info)}" for info in facts.infos})
    reached = Finding("ok", "store", f"it answers: {len(facts.infos)} x {', '.join(names)}")
    return [
        reached,
        *_role(facts.infos),
        *(unfit_version(facts.infos) or [_fine("store_version", "it is new enough")]),
        *(unfit_policy(facts.infos) or [_fine("store_eviction", "it evicts nothing")]),
    ]


def unfit_version(infos: Sequence[Mapping[str, Any]]) -> list[Finding]:
    """A finding where any of them is too old."""
    old = sorted({_version(info) for info in infos if _major(_version(info)) < VERSION_MIN})
    if not old:
        return []
    what = f"version {', '.join(old)} is older than {VERSION_MIN}"
    fix = f"use Redis {VERSION_MIN} or newer, or any Valkey"
    return [Finding("warning", "store_version", what, "nothing older is tested", fix)]


def unfit_policy(infos: Sequence[Mapping[str, Any]]) -> list[Finding]:
    """A finding where any of them may evict, and one where that is not told."""
    policies = {str(info.get("maxmemory_policy", "")) for info in infos} - {EVICTING_NOTHING}
    told = sorted(policies - {""})
    if told:
        return [
            Finding(
                "warning",
                "store_eviction",
                f"maxmemory-policy is {', '.join(told)}",
                "where its memory is full it evicts a replica's index in order to keep another's",
                "set maxmemory-policy noeviction",
            )
        ]
    if policies:
        what, fix = "its maxmemory-policy is not told", "check that it is noeviction"
        return [Finding("unknown", "store_eviction", what, "INFO does not have it", fix)]
    return []


def _role(infos: Sequence[Mapping[str, Any]]) -> Iterator[Finding]:
    if any(info.get("role") == "slave" for info in infos):
        yield Finding(
            "problem",
            "store_role",
            "it is a replica of another server, and refuses to be written",
            "nothing is kept there",
            "give the address of the primary",
        )


def _refused(error: str) -> Finding:
    if any(text in error for text in _PASSWORD_ERRORS):
        fix = (
            "set POINTSMAN_REDIS_PASSWORD to the password, and put the user's name into the URL; it"
            " needs the keys pointsman:* and the commands that docs/durability.md names"
        )
        return Finding("problem", "store", "it refuses the user or the password", error, fix)
    fix = "check that the server runs, its address, and the network between"
    return Finding("problem", "store", "the store cannot be reached", error, fix)


def _fine(check: str, what: str) -> Finding:
    return Finding("ok", check, what)


def _kind(info: Mapping[str, Any]) -> str:
    return "Valkey" if "valkey_version" in info else "Redis"


def _version(info: Mapping[str, Any]) -> str:
    return str(info.get("valkey_version") or info.get("redis_version") or "0")


def _major(version: str) -> int:
    major = version.partition(".")[0]
    return int(major) if major.isdecimal() else 0
