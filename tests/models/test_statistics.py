"""Intervals and slopes against values known beforehand."""

from __future__ import annotations

import numpy as np
import pytest

from models.attention.slopes import loglog_slope
from models.intervals import student_mean


def test_student_interval_of_three_values() -> None:
    """Mean 2, s = 1, n = 3: 2 ± 4.302653 / sqrt(3) (tables of Student's t at 2 degrees of freedom)."""
    assert student_mean([1, 2, 3]) == pytest.approx((2 - 4.302653 / 3**0.5, 2 + 4.302653 / 3**0.5), abs=1e-5)


def test_student_interval_holds_its_level() -> None:
    """95 % of 4,000 samples of three normal values cover the mean; standard error 0.35 points."""
    draws = np.random.default_rng(0).normal(5, 2, size=(4_000, 3))
    inside = [low <= 5 <= high for low, high in map(student_mean, draws)]
    assert np.mean(inside) == pytest.approx(0.95, abs=4 * 0.0035)


def test_one_value_has_no_interval() -> None:
    with pytest.raises(ValueError, match="two repeated"):
        student_mean([1.0])


@pytest.mark.parametrize("power", [1.0, 1.5, 2.0])
def test_the_slope_of_a_power_law_is_its_power(power: float) -> None:
    lengths = np.repeat([256, 512, 1024, 2048], 5)
    slope, (low, high) = loglog_slope(lengths, 3e-6 * lengths.astype(float) ** power)
    assert slope == pytest.approx(power, abs=1e-12)
    assert low == pytest.approx(power) and high == pytest.approx(power)


def test_a_hiccup_does_not_move_the_slope() -> None:
    lengths = np.repeat([256, 512, 1024, 2048], 5)
    values = 1e-6 * lengths.astype(float)
    values[-1] *= 50  # one repetition of the longest was disturbed
    assert loglog_slope(lengths, values)[0] == pytest.approx(1.0, abs=1e-12)


def test_a_slope_needs_two_lengths_and_positive_values() -> None:
    with pytest.raises(ValueError, match="two lengths"):
        loglog_slope([8, 8], [1.0, 2.0])
    with pytest.raises(ValueError, match="positive"):
        loglog_slope([8, 16], [1.0, 0.0])
