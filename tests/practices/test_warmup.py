"""`pointsman warmup`, against simulated replicas."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from router.practices.warmup_report import BodyResult, as_text, block_size_in, failed, with_zeros
from tests.processes import MAIN, ROOT, Running, call, running

RULES = " ".join(f"Rule {number}: be brief, {number * number}." for number in range(60))


@pytest.fixture(scope="module")
def sim(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Two ranks."""
    with started(tmp_path_factory.mktemp("sim"), "--data-parallel-size", "2") as made:
        yield made


def started(folder: Path, *flags: str) -> Any:
    ports = ("--port", "0", "--event-port", "0", "--replay-port", "0")
    return running(folder, "sim", *ports, *flags, ready='"url"')


def url_of(sim: Running) -> str:
    return str(sim.lines()[0]["url"])


def bodies(folder: Path, **systems: str) -> str:
    for name, system in systems.items():
        messages = [{"role": "system", "content": system}, {"role": "user", "content": "Hi"}]
        body = {"model": "sim", "messages": messages, "max_tokens": 300, "stream": True}
        (folder / f"{name}.json").write_text(json.dumps(body))
    return str(folder)


def warmup(*words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run((*MAIN, "warmup", *words), capture_output=True, text=True, cwd=ROOT)


def test_what_was_sent_is_resident_on_every_rank_and_the_repeat_shows_it(
    sim: Running, tmp_path: Path
) -> None:
    """Nothing is cached before, all but the last token's block after, and the blocks are there."""
    folder = bodies(tmp_path, one=RULES, two=RULES[::-1])
    done = warmup(url_of(sim), "--bodies", folder, "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["ok"] and report["block_size"] == 16 and len(report["bodies"]) == 4
    for each in report["bodies"]:
        assert (each["verdict"], each["error"], each["cached_before"] < 16) == (
            "resident",
            None,
            True,
        )
        assert each["cached_after"] == (each["prompt_tokens"] - 1) // 16 * 16 > 300
    for rank in (0, 1):
        assert sum(call(f"{url_of(sim)}/sim/blocks?rank={rank}").values()) > 40
    said = done.stderr.splitlines()
    assert len(said) == 8 and "sent one.json" in said[0] and "repeated two.json" in said[-1]


def test_canonical_tools_are_sent_as_a_router_sends_them(sim: Running, tmp_path: Path) -> None:
    """Two orders of the same tools are one prefix then, and two without the flag."""
    tools = [{"type": "function", "function": {"name": name}} for name in ("find", "book")]
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": RULES}]
    for name, order in (("1.json", tools), ("2.json", tools[::-1])):
        fields = {"model": "sim", "messages": messages, "tools": order}
        (tmp_path / name).write_text(json.dumps(fields))
    for flags, shares in (([], False), (["--canonical-tools"], True)):
        call(f"{url_of(sim)}/reset_prefix_cache", {})
        done = warmup(url_of(sim), "--bodies", str(tmp_path), "--json", "--no-repeat", *flags)
        second = json.loads(done.stdout)["bodies"][1]
        assert (second["cached_before"] > 300) == shares, done.stdout


def test_a_body_that_others_push_out_is_not_resident(tmp_path: Path) -> None:
    """Status 1, and what to do about it."""
    with started(tmp_path, "--blocks", "96") as small:
        place = tmp_path / "bodies"
        place.mkdir()
        folder = bodies(place, one=RULES, two=RULES.replace("Rule", "Law"))
        done = warmup(url_of(small), "--bodies", folder)
        assert done.returncode == 1, done.stdout + done.stderr
        assert "not resident" in done.stdout and "more KV cache" in done.stdout


def test_a_body_that_is_refused_is_told_in_the_engines_words(sim: Running, tmp_path: Path) -> None:
    """And the others are sent all the same."""
    folder = bodies(tmp_path, one=RULES)
    wrong = {"model": "none", "messages": [{"role": "user", "content": "Hi"}]}
    (tmp_path / "a-wrong.json").write_text(json.dumps(wrong))
    done = warmup(url_of(sim), "--bodies", folder)
    assert done.returncode == 1
    assert "a-wrong.json: answered 404" in done.stdout and "does not exist" in done.stdout
    assert done.stdout.count(" resident\n") == 2


@pytest.mark.parametrize(
    ("words", "status", "says"),
    [
        (("nowhere", "--bodies", "."), 2, "'nowhere' is not http://HOST:PORT"),
        (("http://127.0.0.1:1", "--bodies", "/no/such"), 2, "--bodies: /no/such: No such file"),
        (("http://127.0.0.1:1", "--bodies", "docs"), 2, "there is no *.json in it"),
        (("http://127.0.0.1:1",), 2, "--bodies"),
        (("http://127.0.0.1:1", "--bodies", "docs", "--wait", "x"), 2, "no number of seconds"),
    ],
)
def test_what_was_asked_for_wrongly_is_said(words: tuple[str, ...], status: int, says: str) -> None:
    """In one line, before anything is sent."""
    done = warmup(*words)
    assert (done.returncode, done.stdout) == (status, "") and says in done.stderr


def test_a_replica_that_is_not_there_is_waited_for_as_long_as_asked(tmp_path: Path) -> None:
    """Then it is status 1, with what happened."""
    folder = bodies(tmp_path, one=RULES)
    done = warmup("http://127.0.0.1:1", "--bodies", folder, "--wait", "1")
    assert (done.returncode, done.stdout) == (1, "") and "127.0.0.1:1" in done.stderr


def test_a_repeat_may_lack_two_blocks_and_no_more() -> None:
    """The last token's, and the one that an engine drops for its speculation."""

    def verdict(prompt: int, cached: int | None, block_size: int | None = 16) -> str:
        result = BodyResult("a", "b", None, prompt, 0, cached, repeated=True)
        return result.verdict(block_size)

    assert [verdict(161, cached) for cached in (160, 144, 128, 0)] == [
        "resident",
        "resident",
        "not resident",
        "not resident",
    ]
    assert [verdict(17, cached) for cached in (16, 0)] == ["resident", "not resident"]
    assert verdict(16, 0) == "too short" and verdict(160, None) == "unknown"
    assert [verdict(160, cached, None) for cached in (1, 0)] == ["resident", "not resident"]


def test_an_engine_that_reports_nothing_is_unknown_and_no_failure() -> None:
    """Which flag would tell is said."""
    results = [BodyResult("a", "b.json", None, 161, None, None, repeated=True)]
    assert not failed(results, 16)
    assert "--enable-prompt-tokens-details" in "\n".join(as_text(results, 16))


def test_what_vllm_leaves_out_is_nothing_where_it_has_reported_something() -> None:
    """It leaves out a 0; where a repeat finds nothing beside one that does, that is a failure."""
    there = BodyResult("a", "b.json", None, 161, None, 160, repeated=True)
    gone = BodyResult("a", "c.json", None, 161, None, None, repeated=True)
    refused = BodyResult("a", "d.json", "answered 404")
    found = with_zeros([there, gone, refused])
    assert [r.verdict(16) for r in found] == ["resident", "not resident", "not taken"]
    assert (found[0].cached_before, found[2].cached_before) == (0, None)
    assert [r.verdict(16) for r in with_zeros([gone])] == ["unknown"]


def test_the_block_size_is_read_from_the_metrics() -> None:
    """As vLLM writes it; where it is not told, nothing is made up."""
    line = 'vllm:cache_config_info{block_size="32",engine="0",num_gpu_blocks="100"} 1.0\n'
    assert block_size_in(f"# HELP x\n{line}") == 32
    assert block_size_in(line.replace('"32"', '"None"')) is None
    assert block_size_in("") is None
