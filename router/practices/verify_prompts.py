"""The prompts of an acceptance run: what they share with each other, and with nothing else.

Rules it keeps:

* Every text begins with words that the run's nonce gives, so nothing of it was ever sent before:
  what is found was computed in this run.
* What a step shares is at the front, what differs at the end, as a prompt should be.
* There is no system message, since some templates refuse one.
"""

from collections.abc import Iterator, Sequence
from hashlib import sha256
from typing import Any

# Common English words: about one token each in the vocabularies of large models.
_WORDS = (
    "time year people way day man thing woman life child world school state family student group"
    " country problem hand part place case week company system program question work government"
    " number night point home water room mother area money story fact month lot right study book"
    " eye job word business issue side kind head house service friend father power hour game line"
    " end member law car city community name president team minute idea kid body information back"
    " parent face others level office door health person art war history party result change"
    " morning reason research girl guy moment air teacher force education"
).split()
QUESTIONS = (
    "Which word stands out the most?",
    "Name one word from the list.",
    "How would you sort these words?",
    "Which of the words is the shortest?",
    "Is there a word about weather in it?",
    "What could such a list be used for?",
)
# So that the answers of turns, which are ours to choose, are as long as an engine's.
TURN_WORDS = 40


def words(nonce: str, count: int) -> str:
    """So many words that no other nonce gives in this order."""
    return " ".join(_drawn(nonce, count))


def _drawn(nonce: str, count: int) -> Iterator[str]:
    part = nonce.encode()
    while count > 0:
        part = sha256(part).digest()
        for byte in part[:count]:
            yield _WORDS[byte % len(_WORDS)]
        count -= len(part)


def listed(nonce: str, word_count: int) -> str:
    """A text of its own, from its first word on."""
    return f"{words(nonce + ' begins', 12)}. Keep this list of words:\n{words(nonce, word_count)}\n"


def question(number: int) -> str:
    """Different for every number, also beyond the questions that there are."""
    return f"Question {number}: {QUESTIONS[number % len(QUESTIONS)]}"


def chat(
    model: str, messages: Sequence[dict[str, str]], tokens_max: int, salt: str | None = None
) -> dict[str, Any]:
    """A body that is streamed, and reports its usage at the end."""
    body = {
        "model": model,
        "messages": list(messages),
        "max_tokens": tokens_max,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    return body if salt is None else body | {"cache_salt": salt}


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}
