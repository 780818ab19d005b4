"""Engines of other versions, hash algorithms, seeds and ranks: each predicted exactly."""

from contextlib import ExitStack
from pathlib import Path

import pytest

from router.pool_tokenizer import PoolTokenizer
from tests.engine.engine import engines
from tests.engine.install import NoTokenizer, model_folder
from tests.engine.mix import short_mix
from tests.engine.proof import Explainer
from tests.engine.runs import Sequential
from tests.engine.services import Services
from tests.engine.variants import VARIANTS


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_variant_is_predicted_exactly(variant: str, tmp_path: Path) -> None:
    """Its evidence is the best that it can have, and holds."""
    settings, evidence = VARIANTS[variant]
    try:
        model_folder()
    except NoTokenizer as error:
        pytest.skip(str(error))
    with ExitStack() as stack:
        made = stack.enter_context(engines(tmp_path, settings, ("v",)))
        services = Services(stack, tmp_path, made)
        services.serve()
        explainer = Explainer(services, PoolTokenizer.load(str(model_folder())), {})
        mix = Sequential(services, explainer, short_mix(3))
        mix.run()
        services.evidence(evidence)
        print(f"{variant}: started in {made[0].start_s:.0f} s, {len(mix.predictions)} requests")
        assert all(each.exact for each in mix.predictions)
        assert sum(each.reported or 0 for each in mix.predictions) > 1_000
