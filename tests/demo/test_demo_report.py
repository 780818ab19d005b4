import io
from collections import Counter
from pathlib import Path

from benchmarks.demo_fleet import (
    DemoSettings,
    ServeLog,
    ServeUrls,
    router_config,
    sim_arguments,
    sim_url,
)
from benchmarks.demo_report import (
    PolicyRun,
    Progress,
    Record,
    Restart,
    best_hit_rate,
    prediction_counts,
    restart_lines,
    table,
)
from indexer.config import parse_config
from router.config import parse_router_config

RECORDS = [Record("a", 100, 0, 5, 0.1), Record("a", 200, 160, 5, 0.2), Record("b", 100, 40, 5, 0.3)]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_table_shows_each_policy():
    """Every policy has its hit rate, both percentiles and its exact predictions, in columns."""
    runs = [
        PolicyRun("round_robin", RECORDS, ["a: broke"]),
        PolicyRun("prefix", RECORDS[1:], [], Counter(exact=3, over=1)),
    ]
    assert table(runs, 0.75).splitlines() == [
        "policy         requests       token hit rate  TTFT p50  TTFT p90  exact predictions",
        "-------------  -------------  --------------  --------  --------  -----------------",
        "round_robin    3 (+1 failed)  50.0%           200 ms    300 ms    none made",
        "prefix         2              66.7%           300 ms    300 ms    3 of 4 (75.0%)",
        "endless cache                 75.0%",
    ]


def test_empty_run_has_a_row():
    """A policy that answered nothing is shown, not divided by."""
    assert "0.0%" in table([PolicyRun("prefix")], 0.0)


def test_best_hit_rate_counts_the_shared_tokens_once():
    """An endless cache computes what all prompts share one time only."""
    records = [Record("a", 100, 0, 10, 0.1), Record("b", 100, 0, 10, 0.1)]
    assert best_hit_rate(records, 40, 16) == 32 / 200


def test_a_restart_is_shown_with_what_was_possible_before_and_after() -> None:
    """What an endless cache would have had after it includes what was asked before."""
    run = PolicyRun("prefix", RECORDS)
    assert restart_lines(run, 40, 16) == []
    run.restart = Restart(1, {"replica-1": 1200, "replica-2": 34}, 2.04, 0.31)
    assert restart_lines(run, 40, 16) == [
        "prefix, killed half way  before kill -9  after the restart",
        "-----------------------  --------------  -----------------",
        "token hit rate           0.0%            66.7%",
        "endless cache            0.0%            42.7%",
        "the index came back: 1,234 blocks of 2 replicas loaded, exact again 0.3 s after it"
        " listened (it was down for 2.0 s)",
    ]
    run.restart = Restart(1, {}, 2.0, None)
    assert "0 blocks of 0 replicas loaded, not exact in time" in restart_lines(run, 40, 16)[-1]


def test_predictions_are_summed_over_replicas():
    """Counters of one outcome add up, whatever the order of their labels; others are left out."""
    text = (
        "# TYPE pointsman_predictions_total counter\n"
        'pointsman_predictions_total{outcome="exact",replica="a"} 3.0\n'
        'pointsman_predictions_total{replica="b",outcome="exact"} 4.0\n'
        'pointsman_predictions_total{outcome="over",replica="b"} 1.0\n'
        'pointsman_predictions_created{outcome="over",replica="b"} 1.7e9\n'
        'pointsman_requests_total{outcome="ok",status="200"} 9.0\n'
    )
    assert prediction_counts(text) == {"exact": 7, "over": 1}


def test_progress_is_one_line_on_a_terminal():
    """On a terminal each update takes the place of the one before; what stays ends its line."""
    out = Terminal()
    progress = Progress(out)
    progress.update("one")
    progress.update("two", 0.5)
    progress.line("done")
    assert out.getvalue() == "\r\x1b[Kone\r\x1b[Ktwo\r\x1b[Kdone\n"


def test_progress_is_now_and_then_a_line_elsewhere():
    """Elsewhere an update is a line each quarter, and at the beginning of something new."""
    out = io.StringIO()
    progress = Progress(out)
    for _ in range(2):
        progress.update("start")
        for step in range(1, 101):
            progress.update(f"{step} %", step / 100)
    assert out.getvalue().split("\n")[:5] == ["start", "25 %", "50 %", "75 %", "100 %"]
    assert len(out.getvalue().splitlines()) == 10


def test_configuration_is_what_both_services_read():
    """The generated file is valid for the router and for the indexer."""
    urls = ["http://127.0.0.1:8001", "http://127.0.0.1:8002"]
    text = router_config("prefix", urls, Path('/tmp/"d"')).encode()
    assert [engine.url for engine in parse_router_config(text).engines] == [
        "http://127.0.0.1:8001",
        "http://127.0.0.1:8002",
    ]
    config = parse_config(text)
    assert len(config.replicas) == 2 and config.redis.folder == '/tmp/"d"'


def test_ready_lines_are_recognised():
    """Only the lines that say where something listens are taken for that."""
    assert sim_url('{"url": "http://127.0.0.1:5"}') == "http://127.0.0.1:5"
    log = ServeLog()
    for other in ("", "[1]", "Traceback", '{"event": "indexer_stopped"}'):
        assert sim_url(other) is None and log.urls(other) is None
    assert log.urls('{"event": "indexer_started", "listen": ["127.0.0.1", 8]}') is None
    line = '{"event": "router_started", "listen": ["127.0.0.1", 7], "policy": "prefix"}'
    assert log.urls(line) == ServeUrls("http://127.0.0.1:7", "http://127.0.0.1:8")
    log.urls('{"event": "replica_restored", "replica": "a", "blocks": 5, "seq": 1}')
    assert log.loaded_blocks == {"a": 5}
    assert sim_arguments(DemoSettings(blocks=77))[0] == "sim"
