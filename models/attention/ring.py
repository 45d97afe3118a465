"""What generation remembers: keys and values of every token, of the last W, or two running sums.

Each takes one query at a time and gives exactly what the operator over the whole sequence gives at
that position. Shapes: q, k, v are (batch, heads, 1, d).
"""

from __future__ import annotations

import math
from typing import Protocol

import torch
import torch.nn.functional as F

from models.attention.krause import extended
from models.attention.topk import keep_largest

Tensor = torch.Tensor


class Memory(Protocol):
    """What one layer keeps between tokens."""

    def step(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Take the next token's query, key and value; the output at that token (B, H, 1, d)."""

    @property
    def nbytes(self) -> int:
        """Bytes held now."""


class FullCache:
    """Every key and value so far; grows by doubling. `null` is a learned key of value zero (heads, d)."""

    def __init__(
        self, *, sigma2: Tensor | None = None, topk: int | None = None, null: Tensor | None = None
    ) -> None:
        self._sigma2, self._topk, self._null = sigma2, topk, null
        self._keys: Tensor | None = None
        self._values: Tensor | None = None
        self._count = 0

    @property
    def nbytes(self) -> int:
        if self._keys is None or self._values is None:
            return 0
        return self._keys.nbytes + self._values.nbytes

    def step(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        a, b = extended(q, k, self._sigma2)
        self._grow(b, v)
        assert self._keys is not None and self._values is not None
        self._keys[:, :, self._count : self._count + 1] = b
        self._values[:, :, self._count : self._count + 1] = v
        self._count += 1
        scores = keep_largest(a @ self._keys[:, :, : self._count].transpose(-1, -2), self._topk)
        if self._null is not None:
            nothing = (q * self._null[:, None]).sum(-1, keepdim=True) / math.sqrt(q.shape[-1])
            weights = torch.cat([nothing, scores], -1).softmax(-1)[..., 1:]
        else:
            weights = scores.softmax(-1)
        return weights @ self._values[:, :, : self._count]

    def _grow(self, b: Tensor, v: Tensor) -> None:
        room = 0 if self._keys is None else self._keys.shape[2]
        if self._count < room:
            return
        more = max(16, room)
        if self._keys is None or self._values is None:
            self._keys = b.new_empty(*b.shape[:2], more, b.shape[-1])
            self._values = v.new_empty(*v.shape[:2], more, v.shape[-1])
        else:
            self._keys = F.pad(self._keys, (0, 0, 0, more))
            self._values = F.pad(self._values, (0, 0, 0, more))


class RingCache:
    """The last `window` keys and values; the newest overwrites the oldest, so the size is constant."""

    def __init__(self, window: int, *, sigma2: Tensor | None = None, topk: int | None = None) -> None:
        if window < 1:
            raise ValueError(f"a window holds at least the query's own key, not {window}")
        self._window, self._sigma2, self._topk = window, sigma2, topk
        self._keys: Tensor | None = None
        self._values: Tensor | None = None
        self._count = 0

    @property
    def nbytes(self) -> int:
        if self._keys is None or self._values is None:
            return 0
        return self._keys.nbytes + self._values.nbytes

    def step(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        a, b = extended(q, k, self._sigma2)
        if self._keys is None or self._values is None:
            self._keys = b.new_zeros(*b.shape[:2], self._window, b.shape[-1])
            self._values = v.new_zeros(*v.shape[:2], self._window, v.shape[-1])
        place = self._count % self._window
        self._keys[:, :, place : place + 1] = b
        self._values[:, :, place : place + 1] = v
        self._count += 1
        held = min(self._count, self._window)
        keys, values = self._keys[:, :, :held], self._values[:, :, :held]
        scores = a @ keys.transpose(-1, -2)
        if self._topk is not None and self._topk < held and self._count > self._window:
            # Ties go to the smaller position, so the ring is put into the order of positions.
            scores, values = scores.roll(-(place + 1), -1), values.roll(-(place + 1), 2)
        return keep_largest(scores, self._topk).softmax(-1) @ values


class LinearState:
    """The two sums of linear attention with the feature map elu + 1 (Katharopoulos et al. 2020, eq. 18)."""

    def __init__(self) -> None:
        self._products: Tensor | None = None
        self._keys: Tensor | None = None

    @property
    def nbytes(self) -> int:
        if self._products is None or self._keys is None:
            return 0
        return self._products.nbytes + self._keys.nbytes

    def step(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        a, b = F.elu(q) + 1, F.elu(k) + 1
        product = b.transpose(-1, -2) @ v
        self._products = product if self._products is None else self._products + product
        self._keys = b if self._keys is None else self._keys + b
        return (a @ self._products) / (a * self._keys).sum(-1, keepdim=True)
