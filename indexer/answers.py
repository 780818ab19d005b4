"""What is asked of the index, answered from the hub: matches by hashes or by tokens, and replicas.

Rules (design, decisions 1, 9 and 10):

* A match is a fact, never a score. A replica that holds nothing is no part of an answer, so answers
  do not grow with the fleet; neither is one with nothing to match with (FALLBACK).
* Of several prefixes under one scheme the larger match counts.
* For tokens, a prompt is hashed once per distinct recipe and keys. A LoRA's path is in its hashes
  and is each replica's own; a replica that does not list the LoRA holds nothing for it.
* An ask that is too large or makes no sense raises ``MalformedAsk``; nothing is cut off silently.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from indexer.evidence import Level
from indexer.hub import Hub, Link
from indexer.index import Hashes, Match, PoolName, ReplicaId, SchemeId
from indexer.report import schemes_of
from proto.blockhash import HashScheme, RequestKeys
from proto.contract import DEFAULT_POOL, HashedPrefix, ReplicaMatch, ReplicaView

# Four million tokens in blocks of 16, over all prefixes: 2 MiB on the wire, milliseconds to match.
HASHES_MAX = 262_144
# Schemes in use in one pool are a few; each with a few variants of its keys.
PREFIXES_MAX = 64
# Twice the longest context that a model is served with today.
TOKENS_MAX = 2_097_152
# Names that no replica can have are not worth comparing, nor long salts worth hashing.
TEXT_CHARS_MAX = 4_096
# Recipes and LoRA paths that one prompt is hashed under; those of the most replicas come first.
HASHINGS_MAX = 16
# Judging evidence costs more than a match does. Its causes are as old as this anyway: they come
# through a queue, and silence is a matter of seconds.
STATUS_S = 0.02
# A named tuple's own constructor is a Python function, twice as slow.
_new = tuple.__new__


class MalformedAsk(ValueError):
    """The ask cannot be answered; the text says what to change."""


@dataclass(slots=True)
class _Status:
    """What an answer says of a replica beside its match; true until the fields it is of change."""

    link: Link
    scheme_ids: tuple[SchemeId, ...]
    until: float
    matchable: bool
    level: str
    reasons: tuple[str, ...]
    block_size: int


@dataclass(frozen=True, slots=True)
class Hashing:
    """One way to hash a prompt."""

    scheme: HashScheme
    keys: RequestKeys


class Answers:
    """Answers over one hub. ``now`` as the hub's, in seconds."""

    def __init__(self, hub: Hub) -> None:
        self.hub = hub
        self._statuses: dict[ReplicaId, _Status] = {}

    def __repr__(self) -> str:
        return f"<Answers over {self.hub!r}>"

    # Matches.

    def match_prefix(
        self, pool: str, prefixes: Sequence[HashedPrefix], now: float
    ) -> list[ReplicaMatch]:
        """Replicas of the pool that hold at least the first block. Raises MalformedAsk."""
        _check_prefixes(prefixes)
        return self._described(self._best(pool, prefixes), now)

    def match_tokens(
        self,
        pool: str,
        token_ids: Sequence[int],
        lora_name: str | None,
        cache_salt: str | None,
        now: float,
    ) -> list[ReplicaMatch]:
        """The same for a prompt given as token ids. Raises MalformedAsk."""
        hashings = self.hashings(pool, token_ids, lora_name, cache_salt)
        return self.match_hashed(pool, hash_prompt(hashings, token_ids), now, lora_name)

    def hashings(
        self, pool: str, token_ids: Sequence[int], lora_name: str | None, cache_salt: str | None
    ) -> list[Hashing]:
        """How the pool's replicas hash such a prompt. Raises MalformedAsk."""
        if len(token_ids) > TOKENS_MAX:
            raise MalformedAsk(f"{len(token_ids)} token ids; a prompt has at most {TOKENS_MAX}")
        for key, text in (("lora_name", lora_name), ("cache_salt", cache_salt)):
            if text is not None and len(text) > TEXT_CHARS_MAX:
                raise MalformedAsk(f"{key} is longer than {TEXT_CHARS_MAX} characters")
        uses = Counter(
            Hashing(scheme, RequestKeys(lora_name, path, cache_salt=cache_salt or None))
            for link in self._links(pool)
            if lora_name is None or lora_name in link.state.proof.lora_paths
            for scheme, path in _schemes_with_paths(link, lora_name)
        )
        return [hashing for hashing, _ in uses.most_common(HASHINGS_MAX)]

    def match_hashed(
        self, pool: str, prefixes: Sequence[HashedPrefix], now: float, lora_name: str | None = None
    ) -> list[ReplicaMatch]:
        """What ``hash_prompt`` gave, matched. Between the two, the hub may have changed."""
        best = self._best(pool, prefixes)
        if lora_name is not None:
            links = self.hub.links
            best = {
                replica_id: match
                for replica_id, match in best.items()
                if lora_name in links[replica_id].state.proof.lora_paths
            }
        return self._described(best, now)

    def _best(self, pool: str, prefixes: Iterable[HashedPrefix]) -> dict[ReplicaId, Match]:
        """The larger match of each replica, over as many rounds as a scheme has prefixes."""
        best: dict[ReplicaId, Match] = {}
        for hashes_by_scheme in _rounds(prefixes):
            matches = self.hub.index.match(PoolName(pool or DEFAULT_POOL), hashes_by_scheme)
            if not best:
                best = matches
                continue
            for replica_id, match in matches.items():
                if replica_id not in best or match > best[replica_id]:
                    best[replica_id] = match
        return best

    def _described(self, matches: Mapping[ReplicaId, Match], now: float) -> list[ReplicaMatch]:
        """One loop without calls: with what a match costs per holder, this is half of an answer."""
        described, statuses, links = [], self._statuses, self.hub.links
        for replica_id, (gpu, gpu_or_cpu, any_tier) in matches.items():
            status, link = statuses.get(replica_id), links[replica_id]
            state = link.state
            if (
                status is None
                or now >= status.until
                or status.link is not link
                or status.scheme_ids is not state.indexed.scheme_ids
            ):
                status = self._look(replica_id, link, now)
            if status.matchable:
                fields = (
                    replica_id,
                    gpu,
                    gpu_or_cpu,
                    any_tier,
                    status.block_size,
                    status.level,
                    status.reasons,
                    state.applied_seq,
                )
                described.append(_new(ReplicaMatch, fields))
        return described

    def _look(self, replica_id: ReplicaId, link: Link, now: float) -> _Status:
        evidence, schemes = self.hub.evidence(replica_id, now), schemes_of(link)
        status = self._statuses[replica_id] = _Status(
            link,
            link.state.indexed.scheme_ids,
            now + STATUS_S,
            evidence.level is not Level.FALLBACK,
            evidence.level.value,
            tuple(reason.value for reason in evidence.reasons),
            schemes[0].block_size if schemes else 0,
        )
        return status

    # Replicas.

    def list_replicas(self, pool: str, now: float) -> tuple[ReplicaView, ...]:
        """Every replica as it is now; an empty pool is all of them."""
        return tuple(
            self._view(link, now)
            for link in self.hub.links.values()
            if not pool or link.source.pool == pool
        )

    def _view(self, link: Link, now: float) -> ReplicaView:
        source, state = link.source, link.state
        evidence = self.hub.evidence(source.replica_id, now)
        return ReplicaView(
            replica=source.replica_id,
            pool=source.pool,
            url=source.url,
            rank=source.rank,
            evidence=evidence.level.value,
            reasons=tuple(reason.value for reason in evidence.reasons),
            schemes=schemes_of(link),
            seq=state.applied_seq,
            lag_batches=link.stream.lag_batches if link.stream is not None else 0,
            blocks=len(state.blocks.primary.counts),
            capacity_blocks=state.blocks.capacity or 0,
        )

    def shape(self, now: float) -> tuple[object, ...]:
        """Differs between two moments if membership, schemes or evidence have changed."""
        self._forget_the_gone()
        shape = []
        for replica_id, link in self.hub.links.items():
            status = self._look(replica_id, link, now)
            shape.append((link.source, status.scheme_ids, status.level, status.reasons))
        return tuple(shape)

    def _forget_the_gone(self) -> None:
        links = self.hub.links
        for replica_id in [gone for gone in self._statuses if gone not in links]:
            del self._statuses[replica_id]

    def _links(self, pool: str) -> Iterable[Link]:
        pool = pool or DEFAULT_POOL
        return (link for link in self.hub.links.values() if link.source.pool == pool)


def hash_prompt(hashings: Iterable[Hashing], token_ids: Sequence[int]) -> list[HashedPrefix]:
    """Pure, and the one slow part of an answer: it may run in a thread. Costs O(tokens) each."""
    return [
        HashedPrefix(hashing.scheme.id, hashing.scheme.block_hashes(token_ids, hashing.keys))
        for hashing in hashings
    ]


def _schemes_with_paths(
    link: Link, lora_name: str | None
) -> Iterable[tuple[HashScheme, str | None]]:
    """The replica's schemes, each with the LoRA's path where that is part of the hashes."""
    for scheme in schemes_of(link):
        form = scheme.describe()["extra_keys"]
        if lora_name is None:
            yield scheme, None
        elif form != "lora_int":
            # A number that the engine gave the LoRA is in those hashes, and is told to nobody.
            paths = link.state.proof.lora_paths
            yield scheme, paths.get(lora_name) if form == "tagged" else None


def _rounds(prefixes: Iterable[HashedPrefix]) -> list[dict[SchemeId, Hashes]]:
    """As few mappings as hold every prefix, each with a scheme at most once."""
    rounds: list[dict[SchemeId, Hashes]] = []
    for prefix in prefixes:
        # An array of 64-bit words serves as well as a list, and costs nothing to make.
        hashes = cast(Hashes, prefix.block_hashes)
        for mapping in rounds:
            if prefix.scheme_id not in mapping:
                mapping[prefix.scheme_id] = hashes
                break
        else:
            rounds.append({prefix.scheme_id: hashes})
    return rounds


def _check_prefixes(prefixes: Sequence[HashedPrefix]) -> None:
    if len(prefixes) > PREFIXES_MAX:
        raise MalformedAsk(
            f"{len(prefixes)} prefixes; at most {PREFIXES_MAX}: one per scheme of the pool, see"
            " ListReplicas"
        )
    hashes = sum(len(prefix.block_hashes) for prefix in prefixes)
    if hashes > HASHES_MAX:
        raise MalformedAsk(f"{hashes} block hashes in one request; at most {HASHES_MAX}")
