"""How `pointsman diff` shows what it found to a person: lines, and a tree of many requests."""

import textwrap
from collections.abc import Iterator, Sequence

from router.practices.causes import Cause
from router.practices.comparing import Comparison
from router.practices.diff_report import Excerpt, Fork, Pair, Report, excerpt_of, place_text
from router.practices.parting import Node

_WIDTH = 100
_MARKS = "\u27e6\u27e7"
_ELLIPSIS = "\u2026"
_RED, _GREEN, _BOLD = "31", "32", "1"
_NAMES_MAX = 6


class DiffText:
    """``colour``: for a terminal; the marks are there without it too."""

    def __init__(self, report: Report, *, colour: bool = False) -> None:
        self._report, self._colour = report, colour

    def lines(self) -> Iterator[str]:
        if self._report.pair is not None:
            yield from self._of_two(self._report.pair)
        else:
            yield from self._of_many()

    def _of_two(self, pair: Pair) -> Iterator[str]:
        names = [self._name(number) for number in (pair.a, pair.b)]
        width = max(map(len, names))
        for letter, number, name in zip("AB", (pair.a, pair.b), names, strict=True):
            tokens = len(self._report.requests[number].token_ids)
            yield f"{letter}  {name.ljust(width)}  {self._amount(tokens)}"
        yield f"   tokenized {self._report.tokenized_by}"
        yield ""
        yield self._shared(pair.comparison)
        yield from self._difference(pair.comparison)

    def _shared(self, found: Comparison) -> str:
        tokens = found.shared_tokens
        if found.salted_apart:
            return (
                self._bold("shared: nothing") + f", though {tokens:,} tokens at the front are equal"
            )
        line = self._bold(f"shared: {self._amount(tokens)}")
        if found.relation == "equal":
            again = (tokens - 1) // self._report.block_size
            line += "; the prompts are equal"
            if tokens and again < self._report.full_blocks(tokens):
                line += f" (a repeat finds {again:,}: its last token is always computed)"
        if found.relation == "prefix":
            line += "; the shorter prompt is a prefix of the other"
        return line

    def _difference(self, found: Comparison) -> Iterator[str]:
        if found.relation == "part":
            yield from self._where(found)
            token = found.shared_tokens
            for letter, side in (("A", found.a), ("B", found.b)):
                excerpt = excerpt_of(side, token)
                if excerpt is not None:
                    yield f"  {letter}  {self._marked(excerpt, _RED if letter == 'A' else _GREEN)}"
            yield ""
        title = "likely cause: " if found.relation == "part" else ""
        for number, cause in enumerate(found.causes):
            yield from self._cause("besides: " if number else title, cause)

    def _where(self, found: Comparison) -> Iterator[str]:
        token = found.shared_tokens
        ids = [side.tokenized.token_ids[token] for side in (found.a, found.b)]
        yield f"first token that differs: {token:,} (counted from 0), id {ids[0]} and {ids[1]}"
        places = [place_text(side.place, side.body) for side in (found.a, found.b)]
        if places[0] == places[1]:
            yield f"where: {places[0]}"
        else:
            yield f"where: A in {places[0]}; B in {places[1]}"

    def _cause(self, title: str, cause: Cause) -> Iterator[str]:
        yield from _wrapped(cause.what, title)
        if cause.remedy:
            yield from _wrapped(cause.remedy, "remedy: ")
        if cause.shared_tokens is not None:
            yield f"without it they share {self._amount(cause.shared_tokens)}"

    def _of_many(self) -> Iterator[str]:
        report = self._report
        yield f"{len(report.requests)} requests, tokenized {report.tokenized_by}"
        for number, tree in enumerate(report.trees, 1):
            yield ""
            if len(report.trees) > 1:
                salt = report.requests[tree.members[0]].cache_salt
                yield "without a salt:" if salt is None else f"cache_salt {number}:"
            yield from self._node(tree, "", "")
        for fork_number, fork in enumerate(report.forks, 1):
            yield ""
            yield from self._fork(fork_number, fork)
        if report.apart:
            yield ""
            for cause in report.apart[0].comparison.causes:
                if cause.kind == "salt":
                    yield from self._cause("between the trees: ", cause)

    def _node(self, node: Node, lead: str, below: str) -> Iterator[str]:
        line = f"{lead}{self._amount(node.end)}"
        if node.ending:
            line += f"  {', '.join(self._name(number) for number in node.ending)}"
        if len(node.children) > 1:
            line += self._bold(f"  [{self._fork_number(node)}]")
        yield line
        for child in node.children:
            is_last = child is node.children[-1]
            twig, rest = ("\u2514\u2500 ", "   ") if is_last else ("\u251c\u2500 ", "\u2502  ")
            yield from self._node(child, below + twig, below + rest)

    def _fork_number(self, node: Node) -> int:
        return next(n for n, fork in enumerate(self._report.forks, 1) if fork.node is node)

    def _fork(self, number: int, fork: Fork) -> Iterator[str]:
        """Pairs with the same cause are told once, with the text of the first."""
        parts = f"{len(fork.node.members)} requests part behind {self._amount(fork.node.end)}"
        yield self._bold(f"[{number}] {parts}")
        groups: dict[str, list[Pair]] = {}
        for pair in fork.pairs:
            groups.setdefault(pair.comparison.causes[0].kind, []).append(pair)
        for group in groups.values():
            first = group[0]
            yield f"A = {self._name(first.a)}"
            yield f"B = {self._listed([pair.b for pair in group])}"
            yield from self._difference(first.comparison)

    def _listed(self, numbers: Sequence[int]) -> str:
        names = [self._name(number) for number in numbers]
        more = len(names) - _NAMES_MAX
        also = f" and {more} more" if more > 0 else ""
        return ", ".join(names[:_NAMES_MAX]) + also

    def _name(self, number: int) -> str:
        return _printable(self._report.requests[number].name)

    def _amount(self, tokens: int) -> str:
        blocks = self._report.full_blocks(tokens)
        return f"{_counted(tokens, 'token')} = {_counted(blocks, 'full block')}"

    def _marked(self, excerpt: Excerpt, colour: str) -> str:
        at = _printable(excerpt.at) if excerpt.at else "end"
        marked = self._painted(f"{_MARKS[0]}{at}{_MARKS[1]}", colour)
        before, after = _printable(excerpt.before), _printable(excerpt.after)
        return f"{_ELLIPSIS}{before}{marked}{after}{_ELLIPSIS if after else ''}"

    def _bold(self, text: str) -> str:
        return self._painted(text, _BOLD)

    def _painted(self, text: str, colour: str) -> str:
        return f"\x1b[{colour}m{text}\x1b[0m" if self._colour else text


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def _printable(text: str) -> str:
    """On one line, and nothing that would command a terminal."""
    return "".join(char if char.isprintable() else _escaped(char) for char in text)


def _escaped(char: str) -> str:
    return repr(char)[1:-1]


def _wrapped(text: str, lead: str) -> list[str]:
    return textwrap.wrap(
        _printable(text),
        _WIDTH,
        initial_indent=lead,
        subsequent_indent=" " * 4,
        break_on_hyphens=False,
        break_long_words=False,
    )
