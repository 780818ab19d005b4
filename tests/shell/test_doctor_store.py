"""The doctor and a store: a real server, one with a password, and one that is not there."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from router.main import main
from tests.ports import free_port_pair
from tests.processes import MAIN, ROOT
from tests.valkey import plain_client, valkey

# Nobody is there: what is said of the store does not depend on the engine.
ENGINE = "http://127.0.0.1:9"


def store(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    """The store's findings by check."""
    main(["doctor", *words, "--json"])
    report = json.loads(capsys.readouterr().out)
    return {finding["check"]: finding for finding in report["store"]["findings"]}


def test_a_store_is_looked_at_by_flag_and_by_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is wrong with it is found, and its password is never shown."""
    config = tmp_path / "p.toml"
    with valkey(tmp_path / "v", **{"maxmemory-policy": "allkeys-lru"}) as server:
        url = f"redis://127.0.0.1:{server.port}"
        config.write_text(f'[redis]\nurl = "{url}"\n[[replicas]]\nname = "a"\nurl = "{ENGINE}"\n')
        found = store(capsys, ENGINE, "--redis", url)
        assert found == store(capsys, "--config", str(config))
        assert [found[check]["level"] for check in ("store", "store_version")] == ["ok", "ok"]
        assert found["store_eviction"]["level"] == "warning"
        assert "allkeys-lru" in found["store_eviction"]["what"]
        with plain_client(server) as client:
            client.config_set("maxmemory-policy", "noeviction")
            client.config_set("requirepass", "correct horse")
        for password, level in (
            (None, "problem"),
            ("wrong horse", "problem"),
            ("correct horse", "ok"),
        ):
            monkeypatch.delenv("POINTSMAN_REDIS_PASSWORD", raising=False)
            if password is not None:
                monkeypatch.setenv("POINTSMAN_REDIS_PASSWORD", password)
            found = store(capsys, ENGINE, "--redis", f"redis://default@127.0.0.1:{server.port}")
            assert found["store"]["level"] == level and "horse" not in str(found)
        assert found["store_eviction"]["level"] == "ok"


def test_a_store_that_is_not_there_is_a_problem(capsys: pytest.CaptureFixture[str]) -> None:
    """And an address that is none is asked for wrongly."""
    url = f"redis://127.0.0.1:{free_port_pair()}"
    assert store(capsys, ENGINE, "--redis", url)["store"]["level"] == "problem"
    done = subprocess.run(
        (*MAIN, "doctor", ENGINE, "--redis", "10.0.0.1:6379"), capture_output=True, cwd=ROOT
    )
    assert done.returncode == 2 and b"--redis: not one of redis://" in done.stderr
