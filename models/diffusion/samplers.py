"""Samplers and guidance over any denoiser: an exact mixture or a trained network.

A denoiser is `denoise(x (N, D), sigma) -> (N, K+1, D)`: the estimate of x0 under each class and, last,
without one. States are x = x0 + sigma eps. Sources: Karras et al. (NeurIPS 2022) for the grid and Heun's
method, Ho and Salimans (2022) for guidance, Kynkäänniemi et al. (NeurIPS 2024) for intervals.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Denoise = Callable[[Array, float], Array]


def karras_grid(levels: int, sigma_min: float = 0.002, sigma_max: float = 80.0, rho: float = 7.0) -> Array:
    """`levels` noise levels from sigma_max down to sigma_min, dense where there is little noise. `(T,)`.

    Karras et al. (2022), eq. 5. Raises ValueError for fewer than two levels or limits out of order.
    """
    if levels < 2 or not 0 < sigma_min < sigma_max < math.inf:
        raise ValueError("a grid has at least two levels, and 0 < sigma_min < sigma_max")
    steps = np.linspace(0, 1, levels)
    low, high = sigma_min ** (1 / rho), sigma_max ** (1 / rho)
    return np.asarray((high + steps * (low - high)) ** rho)


def checked_grid(grid: npt.ArrayLike) -> Array:
    """A grid of noise levels, `(T,)`, T >= 2.

    Raises ValueError unless it falls strictly and stays positive: at sigma = 0 a step has no noise, and its
    likelihood is not defined.
    """
    levels = np.asarray(grid, dtype=np.float64)
    if levels.ndim != 1 or len(levels) < 2 or not np.isfinite(levels).all():
        raise ValueError("a grid has at least two finite noise levels")
    if (levels <= 0).any():
        raise ValueError("a noise level of zero has no likelihood; end the grid one step before")
    if (np.diff(levels) >= 0).any():
        raise ValueError("noise levels fall strictly: sort them from noisy to clean and drop repetitions")
    return levels


@dataclass(frozen=True)
class Guidance:
    """Weight w within [low, high] of sigma, 1 outside; w = 1 is the conditional model, 0 the plain one."""

    weight: float = 1.0
    low: float = 0.0
    high: float = math.inf

    def at(self, sigma: float) -> float:
        """The weight at a noise level."""
        return self.weight if self.low <= sigma <= self.high else 1.0


def guided(every: Array, labels: Ints | None, weight: float) -> Array:
    """D_0 + w (D_z - D_0) of `(N, K+1, D)`; the plain estimate without labels. `-> (N, D)`."""
    plain = every[:, -1]
    if labels is None:
        return plain
    chosen = every[np.arange(len(every)), labels]
    return chosen if weight == 1 else np.asarray(plain + weight * (chosen - plain))


@dataclass(frozen=True)
class Step:
    """From `sigma` to `after`: the states before `(N, D)`, all estimates of x0 `(N, K+1, D)`, the one that
    was followed `(N, D)` and the states that came of it `(N, D)`."""

    sigma: float
    after: float
    x: Array
    every: Array
    estimate: Array
    next: Array


def ancestral(
    denoise: Denoise,
    x: Array,
    labels: Ints | None,
    grid: npt.ArrayLike,
    rng: np.random.Generator,
    guidance: Guidance | None = None,
) -> Iterator[Step]:
    """Stochastic steps from `x` (N, D) at the first level to the last, exact if the estimate of x0 were.

    x' = x + c (D - x) + s xi with c = (a^2 - b^2)/a^2 and s^2 = b^2 (a^2 - b^2)/a^2 from a to b.
    """
    levels, rule = checked_grid(grid), guidance or Guidance()
    for a, b in pairwise(levels):
        every = denoise(x, float(a))
        estimate = guided(every, labels, rule.at(float(a)))
        mean, spread = step_law(x, estimate, float(a), float(b))
        following = mean + spread * rng.normal(size=x.shape)
        yield Step(float(a), float(b), x, every, estimate, following)
        x = following


def step_law(x: Array, estimate: Array, a: float, b: float) -> tuple[Array, float]:
    """Mean and standard deviation of the ancestral step from level a to b."""
    c = (a * a - b * b) / (a * a)
    return x + c * (estimate - x), b * math.sqrt(c)


def heun(
    denoise: Denoise,
    x: Array,
    labels: Ints | None,
    grid: npt.ArrayLike,
    guidance: Guidance | None = None,
) -> Iterator[Step]:
    """Deterministic steps by Heun's method, the last one to sigma = 0 by Euler's (Karras et al., alg. 1)."""
    levels, rule = checked_grid(grid), guidance or Guidance()
    for a, b in zip(levels, [*levels[1:], 0.0], strict=True):
        every = denoise(x, float(a))
        estimate = guided(every, labels, rule.at(float(a)))
        slope = (x - estimate) / a
        following = x + (b - a) * slope
        if b > 0:
            again = guided(denoise(following, float(b)), labels, rule.at(float(b)))
            following = x + (b - a) * 0.5 * (slope + (following - again) / b)
        yield Step(float(a), float(b), x, every, estimate, following)
        x = following
