"""The doctor with a configuration file, and listening for engines that connect."""

import socket
from pathlib import Path

import pytest

from benchmarks.data import TOKENIZER_DIRECTORY
from router.main import main
from tests.ports import free_port_pair
from tests.shell.doctored import doctor, generate, levels, simulated

POOL = f'[pools.default]\ntokenizer = "{TOKENIZER_DIRECTORY}"\n'


def replica(name: str, url: str, **keys: str) -> str:
    more = "".join(f'{key} = "{value}"\n' for key, value in keys.items())
    return f'[[replicas]]\nname = "{name}"\nurl = "{url}"\n{more}'


def test_a_file_says_where_an_old_engine_publishes(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Beside a new one that says so itself: seeds, endpoints and tokenizer are the file's."""
    config = tmp_path / "p.toml"
    with simulated("0.28", "--hash-seed", "7") as old, simulated("0.33") as new:
        (events,), (replay,) = old["event_endpoints"], old["replay_endpoints"]
        keys = {"event_endpoint": events, "replay_endpoint": replay}
        replicas = replica("old", old["url"], **keys) + replica("new", new["url"])
        config.write_text(f'hash_seeds = ["7", "0"]\n{replicas}{POOL}')
        status, found = doctor(capsys, "--config", str(config), "--probe")
    assert status == 0
    for one in found:
        checks = ("endpoint", "replay", "scheme", "cached_tokens", "token_parity")
        assert levels(one, *checks) == ["ok"] * 5
    assert found[0]["event_config"]["level"] == "ok" and "event_config" not in found[1]
    assert "seed=7" in found[0]["scheme"]["what"] and "seed=0" in found[1]["scheme"]["what"]


def test_an_engine_that_connects_is_heard(capsys: pytest.CaptureFixture[str]) -> None:
    """Where its endpoint leads to --bind, a probe is announced there."""
    here = f"tcp://127.0.0.1:{free_port_pair()}"
    with simulated("0.33", "--event-endpoint", here, "--topic", "kv") as sim:
        _, (unheard,) = doctor(capsys, sim["url"])
        _, (idle,) = doctor(capsys, sim["url"], "--bind", here)
        status, (found,) = doctor(capsys, sim["url"], "--bind", here, "--probe")
    assert unheard["endpoint"]["level"] == "warning"
    assert idle["endpoint"]["level"] == "unknown" and "idle" in idle["endpoint"]["why"]
    assert status == 0 and levels(found, "endpoint", "replay", "scheme") == ["ok"] * 3
    assert "batches were heard" in found["endpoint"]["what"]


def test_a_configured_topic_that_is_not_the_engines(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """It is heard under another one, which is shown."""
    config, here = tmp_path / "p.toml", f"tcp://127.0.0.1:{free_port_pair()}"
    with simulated("0.33", "--event-endpoint", here, "--topic", "kv@a") as sim:
        (replay,) = sim["replay_endpoints"]
        named = replica("a", sim["url"], topic="kv@b", replay_endpoint=replay)
        config.write_text(f'{named}[events]\nbind = ["{here}"]\n')
        status, (found,) = doctor(capsys, "--config", str(config), "--probe")
    assert status == 1 and found["endpoint"]["level"] == "problem"
    assert "'kv@b'" in found["endpoint"]["what"] and "'kv@a'" in found["endpoint"]["why"]
    # Its replay socket proves the scheme all the same.
    assert levels(found, "replay", "scheme") == ["ok", "ok"]


def test_where_somebody_listens_already(capsys: pytest.CaptureFixture[str]) -> None:
    """It may be pointsman itself: said, and no reason to fail."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        here = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        with simulated("0.33", "--event-endpoint", here) as sim:
            generate(sim["url"], 0)
            status, (found,) = doctor(capsys, sim["url"], "--bind", here)
    assert status == 0 and found["endpoint"]["level"] == "unknown"
    assert "in use" in found["endpoint"]["why"] and found["scheme"]["level"] == "ok"


@pytest.mark.parametrize(
    ("text", "words", "says"),
    [
        (None, (), "No such file"),
        ("replicas = 5", (), "replicas: Expected `array`"),
        ("[router]\nlisten = 1\n", (), "there are none to look at"),
        (replica("a", "b"), (), "is not http://HOST:PORT"),
        (replica("a", "http://a"), ("http://b",), "leave out URLs"),
        (replica("a", "http://a"), ("--hash-seed", "1"), "--hash-seed is in the file"),
        (replica("a", "http://a"), ("--bind", "tcp://*:1"), "--bind is in the file"),
        (replica("a", "http://a", event_endpoint="5557"), (), "not an endpoint"),
        (
            replica("a", "http://a") + '[pools.default]\ntokenizer = "nowhere"\n',
            ("--probe",),
            "pools.default: ",
        ),
    ],
)
def test_a_file_that_is_wrong_is_status_2(
    text: str | None,
    words: tuple[str, ...],
    says: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    """One line says what, with the file where it is the file's."""
    config = tmp_path / "p.toml"
    if text is not None:
        config.write_text(text)
    assert main(["doctor", "--config", str(config), *words]) == 2
    printed = capsys.readouterr()
    assert printed.out == "" and says in printed.err and len(printed.err.splitlines()) == 1
