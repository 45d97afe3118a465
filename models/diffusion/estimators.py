"""Estimators of H(Z|X) from denoisers alone, without a closed form of the data.

`path_posteriors` carries Bayes' rule along a sampling path; `immse_rate` integrates the distance between
conditional and plain denoiser. On an exact mixture both agree with the truth; on a trained network the
second counts the network's own errors as information, which `pair_rate` mends with two networks.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from models.diffusion.entropy import LN2, normalised
from models.diffusion.samplers import Denoise, Guidance, ancestral, checked_grid, step_law

Array = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class PathStep:
    """After a step: the level, the states `(N, D)`, the clean estimate that led there `(N, D)` and the
    log-posterior of every class given the path so far `(N, K)`."""

    sigma: float
    x: Array
    estimate: Array
    log_posterior: Array


def path_posteriors(
    denoise: Denoise,
    x: Array,
    labels: Ints | None,
    grid: npt.ArrayLike,
    prior: npt.ArrayLike,
    rng: np.random.Generator,
    guidance: Guidance | None = None,
) -> Iterator[PathStep]:
    """Online Bayes along ancestral paths from `x` (N, D) at the first level of `grid`.

    Under class z a step is Gaussian around its own denoiser; log-likelihoods -|x' - mu_z|^2 / (2 s^2) add
    up. The posterior given the whole path is that given its last state, because the forward process is
    Markov; what the first state says is dropped. Under guidance the states follow the guided law and the
    posterior the unguided one. Source: Handke et al. (2025, arXiv 2506.10433), in the exact constants of
    the ancestral step. Raises ValueError for a bad grid, and a step whose estimates are not finite.
    """
    ell = np.log(np.asarray(prior, dtype=np.float64))[None, :].repeat(len(x), axis=0)
    for step in ancestral(denoise, x, labels, checked_grid(grid), rng, guidance):
        if not np.isfinite(step.every).all():
            raise ValueError(f"the denoiser gives NaN or infinite estimates at sigma = {step.sigma:.4g}")
        means, spread = step_law(step.x[:, None, :], step.every[:, :-1], step.sigma, step.after)
        distance = ((step.next[:, None, :] - means) ** 2).sum(axis=-1)
        ell = normalised(ell - distance / (2 * spread**2))
        yield PathStep(step.after, step.next, step.estimate, ell)


def immse_rate(every: Array, labels: Ints, sigma: float) -> Array:
    """Information per unit of log-SNR at one level, in bits, of each state. `(N, K+1, D), (N,) -> (N,)`.

    dI/dlog gamma = gamma/2 E|D_Z - D_0|^2 with gamma = 1/sigma^2 (Guo, Shamai and Verdu 2005, for the
    channel with and without Z). Its integral over log gamma is H(Z).
    """
    apart = every[np.arange(len(every)), labels] - every[:, -1]
    return np.asarray((apart**2).sum(axis=-1) / (2 * sigma**2) / LN2)


def error_rate(every: Array, labels: Ints, clean: Array, sigma: float) -> Array:
    """The same by the denoisers' errors on clean data `(N, D)`: (|x0 - D_0|^2 - |x0 - D_Z|^2) gamma/2."""
    plain = ((clean - every[:, -1]) ** 2).sum(axis=-1)
    chosen = ((clean - every[np.arange(len(every)), labels]) ** 2).sum(axis=-1)
    return np.asarray((plain - chosen) / (2 * sigma**2) / LN2)


def pair_rate(one: Array, other: Array, labels: Ints, sigma: float) -> Array:
    """The same by the inner product of what two independently trained networks say. `-> (N,)`.

    Errors of the two are independent, so their product has mean zero, where the square of one adds up.
    """
    rows = np.arange(len(one))
    first = one[rows, labels] - one[:, -1]
    second = other[rows, labels] - other[:, -1]
    return np.asarray((first * second).sum(axis=-1) / (2 * sigma**2) / LN2)


def remaining(sigma: npt.ArrayLike, per_log_snr: npt.ArrayLike, total: float) -> Array:
    """H(Z|X) in bits at falling levels `(T,)` from rates `(..., T)`: H(Z) minus what came in until there.

    Integrated by trapezoids from the noisy end and held at zero once `total` is spent: what comes after is
    error, not information.
    """
    levels = checked_grid(sigma)
    rates = np.asarray(per_log_snr, dtype=np.float64)
    steps = np.diff(-2 * np.log(levels)) * (rates[..., 1:] + rates[..., :-1]) / 2
    came = np.concatenate((np.zeros_like(rates[..., :1]), np.cumsum(steps, axis=-1)), axis=-1)
    return np.asarray(np.maximum(total - np.maximum.accumulate(came, axis=-1), 0.0))


def area(sigma: npt.ArrayLike, per_log_snr: npt.ArrayLike) -> float:
    """Bits that came in between the first and the last level: H(Z) if the rates are right."""
    levels = checked_grid(sigma)
    return float(np.trapezoid(np.asarray(per_log_snr, dtype=np.float64), -2 * np.log(levels)))


def renormalised(posteriors: npt.ArrayLike, tolerance: float = 1e-3) -> tuple[Array, int]:
    """Log-posteriors of `(..., K)` that should sum to one, and how many rows did not, to `tolerance`.

    Raises ValueError for negative values, NaN, and rows of zeros.
    """
    values = np.asarray(posteriors, dtype=np.float64)
    if not np.isfinite(values).all() or (values < 0).any():
        raise ValueError("posteriors hold NaN or negative values; leave these states out")
    off = int((np.abs(values.sum(axis=-1) - 1) > tolerance).sum())
    with np.errstate(divide="ignore"):
        return normalised(np.log(values)), off


def calibration(found: Array, exact: Array, bins: int = 10) -> tuple[float, float]:
    """Of log-posteriors `(N, K)`: mean |p - p_exact|, and the expected calibration error against them.

    The second bins states by their largest found posterior and compares its mean with what the exact
    posterior gives the same class.
    """
    p, q = np.exp(found), np.exp(exact)
    chosen = p.argmax(axis=-1)
    rows = np.arange(len(p))
    confidence, truth = p[rows, chosen], q[rows, chosen]
    place = np.minimum((confidence * bins).astype(int), bins - 1)
    gaps = [
        (place == b).mean() * abs(confidence[place == b].mean() - truth[place == b].mean())
        for b in np.unique(place)
    ]
    return float(np.abs(p - q).mean()), float(math.fsum(gaps))
