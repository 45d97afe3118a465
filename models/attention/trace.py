"""A streaming tracer: sink metrics of every head of a transformers model, layer by layer.

One attention function and one mask function are registered with transformers' interfaces; while a
trace runs, the model uses them. Each layer is reduced as it is computed (models.attention.kernel)
and handed to the caller, so no `(L, H, T, T)` tensor ever exists. Hidden states are looked at by
forward hooks on the model's blocks. Works with any model that supports the attention interface,
causal or not, grouped-query, sliding-window, padded, and with shared layers (ALBERT): layers are
counted per forward call.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel

from models.attention import metrics
from models.attention.kernel import Inputs, Sums, Workspace, attend
from models.attention.visibility import Dense, Plain, Visibility, lazy_mask

IMPLEMENTATION = "cloudchamber_trace"
Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int32]


@dataclass(frozen=True)
class LayerAttention:
    """The heads of one layer. N samples, H query heads, T positions, B distance bins.

    Means over queries count real tokens only. Values that need a second token (first_token_mass and
    the norm ratios) are NaN where T is 1. Definitions: models.attention.metrics.
    """

    layer: int
    importance: Floats  # (N, H, T): mean attention received, by key
    seen_by: Ints  # (N, T): how many queries can see each key
    first_token_mass: Floats  # (N, H): mean attention on the first token, later queries only
    row_entropy_bits: Floats  # (N, H)
    effective_keys: Floats  # (N, H)
    column_gini: Floats  # (N, H)
    top_key: Ints  # (N, H)
    top_key_importance: Floats  # (N, H)
    top_key_share: Floats  # (N, H)
    mean_distance: Floats  # (N, H) tokens
    distance_mass: Floats  # (N, H, B)
    key_norm_ratio: Floats  # (N, H), of the key as used (after RoPE)
    value_norm_ratio: Floats  # (N, H)


@dataclass(frozen=True)
class LayerStates:
    """Hidden states `(N, T, D)` after a block; layer -1 is what enters the first block.

    The median is the lower of the two middle values.
    """

    layer: int
    max_abs: Floats  # (N,)
    max_position: Ints  # (N,)
    max_dimension: Ints  # (N,)
    median_abs: Floats  # (N,)
    first_token_norm: Floats  # (N,)
    other_norm: Floats  # (N,), NaN where T is 1


OnAttention = Callable[[LayerAttention], None]
OnStates = Callable[[LayerStates], None]
OnMap = Callable[[int, int, int, Floats], None]  # layer, sample, head, (T, T)
Progress = Callable[[int, int], None]  # layers done, of how many; cancel by raising


@dataclass
class _Job:
    """One forward pass under trace."""

    layers: int
    valid: Tensor  # (N, T); of pictures (N, 0) until the first block shows how many patches they became
    first: Tensor
    on_attention: OnAttention
    on_states: OnStates
    on_map: OnMap | None
    map_samples: tuple[int, ...]
    progress: Progress | None
    layer: int = 0
    block: int = -1
    work: Workspace = field(default_factory=Workspace)
    views: dict[int, tuple[Any, Visibility]] = field(default_factory=dict)


_JOB: ContextVar[_Job | None] = ContextVar("attention_trace", default=None)


def trace(
    model: PreTrainedModel,
    input_ids: Tensor | None,
    attention_mask: Tensor | None = None,
    *,
    pixel_values: Tensor | None = None,
    on_attention: OnAttention = lambda _: None,
    on_states: OnStates = lambda _: None,
    on_map: OnMap | None = None,
    map_samples: tuple[int, ...] = (0,),
    progress: Progress | None = None,
) -> None:
    """Run `input_ids (N, T)` through `model` once and hand out each layer's numbers as they come.

    A vision model reads `pixel_values (N, C, H, W)` instead, and its tokens are its patches.

    The order is states of layer -1, then for every layer its maps (if asked for, one head at a
    time, of `map_samples`), its attention and the states after it. `attention_mask (N, T)` marks real tokens
    as for the model itself. `progress` is called after every layer; an exception it raises ends the
    trace (that is how to cancel). The language-model head is not run. The model must be in eval
    mode; ValueError otherwise, or when the ids are not a non-empty matrix, or the model does not
    support the attention interface.
    """
    inputs = _inputs(input_ids, pixel_values)
    if model.training:
        raise ValueError("the model must be in eval mode: dropout would change the attention")
    base: Any = model.base_model
    device = base.device
    inputs = {name: tensor.to(device) for name, tensor in inputs.items()}
    if input_ids is None:
        valid = torch.ones(len(inputs["pixel_values"]), 0, dtype=torch.bool, device=device)
    elif attention_mask is None:
        valid = torch.ones(input_ids.shape, dtype=torch.bool, device=device)
    else:
        valid = attention_mask.to(device).bool()
    job = _Job(
        layers=int(model.config.num_hidden_layers),
        valid=valid,
        first=valid.int().argmax(-1) if input_ids is not None else valid.sum(-1),
        on_attention=on_attention,
        on_states=on_states,
        on_map=on_map,
        map_samples=map_samples,
        progress=progress,
    )
    arguments: dict[str, Any] = {}
    if attention_mask is not None:
        arguments["attention_mask"] = valid.long()
    if "use_cache" in inspect.signature(base.forward).parameters:
        arguments["use_cache"] = False
    with torch.inference_mode(), _tracing(model, base, job):
        base(**inputs, **arguments)


def _inputs(input_ids: Tensor | None, pixel_values: Tensor | None) -> dict[str, Tensor]:
    if (input_ids is None) == (pixel_values is None):
        raise ValueError("a model reads either input_ids or pixel_values")
    if pixel_values is not None:
        if pixel_values.ndim != 4 or 0 in pixel_values.shape:
            got = tuple(pixel_values.shape)
            raise ValueError(
                f"pixel_values must be a non-empty (samples, channels, height, width), got {got}"
            )
        return {"pixel_values": pixel_values}
    assert input_ids is not None
    if input_ids.ndim != 2 or 0 in input_ids.shape:
        got = tuple(input_ids.shape)
        raise ValueError(f"input_ids must be a non-empty (samples, tokens) matrix, got {got}")
    return {"input_ids": input_ids}


def _all_valid(job: _Job, samples: int, length: int) -> None:
    """Pictures have no padding: every patch counts."""
    if job.valid.shape[1] == 0:
        job.valid = torch.ones(samples, length, dtype=torch.bool, device=job.valid.device)
        job.first = job.valid.int().argmax(-1)


@contextmanager
def _tracing(model: PreTrainedModel, base: nn.Module, job: _Job) -> Iterator[None]:
    """Attention function, block hooks and the job are in place inside, and gone outside."""
    before = model.config._attn_implementation
    model.set_attn_implementation(IMPLEMENTATION)
    if model.config._attn_implementation != IMPLEMENTATION:
        raise ValueError(f"{type(model).__name__} does not support transformers' attention interface")
    hooks = []
    for block in _blocks(model, base):
        hooks.append(block.register_forward_pre_hook(_enter, with_kwargs=True))
        hooks.append(block.register_forward_hook(_leave))
    token = _JOB.set(job)
    try:
        yield
    finally:
        _JOB.reset(token)
        for hook in hooks:
            hook.remove()
        model.set_attn_implementation(before)


def _blocks(model: PreTrainedModel, base: nn.Module) -> list[nn.Module]:
    """The modules whose outputs are the hidden states: what transformers itself would record."""
    recorded = getattr(base, "_can_record_outputs", None) or getattr(model, "_can_record_outputs", None) or {}
    target = recorded.get("hidden_states")
    target = target[0] if isinstance(target, (list, tuple)) else target
    target = getattr(target, "target_class", target)
    if isinstance(target, type):
        return [m for m in base.modules() if isinstance(m, target)]
    lists = [list(m) for m in base.modules() if isinstance(m, nn.ModuleList)]
    return max(lists, key=len, default=[])


def _enter(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    job = _JOB.get()
    if job is not None and job.block == -1:
        hidden = args[0] if args else kwargs["hidden_states"]
        _all_valid(job, hidden.shape[0], hidden.shape[1])
        job.on_states(_states(job, -1, hidden))
        job.block = 0


def _leave(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
    job = _JOB.get()
    if job is not None:
        hidden = output[0] if isinstance(output, tuple) else output
        job.on_states(_states(job, job.block, hidden))
        job.block += 1
        if job.progress is not None:
            job.progress(job.block, job.layers)


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Any,
    scaling: float | None = None,
    dropout: float = 0.0,
    **rest: Any,
) -> tuple[Tensor, None]:
    """The attention function registered with transformers: query `(N, H, T, d)` and so on."""
    job = _JOB.get()
    if job is None:
        raise ValueError(f"attention implementation {IMPLEMENTATION!r} only works inside trace()")
    for unsupported in ("s_aux", "position_bias"):
        if rest.get(unsupported) is not None:
            raise ValueError(f"attention with {unsupported} is not supported by the tracer")
    _all_valid(job, query.shape[0], query.shape[2])
    causal = rest.get("is_causal")
    causal = bool(getattr(module, "is_causal", False) if causal is None else causal)
    inputs = Inputs(
        query,
        key,
        value,
        query.shape[-1] ** -0.5 if scaling is None else scaling,
        _view(job, attention_mask, query, causal),
        job.valid,
        job.first,
        rest.get("softcap"),
    )
    layer, job.layer = job.layer, job.layer + 1
    on_map = job.on_map
    if on_map is None:
        output, sums = attend(inputs, job.work)
    else:
        give = on_map
        output, sums = attend(
            inputs, job.work, job.map_samples, lambda n, h, m: give(layer, n, h, m.cpu().numpy())
        )
    job.on_attention(_reduce(layer, inputs, sums))
    return output, None


def _view(job: _Job, mask: Any, query: Tensor, causal: bool) -> Visibility:
    """The mask the model passed, as rows. None means the plain pattern of the module."""
    if mask is None:
        return Plain(query.shape[2], causal, query.device)
    if not isinstance(mask, Tensor):
        return mask  # type: ignore[no-any-return]  # made by lazy_mask
    if id(mask) not in job.views:
        job.views[id(mask)] = (mask, Dense(mask))  # the mask is kept, so its id stays its own
    return job.views[id(mask)][1]


def _reduce(layer: int, inputs: Inputs, sums: Sums) -> LayerAttention:
    """From sums over `(N*H, T)` to the layer's metrics."""
    n, h, t, _ = inputs.query.shape
    view, valid = inputs.visibility, inputs.valid
    seen = view.seen_by(valid)
    # A query whose window hides the key gives it nothing, and counts: importances of layers compare.
    reach = Plain(t, view.causal, valid.device).seen_by(valid)
    columns = sums.columns.view(n, h, t)
    importance = (columns / reach.clamp(min=1)[:, None]).cpu().numpy()
    counted = sums.alive.view(n, h, t) & valid[:, None]
    later = counted & (torch.arange(t, device=valid.device) > inputs.first[:, None])[:, None]
    bits = sums.entropy.view(n, h, t).double() / float(np.log(2))
    distance = metrics.fold(sums.diagonals.view(n, h, -1).cpu().numpy())
    real = valid[:, None].expand(n, h, t).cpu().numpy()
    column_mass = columns.cpu().numpy()
    top, top_importance = metrics.top_key(importance, seen.cpu().numpy()[:, None])
    return LayerAttention(
        layer=layer,
        importance=_f32(importance),
        seen_by=seen.cpu().numpy().astype(np.int32),
        first_token_mass=_f32(_mean(sums.first.view(n, h, t), later)),
        row_entropy_bits=_f32(_mean(bits, counted)),
        effective_keys=_f32(_mean(bits.exp2(), counted)),
        column_gini=_f32(_gini(column_mass, real)),
        top_key=top.astype(np.int32),
        top_key_importance=_f32(top_importance),
        top_key_share=_f32(metrics.top_share(column_mass)),
        mean_distance=_f32(metrics.mean_distance(distance)),
        distance_mass=_f32(metrics.distance_mass(distance)),
        key_norm_ratio=_norm_ratio(inputs.key, inputs, h),
        value_norm_ratio=_norm_ratio(inputs.value, inputs, h),
    )


def _gini(mass: npt.NDArray[np.float64], real: npt.NDArray[np.bool_]) -> npt.NDArray[np.float64]:
    """Gini over each sample's real positions only."""
    if real.all():
        return metrics.gini(mass)
    return np.stack([metrics.gini(m[:, r[0]]) for m, r in zip(mass, real, strict=True)])


def _mean(values: Tensor, where: Tensor) -> npt.NDArray[np.float64]:
    """Mean over the last axis of the entries selected by `where`; NaN where there are none."""
    total = (values.double() * where).sum(-1)
    return metrics.mean_or_nan(total.cpu().numpy(), where.sum(-1).cpu().numpy())


def _norm_ratio(x: Tensor, inputs: Inputs, heads: int) -> Floats:
    """Norm of `(N, K, T, d)` at the first real token over the mean of the others, per query head."""
    norms = torch.linalg.vector_norm(x.float(), dim=-1)
    first, others = _first_and_others(norms, inputs.valid[:, None], inputs.first[:, None])
    return _f32(metrics.mean_or_nan(first, others).repeat(heads // x.shape[1], axis=1))


def _first_and_others(
    norms: Tensor, valid: Tensor, first: Tensor
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """`(..., T)` norms to the one at `first (...)` and the mean of the other valid ones (NaN if none)."""
    at = first.expand(norms.shape[:-1])[..., None]
    others = valid.expand(norms.shape).scatter(-1, at, False)
    return norms.gather(-1, at)[..., 0].double().cpu().numpy(), _mean(norms, others)


def _states(job: _Job, layer: int, hidden: Tensor) -> LayerStates:
    """Statistics of hidden states `(N, T, D)` over the real tokens."""
    width = hidden.shape[-1]
    magnitude = hidden.detach().float().abs()
    norms = torch.linalg.vector_norm(magnitude, dim=-1)
    first, others = _first_and_others(norms, job.valid, job.first)
    whole = bool(job.valid.all())
    largest, where, medians = [], [], []
    for sample, valid in zip(magnitude, job.valid, strict=True):
        real = sample if whole else sample.masked_fill(~valid[:, None], -1.0)
        value, place = real.flatten().max(0)
        largest.append(float(value))
        where.append(int(place))
        medians.append(float((sample if whole else sample[valid]).median()))
    place_array = np.asarray(where)
    return LayerStates(
        layer=layer,
        max_abs=_f32(largest),
        max_position=(place_array // width).astype(np.int32),
        max_dimension=(place_array % width).astype(np.int32),
        median_abs=_f32(medians),
        first_token_norm=_f32(first),
        other_norm=_f32(others),
    )


def _f32(x: npt.ArrayLike) -> Floats:
    return np.asarray(x, dtype=np.float32)


@dataclass(frozen=True)
class Trace:
    """All layers of a trace stacked: attention fields `(N, L, H, …)`, state fields `(N, L+1)`."""

    attention: dict[str, npt.NDArray[Any]]
    states: dict[str, npt.NDArray[Any]]


def collect(
    model: PreTrainedModel, input_ids: Tensor, attention_mask: Tensor | None = None, **rest: Any
) -> Trace:
    """`trace`, with everything but maps kept and stacked along a layer axis after the sample axis."""
    layers = int(model.config.num_hidden_layers)
    kept = Trace({}, {})
    trace(
        model,
        input_ids,
        attention_mask,
        on_attention=lambda layer: _keep(kept.attention, layer, layer.layer, layers),
        on_states=lambda layer: _keep(kept.states, layer, layer.layer + 1, layers + 1),
        **rest,
    )
    return kept


def _keep(arrays: dict[str, npt.NDArray[Any]], layer: Any, index: int, layers: int) -> None:
    """Copy a layer's arrays to their place among all layers.

    Copied, not collected: small arrays that live on between the large ones of a forward pass
    fragment the heap, which then grows by megabytes a layer.
    """
    for name in (f.name for f in fields(layer) if f.name != "layer"):
        values = getattr(layer, name)
        if name not in arrays:
            arrays[name] = np.zeros((values.shape[0], layers, *values.shape[1:]), values.dtype)
        arrays[name][:, index] = values


AttentionInterface.register(IMPLEMENTATION, _attention)
AttentionMaskInterface.register(IMPLEMENTATION, lazy_mask)
