"""The table of live fingerprints: bounded, and no count is lost."""

import random

from router.fingerprint_table import FingerprintTable


def test_a_report_has_share_first_seen_and_hit_rate() -> None:
    """Most requests first; requests without reported tokens count, and no token of theirs does."""
    table = FingerprintTable()
    for now_s in (10.0, 20.0, 30.0):
        table.count("a", now_s, 100, 75)
    table.count("b", 40.0)
    report = table.report(50.0)
    assert (report["live"], report["new"], report["requests"]) == (2, 2, 4)
    first, second = report["fingerprints"]
    assert (first["fingerprint"], first["share"], first["hit_rate"]) == ("a", 0.75, 0.75)
    assert (first["first_seen_s"], first["last_seen_s"]) == (10.0, 30.0)
    assert (second["fingerprint"], second["hit_rate"], second["prompt_tokens"]) == ("b", None, 0)


def test_what_was_replaced_is_live_no_longer() -> None:
    """An hour after its last request; its counts stay."""
    table = FingerprintTable()
    table.count("old", 0.0)
    table.count("new", 3000.0)
    table.count(None, 3000.0)
    assert table.live(3000.0) == 2 and table.live(3700.0) == 1 and table.live(9000.0) == 0
    assert [row["live"] for row in table.report(3700.0)["fingerprints"]].count(True) == 2
    assert table.rows()["old"].requests == 1


def test_a_clock_in_the_prompt_does_not_push_out_what_is_used() -> None:
    """One-off fingerprints come and go; the steady one stays, and each one-off was new."""
    table = FingerprintTable(rows_max=4)
    for number in range(1_000):
        table.count("steady", number, 10, 10)
        table.count(f"clock{number}", number, 10, 0)
    rows = table.rows()
    assert rows["steady"].requests == 1_000
    assert len(table) == 4 and table.new == 1_001
    assert rows["other"].requests == 1_000 - 3
    assert rows["other"].first_seen_s == 0


def test_what_is_forgotten_is_in_the_sum() -> None:
    """Over all rows requests and tokens only grow, so they can be counters; none is none."""
    rng, table = random.Random(5), FingerprintTable(rows_max=3)
    prompt = cached = 0
    for number in range(500):
        fingerprint = rng.choice([None, *"abcdefgh"])
        prompt, cached = prompt + 7, cached + 3
        table.count(fingerprint, number, 7, 3)
        rows = table.rows().values()
        assert sum(row.requests for row in rows) == number + 1
        assert sum(row.prompt_tokens for row in rows) == prompt
        assert sum(row.cached_tokens for row in rows) == cached
        assert len(table) <= 3 and len(rows) <= 5
    assert table.rows()["none"].requests > 0
