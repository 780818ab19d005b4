"""pointsman's processes in front of real engines, and the moment at which a request is sent.

``settled`` is the waiting rule of the proof: the index of every replica has applied all that its
engine has published, and the engine, asked after the last answer was complete, had nothing newer.
"""

import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from proto.blockhash import HashScheme
from proto.contract import replica_id, scheme_of
from tests.engine.client import Answer, Ask, send
from tests.engine.engine import Engine
from tests.engine.install import OLDER, model_folder
from tests.engine.ports import free_port
from tests.processes import Running, call, running, until

# Events of a step may come this long after its answer; an engine is asked later than that.
_AFTER_ANSWER_S = 0.25


class Services:
    """An indexer and a router, in one process or in two, that follow these engines."""

    def __init__(self, stack: ExitStack, folder: Path, engines: Sequence[Engine]) -> None:
        self.stack, self.folder, self.engines = stack, folder, list(engines)
        self.router_port, self.http_port, self.grpc_port = (free_port() for _ in range(3))
        self.url = f"http://127.0.0.1:{self.router_port}"
        self.config = folder / "pointsman.toml"
        self.config.write_text(self._config())
        self.router: Running | None = None
        self.indexer: Running | None = None

    def _config(self) -> str:
        replicas = "".join(_replica(engine) for engine in self.engines)
        binds = [engine.event_endpoint for engine in self.engines if engine.settings.dials]
        return (
            f'{replicas}[router]\nlisten = "127.0.0.1:{self.router_port}"\n'
            f'indexer = "127.0.0.1:{self.grpc_port}"\nexpose_matches = true\n'
            "probe_interval_s = 0.5\nindexer_s_max = 5.0\ntokenize_s_max = 5.0\n"
            '[admin]\nlisten = "127.0.0.1:0"\n'
            f'[http]\nlisten = "127.0.0.1:{self.http_port}"\n'
            f'[grpc]\nlisten = "127.0.0.1:{self.grpc_port}"\n'
            f'[events]\nbind = {binds!r}\n[redis]\nfolder = "{self.folder}/s"\n'
            f'[discovery]\ninterval_s = 0.5\n[pools.default]\ntokenizer = "{model_folder()}"\n'
        )

    # Processes.

    def serve(self) -> None:
        """Both in one process."""
        self.router, self.indexer = self._start("serve", "router_started"), None
        until(self._in_service, "all engines are in service")

    def apart(self) -> None:
        """Each in a process of its own, in place of what runs."""
        assert self.router is not None
        self.router.stop()
        self.start_indexer()
        self.router = self._start("router", "router_started")
        until(self._in_service, "all engines are in service")

    def start_indexer(self) -> None:
        self.indexer = self._start("indexer", "indexer_started")

    def _start(self, command: str, ready: str) -> Running:
        arguments = (command, "--config", str(self.config))
        return self.stack.enter_context(running(self.folder, *arguments, ready=ready))

    def _in_service(self) -> bool:
        return set(call(f"{self.url}/ready")["engines"].values()) == {"up"}

    # Requests.

    def send(self, ask: Ask) -> Answer:
        return send(self.url, ask)

    def log_lines(self) -> list[dict[str, Any]]:
        assert self.router is not None
        return self.router.events("request")

    def send_logged(self, ask: Ask) -> tuple[Answer, dict[str, Any]]:
        """With the line that the router logs of it; nothing else may be sent meanwhile."""
        before = len(self.log_lines())
        answer = self.send(ask)
        lines = until(lambda: self.log_lines()[before:], "the request is logged")
        assert len(lines) == 1
        return answer, lines[0]

    # What is known of the replicas.

    def replicas(self) -> dict[str, dict[str, Any]]:
        answer = call(f"http://127.0.0.1:{self.http_port}/replicas")
        return {replica["replica"]: replica for replica in answer["replicas"]}

    @property
    def replica_count(self) -> int:
        return sum(engine.settings.ranks for engine in self.engines)

    def settled(self) -> dict[str, dict[str, Any]]:
        """What ``/replicas`` says once the waiting rule holds, and the router knows it."""
        answered_at = time.monotonic()

        def rule() -> dict[str, dict[str, Any]] | None:
            asked_at, replicas = time.monotonic(), self.replicas()
            if len(replicas) < self.replica_count:
                return None
            for replica in replicas.values():
                ago = replica["nothing_newer_s_ago"]
                if replica["lag_batches"] or ago is None:
                    return None
                if asked_at - ago < answered_at + _AFTER_ANSWER_S:
                    return None
            known = call(f"{self.url}/ready")["evidence"]
            same = all(known.get(name) == evidence_of(replicas[name]) for name in replicas)
            return replicas if same else None

        return until(rule, lambda: f"settled: {self.replicas()}, {call(self.url + '/ready')}")

    def evidence(self, wanted: str) -> None:
        """Until the evidence of every replica is this."""

        def reached() -> bool:
            replicas = self.replicas()
            found = [evidence_of(replica) for replica in replicas.values()]
            return len(found) == self.replica_count and set(found) == {wanted}

        until(reached, lambda: f"evidence {wanted}: {self.replicas()}")

    def scheme(self, replica: str) -> HashScheme | None:
        schemes = self.replicas()[replica]["schemes"]
        return scheme_of(schemes[0]) if schemes else None

    def replay_endpoint(self, replica: str) -> str:
        for engine in self.engines:
            for rank in range(engine.settings.ranks):
                if replica_id(engine.name, rank, engine.settings.ranks) == replica:
                    return engine.replay_endpoint(rank)
        raise AssertionError(f"no replica {replica}")


def _replica(engine: Engine) -> str:
    """An engine that tells where its events are is asked; older ones cannot."""
    told = f'[[replicas]]\nname = "{engine.name}"\nurl = "{engine.url}"\n'
    if engine.settings.version != OLDER:
        return told
    return (
        f'{told}event_endpoint = "{engine.event_endpoint.replace("*", "127.0.0.1")}"\n'
        f'replay_endpoint = "{engine.replay_endpoint()}"\n'
    )


def evidence_of(replica: dict[str, Any]) -> str:
    """As the router writes it."""
    reasons = "|".join(replica["reasons"])
    return f"{replica['evidence']}({reasons})" if reasons else str(replica["evidence"])
