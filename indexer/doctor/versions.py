"""What a vLLM version does differently, as far as it matters to who follows its events.

The versions are from reference 1 to 4 and 7. Rules: what pointsman deals with by itself is one line
that is ok; what costs something is a warning of its own, and only where it applies.
"""

import re
from collections.abc import Iterator, Mapping

from indexer.doctor.finding import Finding

_RELEASE = re.compile(r"v?(\d{1,6})\.(\d{1,6})(?:\.(\d{1,6}))?", re.ASCII)
Release = tuple[int, int, int]
# The newest release whose frames and hashes are held against in the tests.
NEWEST_KNOWN: Release = (0, 33, 0)

# Before which release, and what was otherwise then.
_UNDERSTOOD: tuple[tuple[Release, str], ...] = (
    ((0, 24, 0), "events are arrays, not maps"),
    ((0, 26, 0), "replies to replays have no topic"),
    ((0, 29, 0), "block hashes are random unless PYTHONHASHSEED is set"),
    ((0, 31, 0), "salts and adapters are hashed without a tag"),
    ((0, 33, 0), "long replays are cut at 1,000 batches, and asked for again from there"),
    ((0, 33, 0), "with EAGLE or MTP the last matched block is computed again"),
)


def release_of(version: str) -> Release | None:
    """None for a version that has no numbers, such as "dev"."""
    match = _RELEASE.match(version)
    return None if match is None else (int(match[1]), int(match[2]), int(match[3] or 0))


def version_findings(version: str, lora_paths: Mapping[str, str]) -> Iterator[Finding]:
    release = release_of(version)
    if release is None or release == (0, 0, 0):
        yield Finding(
            "unknown",
            "version",
            f"vLLM {version!r} is no release",
            "recipes and encodings are chosen by what the events show, where they show it",
            "look at what the other findings say of its events, or run a release",
        )
        return
    yield _version(version, release)
    yield from _traps(release, lora_paths)


def _version(version: str, release: Release) -> Finding:
    if release < (0, 10, 2):
        return Finding(
            "problem",
            "version",
            f"vLLM {version}: its block hashes cannot be computed outside of it",
            "before 0.10.2 they are Python's own, or numbers that do not fit into an event",
            "upgrade to 0.11.1 or newer; 0.31 and newer also tell where their events are",
        )
    if release[:2] > NEWEST_KNOWN[:2]:
        return Finding(
            "warning",
            "version",
            f"vLLM {version} is newer than what pointsman was tested with (0.33)",
            "its hashes or events may have changed; the scheme below says whether they have",
            "watch the scheme's proof and the outcome of predictions; look for a newer pointsman",
        )
    traps = [text for before, text in _UNDERSTOOD if release < before]
    known = f"; known of it: {'; '.join(traps)}" if traps else ""
    return Finding("ok", "version", f"vLLM {version}{known}")


def _traps(release: Release, lora_paths: Mapping[str, str]) -> Iterator[Finding]:
    if release < (0, 11, 1) and lora_paths:
        yield Finding(
            "problem",
            "version_lora",
            "adapters and KV events do not go together in this version",
            "before 0.11.1 an engine with both fails, or hashes adapters by the order of loading",
            "upgrade to 0.11.1 or newer",
        )
    if release < (0, 17, 0):
        yield Finding(
            "warning",
            "version_extra_keys",
            "events do not show salts and images",
            "before 0.17 all images look alike, and what is salted cannot be told from what is not",
            "upgrade to 0.17 or newer if requests have images, salts or adapters",
        )
    elif release < (0, 31, 0) and lora_paths:
        yield Finding(
            "warning",
            "version_untagged",
            "the name of an adapter and a salt of the same text give the same hashes",
            "before 0.31 they are hashed without a tag: one tenant's blocks may pass for another's",
            "upgrade to 0.31 or newer, or let no client choose its cache_salt",
        )
    if release < (0, 27, 0):
        yield Finding(
            "warning",
            "version_tool_keys",
            "a tool's unknown keys are part of the prompt",
            "before 0.27 they reach the template; 0.27 and pointsman leave them out",
            "upgrade to 0.27 or newer if clients put marks such as cache_control into tools",
        )
    if (0, 11, 1) > release >= (0, 10, 2) and not lora_paths:
        yield Finding(
            "warning",
            "version_lora",
            "do not load adapters into this version",
            "before 0.11.1 an engine with adapters and KV events fails",
            "upgrade to 0.11.1 or newer",
        )
