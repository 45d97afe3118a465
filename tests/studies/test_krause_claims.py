"""The ledger of the Krause study on a store where every verdict is known."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from data.store import open_store
from precompute.studies.krause_attention import STUDY
from precompute.study import ClaimResult, Verdict
from tests.app.krause_store import fill

EXPECTED = {
    "sink-beyond-window": Verdict.reproduced,  # 0.20 against 0.75, three seeds
    "score-alone": Verdict.reproduced,
    "narrow-window": Verdict.by_construction,  # 16/64 < 0.3
    "language-model-sinks": Verdict.untestable,  # softmax has no sink there
    "language-model-loss": Verdict.reproduced,  # the same loss
    "vision-accuracy": Verdict.reproduced,  # 0.87 against 0.85
    "distance-adds": Verdict.not_reproduced,  # the same accuracy as the same support
    "fewer-pairs": Verdict.by_construction,
    "bits-per-dimension": Verdict.not_reproduced,  # 1.01 nats against 1.00
    "generation-speed": Verdict.reproduced,  # 2 s against 4 s
    "linear-scaling": Verdict.reproduced,  # 1.02 against 2
    "particles-cluster": Verdict.reproduced,
    "truncation-not-distance": Verdict.by_construction,
    "adapted-first-token": Verdict.by_construction,  # the standard branch keeps its sink
    "adapted-perplexity": Verdict.reproduced,  # the same as the control
}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, ClaimResult]]:
    folder = tmp_path_factory.mktemp("krause")
    fill(folder / "traces.duckdb", folder / "staging")
    with open_store(folder / "traces.duckdb") as store:
        yield {claim.slug: claim.measure(store) for claim in STUDY.claims}


def test_every_claim_has_its_verdict(results: dict[str, ClaimResult]) -> None:
    assert {slug: result.verdict for slug, result in results.items()} == EXPECTED


def test_a_paired_difference_has_students_interval(results: dict[str, ClaimResult]) -> None:
    """Krause and its control wobble together, so the difference is -0.55 for every seed."""
    result = results["sink-beyond-window"]
    assert result.value == pytest.approx(-0.55, abs=1e-6)
    assert result.interval == pytest.approx((-0.55, -0.55), abs=1e-5)
    assert len(result.runs) == 6 and "over 3 paired seeds" in result.detail


def test_bits_are_nats_over_ln_two(results: dict[str, ClaimResult]) -> None:
    """0.00, 0.01, 0.02 nats: mean 0.01 / ln 2, interval ± 4.3027 * 0.01 / sqrt(3) / ln 2."""
    result = results["bits-per-dimension"]
    assert result.value == pytest.approx(0.01 / 0.693147, abs=1e-5)
    assert result.interval == pytest.approx(
        ((0.01 - 0.024841) / 0.693147, (0.01 + 0.024841) / 0.693147), abs=1e-4
    )


def test_the_slope_is_that_of_the_timings(results: dict[str, ClaimResult]) -> None:
    assert results["linear-scaling"].value == pytest.approx(1.02, abs=1e-6)
    assert "of dense attention to 2.00" in results["linear-scaling"].detail


def test_what_the_gate_explains_is_said(results: dict[str, ClaimResult]) -> None:
    assert "which is the whole effect" in results["adapted-first-token"].detail
    assert results["adapted-first-token"].value == pytest.approx(0.49 / 0.6, abs=1e-6)


def test_an_empty_store_makes_every_claim_untestable(tmp_path: Path) -> None:
    from data.publish import publish
    from data.records import krause_attention as tables
    from tests.app.krause_store import particle_run

    publish(tmp_path / "t.duckdb", [particle_run(tmp_path / "s", "topk", 10.0, 12, None)], tables.TABLES)
    with open_store(tmp_path / "t.duckdb") as store:
        for claim in STUDY.claims:
            result = claim.measure(store)
            assert result.verdict is Verdict.untestable and "The store holds no" in result.detail, claim.slug
