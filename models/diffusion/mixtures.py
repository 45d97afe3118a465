"""Gaussian mixtures: data whose posteriors and denoisers are known exactly at every noise level."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from models.diffusion.entropy import normalised

Array = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Mixture:
    """K equally wide round Gaussians: `means` `(K, D)`, standard deviation `scale` >= 0, `prior` `(K,)`.

    Raises ValueError for shapes that do not fit, a prior that is no distribution, or a negative scale.
    """

    means: Array
    scale: float
    prior: Array

    def __post_init__(self) -> None:
        if self.means.ndim != 2 or self.prior.shape != self.means.shape[:1]:
            raise ValueError("a mixture has means (K, D) and a prior (K,)")
        if not np.isclose(self.prior.sum(), 1) or (self.prior < 0).any():
            raise ValueError("a prior sums to one")
        if not (math.isfinite(self.scale) and self.scale >= 0):
            raise ValueError("a scale is a standard deviation: finite and not negative")

    @property
    def classes(self) -> int:
        """K."""
        return len(self.means)

    @property
    def dimension(self) -> int:
        """D."""
        return int(self.means.shape[1])

    def log_posterior(self, x: npt.ArrayLike, ratio: float) -> Array:
        """log p(z|x) of states x = x0 + ratio eps. `(..., D) -> (..., K)`."""
        state = np.asarray(x, dtype=np.float64)
        variance = self.scale**2 + ratio**2
        # |x|^2 is the same for all classes: leaving it out keeps the digits where it is large.
        projected = state @ self.means.T - 0.5 * (self.means**2).sum(axis=1)
        with np.errstate(divide="ignore"):
            return normalised(projected / variance + np.log(self.prior))

    def denoise(self, x: npt.ArrayLike, ratio: float) -> Array:
        """E[x0|x, z] for every class, and E[x0|x] last. `(N, D) -> (N, K+1, D)`."""
        state = np.asarray(x, dtype=np.float64)
        keep = self.scale**2 / (self.scale**2 + ratio**2)
        each = self.means + keep * (state[:, None, :] - self.means)
        weights = np.exp(self.log_posterior(state, ratio))
        whole = np.einsum("nk,nkd->nd", weights, each)
        return np.concatenate((each, whole[:, None, :]), axis=1)

    def sample(self, count: int, rng: np.random.Generator) -> tuple[Array, Ints]:
        """`count` points `(N, D)` and their classes `(N,)`, as many of each class as its prior says."""
        labels = stratified(self.prior, count, rng)
        return self.means[labels] + self.scale * rng.normal(size=(count, self.dimension)), labels


def stratified(prior: Array, count: int, rng: np.random.Generator) -> Ints:
    """`count` classes in a random order whose shares are those of the prior to within one each."""
    edges = np.floor(np.cumsum(prior) * count + rng.random()).astype(np.int64)
    edges[-1] = count
    labels = np.repeat(np.arange(len(prior)), np.diff(np.concatenate(([0], np.minimum(edges, count)))))
    return np.asarray(rng.permutation(labels))


def two_classes(dimension: int, squared: float, scale: float = 1.0) -> Mixture:
    """+-m with |m|^2 = `squared`, m along the diagonal of `dimension` axes, equal prior."""
    m = np.full(dimension, math.sqrt(squared / dimension))
    return Mixture(np.stack((m, -m)), scale, np.full(2, 0.5))


def ring(classes: int, radius: float, scale: float = 1.0) -> Mixture:
    """Classes in turn on a circle in the plane: neighbours are hard to tell apart, opposite ones easy."""
    angles = 2 * np.pi * np.arange(classes) / classes
    means = radius * np.stack((np.cos(angles), np.sin(angles)), axis=1)
    return Mixture(means, scale, np.full(classes, 1 / classes))


def hierarchical(coarse: float, fine: float, dimension: int = 2, scale: float = 1.0) -> Mixture:
    """Two groups of two classes at (+-coarse, +-fine) on the first two of `dimension` axes.

    Classes 0 and 1 are one group, 2 and 3 the other.
    """
    means = np.zeros((4, dimension))
    means[:, 0] = np.array([coarse, coarse, -coarse, -coarse])
    means[:, 1] = np.array([fine, -fine, fine, -fine])
    return Mixture(means, scale, np.full(4, 0.25))


def exact_posteriors(
    mixture: Mixture, ratios: npt.ArrayLike, count: int, rng: np.random.Generator
) -> tuple[Array, Ints]:
    """log p(z|x) of `count` states at every noise level, `(T,) -> (T, N, K)`, and their classes `(N,)`.

    The same points and the same noise at every level: curves over the levels are smooth, and differences
    between levels far less noisy than the levels themselves.
    """
    points, labels = mixture.sample(count, rng)
    noise = rng.normal(size=points.shape)
    return np.stack([mixture.log_posterior(points + r * noise, float(r)) for r in np.asarray(ratios)]), labels
