"""One file for both services, checked before anything starts."""

import pytest

from indexer.config import parse_config
from proto.config_file import ConfigError
from router.config import parse_router_config

REPLICA = '[[replicas]]\nname = "a"\nurl = "http://10.0.0.7:8000/"\n'
POOL = '[pools.default]\ntokenizer = "/models/m"\n'


def test_replicas_and_a_tokenizer_are_all_that_is_needed() -> None:
    """Everything else has a default."""
    file = parse_router_config((REPLICA + POOL).encode())
    assert [(e.name, e.url, e.pool) for e in file.engines] == [
        ("a", "http://10.0.0.7:8000", "default")
    ]
    router = file.router
    assert (router.policy, router.inflight_max, router.waiting_max) == ("prefix", 256, 512)


def test_both_services_read_the_same_file() -> None:
    """Each leaves the other's sections alone."""
    text = REPLICA + POOL + '[router]\npolicy = "sticky"\n[events]\nreplays_max = 2\n'
    assert parse_router_config(text.encode()).router.policy == "sticky"
    assert parse_config(text.encode()).events.replays_max == 2


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (POOL, "replicas"),
        (REPLICA, "pools.default.tokenizer: set it to the folder"),
        (REPLICA + POOL + '[router]\npolicy = "best"\n', "router.policy: 'best' is none of prefix"),
        (REPLICA + POOL + "[router]\npolicies = 1\n", "router: .*policies"),
        (REPLICA + POOL + '[router]\nlisten = "8080"\n', "router.listen: '8080' is not HOST:PORT"),
        (REPLICA + POOL + '[router]\nindexer = "x"\n', "router.indexer: 'x' is not HOST:PORT"),
        (REPLICA + POOL + '[admin]\nlisten = "x"\n', "admin.listen: 'x' is not HOST:PORT"),
        (REPLICA + POOL + "[router]\ninflight_max = 0\n", "router.inflight_max"),
        (REPLICA + POOL + "[router]\ntie_tolerance = 2.0\n", "router.tie_tolerance"),
        (REPLICA + POOL + "[router.sample]\nshare = 2\n", "router.sample.share"),
        (
            REPLICA + POOL + "[router.sample]\nbytes_max = 67108864\n",
            "router.sample.bytes_max: make it twice",
        ),
        (REPLICA + POOL + '[pools.x]\ntokenizer = "t"\n', "pools.x: no replica is in it"),
        (REPLICA + '[pools.default]\ntokeniser = "t"\n', "tokeniser|tokenizer"),
        (REPLICA + REPLICA + POOL, "'a' occurs twice"),
        ("[[replicas", "not TOML"),
    ],
)
def test_what_is_wrong_is_named_by_its_key(text: str, says: str) -> None:
    """A typing mistake never passes for a default."""
    with pytest.raises(ConfigError, match=says):
        parse_router_config(text.encode())


def test_only_the_prefix_policy_needs_a_tokenizer() -> None:
    """The others look at no prompt."""
    text = REPLICA + '[router]\npolicy = "round_robin"\n'
    assert parse_router_config(text.encode()).pools == {}
