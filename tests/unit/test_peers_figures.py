"""What a run against the peers says: its figures, its tables, and why something was skipped."""

import json

from benchmarks.peers.figures import OURS, Figure, NotMeasured, Skipped, markdown


def test_a_figure_is_the_median_of_its_rounds() -> None:
    """A line has the keys of the other benchmarks and the peer."""
    line = json.loads(Figure.of("cpu", "nginx", "us", [30.0, 10.0, 20.0]).line())
    assert line == {
        "name": "cpu",
        "peer": "nginx",
        "value": 20.0,
        "unit": "us",
        "n": 3,
        "median": 20.0,
        "min": 10.0,
        "max": 30.0,
    }


def test_a_reason_is_one_line_with_the_end_of_what_was_said() -> None:
    """However much a foreign program says, the line with its reason stays readable."""
    said = "was not ready\n\nTraceback\n  File x\nImportError: no lib\n"
    skipped = Skipped.because("relaying", "vllm-router", NotMeasured(said))
    assert skipped.skipped == "Traceback | File x | ImportError: no lib"
    assert json.loads(skipped.line())["peer"] == "vllm-router"


def test_an_error_without_words_is_named_by_its_type() -> None:
    """No reason is empty."""
    assert Skipped.because("query", "dynamo", TimeoutError()).skipped == "TimeoutError"


def test_figures_of_two_peers_are_rows_with_ratios_to_ours() -> None:
    """With at least as many figures as peers, a figure is a row."""
    lines = [
        Figure.of(name, peer, "us", [value])
        for name, peer, value in (
            ("match_a", OURS, 200.0),
            ("match_a", "dynamo", 50.0),
            ("match_b", OURS, 1_234_567.0),
            ("match_b", "dynamo", 2_469_134.0),
        )
    ]
    assert markdown(lines).splitlines() == [
        "| figure | pointsman | dynamo |",
        "| --- | --- | --- |",
        "| match_a (us) | 200 | 50 (0.25 x) |",
        "| match_b (us) | 1.23 M | 2.47 M (2.00 x) |",
    ]


def test_many_peers_are_rows_and_what_was_skipped_follows() -> None:
    """With more peers than figures a peer is a row; ratios are to the first of ours."""
    lines = [
        Figure.of("cpu", f"{OURS} prefix", "us", [400.0]),
        Figure.of("cpu", f"{OURS} round_robin", "us", [300.0]),
        Skipped("relaying", "nginx", "no nginx on the PATH"),
    ]
    assert markdown(lines).splitlines() == [
        "| who | cpu (us) |",
        "| --- | --- |",
        "| pointsman prefix | 400 |",
        "| pointsman round_robin | 300 (0.75 x) |",
        "",
        "- nginx, relaying: skipped, no nginx on the PATH",
    ]


def test_peers_without_ours_have_no_ratios() -> None:
    """Where ours was skipped, the others are still in a table."""
    assert "| 50 |" in markdown([Figure.of("match", "dynamo", "us", [50.0])])
