"""As much of PromQL as it takes to see which metrics and labels an expression names."""

import re
from dataclasses import dataclass, field

_TOKEN = re.compile(
    r"""(?P<text>"(?:[^"\\]|\\.)*")|(?P<range>\[[^]]*\])|(?P<word>[A-Za-z_:][A-Za-z0-9_:]*)"""
    r"""|(?P<number>[0-9.]+[a-z]*)|(?P<sign>[=!~<>]{1,2}|[-+*/%^(){},])|(?P<space>\s+)"""
)
_GROUPING = frozenset(("by", "without", "on", "ignoring", "group_left", "group_right"))
_OPERATORS = frozenset(("and", "or", "unless", "offset", "bool"))
_CLOSED_BY = {"(": ")", "{": "}"}


@dataclass(frozen=True)
class Selector:
    """A metric and what is asked of its labels: (label, operator, value)."""

    name: str
    matchers: tuple[tuple[str, str, str], ...] = ()


@dataclass
class Named:
    """Everything that an expression names."""

    selectors: list[Selector] = field(default_factory=list)
    grouped_by: set[str] = field(default_factory=set)


def named_in(expression: str) -> Named:
    """ValueError for what is no PromQL at first sight: unknown characters, open brackets."""
    tokens = _tokens(expression)
    named, index = Named(), 0
    while index < len(tokens):
        token = tokens[index]
        following = tokens[index + 1] if index + 1 < len(tokens) else ""
        index += 1
        if token in _GROUPING:
            if following == "(":
                end = tokens.index(")", index)
                named.grouped_by.update(t for t in tokens[index + 1 : end] if t != ",")
                index = end + 1
        elif token == "{":
            end = tokens.index("}", index)
            named.selectors.append(Selector("", _matchers(tokens[index:end])))
            index = end + 1
        elif _is_word(token) and token not in _OPERATORS and following != "(":
            if following in _GROUPING:
                continue  # An aggregation.
            matchers: tuple[tuple[str, str, str], ...] = ()
            if following == "{":
                end = tokens.index("}", index)
                matchers, index = _matchers(tokens[index + 1 : end]), end + 1
            named.selectors.append(Selector(token, matchers))
    return named


def _tokens(expression: str) -> list[str]:
    tokens, at, open_brackets = [], 0, list[str]()
    while at < len(expression):
        found = _TOKEN.match(expression, at)
        if found is None:
            raise ValueError(f"what is {expression[at : at + 10]!r} in {expression!r}?")
        at, token = found.end(), found[0]
        if token in _CLOSED_BY:
            open_brackets.append(_CLOSED_BY[token])
        elif token in _CLOSED_BY.values() and (not open_brackets or open_brackets.pop() != token):
            raise ValueError(f"a bracket is wrong in {expression!r}")
        if not token.isspace():
            tokens.append(token)
    if open_brackets:
        raise ValueError(f"a bracket is open in {expression!r}")
    return tokens


def _is_word(token: str) -> bool:
    return token[0].isalpha() or token[0] in "_:"


def _matchers(tokens: list[str]) -> tuple[tuple[str, str, str], ...]:
    rest = [token for token in tokens if token != ","]
    return tuple((rest[at], rest[at + 1], rest[at + 2].strip('"')) for at in range(0, len(rest), 3))
