"""The runner of the benchmarks: what it finds, what it reads, what it writes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.benchmarks import krause_scaling, run_all
from tests.benchmarks.harness import environment, percentile, summary


def test_every_benchmark_module_is_found_and_can_be_run() -> None:
    names = run_all.benchmarks()
    assert {"home_load", "visits", "krause_scaling"} <= set(names)
    for name in names:
        source = (run_all.FOLDER / f"{name}.py").read_text()
        assert '__name__ == "__main__"' in source, f"{name} is no command; a helper's name starts with _"


def test_the_last_object_counts() -> None:
    text = 'loading {"not": "this"}\n{"first": 1}\nnoise\n{\n "ours": {"p50": 1.5},\n "holds": true\n}\n'
    assert run_all.last_object(text) == {"ours": {"p50": 1.5}, "holds": True}
    assert run_all.last_object("Traceback\n  boom\n") is None


def test_the_table_says_what_holds_what_does_not_and_what_failed() -> None:
    common = {"seconds": 3.2, "measured": "2026-01-02"}
    text = run_all.table(
        [
            {
                "benchmark": "a",
                "what": "x | y",
                "ours": {"p95": 0.51234567},
                "floor": 0.4,
                "ratio": 1.28,
                "goal": "<= 1 s",
                "holds": True,
                "environment": {"cores": 2},
                **common,
            },
            {
                "benchmark": "b",
                "ours": 2,
                "peer": 1,
                "ratio": 2.0,
                "goal": "<= 1.3",
                "holds": False,
                **common,
            },
            {"benchmark": "c", "error": "exit code 1: no browser", **common},
        ]
    )
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    assert "| x \\| y | p95 0.5123 | 0.4 | 1.28 | <= 1 s | yes |" in rows[1]
    assert "`python -m tests.benchmarks.a --json` (3.2 s, 2026-01-02)" in rows[1]
    assert "| 2 | 1 | 2 | <= 1.3 | **no** |" in rows[2]
    assert "exit code 1: no browser" in rows[3]
    assert "**no result**" in rows[3]
    assert "- a: cores 2" in text


def test_an_unknown_name_lists_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_all.main(["nonsense"]) == 2
    assert "home_load" in capsys.readouterr().err


def test_the_slope_is_that_of_a_power_law_and_leaves_short_sequences_out() -> None:
    lengths = (256, 512, 1_024, 2_048, 4_096)
    values = [9.0, 9.0, *(3e-6 * n**1.4 for n in lengths[2:])]
    assert krause_scaling.slope(lengths, values) == pytest.approx(1.4, abs=1e-12)


def test_the_goals_hold_by_slope_and_by_every_ratio_to_the_peer() -> None:
    lengths = krause_scaling.LENGTHS

    def verdict(exponent: float, share: float) -> dict[str, Any]:
        """All operators follow power laws; ours take `share` of the peer's time at 8,192 tokens."""
        times = dict.fromkeys(krause_scaling.OPERATORS, (1.0, 2.0))
        times |= dict.fromkeys(krause_scaling.AHEAD_FROM, (share, exponent))
        curves = {
            name: {n: (scale * (n / 8_192) ** power, 100 * n) for n in lengths}
            for name, (scale, power) in times.items()
        }
        return krause_scaling.verdict(dict.fromkeys(krause_scaling.DIRECTIONS, curves))

    good = verdict(1.0, 0.25)
    assert good["holds"] and good["ours"]["slope of time"] == 1.0 and good["ours"]["slope of memory"] == 1.0
    assert good["peer"]["slope of time"] == 2.0
    assert good["ratio"]["gathered, forward, N = 4,096"] == 0.5  # a half of 0.25 against a quarter of 1
    assert good["ratio"]["gathered top-96, forward+backward, N = 8,192"] == 0.25
    assert "gathered top-96, forward, N = 4,096" not in good["ratio"]  # no goal there
    assert not verdict(1.2, 0.25)["holds"]  # too steep
    assert not verdict(1.0, 0.6)["holds"]  # at 4,096 tokens behind the peer


def test_percentiles_are_measured_values() -> None:
    values = [float(n) for n in range(1, 21)]
    assert (percentile(values, 0.95), percentile(values, 0.5), percentile([3.0], 0.95)) == (19.0, 10.0, 3.0)
    assert summary(values) == {"p50": 10.5, "p95": 19.0, "max": 20.0, "n": 20}
    assert json.dumps(environment(chromium="156"))
