"""Diffusion processes as paths through noise levels, and the axes that people draw them on.

A state is x = alpha x0 + sigma eps; all that matters for information is the ratio sigma/alpha (EDM's
sigma). Three axes show it: the process's own time t, log sigma (of the ratio) and the log-SNR
-2 log(ratio). A rate changes with the axis by the Jacobian, an area under it does not. Sources: Song et
al. (ICLR 2021) for VE and VP; Karras et al. (NeurIPS 2022) for the ratio; Biroli et al. (2024) for OU.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Axis = Literal["t", "log_sigma", "log_snr"]
AXES: tuple[Axis, ...] = ("t", "log_sigma", "log_snr")


class Process(Protocol):
    """How alpha and sigma run with time; more time is more noise."""

    @property
    def slug(self) -> str:
        """Its name in configurations and addresses."""

    def alpha_sigma(self, t: npt.ArrayLike) -> tuple[Array, Array]:
        """Scale of the signal and of the noise at time t >= 0."""

    def time(self, ratio: npt.ArrayLike) -> Array:
        """The time at which sigma/alpha is `ratio` > 0."""

    def time_per_log_ratio(self, ratio: npt.ArrayLike) -> Array:
        """dt / dlog(ratio), the Jacobian of the time axis."""


@dataclass(frozen=True)
class VarianceExploding:
    """dx = sqrt(2t) dW: alpha = 1, sigma = t. The EDM form, whose time is sigma itself."""

    slug: str = "ve"

    def alpha_sigma(self, t: npt.ArrayLike) -> tuple[Array, Array]:
        """1 and t."""
        sigma = np.asarray(t, dtype=np.float64)
        return np.ones_like(sigma), sigma

    def time(self, ratio: npt.ArrayLike) -> Array:
        """sigma itself."""
        return np.asarray(ratio, dtype=np.float64)

    def time_per_log_ratio(self, ratio: npt.ArrayLike) -> Array:
        """sigma."""
        return np.asarray(ratio, dtype=np.float64)


@dataclass(frozen=True)
class OrnsteinUhlenbeck:
    """dx = -x dt + sqrt(2) dW: alpha = e^-t, sigma^2 = 1 - e^-2t. Variance preserving."""

    slug: str = "ou"

    def alpha_sigma(self, t: npt.ArrayLike) -> tuple[Array, Array]:
        """e^-t and sqrt(1 - e^-2t)."""
        time = np.asarray(t, dtype=np.float64)
        return np.exp(-time), np.sqrt(-np.expm1(-2 * time))

    def time(self, ratio: npt.ArrayLike) -> Array:
        """log(1 + ratio^2) / 2."""
        return np.asarray(0.5 * np.log1p(np.asarray(ratio, dtype=np.float64) ** 2))

    def time_per_log_ratio(self, ratio: npt.ArrayLike) -> Array:
        """ratio^2 / (1 + ratio^2)."""
        square = np.asarray(ratio, dtype=np.float64) ** 2
        return np.asarray(square / (1 + square))


PROCESSES: dict[str, Process] = {"ve": VarianceExploding(), "ou": OrnsteinUhlenbeck()}


def place(ratio: npt.ArrayLike, axis: Axis, process: Process) -> Array:
    """Where noise levels lie on an axis. Raises ValueError for a ratio that is not positive."""
    ratios = np.asarray(ratio, dtype=np.float64)
    if not (np.isfinite(ratios).all() and (ratios > 0).all()):
        raise ValueError("a noise level is positive and finite; leave sigma = 0 out")
    if axis == "t":
        return process.time(ratios)
    log = np.log(ratios)
    return np.asarray(log if axis == "log_sigma" else -2 * log)


def per(axis: Axis, rate: npt.ArrayLike, ratio: npt.ArrayLike, process: Process) -> Array:
    """A rate per log sigma as a rate per unit of another axis; both are positive. The area stays."""
    values = np.asarray(rate, dtype=np.float64)
    if axis == "log_sigma":
        return values
    if axis == "log_snr":
        return values / 2
    return np.asarray(values / process.time_per_log_ratio(ratio))
