"""Which recipe names one replica's blocks: proven from its own events, never configured.

Rules (design, decision 2; reference 4):

* A *root* is a stored block without a parent. Recomputed from the event's own tokens under every
  known algorithm and seed, it proves algorithm, root, block size and lookahead.
* Its extra keys prove their form. Until a root with extra keys is seen the form follows the
  engine's version; where several forms reproduce a root and the version does not decide, all stay
  possible.
* Roots go on being checked. One that should reproduce and does not is a disagreement: the proof
  starts over with that very root.
* A root whose hash depends on something the event does not show (the path of an unknown LoRA, extra
  keys of versions that do not publish them, the tokens of a sparse group) proves nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import product
from typing import Any

from indexer.events import BlockStored
from proto.blockhash import (
    ALGORITHMS,
    EXTRA_KEY_FORMS,
    LOW_64_BITS,
    UNSERIALISABLE,
    EngineScheme,
    ExtraKeyForm,
    normalise,
    root_digest,
)

ExtraKeys = tuple[Any, ...] | None


class Verdict(StrEnum):
    PROVEN = "proven"
    CONFIRMED = "confirmed"
    FORM_PROVEN = "form_proven"
    DISAGREED = "disagreed"
    NOT_CHECKABLE = "not_checkable"
    UNPROVABLE = "unprovable"


class NotCheckable(Exception):
    """The hash depends on something that the event does not show."""


def form_of_version(version: str | None) -> ExtraKeyForm | None:
    """The extra-key form of a vLLM version such as "0.32.0+cpu"; None where it cannot be told."""
    parts = (version or "").split("+")[0].split(".")
    if len(parts) < 2 or not (parts[0].isdecimal() and parts[1].isdecimal()):
        return None
    release = (int(parts[0]), int(parts[1]))
    patch = int(parts[2]) if len(parts) > 2 and parts[2].isdecimal() else 0
    if release >= (0, 31):
        return "tagged"
    if release >= (0, 19):
        return "untagged_mm_offset"
    return "untagged" if (*release, patch) >= (0, 11, 1) else "lora_int"


@dataclass(frozen=True, slots=True)
class StoredBlocks:
    """A BlockStored event with the fields that a proof needs decoded.

    ``extra_keys`` is None where the engine's version does not publish them.
    """

    block_hashes: Sequence[int]
    token_ids: Sequence[int]
    block_size: int
    lookahead: int
    lookahead_tokens: Sequence[Sequence[int]] | None
    extra_keys: Sequence[list[Any] | None] | None
    lora_name: str | None
    lora_id: int | None

    @classmethod
    def of(cls, event: BlockStored) -> "StoredBlocks":
        """Raises MalformedBatch where a raw field has the wrong shape."""
        ahead = event.lookahead()
        return cls(
            block_hashes=event.block_hashes,
            token_ids=event.tokens(),
            block_size=event.block_size,
            lookahead=len(ahead[0]) if ahead else 0,
            lookahead_tokens=ahead,
            extra_keys=event.keys(),
            lora_name=event.lora_name,
            lora_id=event.lora_id if isinstance(event.lora_id, int) else None,
        )

    @property
    def dense(self) -> bool:
        """Whether tokens and hashes correspond block by block (not so in sparse groups)."""
        return (
            self.block_size > 0
            and bool(self.block_hashes)
            and len(self.token_ids) == len(self.block_hashes) * self.block_size
            and (
                self.lookahead_tokens is None
                or len(self.lookahead_tokens) == len(self.block_hashes)
            )
        )

    def hash_keys(self, form: ExtraKeyForm, lora_paths: Mapping[str, str]) -> list[ExtraKeys]:
        """What stands in each block's hash under a form. Raises NotCheckable, see above."""
        shown = self.extra_keys or [None] * len(self.block_hashes)
        keys = [self._block_keys(form, block_keys, lora_paths) for block_keys in shown]
        if not self.lookahead:
            return keys
        assert self.lookahead_tokens is not None
        return [
            (block_keys, *ahead)
            for block_keys, ahead in zip(keys, self.lookahead_tokens, strict=True)
        ]

    def _block_keys(
        self, form: ExtraKeyForm, shown: list[Any] | None, lora_paths: Mapping[str, str]
    ) -> ExtraKeys:
        if self.extra_keys is None:
            # Versions before 0.17 publish no keys; what can be told is told by the LoRA fields.
            key = self.lora_id if form == "lora_int" else self.lora_name
            return (key,) if key else None
        if not shown:
            return None
        if form != "tagged":
            return tuple(tuple(key) if isinstance(key, list) else key for key in shown)
        tagged: list[Any] = []
        rest = shown
        if self.lora_name is not None:
            path = lora_paths.get(self.lora_name)
            if path is None:
                raise NotCheckable(f"the path of LoRA {self.lora_name!r} is not known")
            tagged.append(("lora", shown[0], path))
            rest = shown[1:]
        return (*tagged, *(_tagged_key(key) for key in rest))

    @property
    def fully_shown(self) -> bool:
        """Every extra key is in the event: a plain root that does not reproduce is conclusive."""
        return self.extra_keys is not None

    @property
    def plain(self) -> bool:
        return self.lora_name is None and not any(self.extra_keys or ())


def _tagged_key(key: Any) -> Any:
    """The tagged key behind an untagged one of an event (vLLM ``to_event_extra_keys``)."""
    if isinstance(key, list):
        return ("mm", *key)
    return ("prompt_embeds", key) if isinstance(key, bytes) else ("cache_salt", key)


def reproduces(
    scheme: EngineScheme,
    blocks: StoredBlocks,
    lora_paths: Mapping[str, str],
    blocks_max: int | None = None,
) -> bool:
    """Whether the scheme gives the hashes of a root event. Raises NotCheckable.

    ``blocks_max`` 1 is enough to confirm what is proven: the chain makes the rest follow.
    """
    keys = blocks.hash_keys(scheme.extra_keys, lora_paths)
    root = root_digest(scheme.algorithm, scheme.seed)
    first = scheme.chain(root, blocks.token_ids, keys[:1])
    if normalise(first[0]) != blocks.block_hashes[0]:
        return False
    if blocks_max == 1:
        return True
    digests = scheme.chain(root, blocks.token_ids, keys)
    return [int.from_bytes(d[-8:], "big") & LOW_64_BITS for d in digests] == list(
        blocks.block_hashes
    )


class SchemeProof:
    """The proof for one replica: observe roots, read ``schemes``.

    ``seeds`` are the values of PYTHONHASHSEED worth trying beside none.
    """

    def __init__(self, seeds: Sequence[str] = ("0",)) -> None:
        self.seeds = tuple(seeds)
        self.version: str | None = None
        self.lora_paths: Mapping[str, str] = {}
        self.disagreements = 0
        self.start_over()

    def __repr__(self) -> str:
        return f"<SchemeProof {self.schemes or 'nothing proven'}>"

    def start_over(self) -> None:
        """Nothing is known any more: a new incarnation of the engine, or a disagreement."""
        self.base: EngineScheme | None = None
        self.proven_forms: frozenset[ExtraKeyForm] | None = None

    @property
    def form_proven(self) -> bool:
        """A root with extra keys has been seen since the proof began."""
        return self.proven_forms is not None

    @property
    def schemes(self) -> tuple[EngineScheme, ...]:
        """The schemes that stay possible; empty before the first proof."""
        if self.base is None:
            return ()
        return tuple(self._with_form(self.base, form) for form in self._forms())

    def _forms(self) -> tuple[ExtraKeyForm, ...]:
        possible = self.proven_forms or frozenset(EXTRA_KEY_FORMS)
        assumed = form_of_version(self.version)
        if assumed in possible:
            return (assumed,)
        return tuple(form for form in EXTRA_KEY_FORMS if form in possible)

    def observe(self, blocks: StoredBlocks) -> Verdict:
        """Checks one root against what is proven, or proves it."""
        if not blocks.dense:
            return Verdict.NOT_CHECKABLE
        if self.base is None:
            return self._prove(blocks)
        forms = self._forms_that_reproduce(self.base, blocks)
        if forms:
            return self._learn_forms(forms, blocks, Verdict.CONFIRMED)
        if not blocks.fully_shown or self._lora_unknown(blocks):
            return Verdict.NOT_CHECKABLE
        self.disagreements += 1
        self.start_over()
        self._prove(blocks)
        return Verdict.DISAGREED

    def _prove(self, blocks: StoredBlocks) -> Verdict:
        for algorithm, seed in product(ALGORITHMS, (*self.seeds, None)):
            if seed is None and algorithm.startswith("xxhash"):
                continue
            base = EngineScheme(algorithm, seed, blocks.block_size, blocks.lookahead)
            forms = self._forms_that_reproduce(base, blocks)
            if forms:
                self.base = base
                return self._learn_forms(forms, blocks, Verdict.PROVEN)
        if blocks.plain and blocks.fully_shown:
            return Verdict.UNPROVABLE
        return Verdict.NOT_CHECKABLE

    def _forms_that_reproduce(
        self, base: EngineScheme, blocks: StoredBlocks
    ) -> frozenset[ExtraKeyForm]:
        if blocks.plain:
            return frozenset(EXTRA_KEY_FORMS) if self._check(base, blocks) else frozenset()
        return frozenset(
            form for form in EXTRA_KEY_FORMS if self._check(self._with_form(base, form), blocks)
        )

    def _check(self, scheme: EngineScheme, blocks: StoredBlocks) -> bool:
        if (scheme.block_size, scheme.lookahead) != (blocks.block_size, blocks.lookahead):
            return False
        try:
            return reproduces(scheme, blocks, self.lora_paths, 1 if self.base else None)
        except (NotCheckable, *UNSERIALISABLE):
            # Keys of a hostile event may be of types that no recipe can serialise.
            return False

    def _lora_unknown(self, blocks: StoredBlocks) -> bool:
        return blocks.lora_name is not None and blocks.lora_name not in self.lora_paths

    def _learn_forms(
        self, forms: frozenset[ExtraKeyForm], blocks: StoredBlocks, verdict: Verdict
    ) -> Verdict:
        if blocks.plain:
            return verdict
        before = self.proven_forms
        narrowed = forms & (before or forms) or forms
        self.proven_forms = narrowed
        if verdict is Verdict.CONFIRMED and narrowed != before:
            return Verdict.FORM_PROVEN
        return verdict

    @staticmethod
    def _with_form(base: EngineScheme, form: ExtraKeyForm) -> EngineScheme:
        return EngineScheme(base.algorithm, base.seed, base.block_size, base.lookahead, form)
