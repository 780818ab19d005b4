"""What the demo runs: how its replicas and its router are configured, and how they say they run."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.data import TOKENIZER_DIRECTORY

MODEL = "demo"
BLOCK_SIZE = 16


@dataclass(frozen=True)
class DemoSettings:
    """``blocks`` are each replica's; ``speedup`` is of the simulated engines.

    ``buffer_steps`` are so few that an indexer cannot learn from the engines what it has forgotten.
    """

    replicas: int = 3
    agents: int = 12
    turns: int = 10
    seed: int = 1
    blocks: int = 2_800
    buffer_steps: int = 32
    cost_model: str = "qwen3-32b-h100-fp8"
    speedup: float = 1.5


def sim_arguments(settings: DemoSettings) -> list[str]:
    """`pointsman` with these runs one replica, on ports that the kernel chooses."""
    flags: dict[str, object] = {
        "--port": 0,
        "--event-port": 0,
        "--replay-port": 0,
        "--model": MODEL,
        "--blocks": settings.blocks,
        "--block-size": BLOCK_SIZE,
        # Steps of a few seconds: what is older can be had from nobody but the store.
        "--buffer-steps": settings.buffer_steps,
        "--cost-model": settings.cost_model,
        "--speedup": settings.speedup,
    }
    return ["sim", *(str(word) for flag in flags.items() for word in flag)]


def router_config(policy: str, urls: Sequence[str], data: Path) -> str:
    """The file of `pointsman serve`, with everything that has a port on one of the kernel's."""
    sections = [
        f'[router]\nlisten = "127.0.0.1:0"\npolicy = "{policy}"',
        '[admin]\nlisten = "127.0.0.1:0"',
        '[http]\nlisten = "127.0.0.1:0"',
        '[grpc]\nlisten = "127.0.0.1:0"',
        f"[redis]\nfolder = {json.dumps(str(data))}",
        f"[pools.default]\ntokenizer = {json.dumps(str(TOKENIZER_DIRECTORY))}",
    ]
    for number, url in enumerate(urls, 1):
        sections.append(f'[[replicas]]\nname = "replica-{number}"\nurl = "{url}"')
    return "\n\n".join(sections) + "\n"


@dataclass(frozen=True)
class ServeUrls:
    """Of both services of one `pointsman serve`."""

    router: str
    indexer: str


def sim_url(line: str) -> str | None:
    """Where a replica that has just printed this listens; None for other lines."""
    said = _json(line).get("url")
    return said if isinstance(said, str) else None


class ServeLog:
    """What `pointsman serve` has said so far of where it listens and what it has loaded."""

    def __init__(self) -> None:
        self.loaded_blocks: dict[str, int] = {}
        self._indexer = ""

    def urls(self, line: str) -> ServeUrls | None:
        """Both, once the line that completes them has come."""
        said = _json(line)
        match said.get("event"):
            case "replica_restored":
                self.loaded_blocks[said["replica"]] = said["blocks"]
            case "indexer_started":
                self._indexer = _url(said)
            case "router_started":
                return ServeUrls(_url(said), self._indexer)
        return None


def _url(said: dict[str, Any]) -> str:
    host, port = said["listen"]
    return f"http://{host}:{port}"


def _json(line: str) -> dict[str, Any]:
    try:
        said = json.loads(line)
    except ValueError:
        return {}
    return said if isinstance(said, dict) else {}
