"""Entropy curves of a partition over noise levels, from log-posteriors of many states.

One way for all estimators: the states of the partition's classes, the partition's posterior at each, the
mean, and a band by resampling the states. Source: Handke et al. (2026), semantic partitions.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.signal import savgol_filter

from models.diffusion import entropy
from models.diffusion.entropy import Array, Partition, Window

Ints = npt.NDArray[np.int64]

DRAWS = 200  # resamples of a band
_SPAN = 9  # levels of the local line that gives the slope of a noisy curve


@dataclass(frozen=True)
class Curve:
    """H in bits over levels `(T,)` with its 95 % band, the rate per unit of log sigma with its band, and
    the commitment window on the axis of log sigma. `half_interval` holds the level at which half of the
    entropy is left."""

    bits: Array
    low: Array
    high: Array
    rate: Array
    rate_low: Array
    rate_high: Array
    window: Window
    half_interval: tuple[float, float]
    states: int


def values(
    log_posterior: Array, labels: Ints, partition: Partition, prior: Array, forced: bool = True
) -> tuple[Array, Array]:
    """Entropy in bits of every state of the partition's classes, `(T, M)`, and the states' weights `(M,)`.

    `log_posterior` is `(T, N, K)`, `labels` `(N,)`. `forced` gives every group the same prior mass, in the
    posterior and in how often its states count.
    """
    groups, mine, of = _members(log_posterior, labels, partition)
    counts = np.bincount(of, minlength=len(groups))
    grouped = entropy.regroup(log_posterior[:, mine], groups, prior, forced)
    weights = 1.0 / counts[of] if forced else np.ones(len(mine))
    return entropy.entropy_bits(grouped), weights / weights.sum()


def cross_values(log_posterior: Array, labels: Ints, partition: Partition, prior: Array) -> Array:
    """-log2 p(own group|x) of every state of the partition's classes, `(T, M)`.

    Of guided paths, whose states do not follow the law of the posterior: a cross-entropy, no entropy.
    """
    groups, mine, of = _members(log_posterior, labels, partition)
    grouped = entropy.regroup(log_posterior[:, mine], groups, prior, forced=True)
    own = np.take_along_axis(grouped, of[None, :, None], axis=-1)[..., 0]
    return np.asarray(-own / entropy.LN2)


def _members(
    log_posterior: Array, labels: Ints, partition: Partition
) -> tuple[Partition, npt.NDArray[np.intp], Ints]:
    """The groups, which states belong to one, and to which. Raises ValueError for a group without states."""
    groups = entropy.checked(partition, log_posterior.shape[-1])
    where = np.full(log_posterior.shape[-1], -1)
    for number, group in enumerate(groups):
        where[list(group)] = number
    mine = np.flatnonzero(where[labels] >= 0)
    of = where[labels[mine]]
    counts = np.bincount(of, minlength=len(groups))
    if (counts == 0).any():
        raise ValueError(f"group {int(np.argmin(counts))} of the partition has no states")
    return groups, mine, of


def curve(sigma: Array, of_states: Array, weights: Array, seed: int = 0) -> Curve:
    """Mean of `(T, M)` over states with weights `(M,)`, its slope and window, and bands of all of them.

    `sigma` falls; the axis is log sigma, growing, so that a rate is positive where noise hides the class.
    """
    order = np.argsort(sigma)
    axis = np.log(np.asarray(sigma, dtype=np.float64)[order])
    data = of_states[order]
    rng = np.random.default_rng(seed)
    counts = rng.multinomial(data.shape[1], np.full(data.shape[1], 1 / data.shape[1]), size=DRAWS)
    drawn = counts * weights
    drawn /= drawn.sum(axis=1, keepdims=True)
    means = drawn @ data.T
    mean = data @ weights
    slopes = slope(axis, means)
    rate = slope(axis, mean[None])[0]
    low, high = np.quantile(means, (0.025, 0.975), axis=0)
    rate_low, rate_high = np.quantile(slopes, (0.025, 0.975), axis=0)
    halves = [entropy.window(axis, m, s).half for m, s in zip(means, slopes, strict=True)]
    interval = np.nanquantile(halves, (0.025, 0.975)) if np.isfinite(halves).any() else (np.nan, np.nan)
    back = np.argsort(order)
    return Curve(
        mean[back],
        low[back],
        high[back],
        rate[back],
        rate_low[back],
        rate_high[back],
        entropy.window(axis, mean, rate),
        (float(interval[0]), float(interval[1])),
        data.shape[1],
    )


def slope(axis: Array, curves: Array) -> Array:
    """d/d axis of `(..., T)` over an evenly spaced axis `(T,)`: the slope of the least-squares parabola
    through nine levels around each (Savitzky and Golay, 1964)."""
    span = min(_SPAN, len(axis) - 1 + len(axis) % 2)
    step = float(axis[1] - axis[0])
    if not np.allclose(np.diff(axis), step, rtol=1e-3):
        return np.asarray(np.gradient(curves, axis, axis=-1))
    return np.asarray(savgol_filter(curves, span, 2, deriv=1, delta=step, axis=-1))
