"""Growth exponents: the slope of log time against log length."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def loglog_slope(
    lengths: npt.ArrayLike, values: npt.ArrayLike, level: float = 0.95, resamples: int = 2_000, seed: int = 0
) -> tuple[float, tuple[float, float]]:
    """Least-squares slope of log values (n,) against log lengths (n,), with a bootstrap interval.

    Repetitions are resampled within each length, the median of a length is fitted: a slope is a
    property of the typical time, not of a hiccup. Raises ValueError with fewer than two lengths or
    values that are not positive.
    """
    x, y = np.asarray(lengths, dtype=np.float64), np.asarray(values, dtype=np.float64)
    places = np.unique(x)
    if len(places) < 2:
        raise ValueError("a slope needs at least two lengths")
    if (x <= 0).any() or (y <= 0).any():
        raise ValueError("lengths and values must be positive")
    groups = [np.log(y[x == place]) for place in places]
    centred = np.log(places) - np.log(places).mean()

    def slope(medians: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        result: npt.NDArray[np.float64] = medians @ centred / (centred @ centred)
        return result

    rng = np.random.default_rng(seed)
    drawn = [np.median(g[rng.integers(0, len(g), (resamples, len(g)))], axis=1) for g in groups]
    tail = 100 * (1 - level) / 2
    low, high = np.percentile(slope(np.stack(drawn, axis=1)), [tail, 100 - tail])
    return float(slope(np.array([np.median(g) for g in groups]))), (float(low), float(high))
