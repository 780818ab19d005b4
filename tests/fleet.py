"""Simulated replicas and an indexer, each a process of its own, and how a test asks them."""

import json
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from tests.ports import free_port_pair, free_ports
from tests.processes import MAIN, ROOT, call, until


@contextmanager
def process(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A pointsman command, running; its first line of output has been read."""
    with subprocess.Popen((*MAIN, *arguments), stdout=subprocess.PIPE, text=True, cwd=ROOT) as made:
        try:
            assert made.stdout is not None and made.stdout.readline()
            yield made
        finally:
            made.kill()


class Fleet:
    """Simulated replicas and an indexer that follows them."""

    def __init__(
        self,
        stack: ExitStack,
        tmp_path: Path,
        *,
        dial_in: bool = False,
        ranks: int = 1,
        configured: bool = True,
        sim_flags: Sequence[str] = (),
        settings: str = "",
    ) -> None:
        self.http = free_port_pair()
        self.events, self.replay = free_ports(ranks + 1), free_ports(ranks + 1)
        events, replay = self.events, self.replay
        self.url = f"http://127.0.0.1:{self.http}"
        flags = ["--port", str(self.http), "--replay-port", str(replay), "--blocks", "64"]
        flags += ["--data-parallel-size", str(ranks), "--hash-seed", "0", "--topic", "kv@a"]
        flags += sim_flags
        if dial_in:
            flags += ["--event-endpoint", f"tcp://127.0.0.1:{events}"]
        else:
            flags += ["--event-port", str(events)]
        self.sim_flags, self.stack = flags, stack
        self.sim = stack.enter_context(process("sim", *flags))
        self.indexer_port, self.grpc_port = free_port_pair(), free_port_pair()
        config = tmp_path / "indexer.toml"
        bind = [f"tcp://127.0.0.1:{events + rank}" for rank in range(ranks)] if dial_in else []
        config.write_text(
            f'[http]\nlisten = "127.0.0.1:{self.indexer_port}"\n'
            f'[grpc]\nlisten = "127.0.0.1:{self.grpc_port}"\n'
            f"[events]\nbind = {json.dumps(bind)}\n"
            f"[discovery]\ninterval_s = 0.3\n{settings}\n{self.more_settings()}"
            + (f'[[replicas]]\nname = "a"\nurl = "{self.url}"\n' if configured else "")
        )
        self.config = config
        self.indexer = self.start_indexer()

    def more_settings(self) -> str:
        """What can be told only when the ports are known."""
        return ""

    def start_indexer(self) -> "subprocess.Popen[str]":
        return self.stack.enter_context(process("indexer", "--config", str(self.config)))

    def kill_indexer(self) -> None:
        self.indexer.kill()
        self.indexer.wait()

    def generate(self, start: int, rank: int = 0, **keys: str) -> None:
        body = {"token_ids": list(range(start, start + 100)), "max_tokens": 20, "rank": rank} | keys
        call(f"http://127.0.0.1:{self.http}/sim/generate", body)

    def replicas(self) -> list[dict[str, Any]]:
        return list(call(f"http://127.0.0.1:{self.indexer_port}/replicas")["replicas"])

    def truth(self, rank: int = 0) -> int:
        return sum(call(f"http://127.0.0.1:{self.http}/sim/blocks?rank={rank}").values())

    def heard(self, rank: int) -> None:
        """Until an engine that connects to us has: what it says before that nobody hears."""

        def connected() -> bool:
            self.generate(9000, rank)
            self.generate(8000, rank)
            ranks = self.replicas()
            return len(ranks) > rank and bool(ranks[rank]["connected"])

        until(connected, f"rank {rank} is heard")

    def caught_up(self, rank: int = 0, evidence: str = "exact") -> dict[str, Any]:
        """The rank's report, once its copies equal those of the engine's own pool."""

        def report() -> dict[str, Any] | None:
            ranks = self.replicas()
            if len(ranks) <= rank or ranks[rank]["evidence"] != evidence:
                return None
            return ranks[rank] if ranks[rank]["copies"] == self.truth(rank) > 0 else None

        return dict(until(report, lambda: f"rank {rank} {evidence} and equal: {self.replicas()}"))
