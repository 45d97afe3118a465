"""Entropy of a class given a noisy state: closed forms of two Gaussians, partitions, and windows of a curve.

A noise level is the pair (alpha, sigma) of x = alpha x0 + sigma eps. Entropies are in bits, log-posteriors
are natural logarithms. Source: Handke et al., "The Entropic Signature of Class Speciation in Diffusion
Models" (2026), for H(Z|X_t), its rate and partitions; the closed forms follow from the log-posterior ratio
of two Gaussians, N(2 lambda, 4 lambda) under the first class.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Partition = tuple[tuple[int, ...], ...]  # groups of classes; classes in no group are left out

LN2 = math.log(2.0)
_NODES = (
    401  # of the quadrature below: errors under 1e-12 bits, of values that fall to nothing by lambda = 100
)
_REACH = 12.0  # standard deviations of the quadrature's range


def binary_entropy(log_odds: npt.ArrayLike) -> Array:
    """Entropy in bits of a yes-or-no whose log-odds are given. `(...) -> (...)`.

    Computed from the log-odds, so that certainty does not underflow: h = softplus(-|r|) + |r| sigmoid(-|r|).
    """
    odds = np.abs(np.asarray(log_odds, dtype=np.float64))
    small = np.exp(-odds)
    return np.asarray((np.log1p(small) + odds * small / (1.0 + small)) / LN2)


def normalised(log_weights: npt.ArrayLike) -> Array:
    """Log-posteriors `(..., K)` from logarithms of weights that do not sum to one.

    Raises ValueError for NaN, for +inf, and where a row has no weight at all.
    """
    weights = np.asarray(log_weights, dtype=np.float64)
    if weights.ndim == 0 or weights.shape[-1] < 1:
        raise ValueError("posteriors need an axis of classes: shape (..., K)")
    top = weights.max(axis=-1, keepdims=True)
    if not np.isfinite(top).all():
        raise ValueError("posteriors hold NaN, +inf or a row without any weight; leave these states out")
    shifted = weights - top
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True)))


def entropy_bits(log_posterior: npt.ArrayLike) -> Array:
    """Shannon entropy in bits over the last axis of log-posteriors. `(..., K) -> (...)`."""
    log_p = np.asarray(log_posterior, dtype=np.float64)
    p = np.exp(log_p)
    return np.asarray(-np.where(p > 0, p * np.where(p > 0, log_p, 0.0), 0.0).sum(axis=-1) / LN2)


def checked(partition: Sequence[Sequence[int]], classes: int) -> Partition:
    """A partition of classes 0..K-1 as tuples.

    Raises ValueError for fewer than two groups, an empty one, a class twice or one that is not there.
    """
    groups = tuple(tuple(int(c) for c in group) for group in partition)
    flat = [c for group in groups for c in group]
    if len(groups) < 2 or not all(groups):
        raise ValueError("a partition needs two groups, each with a class")
    if len(set(flat)) != len(flat):
        raise ValueError(f"class {max(flat, key=flat.count)} stands in two groups")
    if min(flat) < 0 or max(flat) >= classes:
        raise ValueError(f"classes are numbered 0 to {classes - 1}")
    return groups


def regroup(
    log_posterior: npt.ArrayLike,
    partition: Partition,
    prior: npt.ArrayLike | None = None,
    forced: bool = False,
) -> Array:
    """Log-posteriors of the groups of a partition. `(..., K) -> (..., G)`.

    Classes in no group are left out and the rest renormalised. `forced` gives all groups the same prior
    mass: each group's posterior is divided by its share of `prior` `(K,)`. Raises ValueError for a bad
    partition, or a forced prior without `prior`. Source: Handke et al. (2026), semantic partitions.
    """
    log_p = np.asarray(log_posterior, dtype=np.float64)
    groups = checked(partition, log_p.shape[-1])
    parts = []
    for group in groups:
        chosen = log_p[..., list(group)]
        top = chosen.max(axis=-1, keepdims=True)
        safe = np.where(np.isfinite(top), top, 0.0)
        with np.errstate(divide="ignore"):
            parts.append(np.log(np.exp(chosen - safe).sum(axis=-1)) + safe[..., 0])
    grouped = np.stack(parts, axis=-1)
    if forced:
        if prior is None:
            raise ValueError("a forced prior needs the prior that the posteriors have now")
        share = np.asarray(prior, dtype=np.float64)
        grouped = grouped - np.log([share[list(group)].sum() for group in groups])
    return normalised(grouped)


# Two Gaussians


@cache
def _rule() -> tuple[Array, Array]:
    """Nodes and weights that integrate against the standard normal density."""
    nodes, weights = np.polynomial.legendre.leggauss(_NODES)
    places = nodes * _REACH
    density = np.exp(-0.5 * places**2) / math.sqrt(2 * math.pi)
    return places, weights * _REACH * density


def _expectation(function: Callable[[Array, Array], Array], strength: npt.ArrayLike) -> Array:
    lam = np.asarray(strength, dtype=np.float64)
    if (lam < 0).any() or not np.isfinite(lam).all():
        raise ValueError("lambda is a squared distance over a variance: finite and not negative")
    places, weights = _rule()
    return np.asarray((function(lam[..., None], places) * weights).sum(axis=-1))


def two_gaussians(strength: npt.ArrayLike) -> Array:
    """H(Z|X) in bits of two equally likely Gaussians at +-m. `(...) -> (...)`.

    `strength` is lambda = alpha^2 |m|^2 / (alpha^2 s^2 + sigma^2), s the spread within a class.
    H = E h_b(2 lambda + 2 sqrt(lambda) xi), xi standard normal. Raises ValueError for lambda < 0.
    """
    return _expectation(lambda lam, xi: binary_entropy(2 * lam + 2 * np.sqrt(lam) * xi), strength)


def two_gaussians_slope(strength: npt.ArrayLike) -> Array:
    """dH/dlambda in nats: -(1 - E tanh(lambda + sqrt(lambda) xi)) / 2; -1/2 at 0. `(...) -> (...)`."""
    return _expectation(lambda lam, xi: -(1 - np.tanh(lam + np.sqrt(lam) * xi)) / 2, strength)


def bayes_error(strength: npt.ArrayLike) -> Array:
    """Smallest possible share of wrong decisions between the two: Phi(-sqrt(lambda)). `(...) -> (...)`."""
    lam = np.asarray(strength, dtype=np.float64)
    return np.asarray(0.5 * np.vectorize(math.erfc)(np.sqrt(lam / 2)))


# Curves


@dataclass(frozen=True)
class Window:
    """When a decision falls: where the entropy rate is largest, and where it exceeds half of that.

    `peak`, `low`, `high` and `half` are on the axis of the curve, `height` in bits per unit of it, `area`
    in bits. NaN where a curve does not have them: `low` or `high` where it is cut off above the half,
    `half` where it never crosses half of its entropy.
    """

    peak: float
    height: float
    low: float
    high: float
    half: float
    area: float

    @property
    def width(self) -> float:
        """From the one half-height to the other."""
        return self.high - self.low


def rate(axis: npt.ArrayLike, entropy: npt.ArrayLike) -> Array:
    """|dH/d axis| by central differences, positive where entropy grows with the noise. `(T,), (..., T)`.

    `axis` grows strictly. Raises ValueError for an axis that is not sorted, repeats a value, or is not
    finite.
    """
    places = _strict(axis)
    return np.asarray(np.gradient(np.asarray(entropy, dtype=np.float64), places, axis=-1))


def _strict(axis: npt.ArrayLike) -> Array:
    places = np.asarray(axis, dtype=np.float64)
    if places.ndim != 1 or len(places) < 3 or not np.isfinite(places).all():
        raise ValueError("an axis has at least three finite values; leave sigma = 0 out")
    if (np.diff(places) <= 0).any():
        raise ValueError("an axis grows strictly: sort it and drop the values that stand twice")
    return places


def window(axis: npt.ArrayLike, entropy: npt.ArrayLike, slope: npt.ArrayLike | None = None) -> Window:
    """The commitment window of a curve H `(T,)` over a strictly growing axis `(T,)`.

    `slope` is dH/d axis where it is known, else the curve's own differences. The peak is that of the
    parabola through the three highest points; half-heights and the crossing of half the largest entropy
    are interpolated.
    """
    places = _strict(axis)
    curve = np.asarray(entropy, dtype=np.float64)
    heights = rate(places, curve) if slope is None else np.asarray(slope, dtype=np.float64)
    if curve.shape != places.shape or heights.shape != places.shape:
        raise ValueError("a curve has one value for each place of its axis")
    at = int(np.nanargmax(heights))
    peak, height = _vertex(places, heights, at)
    low = _crossing(places[: at + 1][::-1], heights[: at + 1][::-1], height / 2)
    high = _crossing(places[at:], heights[at:], height / 2)
    half = _crossing(places, curve - np.nanmax(curve) / 2, 0.0)
    return Window(peak, height, low, high, half, float(np.trapezoid(heights, places)))


def _vertex(places: Array, heights: Array, at: int) -> tuple[float, float]:
    """The top of the parabola through the largest value and its neighbours."""
    if not 0 < at < len(places) - 1:
        return float(places[at]), float(heights[at])
    x, y = places[at - 1 : at + 2], heights[at - 1 : at + 2]
    a, b, c = np.polyfit(x - x[1], y, 2)
    if not a < 0:
        return float(x[1]), float(y[1])
    top = float(np.clip(-b / (2 * a), x[0] - x[1], x[2] - x[1]))
    return float(x[1]) + top, float(a * top**2 + b * top + c)


def _crossing(places: Array, values: Array, level: float) -> float:
    """The first place, from the beginning, where the values pass the level; NaN where they never do."""
    above = values > level
    changes = np.flatnonzero(above[1:] != above[:-1])
    if not len(changes):
        return math.nan
    i = int(changes[0])
    step = (level - values[i]) / (values[i + 1] - values[i])
    return float(places[i] + step * (places[i + 1] - places[i]))
