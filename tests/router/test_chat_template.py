"""Whether a template takes content as a text or as parts is read off its source."""

import pytest

from router.chat_template import content_format_of


@pytest.mark.parametrize(
    "source",
    [
        "{% for m in messages %}{% for c in m.content %}{{ c }}{% endfor %}{% endfor %}",
        "{% for m in messages %}{% for c in m['content'] %}{{ c }}{% endfor %}{% endfor %}",
        "{% for m in messages[1:] %}{% for c in m.content | list %}{{ c }}{% endfor %}{% endfor %}",
        "{% set turns = messages %}{% set rest = turns[1:] %}"
        "{% for m in rest %}{% for c in m.content %}{{ c }}{% endfor %}{% endfor %}",
        "{% for m in messages %}{% generation %}{% for c in m.content %}{{ c }}{% endfor %}"
        "{% endgeneration %}{% if loop.last %}{% break %}{% endif %}{% endfor %}",
    ],
)
def test_a_loop_over_the_content_of_a_message_takes_parts(source: str) -> None:
    """However the messages and the content are reached."""
    assert content_format_of(source) == "openai"


@pytest.mark.parametrize(
    "source",
    [
        "",
        "{{ messages }}",
        "{% for m in messages %}{{ m.content }}{% endfor %}",
        "{% for m in messages %}{% for c in m.tool_calls %}{{ c }}{% endfor %}{% endfor %}",
        "{% for m in others %}{% for c in m.content %}{{ c }}{% endfor %}{% endfor %}",
        "{% for a, b in messages %}{% for c in a.content %}{{ c }}{% endfor %}{% endfor %}",
        "{% for m in messages %}{% for a, b in m.content %}{{ a }}{% endfor %}{% endfor %}",
        "{% set m = messages[0] %}{% for c in m.content %}{{ c }}{% endfor %}",
        "{% broken",
    ],
)
def test_any_other_template_takes_texts(source: str) -> None:
    """Also one that cannot be parsed, or that binds pairs: as the engine decides."""
    assert content_format_of(source) == "string"


def test_assignments_in_a_circle_end() -> None:
    """Names given to each other are followed once."""
    source = (
        "{% set a = messages %}{% set b = a %}{% set a = b %}"
        "{% for m in a %}{% for c in m.content %}{{ c }}{% endfor %}{% endfor %}"
    )
    assert content_format_of(source) == "openai"
