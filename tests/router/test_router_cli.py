"""`pointsman serve` without a file, and what is said where it cannot start."""

import argparse
import os
import subprocess
from pathlib import Path

import pytest

from proto.config_file import ConfigError
from router.cli import serve_config
from router.config import parse_router_config
from tests.processes import MAIN, ROOT


def arguments(**given: object) -> argparse.Namespace:
    nothing = {"config": None, "replica": None, "model": None, "listen": None}
    return argparse.Namespace(**{**nothing, **given})


def test_engines_and_a_model_are_a_configuration() -> None:
    """Names come from the URLs, and odd characters of a path are text as they stand."""
    urls = ["http://10.0.0.7:8000", "https://engines.example/b/"]
    model = 'C:\\models\\"Qwen" 3'
    text = serve_config(arguments(replica=urls, model=model, listen="0.0.0.0:80"))
    file = parse_router_config(text)
    assert [engine.name for engine in file.engines] == ["10.0.0.7:8000", "engines.example-b"]
    assert (file.pools["default"].tokenizer, file.router.listen) == (model, "0.0.0.0:80")


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({}, "give --config FILE, or --replica URL"),
        ({"replica": ["http://a:1"]}, "and --model DIR"),
        ({"model": "m"}, "or --replica URL"),
        ({"config": "f", "model": "m"}, "leave out --replica"),
        ({"config": "/no/such/file"}, "No such file"),
    ],
)
def test_what_is_missing_is_said(given: dict[str, object], says: str) -> None:
    """Half of a configuration is none."""
    with pytest.raises(ConfigError, match=says):
        serve_config(arguments(**given))


def run(*words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run((*MAIN, *words), capture_output=True, text=True, cwd=ROOT, timeout=60)


def test_a_wrong_configuration_is_one_line_and_status_2(tmp_path: Path) -> None:
    """Nothing starts, and the line says which key of which file."""
    config = tmp_path / "p.toml"
    config.write_text('[[replicas]]\nname = "a"\nurl = "http://127.0.0.1:1"\n')
    for command in ("serve", "router"):
        done = run(command, "--config", str(config))
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith(f"pointsman {command}: {config}: pools.default.tokenizer:")
        assert len(done.stderr.splitlines()) == 1


def test_a_folder_without_a_tokenizer_is_said_to_be_one(tmp_path: Path) -> None:
    """With what to put there."""
    done = run("serve", "--replica", "http://127.0.0.1:1", "--model", str(tmp_path))
    assert done.returncode == 2
    assert "holds no tokenizer_config.json: copy tokenizer.json" in done.stderr


@pytest.mark.parametrize(
    "command", ["serve", "router", "indexer", "tokens", "doctor", "sim", "demo", "events", "index"]
)
def test_every_command_has_help(command: str) -> None:
    """And it fits a terminal."""
    environment = {**os.environ, "COLUMNS": "100"}
    done = subprocess.run(
        (*MAIN, command, "--help"), capture_output=True, text=True, cwd=ROOT, env=environment
    )
    assert done.returncode == 0 and "usage: pointsman" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 100
