"""Mixtures, samplers and estimators: exact posteriors are met by what knows only denoisers."""

from __future__ import annotations

import math

import numpy as np
import pytest

from models.diffusion import curves, entropy, estimators, mixtures, samplers
from models.diffusion.mixtures import Mixture
from models.diffusion.samplers import Guidance, karras_grid

LEVELS = np.exp(np.linspace(math.log(0.05), math.log(60), 60))


def mean_entropy(log_posterior: np.ndarray) -> np.ndarray:
    return entropy.entropy_bits(log_posterior).mean(axis=-1)


def test_a_mixture_of_two_has_the_closed_form() -> None:
    """20,000 states in 16 dimensions against H(lambda) at every level, within 5 standard errors."""
    mixture = mixtures.two_classes(16, 16.0)
    posteriors, _ = mixtures.exact_posteriors(mixture, LEVELS, 20_000, np.random.default_rng(0))
    values = entropy.entropy_bits(posteriors)
    exact = entropy.two_gaussians(16 / (1 + LEVELS**2))
    error = values.std(axis=1) / math.sqrt(20_000)
    assert (np.abs(values.mean(axis=1) - exact) <= 5 * error + 1e-12).all()


def test_posteriors_and_denoisers_by_hand() -> None:
    """m = +-2, s = 0.5, at x = 1 with ratio 1: variance 1.25, log-odds 2 m x / v = 3.2."""
    mixture = Mixture(np.array([[2.0], [-2.0]]), 0.5, np.array([0.5, 0.5]))
    log_p = mixture.log_posterior(np.array([[1.0]]), 1.0)
    assert log_p[0, 0] - log_p[0, 1] == pytest.approx(3.2, abs=1e-12)
    every = mixture.denoise(np.array([[1.0]]), 1.0)[0, :, 0]
    p = 1 / (1 + math.exp(-3.2))
    np.testing.assert_allclose(every[:2], [2 + 0.2 * (1 - 2), -2 + 0.2 * (1 + 2)], atol=1e-12)
    assert every[2] == pytest.approx(p * every[0] + (1 - p) * every[1], abs=1e-12)


def test_information_is_the_distance_between_the_denoisers() -> None:
    """The two forms of I-MMSE agree within Monte Carlo error, and with the slope of the closed form."""
    mixture, sigma = mixtures.two_classes(4, 4.0), 1.5
    rng = np.random.default_rng(1)
    clean, labels = mixture.sample(200_000, rng)
    every = mixture.denoise(clean + sigma * rng.normal(size=clean.shape), sigma)
    apart = estimators.immse_rate(every, labels, sigma)
    errors = estimators.error_rate(every, labels, clean, sigma)
    spread = (errors - apart).std() / math.sqrt(len(clean))
    assert abs(errors.mean() - apart.mean()) < 4 * spread
    lam = 4 / (1 + sigma**2)  # dlambda/dlog gamma = lambda sigma^2 / (1 + sigma^2)
    exact = -float(entropy.two_gaussians_slope(lam)) / entropy.LN2 * lam * sigma**2 / (1 + sigma**2)
    assert apart.mean() == pytest.approx(exact, rel=0.01)


@pytest.mark.parametrize(
    "mixture", [mixtures.two_classes(8, 30.0), mixtures.ring(6, 8.0), mixtures.hierarchical(12, 3)]
)
def test_the_area_is_the_entropy_of_the_classes(mixture: Mixture) -> None:
    """Within 1 % of H(Z)."""
    rng = np.random.default_rng(2)
    clean, labels = mixture.sample(60_000, rng)
    noise = rng.normal(size=clean.shape)
    levels = np.exp(np.linspace(math.log(400), math.log(0.05), 90))
    rates = [estimators.immse_rate(mixture.denoise(clean + s * noise, s), labels, s).mean() for s in levels]
    left = mean_entropy(mixtures.exact_posteriors(mixture, [levels[-1]], 8_000, rng)[0])[0]
    total = math.log2(mixture.classes)
    assert estimators.area(levels, rates) == pytest.approx(total - left, rel=0.01)
    curve = estimators.remaining(levels, rates, total)
    exact = mean_entropy(mixtures.exact_posteriors(mixture, levels, 8_000, rng)[0])
    assert np.abs(curve - exact).max() < 0.02


def path(steps: int, count: int = 4_000) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Levels, |p_path - p_exact|, entropies of both, of m = +-2, s = 0.5 from 80 to 0.002."""
    mixture = Mixture(np.array([[2.0], [-2.0]]), 0.5, np.array([0.5, 0.5]))
    grid, rng = karras_grid(steps), np.random.default_rng(3)
    labels = mixtures.stratified(mixture.prior, count, rng)
    start = 80.0 * rng.normal(size=(count, 1))
    levels, apart, found, exact = [], [], [], []
    for step in estimators.path_posteriors(mixture.denoise, start, labels, grid, mixture.prior, rng):
        truth = mixture.log_posterior(step.x, step.sigma)
        levels.append(step.sigma)
        apart.append(np.abs(np.exp(step.log_posterior) - np.exp(truth))[:, 0].mean())
        found.append(entropy.entropy_bits(step.log_posterior).mean())
        exact.append(entropy.entropy_bits(truth).mean())
    return np.array(levels), np.array(apart), np.array(found), np.array(exact)


def test_bayes_along_a_path_is_within_0_015_of_the_exact_posterior() -> None:
    levels, apart, found, exact = path(64)
    assert (apart < 0.015).all()
    assert (np.abs(found - exact) < 0.015).all()
    for sigma, error in ((10, 0.0096), (4, 0.0078), (2, 0.0048), (1, 0.0025), (0.5, 0.0006)):
        at = int(np.abs(levels - sigma).argmin())
        assert apart[at] == pytest.approx(error, abs=0.003)


def test_a_finer_path_is_nearer() -> None:
    """At sigma = 1 the error falls from 0.0025 with 64 levels to 0.0012 with 512."""
    errors = []
    for steps in (64, 512):
        levels, apart, _, _ = path(steps)
        errors.append(apart[int(np.abs(levels - 1).argmin())])
    assert errors == [pytest.approx(0.0025, abs=8e-4), pytest.approx(0.0012, abs=5e-4)]


def test_every_path_ends_where_its_posterior_says() -> None:
    mixture = Mixture(np.array([[2.0], [-2.0]]), 0.5, np.array([0.5, 0.5]))
    rng = np.random.default_rng(4)
    labels = np.repeat([0, 1], 500)
    *_, last = estimators.path_posteriors(
        mixture.denoise, 80 * rng.normal(size=(1_000, 1)), labels, karras_grid(64), mixture.prior, rng
    )
    assert (last.log_posterior.argmax(axis=1) == (last.x[:, 0] < 0)).all()


def test_two_scales_decide_one_after_the_other() -> None:
    """Groups at log M, classes within at log m: two windows, both as wide as that of two Gaussians.

    Per log sigma the peak of two classes lies at 0.814 |m| (1.50833^-1/2).
    """
    coarse, fine = 200.0, 8.0
    mixture = mixtures.hierarchical(coarse, fine)
    levels = np.exp(np.linspace(math.log(0.5), math.log(2_000), 300))
    posteriors, _ = mixtures.exact_posteriors(mixture, levels, 6_000, np.random.default_rng(5))
    axis = np.log(levels)
    groups = mean_entropy(entropy.regroup(posteriors, ((0, 1), (2, 3))))
    within = mean_entropy(entropy.regroup(posteriors, ((0, 2), (1, 3))))
    for curve, size in ((groups, coarse), (within, fine)):
        lam = size**2 / (1 + levels**2)
        expected = entropy.window(axis, entropy.two_gaussians(lam))
        found = entropy.window(axis, curve)
        assert found.half == pytest.approx(expected.half, abs=0.03)
        assert expected.half == pytest.approx(math.log(size), abs=0.06)
    whole = mean_entropy(posteriors)
    np.testing.assert_allclose(whole, groups + within, atol=0.02)  # independent axes: entropies add


def test_opposite_classes_part_before_neighbours() -> None:
    mixture = mixtures.ring(8, 20.0)
    posteriors, labels = mixtures.exact_posteriors(mixture, LEVELS, 32_000, np.random.default_rng(6))
    for other, half in ((4, 20.0), (1, 20.0 * math.sin(math.pi / 8))):  # of the distance of the means
        of_states, weights = curves.values(posteriors, labels, ((0,), (other,)), mixture.prior)
        exact = entropy.two_gaussians(half**2 / (1 + LEVELS**2))  # a pair alone is two Gaussians
        error = of_states.std(axis=1) / math.sqrt(8_000)
        assert (np.abs(of_states @ weights - exact) <= 5 * error + 1e-4).all()


def cross_entropy(
    weight: float, low: float = 0.0, high: float = math.inf, squared: float = 9.0
) -> tuple[np.ndarray, float]:
    """-E log2 p(z|x) along guided paths, by level, and the share that ends nearest to its own class."""
    mixture = mixtures.two_classes(4, squared)
    rng = np.random.default_rng(7)
    grid = karras_grid(256, 0.02, 80)
    labels = np.repeat([0, 1], 1_500)
    start = 80 * rng.normal(size=(3_000, 4))
    cross = []
    rule = Guidance(weight, low, high)
    for step in samplers.ancestral(mixture.denoise, start, labels, grid, rng, rule):
        truth = mixture.log_posterior(step.next, step.after)
        cross.append(-truth[np.arange(3_000), labels].mean() / entropy.LN2)
    final = mixture.log_posterior(step.next, step.after).argmax(axis=1)
    return np.array(cross), float((final == labels).mean())


def test_guidance_commits_earlier() -> None:
    """The level at which half a bit of -E log2 p(z|x) is left grows with the weight."""
    levels = karras_grid(256, 0.02, 80)[1:]
    halves = [float(np.log(levels[np.flatnonzero(cross_entropy(w)[0] < 0.5)[0]])) for w in (1, 1.5, 2, 4)]
    assert (np.diff(halves) > 0).all()
    assert halves[-1] > halves[0] + 0.3


def test_an_interval_acts_inside_the_window_and_less_outside() -> None:
    """|m| = 1.5: classes overlap, and the window reaches from 0.6 to 5. Accuracy without guidance is that
    of the data."""
    plain = cross_entropy(1.0, squared=2.25)[1]
    inside = cross_entropy(4.0, 0.6, 5.0, squared=2.25)[1]
    before = cross_entropy(4.0, 20.0, 80.0, squared=2.25)[1]
    after = cross_entropy(4.0, 0.02, 0.2, squared=2.25)[1]
    assert inside - plain > 3 * max(abs(before - plain), abs(after - plain))
    assert plain == pytest.approx(1 - float(entropy.bayes_error(2.25)), abs=0.012)


def test_weight_one_is_conditional_and_zero_is_plain() -> None:
    every = np.random.default_rng(0).normal(size=(5, 4, 3))
    labels = np.array([0, 1, 2, 0, 1])
    np.testing.assert_array_equal(samplers.guided(every, labels, 1.0), every[np.arange(5), labels])
    np.testing.assert_allclose(samplers.guided(every, labels, 0.0), every[:, -1])
    np.testing.assert_array_equal(samplers.guided(every, None, 3.0), every[:, -1])
    rule = Guidance(2.0, 1.0, 5.0)
    assert [rule.at(s) for s in (0.9, 1.0, 5.0, 5.1)] == [1.0, 2.0, 2.0, 1.0]


def test_heun_reaches_the_data() -> None:
    """Deterministic samples of a Gaussian have its mean and spread; the method is of second order."""
    mixture = Mixture(np.array([[1.5]]), 0.5, np.array([1.0]))
    start = 80 * np.random.default_rng(8).normal(size=(4_000, 1))
    exact = 1.5 + 0.5 / math.hypot(0.5, 80) * (start - 1.5)
    errors = []
    for steps in (16, 32, 64):
        *_, last = samplers.heun(mixture.denoise, start, np.zeros(4_000, int), karras_grid(steps))
        errors.append(np.abs(last.next - exact).max())
    assert last.after == 0.0
    assert errors[2] < 0.01
    assert 3 < errors[0] / errors[1] < 6 and 3 < errors[1] / errors[2] < 6


def test_a_pair_cancels_the_errors_of_its_networks() -> None:
    """Two copies of the exact denoiser with noise of their own: the plain form counts it as information."""
    mixture = mixtures.two_classes(16, 16.0)
    rng = np.random.default_rng(9)
    clean, labels = mixture.sample(40_000, rng)
    levels = np.exp(np.linspace(math.log(80), math.log(0.1), 60))
    plain, pair, exact = [], [], []
    for sigma in levels:
        every = mixture.denoise(clean[:4_000] + sigma * rng.normal(size=(4_000, 16)), sigma)
        one, other = (every + 0.05 * rng.normal(size=every.shape) for _ in range(2))
        exact.append(estimators.immse_rate(every, labels[:4_000], sigma).mean())
        plain.append(estimators.immse_rate(one, labels[:4_000], sigma).mean())
        pair.append(estimators.pair_rate(one, other, labels[:4_000], sigma).mean())
    assert estimators.area(levels, exact) == pytest.approx(1.0, abs=0.03)
    # 16 axes x 2 x 0.05^2 / (2 sigma^2 ln 2), integrated over log-SNR: (1/0.1^2 - 1/80^2) of it.
    error = 16 * 2 * 0.05**2 / (2 * entropy.LN2) * (100 - 1 / 6_400)
    assert estimators.area(levels, plain) == pytest.approx(1.0 + error, rel=0.03)
    assert estimators.area(levels, pair) == pytest.approx(1.0, abs=0.15)
    assert estimators.remaining(levels, plain, 1.0)[-1] == 0.0


def test_calibration_of_the_exact_posterior_is_perfect() -> None:
    exact = np.log([[0.8, 0.2], [0.4, 0.6]])
    assert estimators.calibration(exact, exact) == (0.0, 0.0)
    found = np.log([[0.9, 0.1], [0.4, 0.6]])
    assert estimators.calibration(found, exact) == pytest.approx((0.05, 0.05))


def test_posteriors_that_do_not_sum_to_one_are_mended_and_counted() -> None:
    log_p, off = estimators.renormalised([[0.2, 0.2], [0.5, 0.5], [3.0, 0.0]])
    np.testing.assert_allclose(np.exp(log_p), [[0.5, 0.5], [0.5, 0.5], [1.0, 0.0]])
    assert off == 2
    for bad in ([[np.nan, 1.0]], [[-0.1, 1.1]], [[0.0, 0.0]]):
        with pytest.raises(ValueError, match="leave these states out"):
            estimators.renormalised(bad)


@pytest.mark.parametrize(
    ("grid", "says"),
    [
        ([1.0, 2.0, 3.0], "fall strictly"),
        ([3.0, 2.0, 2.0], "fall strictly"),
        ([3.0, 1.0, 0.0], "end the grid one step before"),
        ([3.0, 1.0, -1.0], "end the grid one step before"),
        ([3.0], "at least two"),
        ([3.0, np.nan], "at least two"),
    ],
)
def test_grids_that_are_none(grid: list[float], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        samplers.checked_grid(grid)


def test_estimates_that_are_no_number_name_their_level() -> None:
    def broken(x: np.ndarray, sigma: float) -> np.ndarray:
        return np.full((len(x), 3, x.shape[1]), np.nan if sigma < 5 else 0.0)

    with pytest.raises(ValueError, match=r"NaN or infinite estimates at sigma = 2"):
        list(
            estimators.path_posteriors(
                broken, np.zeros((4, 2)), None, [20.0, 2.0, 1.0], [0.5, 0.5], np.random.default_rng(0)
            )
        )


@pytest.mark.parametrize(
    ("means", "scale", "prior", "says"),
    [
        (np.zeros(3), 1.0, np.full(3, 1 / 3), r"means \(K, D\)"),
        (np.zeros((2, 2)), 1.0, np.array([0.5, 0.6]), "sums to one"),
        (np.zeros((2, 2)), -1.0, np.array([0.5, 0.5]), "not negative"),
    ],
)
def test_mixtures_that_are_none(means: np.ndarray, scale: float, prior: np.ndarray, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Mixture(means, scale, prior)


def test_classes_are_drawn_as_the_prior_says() -> None:
    prior = np.array([0.5, 0.3, 0.2])
    for seed in range(20):
        counts = np.bincount(mixtures.stratified(prior, 101, np.random.default_rng(seed)), minlength=3)
        assert counts.sum() == 101
        assert (np.abs(counts - 101 * prior) <= 1).all()
