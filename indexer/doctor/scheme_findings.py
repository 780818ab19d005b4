"""Can the engine's block hashes be computed, and if not, why not."""

from indexer.doctor.facts import Asked, LogFacts
from indexer.doctor.finding import Finding
from indexer.doctor.versions import release_of
from proto.blockhash import EngineScheme

_PROBE = "give --probe, which sends two tiny completions, or send the engine requests"


def scheme_finding(
    log: LogFacts, version: str, algorithm: str | None, asked: Asked, rank: int | None
) -> Finding:
    """``algorithm``: of the engine's configuration, None where it does not tell."""
    if log.schemes:
        return _proven(log, rank)
    if not log.roots:
        return _nothing_to_prove_with(log, version, asked, rank)
    if log.unprovable:
        return _unprovable(log, version, algorithm, asked, rank)
    return Finding(
        "unknown",
        "scheme",
        f"none of {log.roots} first blocks shows all that its hash depends on",
        "an adapter whose path is not listed, a sparse group, or a version that hides extra keys",
        f"send a plain request of the base model: {_PROBE}",
        rank,
    )


def describe(scheme: EngineScheme) -> str:
    """As ``pointsman tokens --scheme`` takes it."""
    fields = scheme.describe()
    seed = "none" if scheme.seed is None else scheme.seed
    rest = ",".join(f"{name}={fields[name]}" for name in ("block_size", "extra_keys", "lookahead"))
    return f"{scheme.algorithm},seed={seed},{rest}"


def _proven(log: LogFacts, rank: int | None) -> Finding:
    schemes = " or ".join(describe(scheme) for scheme in log.schemes)
    form = "" if log.form_proven else "; the form of extra keys is the version's, not seen yet"
    text = f"proven from {log.roots - log.unprovable} first blocks: {schemes}{form}"
    if not log.unprovable:
        return Finding("ok", "scheme", text, rank=rank)
    return Finding(
        "warning",
        "scheme",
        text,
        f"{log.unprovable} other first blocks have hashes that it does not give",
        "record and inspect the engine's events (pointsman events record) and report what it says",
        rank,
    )


def _nothing_to_prove_with(log: LogFacts, version: str, asked: Asked, rank: int | None) -> Finding:
    what = "nothing was published yet" if not log.batches else "no first block of a prompt was seen"
    fix = _PROBE
    if asked.probe:
        fix = "see what became of the probe, and whether prefix caching is on"
    release = release_of(version)
    why = "until the first one there is no scheme, and nothing is matched"
    if release is not None and release < (0, 29, 0):
        why += "; before 0.29 it can only be proven where PYTHONHASHSEED is set"
    return Finding("unknown", "scheme", what, why, fix, rank)


def _unprovable(
    log: LogFacts, version: str, algorithm: str | None, asked: Asked, rank: int | None
) -> Finding:
    release = release_of(version)
    if algorithm is not None and algorithm.startswith("xxhash"):
        why = f"with {algorithm} the first hash is random in every process unless a seed is set"
    elif release is not None and release < (0, 29, 0):
        why = f"before 0.29 (this is {version}) hashes are random unless PYTHONHASHSEED is set"
    else:
        why = "the engine has another seed, or a recipe that is not known"
    tried = ", ".join(asked.seeds)
    return Finding(
        "problem",
        "scheme",
        f"the hashes of {log.unprovable} of {log.roots} first blocks are given by no known recipe",
        f"{why}; tried were PYTHONHASHSEED {tried} and none. pointsman then translates: it works,"
        " at a cost, and evidence is never exact",
        "start every engine with PYTHONHASHSEED=0; or list its seed under hash_seeds (without a"
        " configuration file: --hash-seed)",
        rank,
    )
