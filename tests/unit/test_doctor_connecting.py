"""What the doctor says of engines that connect to us, and of what a file configures."""

from dataclasses import replace
from typing import Any

import pytest

from indexer.config import parse_config
from indexer.doctor.facts import Asked, EarFacts
from indexer.doctor.finding import Finding
from indexer.doctor.findings import findings
from indexer.doctor.places import sources_of
from indexer.doctor.targets import Target, configured_targets
from indexer.sources import DiscoveryError
from tests.unit.doctor_facts import CACHE, ENGINE, exam_with

FILE = Asked(by_file=True)
HERE = ("tcp://*:5557",)


def endpoint_finding(ears: EarFacts | None, asked: Asked, **source: Any) -> Finding:
    source = {"endpoint": "tcp://10.0.0.1:5557"} | source
    exam = exam_with(rank={"listens": False, "ears": ears, "source": source})
    return next(f for f in findings([exam], asked)[0] if f.check == "endpoint")


@pytest.mark.parametrize(
    ("ears", "asked", "level", "says"),
    [
        (None, Asked(), "warning", "--bind tries it"),
        (None, FILE, "problem", "set events.bind"),
        (EarFacts(HERE, batches=3, connections=1), FILE, "ok", ""),
        (EarFacts(failed="the address is in use"), FILE, "unknown", "ask its /replicas"),
        (EarFacts(HERE), FILE, "problem", "an address of this machine"),
        (EarFacts(HERE, connections=1), Asked(), "unknown", "give --probe"),
        (EarFacts(HERE, connections=1), Asked(probe=True), "problem", "check topic"),
        (EarFacts(HERE, connections=1, other_topics=("x",)), FILE, "unknown", "check topic"),
    ],
)
def test_what_came_to_where_we_listened(
    ears: EarFacts | None, asked: Asked, level: str, says: str
) -> None:
    """Silence is a problem only where somebody had to speak."""
    found = endpoint_finding(ears, asked)
    assert found.level == level and says in found.fix


def test_topics_that_were_heard_instead_are_shown() -> None:
    """A topic that differs by a letter is seen at once."""
    ears = EarFacts(HERE, connections=1, other_topics=("kv@a", "kv@b"))
    found = endpoint_finding(ears, FILE, topic="kv@c")
    assert "'kv@c'" in found.what and "'kv@a', 'kv@b'" in found.why


def test_an_engine_that_connects_to_every_address_is_heard_nowhere() -> None:
    """Whoever listens."""
    found = endpoint_finding(EarFacts(HERE), FILE, endpoint="tcp://0.0.0.0:5557")
    assert found.level == "problem" and "tcp://*:5557" in found.fix


# What is configured.

CONFIG = b"""
[[replicas]]
name = "a"
url = "http://10.0.0.7:8000"
event_endpoint = "tcp://10.0.0.7:5557"
replay_endpoint = "tcp://10.0.0.7:5657"
data_parallel_size = 2
blocks = 512
[[replicas]]
name = "b"
url = "http://10.0.0.8:8000"
pool = "other"
topic = "kv@b"
[[replicas]]
name = "c"
url = "http://10.0.0.9:8000"
"""


def targets() -> list[Target]:
    return configured_targets(parse_config(CONFIG), {"other": lambda body: [1]})


def test_what_is_configured_wins_over_what_an_engine_says() -> None:
    """As the indexer follows it; where nothing is configured the engine is asked."""
    first, second, third = targets()
    ranks = sources_of(ENGINE, "10.0.0.7", first.told)
    assert [rank.endpoint for rank in ranks] == ["tcp://10.0.0.7:5557", "tcp://10.0.0.7:5558"]
    assert [rank.replay_endpoint for rank in ranks][1] == "tcp://10.0.0.7:5658"
    (connecting,) = sources_of(ENGINE, "10.0.0.8", second.told)
    assert not connecting.binds and connecting.topic == "kv@b"
    # What is not configured is still the engine's word.
    assert connecting.endpoint == "tcp://10.0.0.7:5557" and connecting.buffer_steps == 100_000
    old = replace(ENGINE, sources=None)
    assert sources_of(old, "10.0.0.8", second.told)[0].endpoint == "an address of ours"
    assert sources_of(ENGINE, "10.0.0.9", third.told) == ENGINE.sources
    assert first.blocks == 512 and first.chat_ids is third.chat_ids is None
    assert second.chat_ids is not None and second.chat_ids(b"") == [1]


def test_ranks_without_room_for_their_ports_are_refused() -> None:
    """Before anything is asked."""
    with pytest.raises(DiscoveryError, match="beyond port"):
        configured_targets(parse_config(CONFIG.replace(b":5557", b":65535")), {})


@pytest.mark.parametrize(
    ("port", "level"), [("5557", "ok"), ("6557", "warning")], ids=["same", "other"]
)
def test_a_configured_port_is_held_against_what_the_engine_says(port: str, level: str) -> None:
    """Names of one host differ, so only the port can show it."""
    source = {"endpoint": f"tcp://engine-a:{port}"}
    exam = exam_with(configured=True, rank={"source": source})
    found = next(f for f in findings([exam], FILE)[0] if f.check == "event_config")
    assert found.level == level


def test_an_old_engine_has_to_be_configured() -> None:
    """A file that does not is a problem, where flags are only missing."""
    exam = exam_with(engine={"version": "0.28.0", "sources": None}, ranks=())
    levels = [
        next(f.level for f in findings([exam], asked)[0] if f.check == "events")
        for asked in (FILE, Asked())
    ]
    assert levels == ["problem", "unknown"]


@pytest.mark.parametrize(
    ("theirs", "configured", "level", "says"),
    [
        (None, 512, "ok", "512 blocks of 16 tokens, all ranks together, as configured"),
        (1024, 1024, "ok", "1024 blocks of 16 tokens, all ranks together"),
        (1024, 512, "warning", "the engine has 1024 blocks, and 512 are configured"),
    ],
)
def test_configured_blocks_are_held_against_the_engines(
    theirs: int | None, configured: int, level: str, says: str
) -> None:
    """They bound what is believed of it."""
    cache = replace(CACHE, blocks_total=theirs)
    exam = exam_with(engine={"cache": cache}, blocks=configured)
    found = next(f for f in findings([exam], FILE)[0] if f.check == "capacity")
    assert (found.level, found.what) == (level, says)
