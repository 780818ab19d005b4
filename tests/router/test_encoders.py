"""Which way of encoding is used, and that a long text in pieces is still the same text."""

import string
from array import array
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers, processors

from router.encoders import Pieces, choose_encoder, first_difference

MARK = "<|end|>"


class Transformers:
    """What is asked of a tokenizer of transformers, around a real one of the Rust library."""

    def __init__(self) -> None:
        vocabulary = {letter: i for i, letter in enumerate(string.printable)}
        backend = Tokenizer(models.BPE(vocab={**vocabulary, "[s]": 100}, merges=[]))
        backend.pre_tokenizer = pre_tokenizers.Whitespace()
        backend.add_special_tokens([AddedToken(MARK, special=True)])
        backend.post_processor = processors.TemplateProcessing(
            "[s] $A", special_tokens=[("[s]", 100)]
        )
        self.backend_tokenizer: Any = backend

    def __len__(self) -> int:
        return int(self.backend_tokenizer.get_vocab_size())

    def __call__(self, text: str, *, add_special_tokens: bool) -> dict[str, list[int]]:
        encoded = self.backend_tokenizer.encode(text, add_special_tokens=add_special_tokens)
        return {"input_ids": encoded.ids}

    def decode(self, ids: list[int]) -> str:
        return str(self.backend_tokenizer.decode(ids, skip_special_tokens=False))

    def get_added_vocab(self) -> dict[str, int]:
        return {MARK: 101}


class Fast:
    """A fastokens that encodes as a given tokenizer, but for texts it gets wrong."""

    def __init__(self, tokenizer: Transformers, wrong: str = "\0never") -> None:
        self._tokenizer, self._wrong = tokenizer, wrong
        self.cache_bytes = 0

    def no_truncation(self) -> None: ...
    def no_padding(self) -> None: ...
    def enable_segment_cache(self, max_bytes: int) -> None:
        self.cache_bytes = max_bytes

    def encode_batch_flat(self, texts: list[str], specials: bool) -> tuple[bytes, bytes]:
        (text,) = texts
        if self._wrong in text:
            raise ValueError("pattern too complex")
        ids = self._tokenizer(text, add_special_tokens=specials)["input_ids"]
        return array("I", ids).tobytes(), b""


def test_the_fast_one_is_used_where_it_is_identical() -> None:
    """With its cache on, and ids from its bytes."""
    tokenizer = Transformers()
    fast = Fast(tokenizer)
    encoder = choose_encoder(tokenizer, fast)
    assert encoder.name == "fastokens" and encoder.remembers
    assert "identical" in encoder.reason and fast.cache_bytes > 0
    assert list(encoder.encode("ab", True)) == [100, 10, 11]


@pytest.mark.parametrize("wrong", [MARK, "ü", "\u0301", "    ", "日"])
def test_a_fast_one_that_differs_anywhere_is_not_used(wrong: str) -> None:
    """The reason shows on what."""
    tokenizer = Transformers()
    encoder = choose_encoder(tokenizer, Fast(tokenizer, wrong))
    assert encoder.name == "tokenizers" and not encoder.remembers
    assert "fastokens differs" in encoder.reason
    assert list(encoder.encode("ab", True)) == [100, 10, 11]


def test_without_a_fast_one_the_reason_is_kept() -> None:
    """It is what an operator asks for."""
    assert choose_encoder(Transformers(), None, "no fastokens: x").reason == "no fastokens: x"


def test_a_wrapper_that_differs_from_its_backend_is_asked_itself() -> None:
    """transformers is the reference, whatever lies under it."""

    class Lowering(Transformers):
        def __call__(self, text: str, *, add_special_tokens: bool) -> dict[str, list[int]]:
            return super().__call__(text.lower(), add_special_tokens=add_special_tokens)

    encoder = choose_encoder(Lowering(), None)
    assert encoder.name == "transformers"
    assert list(encoder.encode("AB", False)) == [10, 11]


def test_differences_show_first_and_remembered() -> None:
    """A cache that answers otherwise the second time is found out."""
    asked: list[tuple[str, bool]] = []

    def forgetful(text: str, add_special_tokens: bool) -> "array[int]":
        asked.append((text, add_special_tokens))
        return array("I", [asked.count((text, add_special_tokens))])

    assert first_difference(forgetful, lambda *_: array("I", [1]), ["a"]) == "a"


texts = st.lists(st.sampled_from([MARK, "a" * 5_000, "ü" * 9_000, "\ud800", "x"]), max_size=25)


@given(parts=texts)
def test_pieces_are_the_front_of_the_text_cut_at_marks(parts: list[str]) -> None:
    """In order, without gap, and not once more when the text comes again or goes on."""
    pieces = Pieces([MARK, "<other>"])
    text = "".join(parts)
    given_pieces = list(pieces.of(text))
    assert text.startswith("".join(given_pieces))
    assert all(piece.startswith(MARK) for piece in given_pieces[1:])
    assert list(pieces.of(text)) == []
    longer = text + MARK + "b" * 40_000 + MARK
    rest = list(pieces.of(longer))
    assert longer.startswith("".join([*given_pieces, *rest]))


def test_without_marks_a_text_has_no_pieces() -> None:
    """It is encoded as a whole."""
    assert list(Pieces([]).of("a" * 100_000)) == []
