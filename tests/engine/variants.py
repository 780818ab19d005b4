"""Engines of other settings than those of the stage, each with the evidence that it can reach.

With the two engines of the stage and the one that is restarted there, six starts in all cover
0.28 and 0.32, sha256, sha256_cbor and xxhash_cbor, a seed and none, digests and integers, engines
that listen and one that dials, and two data-parallel ranks.
"""

from tests.engine.engine import EngineSettings
from tests.engine.install import OLDER

VARIANTS = {
    # The recipe of the root before 0.29, and an engine that tells nobody where its events are.
    "older": (EngineSettings(version=OLDER, algorithm="sha256", integers=False), "exact"),
    # Its root is random: nobody can compute its hashes, so they are translated.
    "translated": (
        EngineSettings(algorithm="xxhash_cbor", seed=None, dials=True),
        "degraded(translating)",
    ),
    # What vLLM does where nothing is set, on two ranks.
    "two_ranks": (EngineSettings(algorithm="sha256", seed=None, ranks=2), "exact"),
}
