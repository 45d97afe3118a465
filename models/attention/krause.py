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

import torch
import torch.nn.functional as F

from models.attention.bands import banded_attention
from models.attention.topk import NEVER, keep_largest

Tensor = torch.Tensor


def extended(q: Tensor, k: Tensor, sigma2: Tensor | None) -> tuple[Tensor, Tensor]:
    """q and k whose plain dot product is the score. sigma2 broadcasts to (..., heads, 1, 1).

    For distances one dimension is added: (q/s, 1/s).(k, -|k|^2/2) with s = sigma^2, so that one matrix
    product, or any fused kernel, serves both kinds of score.
    """
    if sigma2 is None:
        return q / math.sqrt(q.shape[-1]), k
    ones = torch.ones_like(q[..., :1])
    return torch.cat([q, ones], -1) / sigma2, torch.cat([k, -0.5 * k.square().sum(-1, keepdim=True)], -1)


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
    """Causal window of `window` keys, of which only those are ever touched: O(N W d) time and memory.

    Differentiable once. Raises ValueError for fewer than one key, in the window or kept.
    """
    if window < 1:
        raise ValueError(f"a window holds at least the query's own key, not {window}")
    a, b = extended(q, k, sigma2)
    return banded_attention(a, b, v, min(window, q.shape[2]), topk)


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
