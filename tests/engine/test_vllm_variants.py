"""Engines of other versions, hash algorithms, seeds and ranks: each predicted exactly.

With the two engines of the stage and the one that is restarted there, six starts in all cover
0.28 and 0.32, sha256, sha256_cbor and xxhash_cbor, a seed and none, digests and integers, engines
that listen and one that dials, and two data-parallel ranks.
"""

from contextlib import ExitStack
from pathlib import Path

import pytest

from router.pool_tokenizer import PoolTokenizer
from tests.engine.engine import EngineSettings, engines
from tests.engine.install import OLDER, CannotInstall, model_folder
from tests.engine.mix import short_mix
from tests.engine.proof import Explainer
from tests.engine.runs import Sequential
from tests.engine.services import Services

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


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_variant_is_predicted_exactly(variant: str, tmp_path: Path) -> None:
    """Its evidence is the best that it can have, and holds."""
    settings, evidence = VARIANTS[variant]
    with ExitStack() as stack:
        try:
            made = stack.enter_context(engines(tmp_path, settings, ("v",)))
        except CannotInstall as error:
            if "npm" not in str(error):
                raise
            pytest.skip(str(error))
        services = Services(stack, tmp_path, made)
        services.serve()
        explainer = Explainer(services, PoolTokenizer.load(str(model_folder())), {})
        mix = Sequential(services, explainer, short_mix(3))
        mix.run()
        services.evidence(evidence)
        print(f"{variant}: started in {made[0].start_s:.0f} s, {len(mix.predictions)} requests")
        assert all(each.exact for each in mix.predictions)
        assert sum(each.reported or 0 for each in mix.predictions) > 1_000
