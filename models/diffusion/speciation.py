"""When data of a given shape splits into its classes, and when it collapses onto its points.

Source: Biroli, Bonnaire, de Bortoli and Mézard, "Dynamical regimes of diffusion models", Nature
Communications 15:9957 (2024), for the Ornstein-Uhlenbeck process dx = -x dt + sqrt(2) dW.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt


def speciation_time(eigenvalue: float) -> float:
    """t_S = log(Lambda) / 2: where the largest eigenvalue of the data's covariance falls below the noise.

    0 for Lambda <= 1, where the data is never wider than the noise. Raises ValueError below zero.
    """
    if not eigenvalue >= 0:
        raise ValueError("an eigenvalue of a covariance is not negative")
    return max(0.5 * math.log(eigenvalue), 0.0) if eigenvalue > 0 else 0.0


def leading_eigenvalue(points: npt.ArrayLike) -> float:
    """Largest eigenvalue of the covariance of `(N, D)` points, N >= 2."""
    data = np.asarray(points, dtype=np.float64)
    if data.ndim != 2 or len(data) < 2:
        raise ValueError("a covariance needs at least two points (N, D)")
    centred = data - data.mean(axis=0)
    return float(np.linalg.norm(centred, ord=2) ** 2 / (len(data) - 1))


def collapse_time(count: float, dimension: int, scale: float = 1.0) -> float:
    """t_C = log(1 + scale^2 / (n^(2/d) - 1)) / 2: below it, a path is bound to one of n training points.

    Infinite for one point; falls to 0 with many. Raises ValueError for fewer than one point.
    """
    if not count >= 1 or dimension < 1:
        raise ValueError("collapse needs at least one point of at least one dimension")
    spread = math.expm1(2 * math.log(count) / dimension)
    return 0.5 * math.log1p(scale**2 / spread) if spread > 0 else math.inf
