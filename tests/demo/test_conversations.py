import json
import random
from itertools import pairwise

import pytest

from benchmarks.conversations import Conversation, Sizes, Workload, cached_at_best, make_workload

SMALL = Sizes(system_words=20, task_words=30, added_words=10)


def workload(seed: int = 1, agents: int = 3, turns: int = 5) -> Workload:
    return make_workload(random.Random(seed).random, agents, turns, SMALL)


def histories(made: Workload) -> list[list[list[dict]]]:
    """Every request's messages, by agent, where each answer is the same."""
    asked = []
    for agent in made.agents:
        conversation, requests = Conversation(made, agent), []
        while not conversation.is_over:
            conversation.ask()
            requests.append(json.loads(json.dumps(conversation.messages)))
            conversation.answered("Done.")
        asked.append(requests)
    return asked


def test_a_seed_is_a_workload():
    """Equal seeds give equal requests, and no two agents or seeds the same ones."""
    assert workload() == workload() != workload(seed=2)
    first, second, third = histories(workload())
    assert first[0] != second[0] != third[0] and workload().requests == 15


def test_requests_are_the_same_everywhere():
    """What a seed gives does not depend on the version of Python."""
    text = workload().agents[0].turns[0].messages[0]["content"]
    assert (len(text.split()), text.split("\n")[0]) == (
        30,
        "first number old from string raised test class this number raised the last other",
    )


def test_turns_extend_the_history():
    """A turn's messages begin with all those before, but for the call that it answers."""
    for requests in histories(workload()):
        for before, after in pairwise(requests):
            assert after[: len(before)] == before and len(after) == len(before) + 2
            assert after[-2]["content"] == "Done."


def test_tool_results_have_a_call():
    """What a tool returned has the id of the call in the turn before; its arguments are JSON."""
    seen = 0
    for requests in histories(workload()):
        for before, message in pairwise(requests[-1]):
            assert ("tool_calls" in before) == (message["role"] == "tool")
            if message["role"] == "tool":
                (call,) = before["tool_calls"]
                assert call["id"] == message["tool_call_id"]
                names = [tool["function"]["name"] for tool in workload().tools]
                assert call["function"]["name"] in names
                assert json.loads(call["function"]["arguments"])["path"].endswith(".py")
                seen += 1
    assert seen == 6


def test_best_case_by_hand():
    """The first turn has what is shared, later ones all but the last token, in whole blocks."""
    assert cached_at_best([(100, 10)], 40, 16) == 32
    # 109 tokens are computed: 6 blocks. 16 tokens exactly: the last block is computed again.
    assert cached_at_best([(100, 10), (150, 10)], 40, 16) == 32 + 96
    assert cached_at_best([(16, 1), (16, 1)], 0, 16) == 0


@pytest.mark.parametrize(("agents", "turns"), [(0, 1), (1, 0)])
def test_empty_workloads_are_refused(agents: int, turns: int):
    """Nobody to ask, or nothing to ask, is an error."""
    with pytest.raises(ValueError):
        workload(agents=agents, turns=turns)
