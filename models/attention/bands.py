"""Attention over a causal window, computed along the diagonal band and nowhere else.

A block of C queries meets the S = C + W' keys that end with its own (W' >= W - 1). Its scores are one
matrix product; read with a row stride of S + 1 instead of S, the same memory shows for every query
exactly the W keys of its window, oldest first. Selection and softmax run on that view, and its
transpose in memory brings weights and gradients back to matrix products. Blocks are taken in chunks
that stay in cache, with the same two buffers for all of them.

Kept for the gradient: the weights, W a query. Time O(N W d), memory O(N (W + d)).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch.autograd.function import once_differentiable

from models.attention.topk import NEVER, kept

Tensor = torch.Tensor

_CPU_BYTES = 1_000_000  # one buffer of a chunk: two of them and what they meet fit a core's cache
_GPU_BYTES = 256_000_000


@dataclass(frozen=True)
class _Plan:
    """How (groups, length) queries are cut: `blocks` of `size` queries, each with `span` keys."""

    groups: int
    length: int
    width: int
    size: int
    per_chunk: int  # blocks

    @classmethod
    def of(cls, a: Tensor, width: int) -> _Plan:
        # Small blocks waste little beside the band; below 16 queries a matrix product is too thin.
        size = min(64, max(16, 1 << (width - 1).bit_length()))
        before = -(-(width - 1) // size) * size
        budget = _CPU_BYTES if a.device.type == "cpu" else _GPU_BYTES
        per_chunk = max(1, budget // (size * (size + before) * a.element_size()))
        return cls(a.shape[0], a.shape[1], width, size, per_chunk)

    @property
    def blocks(self) -> int:
        return -(-self.length // self.size)

    @property
    def before(self) -> int:
        """Keys before a block's first query: whole blocks, so that overlapping sums are plain ones."""
        return -(-(self.width - 1) // self.size) * self.size

    @property
    def span(self) -> int:
        return self.before + self.size

    def chunks(self) -> Iterator[tuple[slice, slice]]:
        """Slices of groups and of blocks: several whole groups, or part of one."""
        if self.blocks > self.per_chunk:
            for g in range(self.groups):
                for start in range(0, self.blocks, self.per_chunk):
                    yield slice(g, g + 1), slice(start, min(start + self.per_chunk, self.blocks))
        else:
            step = self.per_chunk // self.blocks
            for g in range(0, self.groups, step):
                yield slice(g, min(g + step, self.groups)), slice(0, self.blocks)

    def queries(self, t: Tensor) -> Tensor:
        """(groups, length, e) -> (groups, blocks, size, e), zeros after the end."""
        spare = self.blocks * self.size - self.length
        t = F.pad(t, (0, 0, 0, spare)) if spare else t
        return t.reshape(self.groups, self.blocks, self.size, t.shape[-1])

    def padded(self, t: Tensor) -> Tensor:
        """(groups, length, e) -> (groups, before + blocks * size, e), zeros around."""
        return F.pad(t, (0, 0, self.before, self.blocks * self.size - self.length)).contiguous()

    def keys(self, padded: Tensor, groups: slice, blocks: slice) -> Tensor:
        """The keys of some blocks (n, span, e); a view where they belong to one group."""
        part = padded[groups]
        e = part.shape[-1]
        stride = (part.stride(0), self.size * e, e, 1)
        shape = (part.shape[0], blocks.stop - blocks.start, self.span, e)
        offset = part.storage_offset() + blocks.start * self.size * e
        return part.as_strided(shape, stride, offset).flatten(0, 1)

    def add_keys(self, padded: Tensor, groups: slice, blocks: slice, part: Tensor) -> None:
        """The reverse: what belongs to the same key is added up."""
        part = part.view(-1, blocks.stop - blocks.start, *part.shape[1:])
        rows = part.shape[1] * self.size
        for first in range(0, self.span, self.size):
            start = blocks.start * self.size + first
            padded[groups, start : start + rows] += part[:, :, first : first + self.size].flatten(1, 2)

    def band(self, square: Tensor) -> Tensor:
        """The window of every query (n, size, width), oldest key first: a view of (n, size, span)."""
        n, offset = square.shape[0], square.storage_offset() + self.before - self.width + 1
        stride = (self.size * self.span, self.span + 1, 1)
        return square.as_strided((n, self.size, self.width), stride, offset)

    def hide_(self, band: Tensor, blocks: slice) -> None:
        """-inf where a window reaches before the first token."""
        early = min(-(-(self.width - 1) // self.size), blocks.stop) - blocks.start
        if early <= 0:
            return
        query = torch.arange(blocks.start * self.size, (blocks.start + early) * self.size, device=band.device)
        missing = torch.arange(self.width, device=band.device) < self.width - 1 - query[:, None]
        part = band.view(-1, blocks.stop - blocks.start, *band.shape[1:])[:, :early]
        part.masked_fill_(missing.view(early, self.size, self.width), NEVER)


class _Banded(torch.autograd.Function):
    """a, b (groups, N, e) whose dot products are the scores, v (groups, N, d) -> (groups, N, d)."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, v: Tensor, width: int, topk: int | None) -> Tensor:
        plan = _Plan.of(a, width)
        queries, keys, values = plan.queries(a), plan.padded(b), plan.padded(v)
        out = v.new_empty(plan.groups, plan.blocks, plan.size, v.shape[-1])
        learning = any(ctx.needs_input_grad)
        saved = a.new_empty(plan.groups, plan.blocks, plan.size, width) if learning else None
        square, spread = _buffers(plan, a)
        for groups, blocks in plan.chunks():
            q, k = queries[groups, blocks].flatten(0, 1), plan.keys(keys, groups, blocks)
            n = len(q)
            scores = plan.band(torch.bmm(q, k.transpose(1, 2), out=square[:n])).contiguous()
            plan.hide_(scores, blocks)
            keep = kept(scores, topk)
            weights = torch.softmax(scores, -1, out=scores)
            if keep is not None:  # the largest weight is always kept: what is divided by is no small number
                weights.mul_(keep).div_(weights.sum(-1, keepdim=True))
            plan.band(spread[:n]).copy_(weights)
            if saved is not None:
                saved[groups, blocks] = weights.view_as(saved[groups, blocks])
            y = torch.bmm(spread[:n], plan.keys(values, groups, blocks))
            out[groups, blocks] = y.view_as(out[groups, blocks])
        ctx.plan = plan
        if learning:
            ctx.save_for_backward(queries, keys, values, saved)
        return out.flatten(1, 2)[:, : plan.length]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        plan: _Plan = ctx.plan
        queries, keys, values, saved = ctx.saved_tensors
        dout = plan.queries(gradients[0])
        da, db, dv = torch.empty_like(queries), torch.zeros_like(keys), torch.zeros_like(values)
        square, spread = _buffers(plan, queries)
        for groups, blocks in plan.chunks():
            q, dy = queries[groups, blocks].flatten(0, 1), dout[groups, blocks].flatten(0, 1)
            k, value = plan.keys(keys, groups, blocks), plan.keys(values, groups, blocks)
            n = len(q)
            weights = saved[groups, blocks].flatten(0, 1)
            band = plan.band(spread[:n])
            band.copy_(weights)
            plan.add_keys(dv, groups, blocks, torch.bmm(spread[:n].transpose(1, 2), dy))
            ds = plan.band(torch.bmm(dy, value.transpose(1, 2), out=square[:n])) * weights
            torch.addcmul(ds, weights, ds.sum(-1, keepdim=True), value=-1, out=ds)
            band.copy_(ds)
            da[groups, blocks] = torch.bmm(spread[:n], k).view_as(da[groups, blocks])
            plan.add_keys(db, groups, blocks, torch.bmm(spread[:n].transpose(1, 2), q))
        own = slice(plan.before, plan.before + plan.length)
        return da.flatten(1, 2)[:, : plan.length], db[:, own], dv[:, own], None, None


def _buffers(plan: _Plan, like: Tensor) -> tuple[Tensor, Tensor]:
    """One for products, one that is zero beside the band for good."""
    most = max((g.stop - g.start) * (c.stop - c.start) for g, c in plan.chunks())
    shape = (most, plan.size, plan.span)
    return like.new_empty(shape), like.new_zeros(shape)


def banded_attention(a: Tensor, b: Tensor, v: Tensor, width: int, topk: int | None = None) -> Tensor:
    """Softmax of a.b over the last `width` keys, or the `topk` largest of them, times v.

    All are (B, H, N, .), on any device; 1 <= width <= N. Ties go to the smaller index. Differentiable once.
    """
    flat = [t.flatten(0, 1) for t in (a, b, v)]
    out: Tensor = _Banded.apply(*flat, width, topk)  # type: ignore[no-untyped-call]
    return out.view(*a.shape[:2], *out.shape[1:])
