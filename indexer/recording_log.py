"""The file of a recording, and what is said about it while it grows.

Both streams and the clock come in through the constructor; every write is one whole line.
"""

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, TextIO

from indexer.arrivals import Arrival, ConnectionLost, ConnectionOpened
from indexer.hub import Hub, RankSource
from indexer.stream_outputs import Apply

PROGRESS_INTERVAL_S = 1.0
# Reasons of lost connections that are shown; an engine that is down repeats the same few.
REASONS_MAX = 20


@dataclass(slots=True)
class RecordingLog:
    """``head`` are the records that a capture begins with; ``clock`` counts seconds."""

    file: TextIO
    terminal: TextIO
    clock: Callable[[], float]
    head: Iterable[dict[str, Any]] = ()
    frames: int = 0
    opened: int = 0
    reasons: set[str] = field(default_factory=set)
    _started: float = 0.0
    _shown: float = 0.0

    def __post_init__(self) -> None:
        self._started = self.clock()
        for record in self.head:
            self._write(record)

    def frame(self, source: RankSource, batch: Apply) -> None:
        self.frames += 1
        topic = source.topic.decode(errors="replace")
        frame = {"topic": topic, "seq": batch.seq, "payload_hex": batch.payload.hex()}
        self._write({"kind": "frame"} | frame)

    def note(self, source: RankSource, text: str) -> None:
        self._write({"kind": "note", "rank": source.rank, "text": text})

    def heard(self, arrival: Arrival) -> None:
        """Says each reason of a lost connection once."""
        if isinstance(arrival, ConnectionOpened):
            self.opened += 1
        elif isinstance(arrival, ConnectionLost) and arrival.why not in self.reasons:
            if len(self.reasons) < REASONS_MAX:
                self.reasons.add(arrival.why)
                self._say(f"connection lost: {arrival.why}")

    def progress(self) -> None:
        now = self.clock()
        if self.terminal.isatty() and now - self._shown >= PROGRESS_INTERVAL_S:
            self._shown = now
            text = f"{now - self._started:.0f} s, {self.frames} batches"
            print(f"\r{text}\x1b[K", end="", file=self.terminal, flush=True)

    @property
    def not_heard(self) -> str | None:
        """Why nothing can have come live; None where a connection was made."""
        if self.opened:
            return None
        why = "; ".join(sorted(self.reasons)) or "no engine has connected to --bind"
        return f"no connection to the replica's KV events was made ({why})"

    def finish(self, hub: Hub) -> None:
        """Says what there is to know about a recording that is kept."""
        for topic, rank in sorted(hub.strangers):
            name = topic.decode(errors="replace")
            self._say(f"frames of topic {name!r}, rank {rank}, belong to no rank of this replica")
        for link in hub.links.values():
            for note in link.state.notes.take():
                self._say(f"{link.source.replica_id}: {note.event} {dict(note.fields)}")
        if self.not_heard:
            self._say(f"{self.not_heard}; this is what it could replay")
        self._say(f"{self.frames} batches recorded")
        if not self.frames:
            self._say("an engine publishes only while it serves requests: send it some")

    def _write(self, record: dict[str, Any]) -> None:
        t = round(self.clock() - self._started, 4)
        self.file.write(json.dumps({"t": t} | record) + "\n")

    def _say(self, text: str) -> None:
        lead = "\r\x1b[K" if self.terminal.isatty() else ""
        print(f"{lead}pointsman events record: {text}", file=self.terminal, flush=True)
