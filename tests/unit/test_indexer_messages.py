"""Messages and the contract's types, on the router's side."""

from array import array

import pytest

from proto import indexer_pb2 as pb
from proto.blockhash import CanonicalScheme, EngineScheme, HashScheme
from proto.contract import HashedPrefix
from router.indexer_messages import match_request, view_of


def replica_with(*schemes: pb.HashScheme) -> pb.Replica:
    return pb.Replica(replica="a", schemes=schemes)


@pytest.mark.parametrize(
    "scheme",
    [EngineScheme("sha256", None, 16), EngineScheme("xxhash", "", 16, 1), CanonicalScheme(32)],
    ids=str,
)
def test_a_scheme_arrives_as_it_is(scheme: HashScheme) -> None:
    """An unset seed and an empty one are two recipes, and stay so."""
    message = pb.HashScheme(id=scheme.id, **scheme.describe())
    assert view_of(replica_with(message)).schemes == (scheme,)


@pytest.mark.parametrize("change", [{"algorithm": "new"}, {"id": "0" * 16}, {"block_size": 0}])
def test_a_scheme_that_cannot_be_computed_is_left_out(change: dict[str, object]) -> None:
    """A recipe of another version, or another recipe under the same name; others stay."""
    scheme = EngineScheme("sha256", "0", 16)
    known = pb.HashScheme(id=scheme.id, **scheme.describe())
    unknown = pb.HashScheme(**{"id": scheme.id} | scheme.describe() | change)
    assert view_of(replica_with(unknown, known)).schemes == (scheme,)


@pytest.mark.parametrize(
    "hashes", [[1, 2**64 - 1], array("Q", [1, 2**64 - 1])], ids=["list", "array"]
)
def test_hashes_are_sent_as_little_endian_words(hashes: list[int]) -> None:
    """Whatever holds them, and whatever the machine's own order is."""
    request = match_request("p", [HashedPrefix("s", hashes)])
    assert request.prefixes[0].block_hashes == b"\x01" + bytes(7) + b"\xff" * 8
    assert list(hashes) == [1, 2**64 - 1]
