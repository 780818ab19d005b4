"""Simulated replicas, an indexer and a router, each a process, and what a test asks of them."""

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx2 as httpx

from tests.ports import free_port_pair
from tests.processes import Running, call, running, until
from tests.valkey import kill_left_over

SYSTEM = (
    "You are an agent of an airline. You answer every question with the policy at hand, you never"
    " invent a flight, and you ask for the booking reference before you change anything at all."
)


class Services:
    """``replicas`` simulated engines named a, b, … and the services in front of them.

    Services that are ``together`` keep the index, as they do by default; others where ``keeps``.
    """

    def __init__(
        self,
        stack: ExitStack,
        folder: Path,
        *,
        replicas: int = 2,
        together: bool = False,
        keeps: bool = False,
        redis_url: str | None = None,
        sim_flags: tuple[str, ...] = (),
        settings: str = "",
        pool_settings: str = "",
    ) -> None:
        self.stack, self.folder, self.sim_flags = stack, folder, sim_flags
        self.keeps, self.redis_url = together or keeps, redis_url
        self.names = "abcdefgh"[:replicas]
        # Where the test kills it, its server would outlive both.
        stack.callback(kill_left_over, folder / "s")
        self.ports = {name: tuple(free_port_pair() for _ in range(3)) for name in self.names}
        self.sims = {name: self.start_sim(name) for name in self.names}
        ports = (free_port_pair() for _ in range(4))
        self.router_port, self.http_port, self.grpc_port, self.admin_port = ports
        self.url = f"http://127.0.0.1:{self.router_port}"
        self.admin_url = f"http://127.0.0.1:{self.admin_port}"
        self.config = folder / "pointsman.toml"
        self.config.write_text(self._config(settings, pool_settings))
        if together:
            self.router = self.start("serve", "router_started")
        else:
            self.indexer = self.start("indexer", "indexer_started")
            self.router = self.start("router", "router_started")
        until(self.all_in_service, "all replicas are in service")

    def _config(self, settings: str, pool_settings: str) -> str:
        replicas = "".join(
            f'[[replicas]]\nname = "{name}"\nurl = "{self.sim_url(name)}"\n' for name in self.names
        )
        return (
            f'{replicas}[router]\nlisten = "127.0.0.1:{self.router_port}"\n'
            f'indexer = "127.0.0.1:{self.grpc_port}"\nexpose_matches = true\n'
            f"probe_interval_s = 0.2\nindexer_s_max = 5.0\ntokenize_s_max = 5.0\n{settings}\n"
            f'[admin]\nlisten = "127.0.0.1:{self.admin_port}"\n'
            f'[http]\nlisten = "127.0.0.1:{self.http_port}"\n'
            f'[grpc]\nlisten = "127.0.0.1:{self.grpc_port}"\n'
            "[discovery]\ninterval_s = 0.3\n"
            f"[redis]\n{self._store()}\n"
            f'[pools.default]\ntokenizer = "benchmarks/data"\n{pool_settings}\n'
        )

    def _store(self) -> str:
        if self.redis_url is not None:
            return f'url = "{self.redis_url}"'
        return f'enabled = {json.dumps(self.keeps)}\nfolder = "{self.folder}/s"'

    def start_sim(self, name: str) -> Running:
        http, events, replay = self.ports[name]
        flags = ("--port", str(http), "--event-port", str(events), "--replay-port", str(replay))
        return self._run("sim", *flags, *self.sim_flags, ready='"url"')

    def start(self, command: str, ready: str) -> Running:
        return self._run(command, "--config", str(self.config), ready=ready)

    def _run(self, *arguments: str, ready: str) -> Running:
        return self.stack.enter_context(running(self.folder, *arguments, ready=ready))

    def sim_url(self, name: str) -> str:
        return f"http://127.0.0.1:{self.ports[name][0]}"

    def all_in_service(self) -> bool:
        engines = call(f"{self.url}/ready")["engines"]
        return set(engines.values()) == {"up"}

    # What a client sees.

    def chat(self, *messages: str, timeout_s: float = 60.0, **fields: Any) -> httpx.Response:
        """One system message, then the user's and the assistant's in turns."""
        roles = ("user", "assistant")
        body = {
            "model": "sim",
            "max_tokens": 4,
            "messages": [
                {"role": "system", "content": SYSTEM},
                *({"role": roles[n % 2], "content": text} for n, text in enumerate(messages)),
            ],
            **fields,
        }
        return httpx.post(f"{self.url}/v1/chat/completions", json=body, timeout=timeout_s)

    def prefilled(self, replica: str, text: str) -> None:
        """Until a chat that this replica has answered is in the router's view of it."""
        response = self.chat(text)
        assert response.headers["x-pointsman-replica"] == replica

    # What an operator sees.

    def replicas(self) -> dict[str, dict[str, Any]]:
        answer = call(f"http://127.0.0.1:{self.http_port}/replicas")
        return {replica["replica"]: replica for replica in answer["replicas"]}

    def caught_up(self) -> None:
        """Until the index of every replica equals its pool, and the router knows its schemes."""

        def equal() -> bool:
            replicas = self.replicas()
            copies = {name: replica["copies"] for name, replica in replicas.items()}
            known = call(f"{self.url}/ready")["evidence"]
            return copies == {name: self.truth(name) for name in self.names} and all(
                known[name].startswith(replica["evidence"]) for name, replica in replicas.items()
            )

        until(
            equal,
            lambda: (
                f"equal: {self.replicas()} and {[self.truth(n) for n in self.names]}, known as"
                f" {call(self.url + '/ready')}"
            ),
        )

    def truth(self, name: str) -> int:
        return sum(call(f"{self.sim_url(name)}/sim/blocks").values())

    def metric(self, name: str, **labels: str) -> float:
        """The sum of a metric's samples that have these labels."""
        total = 0.0
        for line in httpx.get(f"{self.url}/metrics").text.splitlines():
            sample, _, value = line.rpartition(" ")
            wanted = [f'{key}="{label}"' for key, label in labels.items()]
            if sample.partition("{")[0] == name and all(text in sample for text in wanted):
                total += float(value)
        return total

    def at_rest(self) -> None:
        """Until nothing is in flight, by the router's own books."""
        until(
            lambda: (
                self.metric("pointsman_inflight_requests") == 0
                and self.metric("pointsman_outstanding_tokens") == 0
                and self.metric("pointsman_waiting_requests") == 0
            ),
            "all counters are back to zero",
        )

    def requests(self) -> list[dict[str, Any]]:
        return self.router.events("request")

    def requests_after(self, before: int, count: int) -> list[dict[str, Any]]:
        """The log lines of the ``count`` requests behind the first ``before``, once they are."""

        def enough() -> list[dict[str, Any]]:
            lines = self.requests()[before:]
            return lines if len(lines) >= count else []

        return until(enough, f"{count} log lines")


@contextmanager
def services(folder: Path, **settings: Any) -> Iterator[Services]:
    with ExitStack() as stack:
        yield Services(stack, folder, **settings)


def fault(url: str, **body: Any) -> None:
    call(f"{url}/sim/fault", body)


def dumped(body: Any) -> bytes:
    return json.dumps(body).encode()
