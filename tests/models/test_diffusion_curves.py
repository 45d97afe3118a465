"""Entropy curves of partitions: closed forms are met within their bands, and priors count as they should."""

from __future__ import annotations

import math

import numpy as np
import pytest

from models.diffusion import curves, entropy, mixtures

SIGMA = np.geomspace(400, 0.05, 96)


def drawn(mixture: mixtures.Mixture, count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Log-posteriors at re-noised points, the same noise at all levels, and the points' classes."""
    return mixtures.exact_posteriors(mixture, SIGMA, count, np.random.default_rng(seed))


def test_two_gaussians_lie_in_the_band() -> None:
    mixture = mixtures.two_classes(16, 16.0)
    log_p, labels = drawn(mixture, 1_000)
    found = curves.curve(SIGMA, *curves.values(log_p, labels, ((0,), (1,)), mixture.prior))
    exact = entropy.two_gaussians(16 / (1 + SIGMA**2))
    inside = (found.low - 2e-3 <= exact) & (exact <= found.high + 2e-3)
    assert inside.mean() > 0.9  # 95 % of the levels, which move together
    assert (found.low <= found.bits + 1e-12).all() and (found.bits <= found.high + 1e-12).all()
    order = np.argsort(SIGMA)
    truth = entropy.window(np.log(SIGMA[order]), exact[order])
    assert found.window.half == pytest.approx(truth.half, abs=0.06)
    assert found.window.width == pytest.approx(truth.width, abs=0.2)
    assert found.window.area == pytest.approx(1.0, abs=0.01)
    assert found.states == 1_000


def test_the_interval_of_the_half_holds_its_level() -> None:
    """95 % of 60 draws of 300 states hold the exact level; three standard errors are 8.4 points."""
    mixture = mixtures.two_classes(16, 16.0)
    order = np.argsort(SIGMA)
    bits = entropy.two_gaussians(16 / (1 + SIGMA[order] ** 2))
    exact = entropy.window(np.log(SIGMA[order]), bits).half
    held = []
    for seed in range(60):
        log_p, labels = drawn(mixture, 300, seed)
        of_states = curves.values(log_p, labels, ((0,), (1,)), mixture.prior)
        low, high = curves.curve(SIGMA, *of_states, seed=seed).half_interval
        held.append(low < exact < high)
    assert np.mean(held) == pytest.approx(0.95, abs=0.084)


def test_a_forced_prior_weighs_states_and_posteriors() -> None:
    """One class of eight against the rest: at the noisy end a forced prior is undecided, a natural one knows
    h(1/8) = 0.5436 bits."""
    mixture = mixtures.ring(8, 10.0)
    log_p, labels = drawn(mixture, 800)
    one_to_rest = ((0,), tuple(range(1, 8)))
    bits, weights = curves.values(log_p, labels, one_to_rest, mixture.prior)
    assert weights[labels == 0].sum() == pytest.approx(0.5)
    assert (bits @ weights)[0] == pytest.approx(1.0, abs=5e-3)
    bits, weights = curves.values(log_p, labels, one_to_rest, mixture.prior, forced=False)
    np.testing.assert_allclose(weights, 1 / 800)
    natural = -(math.log2(1 / 8) / 8 + math.log2(7 / 8) * 7 / 8)
    assert (bits @ weights)[0] == pytest.approx(natural, abs=5e-3)


def test_only_the_classes_of_the_partition_count() -> None:
    mixture = mixtures.hierarchical(40, 4)
    log_p, labels = drawn(mixture, 400)
    bits, weights = curves.values(log_p, labels, ((2,), (3,)), mixture.prior)
    assert bits.shape == (96, 200) and len(weights) == 200
    with pytest.raises(ValueError, match="group 1 of the partition has no states"):
        curves.values(log_p, np.zeros(400, int), ((0,), (1,)), mixture.prior)


def test_coarse_falls_before_fine() -> None:
    """Groups 40 from the middle, classes 4: the halves lie log 10 = 2.30 apart."""
    mixture = mixtures.hierarchical(40, 4)
    log_p, labels = drawn(mixture, 1_500)
    halves = [
        curves.curve(SIGMA, *curves.values(log_p, labels, p, mixture.prior)).window.half
        for p in (((0, 1), (2, 3)), ((0, 2), (1, 3)))
    ]
    exact = []
    order = np.argsort(SIGMA)
    for size in (40, 4):
        bits = entropy.two_gaussians(size**2 / (1 + SIGMA[order] ** 2))
        exact.append(entropy.window(np.log(SIGMA[order]), bits).half)
    assert halves == pytest.approx(exact, abs=0.06)
    assert exact[0] - exact[1] == pytest.approx(math.log(10), abs=0.05)


def test_cross_entropy_of_true_posteriors_is_the_entropy() -> None:
    mixture = mixtures.two_classes(4, 9.0)
    log_p, labels = drawn(mixture, 4_000)
    partition = ((0,), (1,))
    cross = curves.cross_values(log_p, labels, partition, mixture.prior)
    bits, weights = curves.values(log_p, labels, partition, mixture.prior)
    spread = (cross - bits).std(axis=1) / math.sqrt(4_000)
    assert (np.abs(cross.mean(axis=1) - bits @ weights) <= 4.5 * spread + 1e-9).all()


def test_the_slope_of_a_parabola_is_exact() -> None:
    axis = np.linspace(-2, 2, 41)
    np.testing.assert_allclose(curves.slope(axis, (3 * axis**2 - axis)[None])[0], 6 * axis - 1, atol=1e-10)
    uneven = np.sort(np.append(axis, 0.013))
    np.testing.assert_allclose(curves.slope(uneven, (2 * uneven)[None])[0], 2.0, atol=1e-10)
