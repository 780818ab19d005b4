"""Real vLLM engines on this machine's CPU, for as long as a context lasts.

An engine is a process group of its own, its output in a file. It listens on the loopback, but for
the events' socket: vLLM binds that one only where its address has a ``*``.
"""

import json
import os
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.engine.install import NEWEST, ROOT, installed_python, model_folder
from tests.engine.ports import free_port

START_S_MAX = 420.0
_STOP_S_MAX = 20.0
MODEL = "tiny"
BLOCK_TOKENS = 16


@dataclass(frozen=True)
class EngineSettings:
    """``seed``: PYTHONHASHSEED, None where it is unset. ``dials``: the engine connects to us."""

    version: str = NEWEST
    algorithm: str = "sha256_cbor"
    seed: str | None = "0"
    ranks: int = 1
    blocks: int = 640
    context_tokens: int = 8_192
    dials: bool = False
    integers: bool = True
    flags: tuple[str, ...] = ()


@dataclass
class Engine:
    """One engine. After ``start``, ``wait`` until it answers; ``stop`` may be followed by a start,
    which keeps name and ports."""

    name: str
    settings: EngineSettings
    folder: Path
    ports: tuple[int, int, int] = field(
        default_factory=lambda: (free_port(), free_port(), free_port())
    )
    starts: int = 0
    _process: "subprocess.Popen[bytes] | None" = None
    _started_at: float = 0.0
    start_s: float = 0.0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.ports[0]}"

    @property
    def event_endpoint(self) -> str:
        """As the engine is told; with ``dials`` it is ours to bind."""
        return f"tcp://{'127.0.0.1' if self.settings.dials else '*'}:{self.ports[1]}"

    def replay_endpoint(self, rank: int = 0) -> str:
        return f"tcp://127.0.0.1:{self.ports[2] + rank}"

    @property
    def log(self) -> Path:
        return self.folder / f"engine-{self.name}-{self.starts}.log"

    def start(self) -> None:
        # Which may install the engine first.
        command = self._command()
        self.starts += 1
        self._started_at = time.monotonic()
        with self.log.open("wb") as output:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=self._environment(),
                start_new_session=True,
            )

    def wait(self) -> None:
        """Until it answers; an assertion fails with its last words where it does not."""
        assert self._process is not None
        while not self._healthy():
            ended = self._process.poll() is not None
            late = time.monotonic() - self._started_at > START_S_MAX
            assert not ended and not late, f"engine {self.name}: {self.log.read_text()[-3000:]}"
            time.sleep(0.2)
        self.start_s = time.monotonic() - self._started_at

    def stop(self) -> None:
        """The whole group, gently and then not."""
        process, self._process = self._process, None
        if process is None:
            return
        try:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait(_STOP_S_MAX)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            pass
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.wait(_STOP_S_MAX)

    def _healthy(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=5) as response:
                return bool(response.status == 200)
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return False

    def _command(self) -> list[str]:
        settings, python = self.settings, installed_python(self.settings.version)
        events = {
            "enable_kv_cache_events": True,
            "publisher": "zmq",
            "endpoint": self.event_endpoint,
            "replay_endpoint": self.replay_endpoint(),
            "buffer_steps": 100_000,
            "topic": f"kv@{self.name}@{MODEL}",
        }
        flags = {
            "served-model-name": MODEL,
            "load-format": "dummy",
            "dtype": "bfloat16",
            "host": "127.0.0.1",
            "port": self.ports[0],
            "max-model-len": settings.context_tokens,
            "block-size": BLOCK_TOKENS,
            "num-gpu-blocks-override": settings.blocks,
            "max-num-seqs": 8,
            "prefix-caching-hash-algo": settings.algorithm,
            "data-parallel-size": settings.ranks,
            "kv-events-config": json.dumps(events),
        }
        return [
            *(str(python), "-m", "vllm.entrypoints.cli.main", "serve", str(model_folder())),
            *(word for key, value in flags.items() for word in (f"--{key}", str(value))),
            *("--enforce-eager", "--enable-prefix-caching", "--enable-prompt-tokens-details"),
            *settings.flags,
        ]

    def _environment(self) -> dict[str, str]:
        environment = dict(os.environ)
        # Ours would be found by the engine's Python before its own packages.
        for name in ("PYTHONHASHSEED", "VIRTUAL_ENV", "PYTHONHOME"):
            environment.pop(name, None)
        if self.settings.seed is not None:
            environment["PYTHONHASHSEED"] = self.settings.seed
        return environment | {
            "PYTHONPATH": str(ROOT / "tests/engine/plugin"),
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_SERVER_DEV_MODE": "1",
            "VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES": str(int(self.settings.integers)),
            "VLLM_NO_USAGE_STATS": "1",
            "DO_NOT_TRACK": "1",
            "HF_HUB_OFFLINE": "1",
            "TRANSFORMERS_OFFLINE": "1",
        }


@contextmanager
def engines(folder: Path, settings: EngineSettings, names: Sequence[str]) -> Iterator[list[Engine]]:
    """Engines of the same settings, started together."""
    made = [Engine(name, settings, folder) for name in names]
    with ExitStack() as stack:
        for each in made:
            stack.callback(each.stop)
            each.start()
        for each in made:
            each.wait()
        yield made


@contextmanager
def engine(folder: Path, settings: EngineSettings, name: str = "a") -> Iterator[Engine]:
    with engines(folder, settings, (name,)) as made:
        yield made[0]
