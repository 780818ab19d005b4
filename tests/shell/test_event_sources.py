"""What engines say of themselves, parsed: endpoints, ranks, models, cache and sleep state."""

import json

import pytest

from indexer.sources import (
    CacheFacts,
    DiscoveryError,
    EventSource,
    MetricSample,
    host_of,
    is_at_least,
    is_bind_endpoint,
    offset_endpoint,
    parse_cache,
    parse_endpoint,
    parse_models,
    parse_sleep_states,
    parse_sources,
    parse_version,
    substitute_host,
)

SOURCE = {
    "enable_kv_cache_events": True,
    "publisher": "zmq",
    "endpoint": "tcp://*:5557",
    "replay_endpoint": "tcp://*:5657",
    "buffer_steps": 10000,
    "hwm": 100000,
    "max_queue_size": 100000,
    "topic": "kv@pod",
}


def sources(host="10.0.0.7", version="0.31.0", **by_rank):
    body = {rank.lstrip("r"): {**SOURCE, **changes} for rank, changes in by_rank.items()}
    return parse_sources(json.dumps(body).encode(), host, version)


def test_each_rank_is_a_source_at_the_replicas_host():
    """Ranks come sorted by number, and "*" is replaced by the replica's host."""
    ranks = sources(
        r10={"endpoint": "tcp://*:5567", "replay_endpoint": None},
        r2={},
    )
    assert ranks == (
        EventSource(2, "tcp://10.0.0.7:5557", "tcp://10.0.0.7:5657", "kv@pod", 10000, True),
        EventSource(10, "tcp://10.0.0.7:5567", None, "kv@pod", 10000, True),
    )


def test_an_ipv6_host_is_written_in_brackets():
    """A replica reached over IPv6 gives endpoints that ZMQ can parse."""
    (source,) = sources(host=host_of("http://[fd00::7]:8000"), r0={"endpoint": "tcp://[::]:5557"})
    assert source.endpoint == "tcp://[fd00::7]:5557"
    assert source.replay_endpoint == "tcp://[fd00::7]:5657"


def test_an_engine_that_connects_keeps_its_endpoint():
    """Without wildcard the engine connects to the endpoint; its replay socket binds in any case."""
    (source,) = sources(r0={"endpoint": "tcp://0.0.0.0:5557", "replay_endpoint": "tcp://0.0.0.0:5"})
    assert (source.endpoint, source.binds) == ("tcp://0.0.0.0:5557", False)
    assert source.replay_endpoint == "tcp://10.0.0.7:5"


@pytest.mark.parametrize(
    ("version", "endpoint", "expected"),
    [
        ("0.31.0", "tcp://10.0.0.7:41234", True),
        ("0.33.1.dev5+gabc", "tcp://[fd00:1:2:3:4:5:6:7]:41234", True),
        ("0.30.2", "tcp://10.0.0.7:41234", False),
        ("0.31.0", "tcp://router:5557", False),
        ("0.31.0", "tcp://127.0.0.1:5557", False),
        ("0.31.0", "tcp://*:5557", False),
        ("unknown", "tcp://10.0.0.7:41234", False),
    ],
)
def test_a_resolved_endpoint_is_marked_as_possible(version, endpoint, expected):
    """From 0.31 on a literal address may be a bound tcp://*:0: the caller is told it is unsure."""
    (source,) = sources(version=version, r0={"endpoint": endpoint})
    assert source.may_be_resolved == expected


@pytest.mark.parametrize(
    ("endpoint", "binds"),
    [
        ("tcp://*:5557", True),
        ("tcp://[::]:5557", True),
        ("tcp://[fd00::7]:5557", True),
        ("ipc:///tmp/events", True),
        ("inproc://events", True),
        ("tcp://0.0.0.0:5557", False),
        ("tcp://127.0.0.1:5557", False),
        ("tcp://router:5557", False),
    ],
)
def test_who_binds_follows_vllms_rule(endpoint, binds):
    """The cases of _is_bind_endpoint, its surprises included."""
    assert is_bind_endpoint(endpoint) == binds


def test_ranks_without_events_are_no_sources():
    """Switched off events give no source, and no rank at all gives an empty tuple."""
    assert sources(r0={"enable_kv_cache_events": False}, r1={"publisher": "null"}) == ()
    assert parse_sources(b"{}", "h", "0.31.0") == ()


def test_an_unset_publisher_is_zmq():
    """vLLM publishes with ZMQ where events are on and no publisher is named."""
    assert len(sources(r0={"publisher": None})) == 1


@pytest.mark.parametrize("rank", ["-1", "1024", "01", "1.0", " 1", "x", "", "9" * 5000, "\u0661"])
def test_a_rank_that_is_no_small_integer_is_refused(rank):
    """Only 0..1023 in plain decimal digits names a rank."""
    with pytest.raises(DiscoveryError, match="rank"):
        parse_sources(json.dumps({rank: SOURCE}).encode(), "h", "0.31.0")


@pytest.mark.parametrize(
    "changes",
    [
        {"endpoint": None},
        {"endpoint": 5557},
        {"endpoint": "tcp://*:0"},
        {"endpoint": "tcp://*:70000"},
        {"endpoint": "inproc://events"},
        {"endpoint": "tcp://a b:1"},
        {"endpoint": "tcp://x:1\n"},
        {"endpoint": "ipc://" + "x" * 108},
        {"replay_endpoint": "http://x:1"},
        {"replay_endpoint": ["tcp://x:1"]},
        {"publisher": "kafka"},
        {"topic": None},
        {"topic": "t" * 2000},
        {"buffer_steps": -1},
        {"buffer_steps": 1.5},
        {"buffer_steps": 10**30},
        {"enable_kv_cache_events": "yes"},
    ],
)
def test_a_source_of_wrong_shape_is_refused(changes):
    """Wrong types, ranges and transports raise DiscoveryError, never anything else."""
    with pytest.raises(DiscoveryError):
        sources(r0=changes)


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b"null", b"{", b'{"0": 1}', b"\xff\xfe", b"[" * 10**5, b'{"0":' * 10**5],
)
def test_a_body_that_is_no_table_of_sources_is_refused(body):
    """Whatever the bytes, the error is typed and names the path."""
    with pytest.raises(DiscoveryError, match="/kv_event_sources"):
        parse_sources(body, "h", "0.31.0")


def test_endpoints_move_by_rank():
    """Ports are offset by the rank as vLLM does; rank 0 and port 0 stay."""
    assert offset_endpoint("tcp://*:5557", 0) == "tcp://*:5557"
    assert offset_endpoint("tcp://*:5557", 3) == "tcp://*:5560"
    assert offset_endpoint("tcp://[fd00::7]:5557", 3) == "tcp://[fd00::7]:5560"
    assert offset_endpoint("tcp://*:0", 3) == "tcp://*:0"
    assert offset_endpoint("ipc:///tmp/x", 0) == "ipc:///tmp/x"


@pytest.mark.parametrize("endpoint", ["ipc:///tmp/x", "tcp://*:65535", "nonsense"])
def test_an_endpoint_that_cannot_be_offset_is_refused(endpoint):
    """vLLM refuses ipc with DP, and there is no port above 65535."""
    with pytest.raises(DiscoveryError):
        offset_endpoint(endpoint, 1)


def test_only_any_address_is_substituted():
    """Names, addresses and paths are returned as they are."""
    for endpoint in ("tcp://router:1", "tcp://127.0.0.1:1", "tcp://0.0.0.0:1", "ipc:///tmp/x"):
        assert substitute_host(endpoint, "h") == endpoint
    assert substitute_host("tcp://*:1", "h") == "tcp://h:1"


def test_port_zero_is_only_for_those_who_choose():
    """Port 0 can be listened on, and never connected to."""
    assert parse_endpoint("tcp://*:0", zero_port=True) == ("*", 0)
    with pytest.raises(DiscoveryError):
        parse_endpoint("tcp://h:0")


@pytest.mark.parametrize("url", ["", "10.0.0.7:8000", "http://", "http://[::1"])
def test_a_url_without_host_is_refused(url):
    """The host is what stands in for "*", so there must be one."""
    with pytest.raises(DiscoveryError, match="no host"):
        host_of(url)


def test_versions_are_compared_by_number():
    """0.9 is older than 0.31, and suffixes do not matter."""
    assert parse_version(b'{"version": "0.33.0"}') == "0.33.0"
    assert is_at_least("0.31.0rc1", (0, 31))
    assert is_at_least("v1.0", (0, 31))
    assert not is_at_least("0.9.2", (0, 31))
    assert not is_at_least("main", (0, 31))


def test_models_are_bases_and_adapters():
    """An entry with a parent is a LoRA with the path in root; without a path it is left out."""
    body = {
        "object": "list",
        "data": [
            {"id": "base", "root": "/models/base", "parent": None, "max_model_len": 4096},
            {"id": "alias", "root": "/models/base", "parent": None},
            {"id": "sql", "root": "/loras/sql", "parent": "base"},
            {"id": "lost", "root": None, "parent": "base"},
        ],
    }
    assert parse_models(json.dumps(body).encode()) == (("base", "alias"), {"sql": "/loras/sql"})


@pytest.mark.parametrize(
    "body",
    [
        b"{}",
        b'{"data": []}',
        b'{"data": [{}]}',
        b'{"data": [{"id": 7}]}',
        b'{"data": [{"id": "x", "parent": "y", "root": "z"}]}',
        json.dumps({"data": [{"id": "x"}] * 10_001}).encode(),
    ],
)
def test_a_body_that_lists_no_model_is_refused(body):
    """Without a base model there is nothing to route to."""
    with pytest.raises(DiscoveryError, match="/v1/models"):
        parse_models(body)


def cache_sample(**labels: str) -> MetricSample:
    return MetricSample("vllm:cache_config_info", labels, 1.0)


def test_cache_facts_are_read_from_string_labels():
    """Numbers and booleans come as strings; every rank repeats them."""
    labels = {
        "num_gpu_blocks": "1024",
        "block_size": "16",
        "prefix_caching_hash_algo": "sha256",
        "enable_prefix_caching": "True",
    }
    samples = [cache_sample(engine="0", **labels), cache_sample(engine="1", **labels)]
    assert parse_cache(samples) == CacheFacts(1024, 16, "sha256", True)


@pytest.mark.parametrize("value", ["None", "", "-1", "0", "1e3", "16.0", "9" * 400, "\u0661"])
def test_a_number_that_is_none_is_unknown(value):
    """What cannot be a number of blocks is unknown, not an error."""
    facts = parse_cache([cache_sample(num_gpu_blocks=value, enable_prefix_caching="None")])
    assert facts == CacheFacts()


def test_contradicting_ranks_leave_the_fact_unknown():
    """Two numbers for one engine: neither bounds anything."""
    facts = parse_cache([cache_sample(num_gpu_blocks="10"), cache_sample(num_gpu_blocks="20")])
    assert facts.blocks_total is None
    assert parse_cache([]) == CacheFacts()


def test_the_sleep_state_is_the_one_that_is_set():
    """Of an engine's gauges the one with value 1 names its state."""

    def state(engine: str, name: str, value: float) -> MetricSample:
        labels = {"engine": engine, "sleep_state": name}
        return MetricSample("vllm:engine_sleep_state", labels, value)

    samples = [
        state("0", "awake", 1.0),
        state("0", "discard_all", 0.0),
        state("1", "awake", 0.0),
        state("1", "discard_all", 1.0),
        state("-1", "awake", 1.0),
        state("4096", "awake", 1.0),
        MetricSample("vllm:engine_sleep_state", {}, 1.0),
    ]
    assert parse_sleep_states(samples) == {0: "awake", 1: "discard_all"}
