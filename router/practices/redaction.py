"""What may be shown of a prompt: its shape, and a few plain words around what matters.

Prompts hold secrets that no pattern knows. So nothing is shown because it looks harmless to a
search for secrets; a word is shown only if it is an ordinary lower-case word, or the capitalised
first of its line. Everything else keeps its shape alone: digits become 0, letters x.
"""

import re

# Of each side of what is shown.
_WORDS_MAX = 6
_CHARS_MAX = 160
_PLAIN = re.compile(r"[\"'(\[<]?[a-z]{1,20}[\"')\]>]?[.,:;!?]?")
_FIRST = re.compile(r"[\"'(\[<#*-]{0,3}[A-Z]?[a-z]{1,20}[\"')\]>]?[.,:;!?]?")
# The next words behind these are never shown, however plain.
_SECRETIVE = re.compile(r"(?i)pass|secret|token|key|pin\b|credential|login|auth|code|name|call")
_HIDDEN_BEHIND = 4


def shape(text: str) -> str:
    """Digits as 0, letters as x; punctuation stays."""
    return "".join(_shape_of(character) for character in text[:_CHARS_MAX])


def redacted_around(text: str, start: int, end: int) -> str:
    """``text[start:end]`` as its shape, with a few words of its line on both sides."""
    begin = text.rfind("\n", 0, start) + 1
    finish = text.find("\n", end)
    before = _words(text[begin:start], is_first=True)
    after = _words(text[end : finish if finish >= 0 else len(text)], is_first=False)
    left = "".join(before[-_WORDS_MAX:])
    right = "".join(after[:_WORDS_MAX])
    if len(before) > _WORDS_MAX:
        left = f"… {left}"
    if len(after) > _WORDS_MAX:
        right = f"{right.rstrip()} …"
    return f"{left}{shape(text[start:end])}{right}".strip()


def redacted_begin(text: str) -> str:
    """The first words of a text."""
    line = text.strip().partition("\n")[0]
    words = _words(line, is_first=True)
    return "".join(words[:_WORDS_MAX]).strip() + (" …" if len(words) > _WORDS_MAX else "")


def _words(text: str, *, is_first: bool) -> list[str]:
    """Words with the spaces behind them. Only the ends of a long text are looked at."""
    if len(text) > 4 * _CHARS_MAX:
        text, is_first = (text[-2 * _CHARS_MAX :], False) if is_first else (text[:320], False)
    shown, hidden = [], 0
    for position, word in enumerate(re.findall(r"\s*\S+\s*|\s+", text)):
        bare = word.strip()
        pattern = _FIRST if is_first and position == 0 else _PLAIN
        plain = not bare or pattern.fullmatch(bare) is not None
        shown.append(word if plain and hidden <= 0 else shape(word))
        hidden = _HIDDEN_BEHIND if _SECRETIVE.search(bare) else hidden - 1
    return shown


def _shape_of(character: str) -> str:
    if character.isdigit():
        return "0"
    if character.isspace():
        return " "
    return "x" if character.isalpha() or ord(character) > 0x7F else character
