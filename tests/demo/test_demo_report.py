import io

from benchmarks.demo_fleet import DemoSettings, router_config, router_url, sim_arguments, sim_url
from benchmarks.demo_report import (
    PolicyRun,
    Progress,
    Record,
    best_hit_rate,
    prediction_counts,
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
        PolicyRun("round_robin", RECORDS, ["a: broke"], {}),
        PolicyRun("prefix", RECORDS[1:], [], {"exact": 3, "over": 1}),
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
    text = router_config("prefix", ["http://127.0.0.1:8001", "http://127.0.0.1:8002"]).encode()
    assert [engine.url for engine in parse_router_config(text).engines] == [
        "http://127.0.0.1:8001",
        "http://127.0.0.1:8002",
    ]
    assert len(parse_config(text).replicas) == 2


def test_ready_lines_are_recognised():
    """Only the lines that say where something listens are taken for that."""
    assert sim_url('{"url": "http://127.0.0.1:5"}') == "http://127.0.0.1:5"
    line = '{"event": "router_started", "listen": ["127.0.0.1", 7], "policy": "prefix"}'
    assert router_url(line) == "http://127.0.0.1:7"
    for other in ("", "[1]", "Traceback", '{"event": "indexer_started"}'):
        assert sim_url(other) is None and router_url(other) is None
    assert sim_arguments(DemoSettings(blocks=77))[0] == "sim"
