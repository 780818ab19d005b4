import json
from pathlib import Path

import msgspec
import pytest

from benchmarks.sim.events import AllBlocksCleared, BlockRemoved, BlockStored
from benchmarks.sim.wire import VLLM_VERSIONS, WireFormat

SAMPLES = json.loads((Path(__file__).parent.parent / "vectors" / "wire_samples.json").read_text())
STORED = BlockStored(
    block_hashes=((1403909460543360175).to_bytes(32, "big"), b"\xff" * 32),
    parent_block_hash=None,
    token_ids=(1, 2, 3, 4),
    block_size=2,
    extra_keys=(("tenant-A",), None),
)


@pytest.mark.parametrize(
    ("version", "sample"),
    [("0.23", "0.23.0"), ("0.28", "0.28.0"), ("0.31", "0.30.0"), ("0.33", "0.33.0")],
)
def test_batch_is_vllm_s_byte_for_byte(version: str, sample: str):
    """A batch of all three events is written in the bytes of the version that it imitates."""
    batch = (STORED, BlockRemoved(b"\x00" * 31 + b"\x01"), AllBlocksCleared())
    assert WireFormat(version).encode(1.5, batch, 0).hex() == SAMPLES[sample]["hex"]


@pytest.mark.parametrize("version", VLLM_VERSIONS)
def test_hashes_in_either_form(version: str):
    """Hashes are the low 64 bits as unsigned ints, or whole digests, parents included."""
    digest, parent = b"\xff" * 32, b"\xfe" * 32
    event = BlockStored((digest,), parent, (1, 2), 2, (None,))
    for int_hashes, expected in ((True, 2**64 - 1), (False, digest)):
        payload = WireFormat(version, int_hashes).encode(0.0, (event, BlockRemoved(digest)), 3)
        _, (stored, removed), rank = msgspec.msgpack.decode(payload)
        if isinstance(stored, list):
            stored, removed = {"block_hashes": stored[1]}, {"block_hashes": removed[1]}
        assert stored["block_hashes"] == removed["block_hashes"] == [expected] and rank == 3


def test_lookahead_tokens_are_written_by_0_33_only():
    """Tokens hashed ahead are one list per hash; older versions have no such field."""
    event = BlockStored((b"\x01" * 32,), None, (1, 2), 2, (None,), lookahead_token_ids=((7,),))
    for version in ("0.28", "0.31", "0.33"):
        _, (stored,), _ = msgspec.msgpack.decode(WireFormat(version).encode(0.0, (event,), 0))
        assert stored.get("lookahead_token_ids") == ([[7]] if version == "0.33" else None)


def test_unknown_version_is_refused():
    """A version nobody has looked at is an error that lists those known."""
    with pytest.raises(ValueError, match=r"0\.33"):
        WireFormat("0.99")
