"""Perplexity along a stream when the key-value cache holds only a window (StreamingLLM).

Xiao et al., "Efficient Streaming Language Models with Attention Sinks" (ICLR 2024), section 3.2: the
cache keeps the first s tokens and the most recent ones, W keys in all, and positions are those
within the cache. Evaluated exactly, but for all tokens of a layer at once: for the token at stream
position i, the window keys keep their relative distances, so any common shift of positions serves;
for the kept keys the query is rotated to its cache slot, min(i, W-1), and key j to slot j. What a
token leaves in the cache depends only on what it could see itself, so the parallel evaluation and
the token-by-token one are the same function. For models of the Llama family (rotary embeddings of
the default kind, one `rotary_emb` for all layers).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.models.llama.modeling_llama import rotate_half

IMPLEMENTATION = "cloudchamber_stream"
_ROWS = 128  # queries evaluated together
_HEAD_ROWS = 256  # positions whose logits exist at the same time

Floats = npt.NDArray[np.float32]
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Policy:
    """What the key-value cache keeps: everything (`cache` None), or `cache` keys of which the first
    `kept` tokens always stay.

    `cache` counts all keys a query sees once the stream is longer: kept ones and its own included.
    """

    cache: int | None = None
    kept: int = 0

    def __post_init__(self) -> None:
        if self.cache is None and self.kept:
            raise ValueError("a cache that keeps everything has no kept tokens to set apart")
        if self.cache is not None and not 0 <= self.kept < self.cache:
            raise ValueError(f"a cache of {self.cache} keys cannot keep {self.kept} and slide")


DENSE = Policy()


@dataclass
class _Job:
    policy: Policy
    cos: Tensor  # (positions, d)
    sin: Tensor
    step: Callable[[], None]


_JOB: ContextVar[_Job | None] = ContextVar("attention_stream", default=None)


def stream_nll(
    model: PreTrainedModel, ids: Tensor, policy: Policy, progress: Progress | None = None
) -> Floats:
    """Negative log-likelihood in nats of every token of the stream `ids (T,)` after the first.

    The result is `(T-1,)`; entry p is the prediction of stream position p+1. Memory is linear in T.
    `progress(done, total)` counts layers; what it raises ends the evaluation. ValueError if the
    model has no default rotary embedding, a window of its own, or is in training mode, or T < 2.
    """
    _check(model, ids)
    layers, done = int(model.config.num_hidden_layers), 0

    def step() -> None:
        nonlocal done
        done += 1
        if progress is not None:
            progress(done, layers)

    with torch.inference_mode(), _streaming(model):
        return _stream(model, ids.to(model.device), policy, step)


def binned(nll: Floats, width: int) -> list[tuple[int, int, int, float]]:
    """Means of one stream's `(T-1,)` nll over stream positions: (start, stop, tokens, mean nll).

    Bins are [0, width), [width, 2 width), … of predicted positions, of which the first one starts
    at 1 (position 0 is never predicted) and the last may be short.
    """
    length = len(nll) + 1
    edges = [(max(a, 1), min(a + width, length)) for a in range(0, length, width)]
    return [(a, b, b - a, float(np.mean(nll[a - 1 : b - 1], dtype=np.float64))) for a, b in edges if b > a]


def _check(model: PreTrainedModel, ids: Tensor) -> None:
    base: Any = model.base_model
    rotary = getattr(base, "rotary_emb", None)
    if rotary is None or getattr(rotary, "rope_type", None) != "default":
        raise ValueError(f"{type(model).__name__} has no default rotary embedding to move")
    if getattr(model.config, "sliding_window", None):
        raise ValueError("the model already attends in a sliding window of its own")
    if model.training:
        raise ValueError("the model must be in eval mode")
    if ids.ndim != 1 or len(ids) < 2:
        raise ValueError(f"a stream is one row of at least 2 ids, got {tuple(ids.shape)}")


@contextmanager
def _streaming(model: PreTrainedModel) -> Iterator[None]:
    before = model.config._attn_implementation
    model.set_attn_implementation(IMPLEMENTATION)
    try:
        yield
    finally:
        model.set_attn_implementation(before)


def _stream(model: PreTrainedModel, ids: Tensor, policy: Policy, step: Callable[[], None]) -> Floats:
    """nll `(T-1,)` of one stream `(T,)`."""
    base: Any = model.base_model
    t = len(ids)
    # Positions in use: everything for dense, else the cache's slots and a band's relative positions.
    positions = torch.arange(t if policy.cache is None else policy.cache + _ROWS, device=ids.device)
    cos, sin = base.rotary_emb(torch.zeros(1, device=ids.device), positions[None])
    token = _JOB.set(_Job(policy, cos[0], sin[0], step))
    try:
        # At position 0 a rotary embedding does nothing, so the attention receives unrotated vectors.
        nowhere = torch.zeros(1, t - 1, dtype=torch.long, device=ids.device)
        hidden = base(input_ids=ids[None, :-1], position_ids=nowhere, use_cache=False).last_hidden_state[0]
    finally:
        _JOB.reset(token)
    causal: Any = model
    head = causal.get_output_embeddings()
    losses = []
    for start in range(0, t - 1, _HEAD_ROWS):
        logits = head(hidden[start : start + _HEAD_ROWS]).float()
        targets = ids[start + 1 : start + 1 + len(logits)]
        losses.append(nn.functional.cross_entropy(logits, targets, reduction="none"))
    return torch.cat(losses).cpu().numpy()


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding of `(K, …, r, d)` at the positions of `cos (r, d)`."""
    rotated: Tensor = x * cos + rotate_half(x) * sin  # type: ignore[no-untyped-call]
    return rotated


def _attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: None, scaling: float, **rest: Any
) -> tuple[Tensor, None]:
    """Attention function: unrotated query `(1, H, T, d)`, key and value `(1, K, T, d)`."""
    job = _JOB.get()
    if job is None:
        raise ValueError(f"attention implementation {IMPLEMENTATION!r} only works inside stream_nll()")
    _, h, t, d = query.shape
    k = key.shape[1]
    grouped = query[0].view(k, h // k, t, d)
    output = torch.empty(1, t, h, value.shape[-1], dtype=query.dtype, device=query.device)
    for start in range(0, t, _ROWS):
        stop = min(start + _ROWS, t)
        band = _band(job, grouped[:, :, start:stop] * scaling, key[0], value[0], start)
        output[0, start:stop] = band.permute(2, 0, 1, 3).flatten(1, 2)
    job.step()
    return output, None


def _band(job: _Job, query: Tensor, key: Tensor, value: Tensor, start: int) -> Tensor:
    """Context `(K, G, r, dv)` of queries `(K, G, r, d)` that stand at stream positions from `start`."""
    k, g, r, _ = query.shape
    policy, cos, sin = job.policy, job.cos, job.sin
    stop, kept = start + r, policy.kept
    reach = stop if policy.cache is None else policy.cache - kept  # window keys, one's own included
    low = min(max(kept, start - reach + 1), stop)
    at = torch.arange(start, stop, device=query.device)
    keys_at = torch.arange(low, stop, device=query.device)
    origin = max(0, start - reach + 1)
    q = _rotate(query, cos[at - origin], sin[at - origin]).flatten(1, 2)
    near = q @ _rotate(key[:, low:stop], cos[keys_at - origin], sin[keys_at - origin]).transpose(1, 2)
    seen = (keys_at <= at[:, None]) & (keys_at > at[:, None] - reach)
    scores = near.view(k, g, r, stop - low).masked_fill_(~seen, -torch.inf)
    values = value[:, low:stop]
    if policy.cache is not None and kept:
        slot = at.clamp(max=policy.cache - 1)
        q = _rotate(query, cos[slot], sin[slot]).flatten(1, 2)
        first = torch.arange(min(kept, stop), device=query.device)
        far = q @ _rotate(key[:, : len(first)], cos[first], sin[first]).transpose(1, 2)
        far = far.view(k, g, r, len(first)).masked_fill_(first > at[:, None], -torch.inf)
        scores = torch.cat([far, scores], dim=-1)
        values = torch.cat([value[:, : len(first)], values], dim=1)
    weights = torch.softmax(scores, dim=-1, dtype=torch.float32).to(value.dtype)
    return (weights.flatten(1, 2) @ values).view(k, g, r, value.shape[-1])


def _no_mask(*args: Any, **rest: Any) -> None:
    """The band decides what is seen; transformers need not build a (T, T) mask."""


AttentionInterface.register(IMPLEMENTATION, _attention)
AttentionMaskInterface.register(IMPLEMENTATION, _no_mask)
