"""A shell: a replica's blocks at one moment, for an operator.

Copying takes a tenth of a second for each half million blocks, too long for a match to wait. So it
is done in slices, while nothing is applied: events wait in the queue meanwhile, matches do not. The
moment can be that of a flush, so that the store holds the same blocks once it has answered.
"""

import asyncio
from collections.abc import Callable
from itertools import islice
from typing import Protocol

from indexer.block_lines import Head
from indexer.evidence import Evidence
from indexer.hub import Link
from indexer.remembering import Remembering

# The last moment of an idle replica is flushed again every second.
FLUSH_S_MAX = 2.5
SLICE_BLOCKS = 4_096


class Busy(Exception):
    """A snapshot is being taken; each is as large as the index of a replica."""


class Pausable(Protocol):
    """What moves events into the index. Pauses are counted."""

    def pause(self) -> None: ...
    def resume(self) -> None: ...


class Snapshots:
    """One at a time."""

    def __init__(self, pump: Pausable, remembering: Remembering | None) -> None:
        self._pump, self._remembering = pump, remembering
        self._busy = False

    async def take(
        self, link: Link, evidence: Callable[[], Evidence], *, as_kept: bool
    ) -> tuple[Head, dict[int, int]]:
        """``as_kept``: wait until it can be named where the store has the same. Raises Busy."""
        if self._busy:
            raise Busy("another snapshot is being taken: ask again later")
        self._busy = True
        try:
            position, why = await self._paused(link, as_kept)
            try:
                head = _head(link, evidence(), position, why)
                return head, await _copied(link)
            finally:
                self._pump.resume()
        finally:
            self._busy = False

    async def _paused(self, link: Link, as_kept: bool) -> tuple[str | None, str | None]:
        """Paused right behind a flush: where it leads; or now, and why there was none."""
        if not as_kept or self._remembering is None or link.journal is None:
            self._pump.pause()
            return None, "nothing is kept of it" if as_kept else None
        made: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        def flushed(position: str) -> None:
            if not made.done():
                self._pump.pause()
                made.set_result(position)

        with self._remembering.watched(link, flushed):
            try:
                async with asyncio.timeout(FLUSH_S_MAX):
                    return await asyncio.shield(made), None
            except TimeoutError:
                if made.done():
                    return made.result(), None
                self._pump.pause()
                return None, self._remembering.error or "the store does not have all of it yet"
            except BaseException:
                if made.done():
                    self._pump.resume()
                raise


async def _copied(link: Link) -> dict[int, int]:
    rest, copied = iter(link.state.blocks.primary.counts.items()), dict[int, int]()
    while chunk := list(islice(rest, SLICE_BLOCKS)):
        copied.update(chunk)
        await asyncio.sleep(0)
    return copied


def _head(link: Link, evidence: Evidence, position: str | None, why: str | None) -> Head:
    state = link.state
    return Head(
        replica=link.source.replica_id,
        pool=link.source.pool,
        evidence=str(evidence),
        history_complete=state.indexed.history_complete,
        translated=state.translator is not None,
        seq=state.applied.seq if state.applied is not None else None,
        digest=state.applied.sha256().hex() if state.applied is not None else None,
        position=position,
        not_kept=why,
        blocks=len(state.blocks.primary.counts),
    )
