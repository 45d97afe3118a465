"""Attention rollout: what the class token has taken in after all layers. Numpy only."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]


def rollout(maps: npt.ArrayLike, query: int = 0) -> Array:
    """Flow of attention from the input tokens to `query` at the top (Abnar & Zuidema 2020, section 3).

    `maps` is (layers, heads, N, N). Heads are averaged, the residual connection adds the identity,
    rows are made to sum to one, and the layers are multiplied. Returns (N,), summing to one.
    """
    a = np.asarray(maps, dtype=np.float64).mean(axis=1)
    a = a + np.eye(a.shape[-1])
    a = a / a.sum(axis=-1, keepdims=True)
    flow = np.eye(a.shape[-1])
    for layer in a:
        flow = layer @ flow
    result: Array = flow[query]
    return result
