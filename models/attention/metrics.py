"""Sink metrics of attention maps in closed form (numpy only, so the app may import it).

Positions count from 0. A map is `(..., T, T)`, query by key, rows summing to 1. Sources: Gu et al.,
"When Attention Sink Emerges in Language Models" (ICLR 2025), section 3, for importance and sink
rate; Xiao et al., "Efficient Streaming Language Models with Attention Sinks" (ICLR 2024) for the
first-token mass. The tracer computes the same numbers without ever holding a map.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

MIN_QUERIES = 8  # a key seen by fewer queries has too noisy an importance to be called the top key


def seen_by(length: int, causal: bool) -> Ints:
    """Number of queries that can see each key of an unmasked sequence: T-k if causal, else T. (T,)"""
    return length - np.arange(length) if causal else np.full(length, length)


def importance(attention: npt.ArrayLike, causal: bool) -> Array:
    """Importance of every key: its column's mass over the number of queries that can see it.

    `(..., T, T) -> (..., T)`. alpha_k = sum_{q>=k} A[q,k] / (T-k) for causal maps (Gu et al. 2025,
    eq. in section 3); the mean over all queries otherwise.
    """
    a = np.asarray(attention, dtype=np.float64)
    return np.asarray(a.sum(axis=-2) / seen_by(a.shape[-1], causal), dtype=np.float64)


def sink_rate(importances: npt.ArrayLike, eps: float, position: int = 0) -> float:
    """Sink_k^eps: share of (sample, layer, head) whose importance of key `position` exceeds `eps`.

    `importances` is `(..., T)`. NaN if there are no heads.
    """
    at = np.asarray(importances, dtype=np.float64)[..., position]
    return float(np.mean(at > eps)) if at.size else float("nan")


def first_token_mass(attention: npt.ArrayLike) -> Array:
    """Mean attention on key 0 over queries 1..T-1. `(..., T, T) -> (...)`; NaN where T is 1."""
    a = np.asarray(attention, dtype=np.float64)
    return mean_or_nan(a[..., 1:, 0].sum(axis=-1), a.shape[-2] - 1)


def row_entropy_bits(attention: npt.ArrayLike) -> Array:
    """Shannon entropy of every query's attention in bits. `(..., T, T) -> (..., T)`."""
    a = np.asarray(attention, dtype=np.float64)
    logs = np.log2(a, out=np.zeros_like(a), where=a > 0)
    return np.asarray(-(a * logs).sum(axis=-1) + 0.0, dtype=np.float64)


def effective_keys(attention: npt.ArrayLike) -> Array:
    """Mean over queries of 2 to the power of the row entropy: 1 one-hot, T uniform. `-> (...)`."""
    return np.asarray(np.exp2(row_entropy_bits(attention)).mean(axis=-1), dtype=np.float64)


def gini(mass: npt.ArrayLike) -> Array:
    """Gini coefficient of non-negative masses along the last axis, scaled by n/(n-1).

    With that factor (the small-sample correction) 0 is an even spread and 1 is everything on one
    position, whatever n is. `(..., n) -> (...)`; 0 where n is 1 or nothing was received.
    """
    m = np.sort(np.asarray(mass, dtype=np.float64), axis=-1)
    n = m.shape[-1]
    total = m.sum(axis=-1)
    if n < 2:
        return np.zeros_like(total)
    ranked = (m * (2 * np.arange(1, n + 1) - n - 1)).sum(axis=-1)
    safe = np.where(total > 0, total, 1.0)
    return np.asarray(np.clip(ranked / (safe * (n - 1)), 0.0, 1.0), dtype=np.float64)


def top_key(importances: npt.ArrayLike, queries: npt.ArrayLike) -> tuple[Ints, Array]:
    """Position and value of the largest importance among keys seen by at least 8 queries.

    `importances (..., T)`, `queries (T,)` or broadcastable: how many queries see each key. Where no
    key is seen by 8 (short sequences), the keys seen most often stand in. The first of equals wins.
    """
    values = np.asarray(importances, dtype=np.float64)
    counts = np.broadcast_to(np.asarray(queries), values.shape)
    least = np.minimum(MIN_QUERIES, counts.max(axis=-1, keepdims=True))
    eligible = np.where(counts >= least, values, -np.inf)
    best = eligible.argmax(axis=-1)
    return best, np.take_along_axis(values, best[..., None], axis=-1)[..., 0]


def top_share(column_mass: npt.ArrayLike) -> Array:
    """Largest share of all attention mass that one key receives. `(..., T) -> (...)`."""
    m = np.asarray(column_mass, dtype=np.float64)
    total = m.sum(axis=-1)
    return np.asarray(np.where(total > 0, m.max(axis=-1) / np.where(total > 0, total, 1.0), 0.0))


def distance_bins(length: int) -> list[tuple[int, int]]:
    """The bins of `distance_mass` as half-open ranges of tokens: [0,1), [1,2), [2,4), [4,8), …"""
    return [(0, 1)] + [(1 << b, 1 << (b + 1)) for b in range((length - 1).bit_length())]


def diagonal_mass(attention: npt.ArrayLike) -> Array:
    """Mass at every signed distance query - key, from -(T-1) to T-1. `(..., T, T) -> (..., 2T-1)`."""
    a = np.asarray(attention, dtype=np.float64)
    t = a.shape[-1]
    return np.stack([np.trace(a, offset=-d, axis1=-2, axis2=-1) for d in range(-(t - 1), t)], axis=-1)


def fold(diagonals: npt.ArrayLike) -> Array:
    """Signed to absolute distances: `(..., 2T-1) -> (..., T)`."""
    d = np.asarray(diagonals, dtype=np.float64)
    t = (d.shape[-1] + 1) // 2
    out = d[..., t - 1 :].copy()
    out[..., 1:] += d[..., : t - 1][..., ::-1]
    return out


def distance_mass(by_distance: npt.ArrayLike) -> Array:
    """Share of attention in the log2 bins of `distance_bins`, from mass per absolute distance.

    `(..., T) -> (..., B)`, summing to 1 (zeros if there is no mass at all).
    """
    m = np.asarray(by_distance, dtype=np.float64)
    starts = [lo for lo, _ in distance_bins(m.shape[-1])]
    binned = np.add.reduceat(m, starts, axis=-1)
    total = binned.sum(axis=-1, keepdims=True)
    return np.asarray(binned / np.where(total > 0, total, 1.0), dtype=np.float64)


def mean_distance(by_distance: npt.ArrayLike) -> Array:
    """Attention-weighted mean |query - key| in tokens. `(..., T) -> (...)`; NaN without any mass."""
    m = np.asarray(by_distance, dtype=np.float64)
    return mean_or_nan((m * np.arange(m.shape[-1])).sum(axis=-1), m.sum(axis=-1))


def mean_or_nan(total: npt.ArrayLike, count: npt.ArrayLike) -> Array:
    """`total / count`, NaN where count is 0."""
    t, c = np.broadcast_arrays(np.asarray(total, dtype=np.float64), np.asarray(count, dtype=np.float64))
    result: Array = np.divide(t, c, out=np.full(t.shape, np.nan), where=c > 0)
    return result


def uniform_causal_importance(length: int) -> float:
    """Importance of the first token when every causal row is uniform: H_T / T (0.07412 at T=64)."""
    return float(np.sum(1.0 / np.arange(1, length + 1)) / length)


def window_importance_ceiling(window: int, length: int) -> float:
    """Largest possible importance of the first token under a causal window: min(1, W/T)."""
    return min(1.0, window / length)


def window_mass_ceiling(window: int, length: int) -> float:
    """Largest possible first-token mass (queries 1..T-1) under a causal window: (W-1)/(T-1), at most 1."""
    return min(1.0, (window - 1) / (length - 1)) if length > 1 else float("nan")
