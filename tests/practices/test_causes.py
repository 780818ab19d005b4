"""Why two requests part: each cause that `pointsman diff` knows, in a pair of requests that has it.

The word ``NOW`` in a text stands for what differs.
"""

import json
import unicodedata
from typing import Any

import pytest

from benchmarks.data import TOKENIZER_DIRECTORY
from router.chat_template import ChatTemplate, ChatTemplates
from router.pool_tokenizer import PoolTokenizer
from router.practices.comparing import Comparing, Comparison
from router.practices.local_prompts import LocalPrompts
from router.practices.remedies import REMEDIES
from router.prompts import CHAT_PATH, COMPLETIONS_PATH
from tests.practices.templates import TEMPLATES, jinja_render

RULES = (
    "You answer questions about the tracks of a station. Say which track a train takes, when it"
    " leaves and from where. Never guess: where the table has no entry, say so. Answer in one"
    " sentence, in the language of the question, and give times as hours and minutes.\n"
    "Trains that are late keep their track, unless a notice says otherwise.\n"
)
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": f"Gives the {name} of a train.",
            "parameters": {"type": "object", "properties": {"train": {"type": "string"}}},
        },
    }
    for name in ("track", "delay", "destination")
]
SORTED_KEYS = json.loads(json.dumps(TOOLS, sort_keys=True))


@pytest.fixture(scope="module")
def tokenizer() -> PoolTokenizer:
    return PoolTokenizer.load(str(TOKENIZER_DIRECTORY))


@pytest.fixture(scope="module")
def prompts(tokenizer: PoolTokenizer) -> LocalPrompts:
    return LocalPrompts(tokenizer, "here")


def compared(prompts: LocalPrompts, a: Any, b: Any, path: str = CHAT_PATH) -> Comparison:
    bodies = [
        prompts.tokenized(name, path, json.dumps(body).encode())
        for name, body in (("a", a), ("b", b))
    ]
    return Comparing(prompts, bodies).compare(0, 1)


def said(role: str, content: Any, **others: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **others}


def chat(system: str | None = RULES, *turns: str, **others: Any) -> dict[str, Any]:
    """Turns are the user's and the assistant's, one after the other."""
    turns = turns or ("Which track has the train to Basel?",)
    messages = [said("assistant" if n % 2 else "user", turn) for n, turn in enumerate(turns)]
    return {"messages": [*([said("system", system)] if system else []), *messages], **others}


def now(value: str) -> dict[str, Any]:
    return chat(f"Hello.\n{value}\n{RULES}")


QUESTIONS = ("Which track has the train to Basel?", "Track 7, at 12:04.", "And the one to Bern?")
LONG_ANSWER = "Track 4, at 12:31, from the lower level of the station, behind the second stairs."

PARTED: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("time", now("It is 2031-03-04 10:00:00."), now("It is 2031-03-04 10:00:07.")),
    ("date", now("Today is 2031-03-04."), now("Today is 2031-03-05.")),
    ("id", now("Ticket 0f3a91c4d2e8."), now("Ticket 77b0ce11a9f4.")),
    ("trace", now("request_id: req-81b2"), now("request_id: req-99c1")),
    ("email", now("For ann@example.org."), now("For bob@example.org.")),
    ("name", now("user: Ann Miller"), now("user: Bob Jones")),
    ("tier", now("plan: free"), now("plan: enterprise")),
    ("counter", now("step: 3"), now("step: 4")),
    ("tool_order", chat(tools=TOOLS), chat(tools=TOOLS[::-1])),
    ("key_order", chat(tools=TOOLS), chat(tools=SORTED_KEYS)),
    ("tools_missing", chat(tools=TOOLS), chat()),
    ("tools_missing", chat(), chat(tools=TOOLS)),
    ("tools_changed", chat(tools=TOOLS), chat(tools=TOOLS[:2])),
    (
        "tool_changed",
        chat(tools=TOOLS),
        chat(tools=json.loads(json.dumps(TOOLS).replace("the delay", "any delay"))),
    ),
    (
        "time",
        chat(tools=json.loads(json.dumps(TOOLS).replace("the delay", "10:00:00"))),
        chat(tools=json.loads(json.dumps(TOOLS).replace("the delay", "10:00:07"))),
    ),
    ("other_prompts", chat(tools=TOOLS[:1]), chat(tools=TOOLS[1:])),
    ("other_prompts", chat(), chat("Translate what you are given to French.")),
    ("other_prompts", chat(None, "Hello there!"), chat(None, "What is a pointsman?")),
    ("system_missing", chat(), chat(None)),
    ("whitespace", chat(RULES.replace("\n", "\r\n")), chat(RULES)),
    ("whitespace", chat(RULES.replace("when it", "when\u00a0it")), chat(RULES)),
    ("whitespace", chat(f"{RULES} "), chat(f"{RULES}\n")),
    ("whitespace", chat(RULES, "Which track?"), chat(RULES, "Which track? ")),
    ("unicode", now("In Zürich\u200b."), now("In Zürich.")),
    ("unicode", now("It\u2019s \u201cthe\u201d station."), now("It's \"the\" station.")),
    ("last_message", chat(), chat(RULES, "Which track has the train to Bern?")),
    ("last_message", chat(None, "To Bern?", tools=TOOLS), chat(None, "To Basel?", tools=TOOLS)),
    ("last_message", chat(RULES, "It is 10:00:00. Where?"), chat(RULES, "It is 10:00:07. Where?")),
    ("fixed_after_variable", chat(None, f"To Bern?\n{RULES}"), chat(None, f"A dog?\n{RULES}")),
    ("fixed_after_variable", chat(f"To Bern?\n{RULES}"), chat(f"When is it?\n{RULES}")),
    (
        "fixed_after_variable",
        chat(f"Passage one is long.\n{RULES}End of one."),
        chat(f"Something else was found.\n{RULES}The end."),
    ),
    ("time", chat(None, f"It is 10:00:00.\n{RULES}"), chat(None, f"It is 10:00:07.\n{RULES}")),
    (
        "history_rewritten",
        chat(RULES, "The file has 3 lines.", *QUESTIONS[1:]),
        chat(RULES, "The file has a lot more lines.", *QUESTIONS[1:], "Track 2.", "Thanks!"),
    ),
    ("history_shortened", chat(RULES, "Hi.", "Yes?", "Why?", LONG_ANSWER, "And to Bern?"),
     chat(RULES, "Why?", LONG_ANSWER, "And to Bern?")),
    ("history_shortened", chat(RULES, *QUESTIONS),
     chat(RULES, "Summary of the conversation: a train to Basel.", "I see.", "To Bern?")),
    ("history_inserted", chat(RULES, "Why?", LONG_ANSWER, "And to Bern?"),
     chat(RULES, "Note: it rains.", "I see.", "Why?", LONG_ANSWER, "And to Bern?")),
    ("branch", chat(RULES, *QUESTIONS), chat(RULES, "What is a pointsman?", "A person.", "Who?")),
]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "a", "b"), PARTED, ids=[f"{n}-{p[0]}" for n, p in enumerate(PARTED)]
)
def test_the_likely_cause(
    kind: str, a: dict[str, Any], b: dict[str, Any], prompts: LocalPrompts
) -> None:
    """It is the one that the pair was made with, whichever request came first."""
    for one, other in ((a, b), (b, a)) if not kind.startswith("history") else ((a, b),):
        found = compared(prompts, one, other)
        assert (found.relation, [cause.kind for cause in found.causes]) == ("part", [kind])
        assert found.causes[0].remedy == REMEDIES[kind]
        gained = found.causes[0].shared_tokens
        assert gained is None or gained > found.shared_tokens


def with_template(tokenizer: PoolTokenizer, source: str) -> LocalPrompts:
    template = ChatTemplate.of(source, jinja_render(source))
    return LocalPrompts(
        PoolTokenizer(
            tokenizer.encoder, ChatTemplates(template, template), reference=tokenizer.reference
        ),
        "here",
    )


DATED = """\
{{ today or "some day" }}
{%- for message in messages %}[{{ message.role }}] {{ message.content }}{% endfor -%}
{%- if add_generation_prompt %}[assistant]{{ "<think>" if enable_thinking else "<answer>" }}
{%- endif -%}
"""


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("settings", [{"today": "Monday"}, {"today": "Tuesday"}]),
        ("settings", [{"today": "Monday"}, {}]),
        ("settings_of_the_answer", [{"enable_thinking": True}, {}]),
    ],
)
def test_settings_of_the_template_are_a_cause_where_they_part_prompts(
    kind: str, settings: list[dict[str, Any]], tokenizer: PoolTokenizer
) -> None:
    """And with the same settings the two would be one prompt."""
    a, b = (chat(chat_template_kwargs=values) for values in settings)
    found = compared(with_template(tokenizer, DATED), a, b)
    assert [cause.kind for cause in found.causes] == [kind]
    assert found.causes[0].shared_tokens == len(found.a.tokenized.token_ids)


def test_settings_that_change_nothing_are_no_cause(prompts: LocalPrompts) -> None:
    """Where something else parts the two, it is told."""
    a = now("It is 10:00:00.") | {"chat_template_kwargs": {"unheard_of": 1}}
    (found,) = compared(prompts, a, now("It is 10:00:07.")).causes
    assert found.kind == "time"


def test_a_template_that_drops_thoughts_is_the_cause(tokenizer: PoolTokenizer) -> None:
    """The messages of one go on from the other's, and the text does not."""
    thought = "<think>\nThe table says track 7.\n</think>\n\nTrack 7."
    steps = chat(None, "Which track?", thought, add_generation_prompt=False)
    found = compared(
        with_template(tokenizer, TEMPLATES["thoughtful"]),
        steps,
        chat(None, "Which track?", thought, "And to Bern?"),
    )
    assert (found.relation, found.causes[0].kind) == ("part", "template_rewrites")
    assert "message 2 is the same" in found.causes[0].what


EQUAL = [
    ("the same request", chat(), chat()),
    ("content as parts", chat(), chat() | {"messages": [
        said("system", [{"type": "text", "text": RULES}]), *chat()["messages"][1:]]}),
    ("temperature", chat(temperature=0), chat()),
    ("in messages", now(f"In {unicodedata.normalize('NFD', 'Zürich')}."), now("In Zürich.")),
]  # fmt: skip


@pytest.mark.parametrize(("says", "a", "b"), EQUAL, ids=[case[0] for case in EQUAL])
def test_requests_with_one_prompt_are_equal(
    says: str, a: dict[str, Any], b: dict[str, Any], prompts: LocalPrompts
) -> None:
    """It is said what they differ in, and that the prompt does not."""
    found = compared(prompts, a, b)
    (cause,) = found.causes
    assert (found.relation, cause.kind, cause.remedy) == ("equal", "equal", "")
    assert says in cause.what


def test_a_conversation_that_goes_on_is_as_it_should_be(prompts: LocalPrompts) -> None:
    """The earlier request is a prefix of the later one."""
    found = compared(prompts, chat(RULES, *QUESTIONS[:1]), chat(RULES, *QUESTIONS))
    assert found.relation == "prefix" and found.shared_tokens == len(found.a.tokenized.token_ids)
    assert "B goes on where A ends" in found.causes[0].what
    found = compared(prompts, chat(RULES, *QUESTIONS), chat(RULES, *QUESTIONS[:1]))
    assert "A goes on where B ends" in found.causes[0].what


@pytest.mark.parametrize("salts", [("one", "two"), ("one", None)])
def test_a_salt_parts_equal_prompts(salts: tuple[str, Any], prompts: LocalPrompts) -> None:
    """Beside the cause of the tokens, if there is one; an empty salt is none."""
    a, b = (chat(cache_salt=salt) for salt in salts)
    found = compared(prompts, a, b)
    assert found.salted_apart and [c.kind for c in found.causes] == ["equal", "salt"]
    assert not compared(prompts, chat(cache_salt=""), chat()).salted_apart
    found = compared(prompts, a | now("It is 10:00:00."), b | now("It is 10:00:07."))
    assert [cause.kind for cause in found.causes] == ["time", "salt"]


def test_another_model_is_told_besides(prompts: LocalPrompts) -> None:
    """A name may stand for an adapter, whose blocks are its own."""
    found = compared(prompts, chat(model="base"), chat(model="adapter"))
    assert [cause.kind for cause in found.causes] == ["equal", "model"]
    assert '"base" and "adapter"' in found.causes[1].what


@pytest.mark.parametrize(
    ("kind", "a", "b"),
    [
        ("time", f"It is 10:00:00.\n{RULES}", f"It is 10:00:07.\n{RULES}"),
        ("whitespace", "A b  c d e f g h", "A b c d e f g h"),
        ("fixed_after_variable", f"Bern?\n{RULES}", f"To Zug?\n{RULES}"),
        ("other_prompts", "To Bern", "Hello"),
    ],
)
def test_completions_have_causes_too(kind: str, a: str, b: str, prompts: LocalPrompts) -> None:
    """Of a prompt that is one text."""
    found = compared(prompts, {"prompt": a}, {"prompt": b}, COMPLETIONS_PATH)
    assert found.causes[0].kind == kind
    assert found.a.place is not None and found.a.place.kind == "prompt"


def test_prompts_of_token_ids_are_shown_as_text(prompts: LocalPrompts) -> None:
    """The tokenizer decodes them, and a token begins where the ones before end."""
    ids = [prompts.token_ids(text).tolist() for text in ("Track 7 to Bern", "Track 9 to Bern")]
    found = compared(prompts, {"prompt": ids[0]}, {"prompt": ids[1]}, COMPLETIONS_PATH)
    text = found.a.tokenized.text
    assert text is not None and text[found.a.offset :].startswith("7 to Bern")


def test_what_a_remedy_gains_is_what_mended_requests_share(prompts: LocalPrompts) -> None:
    """The clock of one in the other makes them one prompt; only the last time would part them."""
    a, b = now("It is 10:00:00."), now("It is 10:00:07.")
    found = compared(prompts, a, b)
    assert found.causes[0].shared_tokens == len(found.a.tokenized.token_ids)
    late = "Until 11:00:0{} at most."
    a, b = (chat(f"It is 10:00:0{n}.\n{RULES}{late.format(n)}") for n in (0, 7))
    found = compared(prompts, a, b)
    gained = found.causes[0].shared_tokens
    assert gained is not None and found.shared_tokens < gained < len(found.a.tokenized.token_ids)


@pytest.mark.parametrize("side", ["left", "right"])
def test_a_truncated_prompt_is_compared_as_far_as_it_is_kept(
    side: str, prompts: LocalPrompts
) -> None:
    """The first token that differs is found in the text, whichever end was cut."""
    texts = ["Olten is a town. Track 7 to Bern, at noon.", "Zug, too. Track 9 to Bern, at noon."]
    cut = {"truncate_prompt_tokens": 9, "truncation_side": side}
    a, b = ({"prompt": text, **cut, "add_special_tokens": False} for text in texts)
    found = compared(prompts, a, b, COMPLETIONS_PATH)
    text = found.a.tokenized.text
    assert text is not None and len(found.a.tokenized.token_ids) == 9
    at = text[found.a.offset :]
    assert at.startswith("Olten") if side == "right" else at in texts[0] and "Olten" not in at


def test_tokens_begin_where_they_stand_in_a_text_that_the_tokenizer_normalizes(
    prompts: LocalPrompts,
) -> None:
    """The text that is kept of a prompt cut at the front has the very tokens that are kept."""
    text = unicodedata.normalize("NFD", "Zürich, Genève and Fribourg: track 7, track 9.")
    body = {"prompt": text, "truncate_prompt_tokens": 5, "add_special_tokens": False}
    kept = prompts.tokenized("a", COMPLETIONS_PATH, json.dumps(body).encode())
    assert kept.text == text and len(kept.token_ids) == 5
    assert prompts.token_ids(text[kept.start(0) :]) == kept.token_ids
