"""Softmax attention in bands of query rows, reduced to sink statistics while each band is in cache.

For a band of r queries and n keys the scores are one matrix product; from exp(scores - max) come the
output, the row entropy, the mass per key (a matrix-vector product) and the mass per signed distance
(the same product over a skewed view of the band, whose columns are the diagonals). Causal bands stop
at their last visible key, so the upper triangle is never computed. Everything is float32, totals
float64. Nothing larger than one band outlives it unless maps are asked for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from models.attention.visibility import Visibility

_HIDDEN = -1e30  # score of an invisible key; finite, so that 0 * score stays 0
_FLOOR = -1e29  # a row whose largest score is below this sees nothing at all
# Bands of many heads and few rows: little is computed beyond the causal diagonal, and there are few
# enough operations that threads seldom wait for each other, which matters most on busy cores.
_CPU_ROWS = 128
_CPU_BYTES = 6_000_000
_GPU_BYTES = 256_000_000

OnMap = Callable[[int, int, Tensor], None]


@dataclass
class Sums:
    """What one layer's attention adds up to. F = samples x query heads, sample-major; T positions."""

    columns: Tensor  # (F, T) float64: mass received by every key from valid queries
    diagonals: Tensor  # (F, 2T-1) float64: mass by signed distance query - key, from -(T-1)
    first: Tensor  # (F, T) float32: weight of each query on the sample's first token
    entropy: Tensor  # (F, T) float32: row entropy in nats
    alive: Tensor  # (F, T) bool: the query sees at least one key


@dataclass(frozen=True)
class Inputs:
    """One attention call: query `(N, H, T, d)`, key `(N, K, T, d)`, value `(N, K, T, dv)`."""

    query: Tensor
    key: Tensor
    value: Tensor
    scaling: float
    visibility: Visibility
    valid: Tensor  # (N, T) bool: real tokens; queries elsewhere are computed but not counted
    first: Tensor  # (N,) int64: position of each sample's first real token
    softcap: float | None = None


class Workspace:
    """Two flat buffers, reused by every band of every layer, and the square that hides the future."""

    def __init__(self) -> None:
        self._scores = torch.empty(0)
        self._weights = torch.empty(0)
        self._front = 0
        self._future = torch.empty(0, 0, dtype=torch.bool)

    def reserve(self, size: int, rows: int, device: torch.device) -> None:
        """Make room for bands of up to `size` elements and `rows` query rows."""
        if self._scores.numel() < size or self._front < rows or self._scores.device != device:
            self._front = rows
            self._scores = torch.empty(size, device=device)
            self._weights = torch.zeros(rows + size, device=device)
            self._future = torch.ones(rows, rows, dtype=torch.bool, device=device).triu(1)

    def bands(self, size: int, rows: int) -> tuple[Tensor, Tensor]:
        """`size` scores, and `rows` zeros followed by `size` weights."""
        return self._scores[:size], self._weights[self._front - rows : self._front + size]

    def future(self, rows: int) -> Tensor:
        """`(rows, rows)` bool: keys after the query, in the square on the diagonal."""
        return self._future[:rows, :rows]


def band_rows(length: int, device: torch.device) -> int:
    """Query rows per band."""
    return length if device.type != "cpu" else min(length, _CPU_ROWS)


def _blocks(flat: int, outer: int, per_head: int, budget: int) -> Iterator[range]:
    """Ranges of the `flat` (sample, key-value head) pairs that are computed together.

    A range holds as many pairs of `per_head` bytes as fit the budget, at least one, and does not
    cross a multiple of `outer` (so that maps can be handed out sample by sample).
    """
    size = max(1, budget // per_head)
    for base in range(0, flat, outer):
        for start in range(base, base + outer, size):
            yield range(start, min(start + size, base + outer))


def attend(
    inputs: Inputs, work: Workspace, wanted: tuple[int, ...] = (), on_map: OnMap | None = None
) -> tuple[Tensor, Sums]:
    """Attention output `(N, T, H, dv)` in the query's dtype, and its sums.

    `wanted` samples have their maps handed to `on_map(sample, head, map)` one head at a time, map
    `(T, T)` float32 on the device, valid only during the call. Shapes that do not fit (a key-value
    cache, cross attention) raise ValueError.
    """
    n, h, t, _ = inputs.query.shape
    kv = inputs.key.shape[1]
    if inputs.key.shape[2] != t or h % kv:
        shapes = f"query {tuple(inputs.query.shape)}, key {tuple(inputs.key.shape)}"
        raise ValueError(f"self-attention without a cache expected, got {shapes}")
    group = h // kv
    device = inputs.query.device
    rows = band_rows(t, device)
    per_head = group * rows * (t + rows)  # elements of a band, padding included
    budget = _CPU_BYTES if device.type == "cpu" else _GPU_BYTES
    blocks = list(_blocks(n * kv, kv if on_map is not None else n * kv, 4 * per_head, budget))
    work.reserve(max(map(len, blocks)) * per_head, rows, device)
    flat = n * h
    sums = Sums(
        torch.zeros(flat, t, dtype=torch.float64, device=device),
        torch.zeros(flat, 2 * t - 1, dtype=torch.float64, device=device),
        torch.zeros(flat, t, device=device),
        torch.zeros(flat, t, device=device),
        torch.ones(flat, t, dtype=torch.bool, device=device),
    )
    output = torch.empty(n, t, h, inputs.value.shape[-1], dtype=inputs.query.dtype, device=device)
    for block in blocks:
        maps = None
        if on_map is not None and block.start // kv in wanted:
            maps = torch.zeros(len(block) * group, t, t, device=device)
        _block(inputs, block, group, work, sums, output, maps)
        if maps is not None and on_map is not None:
            for i, one in enumerate(maps):
                on_map(block.start // kv, (block.start % kv) * group + i, one)
    return output, sums


def _block(
    inputs: Inputs, block: range, group: int, work: Workspace, sums: Sums, output: Tensor, maps: Tensor | None
) -> None:
    """All bands of one range of key-value heads (`len(block) * group` query heads)."""
    n, h, t, d = inputs.query.shape
    kv, size = h // group, len(block)
    ids = torch.arange(block.start, block.stop, device=inputs.query.device)
    samples, kv_ids = ids // kv, ids % kv
    query = _heads(inputs.query, n * kv, block, group)
    key = _heads(inputs.key, n * kv, block, 1)[:, 0]
    value = _heads(inputs.value, n * kv, block, 1)[:, 0]
    heads = slice(block.start * group, block.stop * group)
    valid = inputs.valid[samples].repeat_interleave(group, 0)
    step = band_rows(t, inputs.query.device)
    for start in range(0, t, step):
        stop = min(start + step, t)
        low, high = inputs.visibility.span(start, stop)
        r, k = stop - start, high - low
        band = _Band(work, size, group, r, k)
        q = (query[:, :, start:stop] * inputs.scaling).reshape(size, group * r, d)
        band.score(q, key[:, low:high], inputs.softcap)
        _hide(band, inputs.visibility, (start, stop, low, high), samples, kv_ids)
        inverse, alive, entropy = band.normalise()
        context = torch.bmm(band.weights.view(size, group * r, -1)[..., :k], value[:, low:high])
        context = context.view(size * group, r, -1) * inverse[..., None]
        sums.alive[heads, start:stop] = alive
        sums.entropy[heads, start:stop] = entropy
        counted = inverse * valid[:, start:stop]
        sums.columns[heads, low:high] += band.columns(counted)
        furthest = stop - 1 - low + t - 1  # index of the largest distance in this band
        sums.diagonals[heads, furthest - (k + r - 2) : furthest + 1] += band.diagonals(counted).flip(-1)
        sums.first[heads, start:stop] = _first(band, inputs.first[samples] - low, inverse)
        _place(output, context, block, group, kv, start, stop)
        if maps is not None:
            torch.mul(band.weights[..., :k], inverse[..., None], out=maps[:, start:stop, low:high])


def _heads(x: Tensor, flat: int, block: range, group: int) -> Tensor:
    """`(N, H, T, d)` to float32 `(len(block), group, T, d)`."""
    return x.reshape(flat, group, x.shape[2], x.shape[3])[block.start : block.stop].float()


def _place(output: Tensor, context: Tensor, block: range, group: int, kv: int, start: int, stop: int) -> None:
    """Write `(len(block)*group, r, dv)` into `(N, T, H, dv)`."""
    n, t, _, dv = output.shape
    by_head = output.view(n, t, kv, group, dv).permute(0, 2, 3, 1, 4)  # (N, K, G, T, dv), a view
    rows = context.view(len(block), group, stop - start, dv)
    for i, flat in enumerate(block):
        by_head[flat // kv, flat % kv, :, start:stop] = rows[i].to(output.dtype)


def _hide(
    band: _Band, view: Visibility, window: tuple[int, int, int, int], samples: Tensor, kv_ids: Tensor
) -> None:
    """Lower the scores of invisible keys."""
    start, stop, low, high = window
    if view.plain:
        if view.causal:  # only the square on the diagonal has anything to hide
            band.scores[..., start - low : stop - low].masked_fill_(band.future, _HIDDEN)
        return
    mask = view.rows(start, stop, low, high)
    mask = mask[samples] if mask.shape[0] > 1 else mask.expand(len(samples), -1, -1, -1)
    if mask.shape[1] > 1:
        by_kv = mask.view(len(samples), -1, band.group, band.r, band.k)
        mask = by_kv[torch.arange(len(samples), device=samples.device), kv_ids]
    scores = band.scores.view(band.blocks, band.group, band.r, band.stride)[..., : band.k]
    if mask.dtype == torch.bool:
        scores.masked_fill_(~mask, _HIDDEN)
    else:
        scores.add_(mask.float()).clamp_(min=_HIDDEN)


def _first(band: _Band, column: Tensor, inverse: Tensor) -> Tensor:
    """Weight `(heads, r)` on each sample's first token, whose place in the band is `column (blocks,)`."""
    inside = (column >= 0) & (column < band.k)
    index = column.clamp(0, band.k - 1).repeat_interleave(band.group)
    picked = band.weights[torch.arange(len(index), device=index.device), :, index] * inverse
    return torch.where(inside.repeat_interleave(band.group)[:, None], picked, 0.0)


class _Band:
    """Scores and weights of `r` queries against `k` keys, rows padded by `r` for the skewed view."""

    def __init__(self, work: Workspace, blocks: int, group: int, r: int, k: int) -> None:
        self.blocks, self.group, self.r, self.k = blocks, group, r, k
        self.stride = k + r
        shape = (blocks * group, r, self.stride)
        scores, self._flat = work.bands(math.prod(shape), r)
        self.future = work.future(r)
        self.scores = scores.view(shape)
        self.weights = self._flat[r:].view(shape)

    def score(self, query: Tensor, key: Tensor, softcap: float | None) -> None:
        """Scores of `(blocks, group*r, d)` queries against `(blocks, k, d)` keys."""
        self.scores[..., self.k :] = _HIDDEN
        scores = self.scores.view(self.blocks, self.group * self.r, self.stride)[..., : self.k]
        torch.bmm(query, key.transpose(1, 2), out=scores)
        if softcap is not None:
            scores.div_(softcap).tanh_().mul_(softcap)

    def normalise(self) -> tuple[Tensor, Tensor, Tensor]:
        """exp(scores - max) into `weights`; returns 1/sum, whether anything is seen, entropy in nats.

        Entropy = log Z - E[score - max], both from the unnormalised weights.
        """
        most = self.scores.amax(-1, keepdim=True).clamp_(min=_FLOOR)
        self.scores.sub_(most)
        torch.exp(self.scores, out=self.weights)
        total = self.weights.sum(-1)
        alive = total > 0
        total = torch.where(alive, total, 1.0)
        inverse = torch.where(alive, total.reciprocal(), 0.0)
        mean = torch.linalg.vecdot(self.weights, self.scores) * inverse
        entropy = torch.where(alive, (total.log() - mean).clamp_(min=0.0), 0.0)
        return inverse, alive, entropy

    def columns(self, row_weight: Tensor) -> Tensor:
        """Mass per key, rows weighted by `(heads, r)`: `(heads, k)`."""
        return torch.bmm(row_weight[:, None], self.weights[..., : self.k])[:, 0]

    def diagonals(self, row_weight: Tensor) -> Tensor:
        """Mass per diagonal `(heads, k+r-1)`; entry x holds column - row = x - (r-1).

        Row i of the skewed view starts i elements later, so its columns are the band's diagonals;
        what lies outside the band falls on the zero padding behind each row.
        """
        skewed = self._flat.as_strided(
            (self.blocks * self.group, self.r, self.k + self.r - 1),
            (self.r * self.stride, self.stride + 1, 1),
            self._flat.storage_offset() + 1,
        )
        return torch.bmm(row_weight[:, None], skewed)[:, 0]
