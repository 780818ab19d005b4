"""Every command that README shows is run, or what it stands for is; an unknown one fails here."""

import json
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from proto.indexer_pb2 import DESCRIPTOR
from tests.e2e.services import services
from tests.processes import MAIN, ROOT, call, running

README = (ROOT / "README.md").read_text()


def commands() -> list[list[str]]:
    """Each command of each fenced block, as words; a backslash or an open quote continues it."""
    found: list[list[str]] = []
    for block in re.findall(r"^```\n(.*?)^```", README, re.MULTILINE | re.DOTALL):
        if "│" in block:
            continue  # The picture.
        text = ""
        for line in block.replace("\\\n", " ").splitlines():
            text = f"{text}\n{line}" if text else line
            try:
                found.append(shlex.split(text))
            except ValueError:
                continue
            text = ""
        assert not text, f"not a command: {text}"
    return found


def command(*beginning: str) -> list[str]:
    """The one command that begins so."""
    (found,) = (words for words in commands() if words[: len(beginning)] == list(beginning))
    return found


RUN_BELOW = (
    ("make", "demo"),
    ("make", "serve"),
    ("pointsman", "events", "record"),
    ("pointsman", "events", "inspect"),
    ("pointsman", "doctor"),
    ("pointsman", "tokens"),
    ("pointsman", "diff"),
    ("pointsman", "lint"),
    ("pointsman", "fingerprints"),
    ("pointsman", "verify"),
    ("pointsman", "warmup"),
    ("pointsman", "capacity"),
    ("grpcurl", "-plaintext", "127.0.0.1:50051"),
    ("grpcurl", "-plaintext", "-d"),
    ("vllm", "serve"),
)


def test_no_command_is_shown_that_is_not_run() -> None:
    """A new command in README needs a test here."""
    unknown = [
        words
        for words in commands()
        if not any(words[: len(known)] == list(known) for known in RUN_BELOW)
    ]
    assert unknown == []


def made(target: str, *variables: str) -> list[str]:
    """The words that make would run last."""
    done = subprocess.run(
        # Under `make test` a make of ours would say which folder it is in.
        ("make", "--dry-run", "--no-print-directory", target, *variables),
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr
    return shlex.split(done.stdout.splitlines()[-1])


def test_make_demo_is_the_demo() -> None:
    """The command itself is run by tests/demo."""
    assert made(*command("make", "demo")[1:]) == [".venv/bin/pointsman", "demo"]


def test_make_serve_serves_the_engines_that_it_is_given(tmp_path: Path) -> None:
    """The flags that README's line becomes, with simulated engines in place of its own."""
    words = made(*command("make", "serve")[1:])
    assert words[:2] == [".venv/bin/pointsman", "serve"]
    assert words[2:] == [
        *("--replica", "http://10.0.0.7:8000", "--replica", "http://10.0.0.8:8000"),
        *("--model", "/models/Qwen3-32B"),
    ]
    flags = ("--port", "0", "--event-port", "0", "--replay-port", "0")
    with running(tmp_path, "sim", *flags, ready='"url"') as sim:
        url = sim.lines()[0]["url"]
        given = ("--replica", url, "--model", "benchmarks/data", "--listen", "127.0.0.1:0")
        given += ("--data", str(tmp_path / "s"))
        with running(tmp_path, "serve", *given, ready="engine_in_service") as served:
            (started,) = served.events("router_started")
            host, port = started["listen"]
            models = call(f"http://{host}:{port}/v1/models")
            assert [model["id"] for model in models["data"]] == ["sim"]
            assert served.stop() == 0


def test_an_engine_is_recorded_and_its_hashes_reproduced(tmp_path: Path) -> None:
    """Both lines, one after the other, with a simulated engine."""
    with services(tmp_path, replicas=1, together=True) as fleet:
        fleet.chat("Which seats are left in the first row of the morning flight?")
        fleet.caught_up()
        file = tmp_path / "replica.jsonl"
        record = command("pointsman", "events", "record")
        for flag, value in (
            ("--replica", fleet.sim_url("a")),
            ("--out", str(file)),
            ("--seconds", "2"),
        ):
            record[record.index(flag) + 1] = value
        done = subprocess.run((*MAIN, *record[1:]), cwd=ROOT, capture_output=True)
        assert done.returncode == 0, done.stderr
        inspect = command("pointsman", "events", "inspect")
        inspected = subprocess.run(
            (*MAIN, *inspect[1:-1], str(file)), cwd=ROOT, capture_output=True, check=True
        )
        report = json.loads(inspected.stdout)
        assert report["not_reproduced"] == 0 and report["reproduced"] == report["stored"] > 0


def test_the_doctor_looks_at_two_engines_and_tokens_shows_a_body(tmp_path: Path) -> None:
    """Both lines, with simulated engines and the tokenizer of this repository."""
    words = command("pointsman", "doctor")
    with services(tmp_path, together=True) as fleet:
        urls = [fleet.sim_url(name) for name in "ab"]
        done = subprocess.run((*MAIN, words[1], *urls), cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        assert all(url in done.stdout for url in urls)
    body = tmp_path / "body.json"
    body.write_text('{"messages": [{"role": "user", "content": "What is a pointsman?"}]}')
    words = command("pointsman", "tokens")
    words[2], words[words.index("--model") + 1] = str(body), "benchmarks/data"
    shown = subprocess.run((*MAIN, *words[1:]), cwd=ROOT, capture_output=True, check=True)
    assert json.loads(shown.stdout)["text"].startswith("<|im_start|>user")


def test_the_practices_on_a_fleet_that_runs(tmp_path: Path) -> None:
    """Fingerprints, verify and warmup with simulated engines in place of README's addresses."""
    bodies = tmp_path / "prompts"
    bodies.mkdir()
    question = "Which seats are left in the first row of the morning flight to the islands?"
    (bodies / "platform.json").write_text(json.dumps(_body(question)))
    with services(tmp_path, together=True) as fleet:
        places = {
            "http://127.0.0.1:9465": fleet.admin_url,
            "http://127.0.0.1:8080": fleet.url,
            "http://10.0.0.7:8000": fleet.sim_url("a"),
            "prompts/": str(bodies),
        }
        for name in ("warmup", "verify", "fingerprints"):
            words = [places.get(word, word) for word in command("pointsman", name)]
            done = subprocess.run((*MAIN, *words[1:]), cwd=ROOT, capture_output=True, text=True)
            assert done.returncode == 0, done.stdout + done.stderr


def test_the_practices_on_files(tmp_path: Path) -> None:
    """Diff, lint and capacity with files and the tokenizer of this repository."""
    first, second = (_body(f"At {clock} o'clock: what is a pointsman?") for clock in (7, 8))
    (tmp_path / "first.json").write_text(json.dumps(first))
    (tmp_path / "second.json").write_text(json.dumps(second))
    (tmp_path / "requests.jsonl").write_text(f"{json.dumps(first)}\n{json.dumps(second)}\n")
    (tmp_path / "config.json").write_text(json.dumps(QWEN3_32B))
    places = {
        "/models/Qwen3-32B": str(ROOT / "benchmarks/data"),
        "/models/Qwen3-32B/config.json": "config.json",
    }
    for name, status in (("diff", 1), ("lint", 0), ("capacity", 0)):
        words = [places.get(word, word) for word in command("pointsman", name)]
        done = subprocess.run((*MAIN, *words[1:]), cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == status, done.stdout + done.stderr
    assert "<html" in (tmp_path / "report.html").read_text()
    assert "256" in done.stdout, "kilobytes a token"


def _body(text: str) -> dict[str, object]:
    return {"model": "sim", "messages": [{"role": "user", "content": text}]}


QWEN3_32B = {
    "model_type": "qwen3",
    "architectures": ["Qwen3ForCausalLM"],
    "hidden_size": 5120,
    "num_hidden_layers": 64,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 40960,
    "vocab_size": 151936,
    "intermediate_size": 25600,
    "torch_dtype": "bfloat16",
}


@pytest.mark.parametrize(
    "words", [words for words in commands() if words[0] == "grpcurl"], ids=lambda words: words[-1]
)
def test_grpc_methods_exist_and_take_what_is_sent(words: list[str]) -> None:
    """grpcurl needs reflection, which tests/shell asks; here its words are held to the contract."""
    service, method = words[-1].rsplit("/")
    assert service == f"{DESCRIPTOR.package}.Indexer"
    asked = DESCRIPTOR.services_by_name["Indexer"].methods_by_name[method].input_type
    if "-d" in words:
        for field in json.loads(words[words.index("-d") + 1]):
            assert field in asked.fields_by_name


def test_the_engine_flags_are_a_configuration_that_publishes_and_replays() -> None:
    """The JSON inside the quotes is JSON, with the keys that vLLM knows."""
    words = command("vllm", "serve")
    config = json.loads(words[words.index("--kv-events-config") + 1])
    assert config["enable_kv_cache_events"] is True and config["publisher"] == "zmq"
    assert "*" in config["endpoint"] and "*" in config["replay_endpoint"]
    assert config["buffer_steps"] >= 10_000
