"""Whose work a cache hit was: the tenant's own, or another's.

The salts decide who can share; this shows who does. A block belongs to the tenant whose request
computed it last. Of a request's cached tokens the share that its own blocks have is counted as its
own, the share of others' as theirs. Rules it keeps:

* For salted groups "other" has to stay 0, and for the unsalted it is what sharing is worth.
* One block in four is remembered, chosen by its hash, and so many blocks at most; the least
  recently used is forgotten first. What nobody remembers is unknown, not guessed.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

# Some 13 million tokens' worth, in some 30 MB.
OWNED_BLOCKS_MAX = 200_000
SAMPLED_ONE_IN = 4


@dataclass(frozen=True, slots=True)
class Origins:
    """A request's cached tokens, by who computed them."""

    own_tokens: int = 0
    other_tokens: int = 0
    unknown_tokens: int = 0


class BlockOwners:
    """Block hash -> the tenant that computed it last."""

    def __init__(self, blocks_max: int = OWNED_BLOCKS_MAX, one_in: int = SAMPLED_ONE_IN) -> None:
        self._owners: OrderedDict[int, str] = OrderedDict()
        self._blocks_max, self._one_in = blocks_max, one_in

    def __len__(self) -> int:
        return len(self._owners)

    def finished(
        self, tenant: str | None, block_hashes: Sequence[int], block_size: int, cached_tokens: int
    ) -> Origins:
        """A request of which so many tokens were found; the rest of its blocks is its work.

        ``tenant`` None: nobody knows whose it is.
        """
        hashes = np.asarray(block_hashes, dtype=np.uint64)
        cached_blocks = min(len(hashes), -(-cached_tokens // block_size))
        origins = self._origins(tenant, self._sampled(hashes[:cached_blocks]), cached_tokens)
        self._own(tenant, self._sampled(hashes[cached_blocks:]))
        return origins

    def _sampled(self, hashes: "np.ndarray[tuple[int], np.dtype[np.uint64]]") -> list[int]:
        sampled: list[int] = hashes[hashes % self._one_in == 0].tolist()
        return sampled

    def _origins(self, tenant: str | None, cached: list[int], tokens: int) -> Origins:
        owners = [self._owners[each] for each in cached if each in self._owners]
        if tenant is None or not owners:
            return Origins(unknown_tokens=tokens)
        for each in cached:
            if each in self._owners:
                self._owners.move_to_end(each)
        known = tokens * len(owners) // len(cached)
        own = known * owners.count(tenant) // len(owners)
        return Origins(own, known - own, tokens - known)

    def _own(self, tenant: str | None, computed: list[int]) -> None:
        for each in computed:
            self._owners.pop(each, None)
            if tenant is not None:
                self._owners[each] = tenant
        while len(self._owners) > self._blocks_max:
            self._owners.popitem(last=False)
