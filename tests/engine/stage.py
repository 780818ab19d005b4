"""Two real engines with pointsman in front of them, for all tests that need no other settings.

Starting engines takes longer than most of what is asked of them, so tests share one stage.
"""

from contextlib import ExitStack
from pathlib import Path

from router.pool_tokenizer import PoolTokenizer
from tests.engine.adapter import write_adapter
from tests.engine.engine import Engine, EngineSettings, engines
from tests.engine.install import model_folder
from tests.engine.mix import lanes
from tests.engine.proof import Explainer
from tests.engine.runs import Sequential
from tests.engine.services import Services


class Stage:
    """``mix``: as far as it has got, over all tests that have a part of it."""

    def __init__(self, stack: ExitStack, folder: Path) -> None:
        adapter = write_adapter(folder / "sql")
        lora = ("--enable-lora", "--max-lora-rank", "8", "--lora-modules", f"sql={adapter}")
        tools = ("--enable-auto-tool-choice", "--tool-call-parser", "hermes")
        settings = EngineSettings(flags=(*lora, *tools))
        self.engines = stack.enter_context(engines(folder, settings, ("a", "b")))
        self.services = Services(stack, folder, self.engines)
        self.services.serve()
        tokenizer = PoolTokenizer.load(str(model_folder()))
        self.explainer = Explainer(self.services, tokenizer, {"sql": str(adapter)})
        self.mix = Sequential(self.services, self.explainer, lanes(1))

    def engine(self, name: str) -> Engine:
        return next(engine for engine in self.engines if engine.name == name)
