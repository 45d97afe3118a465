"""Closed forms with known values, and properties of any attention map."""

from __future__ import annotations

import sys
from subprocess import run

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.attention import metrics
from tests.models import oracle


def uniform_causal(t: int) -> np.ndarray:
    return np.tril(np.ones((t, t))) / np.arange(1, t + 1)[:, None]


def test_uniform_causal_attention_gives_the_first_token_a_harmonic_number() -> None:
    assert metrics.uniform_causal_importance(64) == pytest.approx(0.07412, abs=5e-6)
    importance = metrics.importance(uniform_causal(64), causal=True)
    assert importance[0] == pytest.approx(metrics.uniform_causal_importance(64), abs=1e-12)
    assert importance[63] == pytest.approx(1 / 64, abs=1e-12)
    assert metrics.uniform_causal_importance(1) == 1.0


@pytest.mark.parametrize(
    ("window", "length", "importance", "mass"),
    [(16, 64, 0.25, 15 / 63), (128, 784, 128 / 784, 127 / 783), (64, 64, 1.0, 1.0), (100, 64, 1.0, 1.0)],
)
def test_window_ceilings_are_reached_by_attention_that_looks_as_far_back_as_it_can(
    window: int, length: int, importance: float, mass: float
) -> None:
    assert metrics.window_importance_ceiling(window, length) == pytest.approx(importance)
    assert metrics.window_mass_ceiling(window, length) == pytest.approx(mass)
    greedy = np.zeros((length, length))
    greedy[np.arange(length), np.maximum(0, np.arange(length) - window + 1)] = 1.0
    assert metrics.importance(greedy, causal=True)[0] == pytest.approx(min(window, length) / length)
    assert metrics.first_token_mass(greedy) == pytest.approx(mass)


def test_identity_attention() -> None:
    a = np.eye(64)
    assert metrics.importance(a, True) == pytest.approx(1 / np.arange(64, 0, -1))
    assert metrics.importance(a, False) == pytest.approx(np.full(64, 1 / 64))
    assert metrics.first_token_mass(a) == 0.0
    assert metrics.row_entropy_bits(a) == pytest.approx(np.zeros(64))
    assert metrics.effective_keys(a) == pytest.approx(1.0)
    assert metrics.gini(a.sum(-2)) == pytest.approx(0.0)
    by_distance = metrics.fold(metrics.diagonal_mass(a))
    assert metrics.mean_distance(by_distance) == pytest.approx(0.0)
    assert metrics.distance_mass(by_distance) == pytest.approx([1.0, 0, 0, 0, 0, 0, 0])


def test_everything_on_the_first_token() -> None:
    a = np.zeros((64, 64))
    a[:, 0] = 1.0
    assert metrics.importance(a, True)[0] == 1.0
    assert metrics.first_token_mass(a) == 1.0
    assert metrics.gini(a.sum(-2)) == pytest.approx(1.0)
    assert metrics.top_share(a.sum(-2)) == 1.0
    by_distance = metrics.fold(metrics.diagonal_mass(a))
    assert metrics.mean_distance(by_distance) == pytest.approx(31.5)
    # distances 0..63, each once: bins of 1, 1, 2, 4, 8, 16 and 32 of 64 tokens
    assert metrics.distance_mass(by_distance) == pytest.approx(np.array([1, 1, 2, 4, 8, 16, 32]) / 64)


def test_uniform_rows_have_full_entropy() -> None:
    a = np.full((2, 32, 32), 1 / 32)
    assert metrics.row_entropy_bits(a) == pytest.approx(np.full((2, 32), 5.0))
    assert metrics.effective_keys(a) == pytest.approx([32.0, 32.0])


def test_gini_of_known_masses() -> None:
    assert metrics.gini([5.0, 5.0, 5.0]) == pytest.approx(0.0)
    assert metrics.gini([0.0, 0.0, 7.0]) == pytest.approx(1.0)
    assert metrics.gini([1.0, 3.0]) == pytest.approx(0.5)
    assert metrics.gini([[4.0]]) == pytest.approx([0.0])
    assert metrics.gini([0.0, 0.0]) == 0.0


def test_sink_rate_counts_heads_strictly_above_the_threshold() -> None:
    importances = np.array([[[0.3, 0.0], [0.31, 0.9]], [[0.9, 0.2], [0.1, 0.1]]])  # (samples, heads, T)
    assert metrics.sink_rate(importances, 0.3) == 0.5
    assert metrics.sink_rate(importances, 0.3, position=1) == 0.25
    assert np.isnan(metrics.sink_rate(np.zeros((0, 4)), 0.3))


def test_top_key_needs_eight_queries_and_prefers_the_earlier_of_equals() -> None:
    importance = np.full(12, 0.1)
    importance[[2, 4, 5]] = 0.4, 0.5, 0.9  # key 4 is seen by queries 4..11, which are eight; 5 by seven
    assert metrics.top_key(importance, metrics.seen_by(12, True)) == (4, 0.5)
    assert metrics.top_key(importance, metrics.seen_by(12, False)) == (5, 0.9)
    assert metrics.top_key([0.5, 0.5, 0.5], [3, 3, 3])[0] == 0
    # Nothing is seen by eight in a short causal text: only the first token is seen by all three.
    assert metrics.top_key([0.2, 0.5, 0.9], metrics.seen_by(3, True)) == (0, 0.2)


@pytest.mark.parametrize(("t", "bins"), [(1, 1), (2, 2), (3, 3), (4, 3), (5, 4), (64, 7), (65, 8)])
def test_distance_bins_cover_every_distance_once(t: int, bins: int) -> None:
    ranges = metrics.distance_bins(t)
    assert len(ranges) == bins
    assert sorted(d for lo, hi in ranges for d in range(lo, hi) if d < t) == list(range(t))


def test_one_token() -> None:
    a = np.ones((3, 1, 1))
    assert metrics.importance(a, True).tolist() == [[1.0]] * 3
    assert np.isnan(metrics.first_token_mass(a)).all()
    assert metrics.effective_keys(a).tolist() == [1.0] * 3
    assert metrics.distance_mass(metrics.fold(metrics.diagonal_mass(a))).tolist() == [[1.0]] * 3


@st.composite
def maps(draw: st.DrawFn) -> tuple[np.ndarray, bool]:
    t, causal = draw(st.integers(1, 12)), draw(st.booleans())
    scores = np.random.default_rng(draw(st.integers(0, 2**32 - 1))).normal(size=(t, t)) * draw(
        st.sampled_from([0.0, 1.0, 30.0])
    )
    scores = np.where(np.tril(np.ones((t, t))) > 0, scores, -np.inf) if causal else scores
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True), causal


@settings(max_examples=150, deadline=None)
@given(maps())
def test_any_map_agrees_with_the_oracle_and_stays_in_bounds(case: tuple[np.ndarray, bool]) -> None:
    a, causal = case
    t = len(a)
    expected = {k: v[0, 0, 0] for k, v in oracle.heads(a[None, None, None], causal).items()}
    by_distance = metrics.fold(metrics.diagonal_mass(a))
    mass = a.sum(0)
    ours = {
        "importance": metrics.importance(a, causal),
        "first_token_mass": metrics.first_token_mass(a),
        "row_entropy_bits": metrics.row_entropy_bits(a).mean(),
        "effective_keys": metrics.effective_keys(a),
        "column_gini": metrics.gini(mass),
        "top_key_share": metrics.top_share(mass),
        "mean_distance": metrics.mean_distance(by_distance),
        "distance_mass": metrics.distance_mass(by_distance),
    }
    for name, value in ours.items():
        np.testing.assert_allclose(value, expected[name], atol=1e-9, err_msg=name)
    assert 0 <= ours["importance"].min() <= ours["importance"].max() <= 1 + 1e-12
    assert 0 <= ours["column_gini"] <= 1 + 1e-12
    assert 1 - 1e-9 <= ours["effective_keys"] <= t + 1e-9
    assert 1 / t - 1e-12 <= ours["top_key_share"] <= 1 + 1e-12


def test_the_app_can_import_the_closed_forms_without_torch() -> None:
    code = "import sys, models.attention.metrics, models.attention.tokens; sys.exit('torch' in sys.modules)"
    assert run([sys.executable, "-c", code], check=False).returncode == 0
