"""A shell: the indexer as the router asks it where both run on one event loop."""

import time
from collections.abc import AsyncIterator, Sequence

from indexer.answers import Answers, MalformedAsk
from indexer.watching import ReplicaWatch
from proto.contract import HashedPrefix, IndexerUnavailable, ReplicaMatch, ReplicaView


class LocalIndexer:
    """``proto.contract.Indexer`` without a network."""

    def __init__(self, answers: Answers, replica_watch: ReplicaWatch) -> None:
        self._answers, self._watch = answers, replica_watch

    async def match(self, pool: str, prefixes: Sequence[HashedPrefix]) -> dict[str, ReplicaMatch]:
        """Raises IndexerUnavailable for an ask beyond the limits, as it is over the network."""
        try:
            matches = self._answers.match_prefix(pool, prefixes, time.monotonic())
        except MalformedAsk as error:
            raise IndexerUnavailable(f"indexer refused: {error}") from error
        return {match.replica: match for match in matches}

    def watch(self) -> AsyncIterator[tuple[ReplicaView, ...]]:
        return self._watch.watch()
