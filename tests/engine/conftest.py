"""What starts a real engine runs only when it is asked for: ``make test-vllm``."""

import os
from collections.abc import Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.engine.stage import Stage

collect_ignore_glob = [] if os.environ.get("POINTSMAN_TEST_VLLM") else ["test_vllm_*.py"]


@pytest.fixture(scope="session")
def stage(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[Stage]":
    from tests.engine.install import NoTokenizer, model_folder
    from tests.engine.stage import Stage

    try:
        model_folder()
    except NoTokenizer as error:
        # An engine that cannot be installed is a failure: without one there is no proof.
        pytest.skip(str(error))
    with ExitStack() as stack:
        yield Stage(stack, tmp_path_factory.mktemp("vllm"))
