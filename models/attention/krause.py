"""Krause attention and its controls, dense and gathered.

Krause attention weighs key j by exp(-|q_i - k_j|^2 / (2 sigma^2)) over the `topk` nearest keys of a
neighbourhood ("Krause Synchronization Transformers", ICML 2026, section 3). What depends on the
query alone cancels in the row's sum, so its scores are (q.k - |k|^2/2) / sigma^2: on the same
support it is dot-product attention with a penalty on long keys. Every function below therefore takes
`sigma2`: a tensor for distance scores, None for the usual q.k/sqrt(d).

Shapes: q, k, v are (batch, heads, tokens, d). Ties among the kept keys go to the smaller index.
"""

from __future__ import annotations

import math

import numpy as np
import torch
import torch.nn.functional as F

Tensor = torch.Tensor

NEVER = float("-inf")


def extended(q: Tensor, k: Tensor, sigma2: Tensor | None) -> tuple[Tensor, Tensor]:
    """q and k whose plain dot product is the score. sigma2 broadcasts to (..., heads, 1, 1).

    For distances one dimension is added: (q/s, 1/s).(k, -|k|^2/2) with s = sigma^2, so that one matrix
    product, or any fused kernel, serves both kinds of score.
    """
    if sigma2 is None:
        return q / math.sqrt(q.shape[-1]), k
    ones = torch.ones_like(q[..., :1])
    return torch.cat([q, ones], -1) / sigma2, torch.cat([k, -0.5 * k.square().sum(-1, keepdim=True)], -1)


def keep_largest(scores: Tensor, topk: int | None) -> Tensor:
    """`scores` with all but the `topk` largest of every row at -inf; ties go to the smaller index.

    Entries that are -inf stay so, also when fewer than `topk` are finite. Raises ValueError below 1.
    """
    if topk is None or topk >= scores.shape[-1]:
        return scores
    if topk < 1:
        raise ValueError(f"a row keeps at least one key, not {topk}")
    with torch.no_grad():
        least = _kth_largest(scores, topk)
        keep = (scores >= least) & (scores > NEVER)
        crowded = keep.sum(-1, keepdim=True) > topk
        if bool(crowded.any()):  # several keys tie for the last place: rare, and dear to sort out
            above = scores > least
            tied = keep & ~above
            keep = above | (tied & (tied.cumsum(-1) <= topk - above.sum(-1, keepdim=True)))
    return scores.masked_fill(~keep, NEVER)


def _kth_largest(scores: Tensor, topk: int) -> Tensor:
    """The `topk`-th largest of every row, (..., 1)."""
    if scores.device.type == "cpu" and scores.dtype in (torch.float32, torch.float64):
        # numpy selects with the processor's widest vectors; torch.topk on a CPU goes one by one.
        place = scores.shape[-1] - topk
        flat = scores.detach().reshape(-1, scores.shape[-1]).numpy()
        return torch.from_numpy(np.partition(flat, place, axis=-1)[:, place].copy()).reshape(
            *scores.shape[:-1], 1
        )
    return scores.topk(topk, dim=-1, sorted=True).values[..., -1:]


def dense_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    valid: Tensor,
    *,
    sigma2: Tensor | None = None,
    topk: int | None = None,
    null: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The reference path: every score is computed. Returns the output and the weights (B, H, N, N).

    `valid` is a boolean (N, N) mask that admits at least one key in every row. `null` is a learned
    key (heads, d) with value zero that every query sees ("attention to nothing"): rows of the
    weights then sum to less than one.
    """
    a, b = extended(q, k, sigma2)
    scores = keep_largest((a @ b.transpose(-1, -2)).masked_fill(~valid, NEVER), topk)
    if null is None:
        weights = scores.softmax(-1)
    else:
        extra = (q * null[:, None]).sum(-1, keepdim=True) / math.sqrt(q.shape[-1])
        weights = torch.cat([extra, scores], -1).softmax(-1)[..., 1:]
    return weights @ v, weights


def window_attention(
    q: Tensor, k: Tensor, v: Tensor, window: int, *, sigma2: Tensor | None = None, topk: int | None = None
) -> Tensor:
    """Causal window of `window` keys, gathered in blocks: O(N W d) time and memory.

    A block of W queries needs the keys of its own block and of the one before, nothing else.
    """
    length = q.shape[2]
    width = min(window, length)
    blocks = -(-length // width)
    spare = blocks * width - length
    a, b = extended(q, k, sigma2)
    a = F.pad(a, (0, 0, 0, spare))
    a = a.reshape(*a.shape[:2], blocks, width, a.shape[-1])
    b, values = (F.pad(t, (0, 0, width, spare)) for t in (b, v))
    pairs = [t.unfold(2, 2 * width, width).transpose(-1, -2) for t in (b, values)]  # (B, H, blocks, 2W, d)
    scores = a @ pairs[0].transpose(-1, -2)
    query = torch.arange(width, device=q.device)[:, None]
    key = torch.arange(2 * width, device=q.device)[None, :] - width
    seen = (key <= query) & (key > query - width)
    first = seen & (key >= 0)
    mask = seen.expand(blocks, -1, -1).clone()
    mask[0] = first
    weights = keep_largest(scores.masked_fill(~mask, NEVER), topk).softmax(-1)
    return (weights @ pairs[1]).flatten(2, 3)[:, :, :length]


def grid_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    index: Tensor,
    real: Tensor,
    *,
    sigma2: Tensor | None = None,
    topk: int | None = None,
    class_token: bool = True,
) -> Tensor:
    """Neighbourhood attention on a grid: only the M neighbours of each patch are touched.

    `index`, `real` are `Grid.neighbours` as tensors. The class token, if there is one, sees every key.
    """
    a, b = extended(q, k, sigma2)
    first = int(class_token)
    near, values = b[:, :, index], v[:, :, index]  # (B, H, patches, M, d)
    scores = (a[:, :, first:, None] * near).sum(-1).masked_fill(~real, NEVER)
    weights = keep_largest(scores, topk).softmax(-1)
    out = (weights[..., None] * values).sum(-2)
    if not class_token:
        return out
    row = keep_largest(a[:, :, :1] @ b.transpose(-1, -2), topk).softmax(-1)
    return torch.cat([row @ v, out], 2)


def linear_attention(q: Tensor, k: Tensor, v: Tensor, *, causal: bool) -> tuple[Tensor, Tensor]:
    """Linear attention with the feature map elu + 1 (Katharopoulos et al. 2020), written out densely.

    Returns output and weights (B, H, N, N); `LinearState` generates in constant memory.
    """
    a, b = F.elu(q) + 1, F.elu(k) + 1
    weights = a @ b.transpose(-1, -2)
    if causal:
        weights = weights.tril()
    weights = weights / weights.sum(-1, keepdim=True)
    return weights @ v, weights


def linear_attention_chunked(q: Tensor, k: Tensor, v: Tensor, chunk: int = 128) -> Tensor:
    """Causal linear attention in O(N d (d + chunk)): exact within a chunk, running sums before it."""
    length = q.shape[2]
    spare = -length % chunk
    a, b, values = (F.pad(t, (0, 0, 0, spare)) for t in (F.elu(q) + 1, F.elu(k) + 1, v))
    a, b, values = (t.reshape(*t.shape[:2], -1, chunk, t.shape[-1]) for t in (a, b, values))
    values = torch.cat([values, torch.ones_like(values[..., :1])], -1)  # the last column sums the weights
    sums = (b.transpose(-1, -2) @ values).cumsum(2)
    before = F.pad(sums[:, :, :-1], (0, 0, 0, 0, 1, 0))
    both = (a @ b.transpose(-1, -2)).tril() @ values + a @ before
    out = both.flatten(2, 3)[:, :, :length]
    return out[..., :-1] / out[..., -1:]
