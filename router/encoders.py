"""Text to token ids: three ways that must agree, of which the fastest that proves itself is used.

transformers is the reference, because it is what the engine runs. ``fastokens`` remembers the
segments of earlier conversations and takes a hundredth of the time, but is code of its own; so it
has to give the same ids for every probe, with and without special tokens, first and remembered.
"""

import sys
from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from xxhash import xxh3_64

# Text and ids of remembered segments: some 8 million tokens of conversations.
SEGMENT_CACHE_BYTES_MAX = 64 << 20
# A conversation is encoded in pieces of about this size where it can be cut: about a millisecond.
_PIECE_CHARS = 16_384
# As many as fill the segment cache, and the names of those long forgotten by it.
_SEEN_PIECES_MAX = 8192
# Added tokens that are probed one by one; beyond this only the first ones are.
_PROBED_TOKENS_MAX = 1024

Encode = Callable[[str, bool], "array[int]"]


class Encoder(NamedTuple):
    """``encode(text, add_special_tokens)`` gives an ``array("I")``; ``reason`` says why this one.

    ``remembers``: encoding the same segments again is nearly free.
    """

    name: str
    reason: str
    encode: Encode
    remembers: bool = False


def choose_encoder(tokenizer: Any, fast: Any | None, why_not_fast: str = "") -> Encoder:
    """The fastest that is identical to transformers on all probes.

    ``fast``: a ``fastokens.Tokenizer`` of the same tokenizer, or None and why there is none.
    """
    reference = plain_encode(tokenizer)
    probes = tuple(_probes(tokenizer))
    reason = why_not_fast
    if fast is not None:
        difference = first_difference(fast_encode(fast), reference, probes)
        if difference is None:
            return Encoder(
                "fastokens", f"identical on {len(probes)} probes", fast_encode(fast), True
            )
        reason = f"fastokens differs on {difference!r}"
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:
        backend.no_truncation()
        backend.no_padding()
        if first_difference(backend_encode(backend), reference, probes) is None:
            return Encoder("tokenizers", reason, backend_encode(backend))
    return Encoder("transformers", f"{reason}; its backend differs too", reference)


def fast_encode(fast: Any) -> Encode:
    """Ids come as bytes: no Python object per token. Turns the segment cache on."""
    if sys.byteorder != "little":
        raise ValueError("fastokens gives little-endian ids")
    fast.no_truncation()
    fast.no_padding()
    fast.enable_segment_cache(SEGMENT_CACHE_BYTES_MAX)

    def encode(text: str, add_special_tokens: bool) -> "array[int]":
        flat, _ = fast.encode_batch_flat([text], add_special_tokens)
        token_ids = array("I")
        token_ids.frombytes(flat)
        return token_ids

    return encode


def backend_encode(backend: Any) -> Encode:
    """The Rust library under transformers, without its per-call wrapping and without offsets."""

    def encode(text: str, add_special_tokens: bool) -> "array[int]":
        encodings = backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        return array("I", encodings[0].ids)

    return encode


def plain_encode(tokenizer: Any) -> Encode:
    def encode(text: str, add_special_tokens: bool) -> "array[int]":
        encoded = tokenizer(text, add_special_tokens=add_special_tokens)
        return array("I", encoded["input_ids"])

    return encode


def first_difference(candidate: Encode, reference: Encode, probes: Iterable[str]) -> str | None:
    """A probe that two ways encode differently, or that the candidate cannot encode; else None."""
    for text in probes:
        for add_special_tokens in (False, True):
            expected = reference(text, add_special_tokens)
            # The second time it comes from the cache, if there is one.
            for _ in range(2):
                if not _equals(candidate, text, add_special_tokens, expected):
                    return text
    return None


def _equals(encode: Encode, text: str, specials: bool, expected: "array[int]") -> bool:
    try:
        return encode(text, specials) == expected
    # Whatever a foreign tokenizer raises, it is not the same as an answer.
    except Exception:
        return False


class Pieces:
    """A long text in pieces that begin with one of the marks, for an encoder that remembers.

    Marks are special tokens. What lies between two of them is one segment of the cache, whether it
    is encoded by itself or within the whole text; so a text can be encoded bit by bit, and at last
    as a whole at little cost. The pieces' own ids are of no use. Pieces at the front that were
    encoded before are left out: that they were is a guess, which costs time where it is wrong.
    """

    def __init__(self, marks: Sequence[str]) -> None:
        self._marks = marks
        self._seen: OrderedDict[int, None] = OrderedDict()

    def of(self, text: str) -> Iterator[str]:
        if len(text) <= 2 * _PIECE_CHARS:
            return
        cuts = self._cuts(text)
        digest, starts = xxh3_64(), []
        for start, end in pairwise(cuts):
            digest.update(text[start:end].encode("utf-8", "replace"))
            starts.append((digest.intdigest(), start, end))
        known = [index for index, (name, _, _) in enumerate(starts) if name in self._seen]
        first = known[-1] + 1 if known else 0
        for name, start, end in starts[first:]:
            yield text[start:end]
            self._seen[name] = None
        while len(self._seen) > _SEEN_PIECES_MAX:
            self._seen.popitem(last=False)

    def _cuts(self, text: str) -> list[int]:
        """Where pieces begin, and where the last one ends; behind it comes the final whole."""
        marks = [mark for mark in self._marks if mark in text]
        cuts = [0]
        while True:
            after = cuts[-1] + _PIECE_CHARS
            found = [cut for mark in marks if (cut := text.find(mark, after)) >= 0]
            if not found:
                return cuts
            cuts.append(min(found))


def _probes(tokenizer: Any) -> Iterator[str]:
    yield from _TEXTS
    # Scripts, symbols and combining marks, 64 neighbours at a time, up to the end of the kana.
    for first in range(0x20, 0x3100, 64):
        yield "".join(map(chr, range(first, first + 64)))
    vocabulary = len(tokenizer)
    sample = range(0, vocabulary, max(1, vocabulary // 2000))
    yield "".join(tokenizer.decode([token_id]) for token_id in sample)
    yield " ".join(tokenizer.decode([token_id]) for token_id in sample)
    yield from _around_added_tokens(tokenizer)


def _around_added_tokens(tokenizer: Any) -> Iterator[str]:
    """Each added token beside text, spaces, line ends and itself, where its flags show."""
    for token in list(tokenizer.get_added_vocab())[:_PROBED_TOKENS_MAX]:
        yield f"a{token}b {token} \n{token}\n{token}{token} 1{token[:-1]}{token}  {token}é"


_TEXTS = (
    "",
    " ",
    "\n",
    "Hello, world! It's what they'll've SAID: don't.",
    "  leading\r\n\ttabs  \n\n trailing  ",
    " " * 257 + "x" + "\n" * 33 + "\t" * 19 + "y" + " \n" * 12,
    "a" * 3000,
    "0123456789 3.14159 1,000,000 0x1F 2024-01-31T23:59:59Z 1e-9 ½ ² ٣٤ \uff11\uff12",
    "def f(x: int) -> str:\n    return {'a': [x, *range(10)], \"b\": f'{x!r:>10}'}  # ok\n\n\n"
    "class A:\n\tpass\n",
    '{"name": "get_weather", "arguments": {"city": "Zürich", "unit": "c"}}\n</tool_call>',
    "Zürich naïve façade Ångström \u0041\u030a\u0065\u0301 \u1e9b\u0323 ﬁ ﷺ ①",
    "日本語のテキスト、中文文本。한국어 텍스트 ภาษาไทย हिन्दी नमस्ते العربية עברית",
    "👩‍👩‍👧‍👦 🏳️‍🌈 👍🏽 🇨🇭 ☎️ 🤷🏿‍♀️ \U0001f9ec\U000e0067",
    "\ufeffBOM \u200b\u200d\u2028\u2029\u00a0\u3000 \x00\x01\x1b[0m\x7f \ufffd \U0010ffff",
    "https://example.org/a/b?c=d&e=%20f#g user@example.org C:\\Users\\x\\y.txt ~/.config",
    "CamelCaseHTTPServer snake_case_name SCREAMING_CASE kebab-case don\u2019t “quotes” — dash…",
    "<|im_start|>system\nYou are.<|im_end|>\n"
    "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n",
    "<s>[INST] a [/INST]</s><|begin_of_text|><|eot_id|><bos><eos><unk><think>\nhm\n</think>\n\n",
    "$$\\int_0^1 x^2\\,dx = \\frac{1}{3}$$ ∀ε>0 ∃δ: |x\u2212a|<δ ⇒ |f(x)\u2212f(a)|<ε",
)
