"""Intervals for means of repeated measurements. Numpy only."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy import stats


def bootstrap_mean(
    values: npt.ArrayLike, level: float = 0.95, resamples: int = 4_000, seed: int = 0
) -> tuple[float, float]:
    """Percentile bootstrap interval of the mean of `values` (n,), n >= 2 (Efron 1979).

    Returns (low, high) in the unit of `values`. With fewer than two values there is no interval:
    raises ValueError.
    """
    data = np.asarray(values, dtype=np.float64)
    if data.ndim != 1 or data.size < 2:
        raise ValueError("an interval needs at least two repeated measurements")
    if not 0 < level < 1:
        raise ValueError("level lies between 0 and 1")
    picks = np.random.default_rng(seed).integers(0, data.size, size=(resamples, data.size))
    tail = 100 * (1 - level) / 2
    low, high = np.percentile(data[picks].mean(axis=1), [tail, 100 - tail])
    return float(low), float(high)


def student_mean(values: npt.ArrayLike, level: float = 0.95) -> tuple[float, float]:
    """Student's t interval of the mean of `values` (n,), n >= 2 (Student 1908).

    For a handful of seeds, where resampling three values would promise too much: it is the interval
    that has its level for normal data at any n. Returns (low, high) in the unit of `values`. Raises
    ValueError with fewer than two values.
    """
    data = np.asarray(values, dtype=np.float64)
    if data.ndim != 1 or data.size < 2:
        raise ValueError("an interval needs at least two repeated measurements")
    if not 0 < level < 1:
        raise ValueError("level lies between 0 and 1")
    half = stats.t.ppf(0.5 + level / 2, data.size - 1) * data.std(ddof=1) / np.sqrt(data.size)
    return float(data.mean() - half), float(data.mean() + half)
