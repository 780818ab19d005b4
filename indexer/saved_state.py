"""What is kept of a replica beyond the process, and how its few fields are written as text.

Beside the blocks these are the batch that they are the result of (its number and digest, which
continuity is proven with) and what a restart could not find out again from the rest of the log: the
proven scheme, whether the history is complete, and what degrades the evidence until the next clear.
The pool's size is not among them, because discovery tells it before anything is loaded.
"""

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast, get_args

from indexer.residency import GPU, TierKey
from proto.blockhash import EXTRA_KEY_FORMS, Algorithm, EngineScheme, ExtraKeyForm

_FLAGS = ("history_complete", "unknown_event", "counts_drifted", "hybrid_groups", "ever_proven")
_DIGEST_BYTES = 32


class NotReadable(ValueError):
    """The fields are not such as ``to_fields`` writes."""


@dataclass(frozen=True, slots=True)
class SavedState:
    """One replica as of batch ``seq``, without its blocks."""

    seq: int
    digest: bytes
    history_complete: bool = False
    unknown_event: bool = False
    counts_drifted: bool = False
    hybrid_groups: bool = False
    ever_proven: bool = False
    base: EngineScheme | None = None
    forms: frozenset[ExtraKeyForm] | None = None
    tier: TierKey | None = None


@dataclass(frozen=True, slots=True)
class Saved:
    """What a store held of a replica: the copies of its blocks, and at which ``position``.

    ``counts`` become the index's own when they are restored: a copy would take a match's time.
    """

    position: str
    state: SavedState
    counts: Counter[int]


def to_fields(state: SavedState) -> dict[str, str]:
    """Every field there is, each time: what a write leaves out would stay as it was."""
    base = state.base
    return {
        "seq": str(state.seq),
        "digest": state.digest.hex(),
        **{flag: "1" if getattr(state, flag) else "0" for flag in _FLAGS},
        "algorithm": base.algorithm if base else "",
        "seed": json.dumps(base.seed) if base else "",
        "block_size": str(base.block_size) if base else "",
        "lookahead": str(base.lookahead) if base else "",
        "forms": ",".join(sorted(state.forms)) if state.forms is not None else "",
        "tier": json.dumps(state.tier) if state.tier else "",
    }


def from_fields(fields: Mapping[str, str]) -> SavedState:
    """Raises NotReadable, whatever is wrong with them."""
    try:
        digest = bytes.fromhex(fields["digest"])
        if len(digest) != _DIGEST_BYTES:
            raise NotReadable("digest: not a sha256")
        return SavedState(
            seq=int(fields["seq"]),
            digest=digest,
            **{flag: _flag(fields[flag]) for flag in _FLAGS},
            base=_base(fields) if fields["algorithm"] else None,
            forms=_forms(fields["forms"]) if fields["forms"] else None,
            tier=_tier(json.loads(fields["tier"])) if fields["tier"] else None,
        )
    except (KeyError, ValueError, TypeError) as error:
        raise NotReadable(f"{type(error).__name__}: {error}") from error


def _flag(text: str) -> bool:
    if text not in ("0", "1"):
        raise NotReadable(f"{text[:16]!r} is no flag")
    return text == "1"


def _base(fields: Mapping[str, str]) -> EngineScheme:
    if fields["algorithm"] not in get_args(Algorithm):
        raise NotReadable(f"algorithm {fields['algorithm'][:32]!r} is not known")
    seed = json.loads(fields["seed"])
    if seed is not None and not isinstance(seed, str):
        raise NotReadable("seed: neither text nor null")
    algorithm = cast(Algorithm, fields["algorithm"])
    return EngineScheme(algorithm, seed, int(fields["block_size"]), int(fields["lookahead"]))


def _forms(text: str) -> frozenset[ExtraKeyForm]:
    forms = frozenset(text.split(","))
    if not forms <= set(EXTRA_KEY_FORMS):
        raise NotReadable(f"extra-key forms {text[:64]!r} are not known")
    return cast(frozenset[ExtraKeyForm], forms)


def _tier(parts: Any) -> TierKey:
    level, medium, group_idx, locality, ownership = parts
    texts = (medium, locality, None if isinstance(ownership, int) else ownership)
    numbers_are_right = level == GPU and (group_idx is None or isinstance(group_idx, int))
    if not numbers_are_right or not all(text is None or isinstance(text, str) for text in texts):
        raise NotReadable("tier: not one of GPU memory")
    return TierKey(level, medium, group_idx, locality, ownership)
