"""`pointsman serve` keeps the index by itself: what a restart of it costs, and what it leaves."""

import os
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tests.e2e.services import Services
from tests.processes import call, running, until
from tests.valkey import kill_left_over

# Next to nothing can be replayed.
FLAGS = ("--buffer-steps", "4", "--blocks", "2048")


def long_text(seed: str) -> str:
    return " ".join(f"{seed}{number * number % 997}" for number in range(150))


def matched(fleet: Services, text: str) -> int:
    return int(fleet.chat(text).headers["x-pointsman-matched-blocks"])


def store_error(fleet: Services) -> Any:
    return call(f"http://127.0.0.1:{fleet.http_port}/ready")["store_error"]


def durable(fleet: Services) -> bool:
    """All that is known is kept, too."""
    return all(r["durable"] and r["durable_seq"] == r["seq"] for r in fleet.replicas().values())


def test_a_restart_forgets_nothing_and_a_stop_leaves_nothing(tmp_path: Path) -> None:
    """kill -9 leaves a server, which the next start adopts with all that it knows."""
    pid_file = tmp_path / "s" / "valkey.pid"
    with ExitStack() as stack:
        fleet = Services(stack, tmp_path, replicas=1, together=True, sim_flags=FLAGS)
        oldest = long_text("oldest")
        fleet.chat(oldest)
        for number in range(10):
            fleet.chat(long_text(f"later{number}"))
        fleet.caught_up()
        until(lambda: durable(fleet), "all is kept")
        server = int(pid_file.read_text())
        fleet.router.kill()
        os.kill(server, 0)
        fleet.router = fleet.start("serve", "router_started")
        until(fleet.all_in_service, "in service again")
        fleet.caught_up()
        assert fleet.replicas()["a"]["evidence"] == "exact" and matched(fleet, oldest) > 10
        assert int(pid_file.read_text()) == server and store_error(fleet) is None
        assert fleet.router.stop() == 0
        assert not pid_file.exists() and fleet.router.events("store_adopted")


def test_by_default_it_is_kept_in_a_folder_of_the_users(tmp_path: Path) -> None:
    """Without a key or a flag, below $XDG_STATE_HOME; --no-data keeps it in memory only."""
    model = ("--model", "benchmarks/data", "--listen", "127.0.0.1:0")
    given = ("serve", "--replica", "http://127.0.0.1:9", *model)
    with ExitStack() as stack:
        stack.callback(kill_left_over, tmp_path)
        served = stack.enter_context(running(tmp_path, *given, ready="router_started"))
        (store,) = served.events("store_started") or served.events("store_not_started")
        assert str(tmp_path / "pointsman" / "127.0.0.1-0-") in str(store)
        assert served.stop() == 0
        memory = stack.enter_context(running(tmp_path, *given, "--no-data", ready="router_started"))
        assert not [line for line in memory.lines() if line["event"].startswith("store_")]
        assert memory.stop() == 0
