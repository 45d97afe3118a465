"""Which keys a query may look at: causal windows, and neighbourhoods on a grid of patches.

A neighbourhood says the same thing twice: `valid` as a dense mask, for the reference path, and as
sizes or indices, for the gathered paths that never touch any other key. Positions count from 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Window:
    """Causal window {j : i-W+1 <= j <= i}; `width` None sees every earlier key. Raises ValueError below 1."""

    width: int | None = None

    def __post_init__(self) -> None:
        if self.width is not None and self.width < 1:
            raise ValueError(f"a window holds at least the query's own key, not {self.width}")

    def valid(self, length: int) -> Bools:
        """Dense mask (length, length), query by key."""
        query, key = np.arange(length)[:, None], np.arange(length)[None, :]
        seen = key <= query
        return seen if self.width is None else seen & (key > query - self.width)

    def pairs(self, length: int) -> int:
        """Number of (query, key) pairs the window admits: what a gathered path computes."""
        width = length if self.width is None else min(self.width, length)
        return width * (width + 1) // 2 + (length - width) * width


@dataclass(frozen=True)
class Grid:
    """Patches of an image and their neighbours, after an optional class token at position 0.

    A patch sees the patches within `radius` (itself among them) and the class token; the class
    token sees everything. `radius` None sees everything. Krause paper, section 1.1 of the vision
    setting: Manhattan distance 1 on 8 x 8 (CIFAR-10), Chebyshev distance 2 on 14 x 14 (ImageNet).
    """

    rows: int
    columns: int
    radius: int | None = 1
    distance: Literal["manhattan", "chebyshev"] = "manhattan"
    class_token: bool = True

    @property
    def length(self) -> int:
        """Tokens: patches, and the class token if there is one."""
        return self.rows * self.columns + self.class_token

    def valid(self) -> Bools:
        """Dense mask (N, N), query by key."""
        n, first = self.length, int(self.class_token)
        seen = np.ones((n, n), dtype=bool)
        if self.radius is not None:
            place = np.stack(np.divmod(np.arange(self.rows * self.columns), self.columns), axis=1)
            step = np.abs(place[:, None] - place[None])
            apart = step.sum(-1) if self.distance == "manhattan" else step.max(-1)
            seen[first:, first:] = apart <= self.radius
        return seen

    def pairs(self) -> int:
        """Number of admitted (query, key) pairs: 417 for 8 x 8 Manhattan 1, 4,489 for 14 x 14 Chebyshev 2."""
        return int(self.valid().sum())

    def neighbours(self) -> tuple[Ints, Bools]:
        """Keys of every patch query, in rising order, padded at the end to equal length.

        Returns index (patches, M) and which entries are real; padding repeats the query's own key.
        The class token's row is not among them: it sees all keys anyway.
        """
        first = int(self.class_token)
        seen = self.valid()[first:]
        most = int(seen.sum(axis=1).max())
        own = np.arange(first, self.length)
        index, real = np.repeat(own[:, None], most, axis=1), np.zeros((len(own), most), dtype=bool)
        for row, keys in enumerate(seen):
            found = np.flatnonzero(keys)
            index[row, : len(found)], real[row, : len(found)] = found, True
        return index, real


def growing_topk(smallest: int, layers: int) -> tuple[int, ...]:
    """Keys kept per layer, growing evenly from `smallest` to twice that (Krause paper, vision setting).

    [2,2,2,3,3,3,3,3,3,4,4,4] for (2, 12). Rounds halves to even, as numpy does.
    """
    return tuple(int(k) for k in np.round(np.linspace(smallest, 2 * smallest, layers)))
