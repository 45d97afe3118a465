"""Entropy of a class: closed forms against values known beforehand, axes, partitions, windows."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.optimize import brentq

from models.diffusion import entropy, processes, speciation
from models.diffusion.processes import PROCESSES, per, place

VE, OU = PROCESSES["ve"], PROCESSES["ou"]

# lambda, H in bits, dH/dlambda in nats, Bayes error (adaptive quadrature, checked by finite differences)
TABLE = [
    (0.1, 0.931257, -0.454330, None),
    (0.25, 0.839253, -0.397973, None),
    (0.5, 0.709520, -0.324943, 0.239750),
    (1.0, 0.514056, -0.224800, 0.158655),
    (2.0, 0.278548, -0.115509, 0.078650),
    (3.0, 0.154668, -0.062159, 0.041632),
    (5.0, 0.049647, -0.019231, None),
    (10.0, 0.003244, -0.001206, None),
]


@pytest.mark.parametrize(("strength", "bits", "slope", "error"), TABLE)
def test_two_gaussians(strength: float, bits: float, slope: float, error: float | None) -> None:
    assert entropy.two_gaussians(strength) == pytest.approx(bits, abs=6e-7)
    assert entropy.two_gaussians_slope(strength) == pytest.approx(slope, abs=6e-7)
    if error is not None:
        assert entropy.bayes_error(strength) == pytest.approx(error, abs=6e-7)


def test_the_slope_is_that_of_the_entropy() -> None:
    lam = np.linspace(0.05, 8, 60)
    step = 1e-4
    found = (entropy.two_gaussians(lam + step) - entropy.two_gaussians(lam - step)) / (2 * step)
    np.testing.assert_allclose(found * entropy.LN2, entropy.two_gaussians_slope(lam), atol=1e-8)


def test_the_quadrature_is_exact_to_1e_12() -> None:
    """Against adaptive quadrature with breakpoints, where 201 nodes would be off by 1e-9."""
    from scipy.integrate import quad

    def integrand(xi: float, lam: float) -> float:
        density = math.exp(-xi * xi / 2) / math.sqrt(2 * math.pi)
        return float(entropy.binary_entropy(2 * lam + 2 * math.sqrt(lam) * xi)) * density

    for lam in (0.3, 2.0, 6.5, 11.0, 22.6, 40.0):
        points = [-math.sqrt(lam) + d for d in (-1, 0, 1)]
        exact, _ = quad(integrand, -12, 12, (lam,), points=points, epsabs=1e-14, epsrel=1e-13, limit=400)
        assert entropy.two_gaussians(lam) == pytest.approx(exact, abs=1e-12)


def test_the_slope_at_zero_is_one_half() -> None:
    assert entropy.two_gaussians_slope(0.0) == pytest.approx(-0.5, abs=1e-12)
    lam = 1e-5
    assert (math.log(2) - entropy.two_gaussians(lam) * entropy.LN2) / lam == pytest.approx(0.5, abs=1e-5)


def test_half_of_the_entropy_is_left_at_1_04401() -> None:
    half = brentq(lambda lam: float(entropy.two_gaussians(lam)) - 0.5, 0.5, 2)
    assert half == pytest.approx(1.04401, abs=5e-6)
    assert -0.5 * math.log(half) == pytest.approx(-0.0215, abs=5e-5)  # t - log|m|^2 / 2


def ou_rate(t: np.ndarray, squared: float) -> np.ndarray:
    """|dH/dt| in nats of the OU process: lambda = |m|^2 e^-2t."""
    lam = squared * np.exp(-2 * t)
    return -2 * lam * entropy.two_gaussians_slope(lam)


def test_the_wave_of_the_ou_process() -> None:
    """Peak at lambda 1.50833, height 0.47952 nats; half-heights at -0.740 and +0.571: width 1.311."""
    t = np.linspace(-4, 9, 13_001)
    curve = entropy.two_gaussians(np.exp(-2 * t))
    found = entropy.window(t, curve, ou_rate(t, 1.0) / entropy.LN2)
    assert math.exp(-2 * found.peak) == pytest.approx(1.50833, abs=2e-5)
    assert found.peak == pytest.approx(-0.2055, abs=5e-5)
    assert found.height * entropy.LN2 == pytest.approx(0.47952, abs=5e-6)
    assert found.height == pytest.approx(0.69180, abs=6e-6)
    assert (found.low, found.high) == (pytest.approx(-0.740, abs=5e-4), pytest.approx(0.571, abs=5e-4))
    assert found.width == pytest.approx(1.311, abs=1e-3)
    assert found.half == pytest.approx(-0.0215, abs=5e-5)


def test_the_area_is_the_entropy_that_was_there() -> None:
    """The integral of |dH/dt| over all t is ln 2."""
    t = np.linspace(-12, 24, 20_001)
    assert np.trapezoid(ou_rate(t, 1.0), t) == pytest.approx(math.log(2), abs=1e-10)


@pytest.mark.parametrize("dimension", [16, 128, 1_024])
def test_the_wave_moves_with_the_dimension_and_keeps_its_shape(dimension: int) -> None:
    """|H_d(t) - H_1(t - log(d) / 2)| < 1e-12 for |m|^2 = d."""
    t = np.linspace(-3, 3, 101)
    moved = entropy.two_gaussians(dimension * np.exp(-2 * (t + 0.5 * math.log(dimension))))
    assert np.abs(moved - entropy.two_gaussians(np.exp(-2 * t))).max() < 1e-12


@pytest.mark.parametrize(
    ("squared", "log_place", "log_height", "linear_height"),
    [(10, 0.834, 0.414, 0.186), (100, 0.815, 0.472, 0.0660), (1_000, 0.814, 0.479, 0.0211)],
)
def test_no_sharp_transition_of_ve_is_a_matter_of_the_axis(
    squared: float, log_place: float, log_height: float, linear_height: float
) -> None:
    """Per log sigma the wave keeps its height; per sigma it falls like 1/|m|. In nats."""
    sigma = np.exp(np.linspace(-4, 8, 6_001))
    lam = squared / (1 + sigma**2)
    per_log = -entropy.two_gaussians_slope(lam) * 2 * squared * sigma**2 / (1 + sigma**2) ** 2
    at = int(per_log.argmax())
    assert sigma[at] / math.sqrt(squared) == pytest.approx(log_place, abs=2e-3)
    assert per_log[at] == pytest.approx(log_height, abs=6e-4)
    linear = per("t", per_log, sigma, VE)
    assert linear.max() == pytest.approx(linear_height, rel=5e-3)
    assert 0.59 < sigma[int(linear.argmax())] / math.sqrt(squared) < 0.65


@pytest.mark.parametrize("process", [VE, OU])
@pytest.mark.parametrize("axis", processes.AXES)
def test_an_area_does_not_depend_on_the_axis(process: processes.Process, axis: processes.Axis) -> None:
    ratio = np.exp(np.linspace(-6, 6, 20_001))
    lam = 4 / (1 + ratio**2)
    per_log = -entropy.two_gaussians_slope(lam) * 8 * ratio**2 / (1 + ratio**2) ** 2
    places = place(ratio, axis, process)
    found = np.trapezoid(per(axis, per_log, ratio, process), places)
    ends = entropy.two_gaussians(lam[[0, -1]]) * entropy.LN2
    assert abs(found) == pytest.approx(ends[1] - ends[0], rel=1e-5)


def test_times_and_levels_are_inverses() -> None:
    t = np.linspace(0.01, 6, 50)
    for process in PROCESSES.values():
        alpha, sigma = process.alpha_sigma(t)
        np.testing.assert_allclose(process.time(sigma / alpha), t, rtol=1e-9)
        step = 1e-6
        slope = (process.time(sigma / alpha * np.exp(step)) - process.time(sigma / alpha)) / step
        np.testing.assert_allclose(process.time_per_log_ratio(sigma / alpha), slope, rtol=1e-4)
    alpha, sigma = OU.alpha_sigma(t)
    np.testing.assert_allclose(alpha**2 + sigma**2, 1, atol=1e-12)
    assert place(np.e, "log_snr", VE) == pytest.approx(-2.0)
    with pytest.raises(ValueError, match="leave sigma = 0 out"):
        place([0.0, 1.0], "log_sigma", VE)


def test_certainty_does_not_underflow() -> None:
    odds = np.array([0.0, 1.0, 40.0, 800.0, -800.0])
    exact = [1.0, 0.840395, None, 0.0, 0.0]
    found = entropy.binary_entropy(odds)
    assert found[0] == pytest.approx(exact[0], abs=1e-15)
    p = 1 / (1 + math.e)
    assert found[1] == pytest.approx(-(p * math.log2(p) + (1 - p) * math.log2(1 - p)), abs=1e-12)
    assert found[2] == pytest.approx(41 * math.exp(-40) / entropy.LN2, rel=1e-12)
    assert found[3:] == pytest.approx(0.0, abs=1e-300)
    assert entropy.entropy_bits(entropy.normalised([-5_000.0, 0.0, 0.0])) == pytest.approx(1.0, abs=1e-12)


def test_partitions() -> None:
    log_p = np.log([[0.1, 0.2, 0.3, 0.4]])
    groups = entropy.checked([[0, 1], [3]], 4)
    np.testing.assert_allclose(np.exp(entropy.regroup(log_p, groups)), [[3 / 7, 4 / 7]], atol=1e-12)
    prior = np.array([0.5, 0.25, 0.125, 0.125])
    forced = np.exp(entropy.regroup(log_p, groups, prior, forced=True))
    weights = np.array([0.3 / 0.75, 0.4 / 0.125])
    np.testing.assert_allclose(forced, [weights / weights.sum()], atol=1e-12)
    one = np.exp(entropy.regroup(np.array([[0.0, -np.inf, -np.inf, -np.inf]]), groups))
    np.testing.assert_allclose(one, [[1.0, 0.0]])
    far = entropy.regroup(np.array([[-3_000.0, -3_001.0, 0.0, -2_999.0]]), groups)
    assert entropy.entropy_bits(far)[0] == pytest.approx(
        entropy.entropy_bits(entropy.normalised([np.logaddexp(-3_000, -3_001), -2_999])), abs=1e-12
    )


@pytest.mark.parametrize(
    ("partition", "says"),
    [
        ([[0, 1]], "two groups"),
        ([[0], []], "two groups"),
        ([[0, 1], [1]], "class 1 stands in two"),
        ([[0], [9]], "numbered 0 to 3"),
        ([[-1], [0]], "numbered 0 to 3"),
    ],
)
def test_partitions_that_are_none(partition: list[list[int]], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        entropy.checked(partition, 4)


@pytest.mark.parametrize("bad", [[np.nan, 0.0], [np.inf, 0.0], [-np.inf, -np.inf]])
def test_weights_that_are_none(bad: list[float]) -> None:
    with pytest.raises(ValueError, match="leave these states out"):
        entropy.normalised(bad)


@pytest.mark.parametrize("axis", [[3.0, 2.0, 1.0], [1.0, 1.0, 2.0], [1.0, np.nan, 2.0], [1.0, 2.0]])
def test_axes_that_are_none(axis: list[float]) -> None:
    with pytest.raises(ValueError, match="axis"):
        entropy.window(axis, np.zeros(len(axis)))


def test_a_window_that_is_cut_off_has_no_end() -> None:
    t = np.linspace(0.2, 4, 2_001)  # the peak of the wave lies at -0.2
    found = entropy.window(t, entropy.two_gaussians(np.exp(-2 * t)))
    assert found.peak == pytest.approx(0.2)
    assert math.isnan(found.low) and found.high == pytest.approx(0.79, abs=0.1)


def test_speciation() -> None:
    assert speciation.speciation_time(math.e**2) == pytest.approx(1.0, abs=1e-15)
    assert speciation.speciation_time(0.5) == 0.0
    rng = np.random.default_rng(0)
    m = np.full(16, 2.0)  # |m|^2 = 64: covariance 1 + 64 along m
    points = rng.normal(size=(20_000, 16)) + rng.choice([-1, 1], size=(20_000, 1)) * m
    assert speciation.leading_eigenvalue(points) == pytest.approx(65, rel=0.03)
    with pytest.raises(ValueError, match="not negative"):
        speciation.speciation_time(-1.0)


def test_collapse() -> None:
    """n -> 1 gives infinity, n -> infinity gives 0; e.g. n = 4, d = 2, s = 1: log(1 + 1/3) / 2."""
    assert speciation.collapse_time(4, 2) == pytest.approx(0.5 * math.log(4 / 3), abs=1e-15)
    assert speciation.collapse_time(1, 8) == math.inf
    assert speciation.collapse_time(1 + 1e-9, 8) > 9
    assert speciation.collapse_time(1e60, 8) == pytest.approx(0.0, abs=1e-14)
    with pytest.raises(ValueError, match="at least one point"):
        speciation.collapse_time(0, 2)
