"""Sink metrics from ready attention maps: the numbers of models.attention.trace without the model.

For maps that were stored, or that a runtime hands out. What a query could see is not known then, but
shows: softmax gives no visible key a weight of exactly 0, unless it underflows. Norms of keys and
values cannot be known and are NaN.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from models.attention import metrics
from models.attention.kernel import Inputs, Sums
from models.attention.trace import LayerAttention, _reduce
from models.attention.visibility import Dense, Plain, Visibility

Array = npt.NDArray[np.float64]

NOTHING = 1e-7  # weights up to here are those of keys that are not seen; half precision ends there
ROW_ERROR = 1e-2  # rows whose sum is further from 1 are no attention (half precision stays below)
_EXACT = 1e-5  # rows whose sum is closer to 1 are left as they are
_EDGE = 1e-4  # a window ends sharply: its edge is heavier than this, where a decay would be at `NOTHING`
_BLOCK = 2**21  # entries that are looked at together


@dataclass(frozen=True)
class Repairs:
    """Rows of maps, that is queries of heads, that are not as a softmax leaves them."""

    rows: int = 0  # looked at
    renormalised: int = 0  # divided by their sum, which was near 1
    empty: int = 0  # all zero, NaN or infinite somewhere: a query that sees nothing; left out

    def __add__(self, other: Repairs) -> Repairs:
        return Repairs(
            self.rows + other.rows, self.renormalised + other.renormalised, self.empty + other.empty
        )


def clean(maps: npt.ArrayLike) -> tuple[Array, npt.NDArray[np.bool_], Repairs]:
    """Maps `(..., T, T)` in float64, rows summing to 1; which rows count `(..., T)`; what was done.

    Rows that do not count are 0. Raises ValueError for what is no attention: entries below 0, rows
    whose sum is not 1 within 1 %.
    """
    a = np.array(maps, dtype=np.float64)
    if a.ndim < 2 or a.shape[-1] != a.shape[-2] or 0 in a.shape:
        raise ValueError(f"maps must be (..., T, T) and not empty, got {a.shape}")
    finite = np.isfinite(a).all(axis=-1)
    a[~finite] = 0.0
    least = float(a.min())
    if least < -NOTHING:
        raise ValueError(f"attention is never negative, but the smallest entry is {least:.4g}")
    np.maximum(a, 0.0, out=a)
    total = a.sum(axis=-1)
    alive = finite & (total > 0)
    off = np.where(alive, np.abs(total - 1.0), 0.0)
    if float(off.max()) > ROW_ERROR:
        worst = float(total.reshape(-1)[int(off.argmax())])
        raise ValueError(f"the weights of every query sum to 1, but those of one sum to {worst:.4g}")
    a /= np.where(alive, total, 1.0)[..., None]
    return a, alive, Repairs(alive.size, int((off > _EXACT).sum()), int((~alive).sum()))


@dataclass(frozen=True)
class View:
    """Which keys a query can see: those `low <= query - key <= high` away; None is without bound."""

    low: int | None = None
    high: int | None = None

    def visibility(self, length: int, keys: torch.Tensor) -> Visibility:
        """As the tracer asks for it; `keys (N, T)` are those that are no padding."""
        whole = bool(keys.all())
        if whole and self.high is None and self.low in (None, 0):
            return Plain(length, self.low == 0, keys.device)
        at = torch.arange(length)
        distance = at[:, None] - at[None, :]
        seen = torch.ones(length, length, dtype=torch.bool)
        if self.low is not None:
            seen &= distance >= self.low
        if self.high is not None:
            seen &= distance <= self.high
        return Dense(seen[None, None] if whole else seen & keys[:, None, None])


def view_of(largest: npt.ArrayLike) -> View:
    """What is visible, from the largest weight `(T, T)` of any head and sample at every entry.

    Causal if no key after the query has weight. A window is claimed only where a band of at least
    two diagonals has weight everywhere, also at its edge, and nothing lies outside it: maps that are
    merely sharp, or fade with distance, have none.
    """
    a = np.asarray(largest, dtype=np.float64)
    t = a.shape[-1]
    offsets = range(-(t - 1), t)  # of query - key
    heaviest = np.array([np.diagonal(a, -d).max() for d in offsets])
    lightest = np.array([np.diagonal(a, -d).min() for d in offsets])
    used = np.flatnonzero(heaviest > NOTHING)
    if t < 2 or not used.size:
        return View()
    low, high = int(used[0]) - (t - 1), int(used[-1]) - (t - 1)
    causal = low >= 0
    low = 0 if causal else low
    inside = lightest[low + t - 1 : high + t]
    filled = high > 0 and bool((inside > 0).all())
    if filled and high < t - 1 and lightest[high + t - 1] > _EDGE:
        sharp = causal or (low > -(t - 1) and bool(lightest[low + t - 1] > _EDGE))
        if sharp:
            return View(low, high)
    return View(0 if causal else None)


def reduce_map(
    layer: int, weights: npt.ArrayLike, causal: bool | None = None, window: int | None = None
) -> LayerAttention:
    """The metrics of one layer from its maps `(N, H, T, T)`, query by key.

    `causal` and `window` (how many keys, itself included, a query sees on each side) say what is
    visible; without `causal` the maps tell (`view_of`). A position at which no head has a row that
    counts is treated as padding; as a key it
    is unseen, too, unless it has weight. Equal to what `trace` hands out of the same weights, but for the
    norm ratios, which are NaN. Raises ValueError as `clean` does, and for another number of axes.
    """
    maps = np.asarray(weights)
    if maps.ndim != 4 or 0 in maps.shape:
        raise ValueError(f"the maps of a layer are (samples, heads, T, T) and not empty, got {maps.shape}")
    n, h, t = maps.shape[:3]
    sums, largest = _add_up(maps)
    if causal is None:
        view = view_of(largest)
    else:
        reach = None if window is None or window >= t else window - 1
        view = View(0 if causal else (None if reach is None else -reach), reach)
    alive = sums.alive.view(n, h, t)
    valid = alive.any(1)
    unknown = torch.full((n, 1, t, 1), torch.nan)
    inputs = Inputs(
        torch.empty(n, h, t, 0),
        unknown,
        unknown,
        1.0,
        view.visibility(t, valid | (sums.columns.view(n, h, t) > 0).any(1)),
        valid,
        valid.int().argmax(-1),
    )
    return _reduce(layer, inputs, sums)


def _add_up(maps: npt.NDArray[np.generic]) -> tuple[Sums, Array]:
    """What the tracer's kernel adds up, from maps; and the largest weight at every entry `(T, T)`."""
    n, h, t = maps.shape[:3]
    columns, first, entropy = (np.zeros((n, h, t)) for _ in range(3))
    diagonals = np.zeros((n, h, 2 * t - 1))
    alive = np.zeros((n, h, t), dtype=bool)
    largest = np.zeros((t, t))
    for sample, heads in _blocks(n, h, t):
        a, counts, _ = clean(maps[sample, heads])
        at = (sample, heads)
        alive[at], columns[at], diagonals[at] = counts, a.sum(axis=-2), metrics.diagonal_mass(a)
        entropy[at] = metrics.row_entropy_bits(a) * np.log(2)
        np.maximum(largest, a.max(axis=0), out=largest)
        first[at] = a[..., 0]
    start = alive.any(1).argmax(-1)  # the first real token of every sample
    for sample, heads in _blocks(n, h, t):
        if start[sample]:  # seldom: padding on the left
            first[sample, heads] = clean(maps[sample, heads])[0][..., start[sample]]
    flat = n * h
    return (
        Sums(
            torch.from_numpy(columns).view(flat, t),
            torch.from_numpy(diagonals).view(flat, 2 * t - 1),
            torch.from_numpy(first).view(flat, t),
            torch.from_numpy(entropy).view(flat, t),
            torch.from_numpy(alive).view(flat, t),
        ),
        largest,
    )


def _blocks(samples: int, heads: int, length: int) -> Iterator[tuple[int, slice]]:
    """Heads of one sample that are small enough together to be held in float64."""
    step = max(1, _BLOCK // length**2)
    for sample in range(samples):
        for start in range(0, heads, step):
            yield sample, slice(start, min(start + step, heads))
