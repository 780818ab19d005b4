"""What a cache that never forgets would have found of each prompt, in the order of the log.

It is the bound that the practices are measured against: one cache, endless, as fast as it is asked.
Rules it keeps, all of them the engine's own:

* Only full blocks are found, only from the front, and only under the same model and salt.
* The last token is always computed, so of a prompt that is all there a block less counts.
* Answers are not in it: a log of requests does not have them. What an engine keeps of its own
  answers comes on top.
"""

from array import array
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import xxhash


@dataclass(frozen=True, slots=True)
class PromptBlocks:
    """``chain``: the name of each full block and of all before it, 64 bits each."""

    tokens: int
    chain: "array[int]"


def prompt_blocks(token_ids: Sequence[int], block_size: int) -> PromptBlocks:
    """Named without model and salt, so that another salt does not need the tokens again."""
    data = array("I", token_ids).tobytes()
    step = array("I").itemsize * block_size
    chain, parent = array("Q"), 0
    for start in range(0, len(data) - step + 1, step):
        parent = xxhash.xxh3_64_intdigest(data[start : start + step], seed=parent)
        chain.append(parent)
    return PromptBlocks(len(token_ids), chain)


class IdealCache:
    """``hit_tokens`` of each prompt in turn; what was asked for is there from then on."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._blocks: dict[Hashable, set[int]] = {}

    def hit_tokens(self, namespace: Hashable, prompt: PromptBlocks) -> int:
        """``namespace``: whatever keeps caches apart, model and salt."""
        known = self._blocks.setdefault(namespace, set())
        found = 0
        for name in prompt.chain:
            if name not in known:
                break
            found += 1
        known.update(prompt.chain[found:])
        return min(found, max(0, prompt.tokens - 1) // self._block_size) * self._block_size
