"""Facts about engines -> what to say about each. Pure, and all in one place to be read."""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain

from indexer.doctor.event_findings import event_findings
from indexer.doctor.facts import Asked, Examination, ParityFacts, ProbeFacts, RankFacts
from indexer.doctor.finding import Finding
from indexer.doctor.versions import version_findings
from indexer.sources import EngineFacts

_PROBE = "give --probe, which sends two tiny completions"


def findings(exams: Sequence[Examination], asked: Asked) -> list[list[Finding]]:
    """For each engine, in the order in which to read them."""
    shared = _shared(exams)
    return [[*_of_one(exam, asked), *more] for exam, more in zip(exams, shared, strict=True)]


def _of_one(exam: Examination, asked: Asked) -> Iterator[Finding]:
    engine = exam.engine
    if engine is None:
        yield _refused(exam, asked)
        return
    yield _reachable(exam, engine)
    yield from version_findings(engine.version, engine.lora_paths)
    yield from _sleeping(engine)
    yield _prefix_caching(engine)
    yield _capacity(exam, engine)
    yield from event_findings(exam, engine, asked)
    yield _cached_tokens(exam.probes, asked)
    yield _token_parity(exam.parity, asked)


def _refused(exam: Examination, asked: Asked) -> Finding:
    if exam.refusal == "key":
        what = "the API key is refused" if asked.key_given else "the engine asks for an API key"
        fix = "set VLLM_API_KEY in the environment to what the engine is started with (--api-key)"
        return Finding("problem", "api_key", what, exam.why, fix)
    if exam.refusal == "not_vllm":
        fix = "give the root URL of one vLLM server, without /v1 and without a proxy before it"
        return Finding("problem", "reachable", "answers, but not as vLLM does", exam.why, fix)
    fix = "check that the engine runs, its --host and --port, and the network between"
    return Finding("problem", "reachable", "cannot be reached", exam.why, fix)


def _reachable(exam: Examination, engine: EngineFacts) -> Finding:
    if exam.unhealthy is not None:
        fix = "look at the engine's log and restart it: its engine core may be dead"
        return Finding("problem", "reachable", "answers, but is not healthy", exam.unhealthy, fix)
    return Finding("ok", "reachable", f"healthy, serves {', '.join(engine.models)}")


def _sleeping(engine: EngineFacts) -> Iterator[Finding]:
    asleep = {rank: s for rank, s in engine.sleep_states.items() if s != "awake"}
    if asleep:
        ranks = ", ".join(f"rank {rank}: {state}" for rank, state in sorted(asleep.items()))
        yield Finding(
            "warning",
            "sleep",
            f"the engine sleeps ({ranks})",
            "it holds nothing, and publishes nothing before its first request after waking up",
            "wake it with POST /wake_up before it is to serve",
        )


def _prefix_caching(engine: EngineFacts) -> Finding:
    caching = engine.cache.prefix_caching
    if caching:
        return Finding("ok", "prefix_caching", "prefix caching is on")
    fix = "start the engine with --enable-prefix-caching"
    if caching is None:
        why = "/metrics has no vllm:cache_config_info that tells"
        what = "whether prefix caching is on is not known"
        return Finding("unknown", "prefix_caching", what, why, f"check /metrics, or {fix}")
    why = "nothing is kept between requests, and there are no events"
    return Finding("problem", "prefix_caching", "prefix caching is off", why, fix)


def _capacity(exam: Examination, engine: EngineFacts) -> Finding:
    blocks, size = engine.cache.blocks_total, engine.cache.block_size_tokens
    if exam.blocks is not None and blocks not in (None, exam.blocks):
        return Finding(
            "warning",
            "capacity",
            f"the engine has {blocks} blocks, and {exam.blocks} are configured",
            "counts that have drifted are noticed too late or where there are none",
            "leave out blocks of the replica: the engine is asked",
        )
    if blocks is not None or exam.blocks is not None:
        tokens = "" if size is None else f" of {size} tokens"
        told = ", as configured" if blocks is None else ""
        total = exam.blocks if blocks is None else blocks
        return Finding("ok", "capacity", f"{total} blocks{tokens}, all ranks together{told}")
    return Finding(
        "warning",
        "capacity",
        "the number of blocks is not known",
        "/metrics has no num_gpu_blocks: counts that have drifted cannot be told from true ones",
        "set blocks of the replica in the configuration file",
    )


def _cached_tokens(probes: Sequence[ProbeFacts], asked: Asked) -> Finding:
    """Whether the engine reports what it found in its cache."""
    if not asked.probe:
        what = "whether the engine reports cached tokens is not known"
        why = "it shows in an answer only, and no request was sent"
        return Finding("unknown", "cached_tokens", what, why, _PROBE)
    refused = next((probe for probe in probes if probe.refused is not None), None)
    if refused is not None:
        fix = "give a model that the engine serves (GET /v1/models), and look at its answer"
        why = f"rank {refused.rank}: {refused.refused}"
        return Finding("problem", "cached_tokens", "the engine did not serve the probe", why, fix)
    if not probes or any(probe.cached_tokens is None for probe in probes):
        return Finding(
            "warning",
            "cached_tokens",
            "the engine does not report cached tokens",
            "without them nobody sees whether predictions are right",
            "start the engine with --enable-prompt-tokens-details",
        )
    found = ", ".join(str(probe.cached_tokens) for probe in probes)
    if not all(probe.cached_tokens for probe in probes):
        return Finding(
            "problem",
            "cached_tokens",
            f"a prompt that was just sent was not found again ({found} cached tokens)",
            "either nothing is cached, or the two requests went to different engines",
            "turn prefix caching on, and give the engine's own URL, not that of a load balancer",
        )
    return Finding("ok", "cached_tokens", f"reported: {found} of a repeated prompt")


def _token_parity(parity: Sequence[ParityFacts], asked: Asked) -> Finding:
    if not (asked.probe and asked.model_given):
        what = "whether chats are tokenized as the engine does is not known"
        fix = "give --probe and --model DIR, the folder with the tokenizer that pointsman uses"
        if asked.by_file:
            fix = "give --probe, and set tokenizer of the replica's pool"
        return Finding("unknown", "token_parity", what, "three chats are compared", fix)
    for facts in parity:
        if facts.ours is not None and facts.theirs is not None and facts.ours != facts.theirs:
            return _differs(facts, facts.ours, facts.theirs)
    silent = [f"{facts.name}: {facts.why_not}" for facts in parity if facts.why_not]
    same = len(parity) - len(silent)
    if same and not silent:
        return Finding("ok", "token_parity", f"{same} chats have the engine's own token ids")
    return Finding(
        "unknown",
        "token_parity",
        f"{same} of {len(parity)} chats have the engine's own token ids",
        "; ".join(silent) or "no chat was compared",
        "see why the others have none: chats that cannot be tokenized are routed without hashes",
    )


def _differs(facts: ParityFacts, ours: Sequence[int], theirs: Sequence[int]) -> Finding:
    pairs = enumerate(zip(ours, theirs, strict=False))
    at = next((i for i, (one, other) in pairs if one != other), min(len(ours), len(theirs)))
    here, there = (ids[at] if at < len(ids) else "the end" for ids in (ours, theirs))
    return Finding(
        "problem",
        "token_parity",
        f"the chat {facts.name!r} differs from token {at} on: {here} here, {there} in the engine",
        f"another tokenizer or chat template ({len(ours)} tokens here, {len(theirs)} there): no"
        " prefix of such chats is found",
        "copy tokenizer.json, tokenizer_config.json and the template from the engine's model"
        " folder; where it is started with --chat-template or --default-chat-template-kwargs, say"
        " so here and under pools",
    )


def _shared(exams: Sequence[Examination]) -> list[list[Finding]]:
    """What only shows when engines are looked at together."""
    topics = Counter(_topic(facts) for exam in exams for facts in exam.ranks if not facts.listens)
    places = Counter(
        facts.source.endpoint for exam in exams for facts in exam.ranks if facts.listens
    )
    return [list(chain.from_iterable(_clashes(f, topics, places) for f in e.ranks)) for e in exams]


def _topic(facts: RankFacts) -> tuple[str, int]:
    """What tells apart those that connect to one address: the rank is in their batches."""
    return facts.source.topic, facts.rank


def _clashes(
    facts: RankFacts, topics: Counter[tuple[str, int]], places: Counter[str]
) -> Iterator[Finding]:
    if facts.listens and places[facts.source.endpoint] > 1:
        yield Finding(
            "problem",
            "shared_endpoint",
            f"several engines publish at {facts.source.endpoint}",
            "one engine would be followed for all of them",
            "give each engine ports of its own, and each URL once",
            facts.rank,
        )
    if not facts.listens and topics[_topic(facts)] > 1:
        yield Finding(
            "problem",
            "topics",
            f"several engines connect with the topic {facts.source.topic!r}",
            "their events cannot be told apart",
            'give each engine a "topic" of its own in --kv-events-config',
            facts.rank,
        )
