"""How a transformers model is looked at: by the tracer, or by the maps that it returns itself."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from models.attention.from_maps import reduce_map
from models.attention.trace import OnAttention, OnMap, OnStates, Progress, trace
from models.checkpoints.attention import Trace
from models.checkpoints.inspection import Notice
from models.checkpoints.refused import Refused

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def text_trace(model: PreTrainedModel, layers: int) -> tuple[Trace, tuple[Notice, ...]]:
    """How to look at a model that reads ids: by the tracer, or by the maps it returns itself.

    Found out with two tokens: a family that ignores transformers' attention interface never calls us.
    Raises Refused when neither way shows every layer.
    """
    seen: list[int] = []
    probe = torch.zeros(1, 2, dtype=torch.int64)
    try:
        trace(model, probe, on_attention=lambda layer: seen.append(layer.layer))
    except ValueError as error:
        if "s_aux" in str(error):
            raise Refused(
                "brought_unsupported",
                f"{type(model).__name__} has learned sinks, which take attention and are no token.",
                "Its sinks are not comparable to those of tokens, and are not measured here.",
                where=type(model).__name__,
            ) from error
        seen = []
    if seen == list(range(layers)):
        return partial(trace, model), ()
    return own_maps(model, "input_ids", probe, layers)


def own_maps(
    model: PreTrainedModel, name: str, probe: torch.Tensor, layers: int
) -> tuple[Trace, tuple[Notice, ...]]:
    """The maps that a model returns itself, for families that ignore transformers' attention interface.

    `name` is the argument that `probe` is passed as. Raises Refused when they are not all there, or are
    no attention: some families return scores from before the softmax.
    """
    maps = maps_of(model, name, probe)
    try:
        for number, one in enumerate(maps):
            reduce_map(number, one.float().cpu().numpy())
    except ValueError:
        maps = ()
    if len(maps) != layers:
        raise Refused(
            "brought_unsupported",
            f"{type(model).__name__} does not show the attention of its {layers} layers.",
            "Export the model to ONNX, or bring its maps as .npy.",
            where=type(model).__name__,
        )
    said = (
        f"{type(model).__name__} computes attention in its own way: its maps are taken whole, hidden states "
        "and norms are not looked at."
    )
    return partial(_trace_maps, model, name), (Notice("own_attention", said, 1),)


def maps_of(model: Any, name: str, inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The square maps `(N, H, T, T)` that the model returns; empty when it returns none."""
    try:
        with torch.inference_mode():
            found = model(**{name: inputs.to(model.device)}, output_attentions=True).attentions
    except (TypeError, ValueError, RuntimeError, AttributeError):
        return ()
    maps = tuple(m for m in found or () if isinstance(m, torch.Tensor) and m.ndim == 4)
    return maps if all(m.shape[-1] == m.shape[-2] for m in maps) else ()


def _trace_maps(
    model: Any,
    name: str,
    inputs: torch.Tensor | None,
    *,
    on_attention: OnAttention,
    on_states: OnStates = lambda _: None,
    on_map: OnMap | None = None,
    map_samples: tuple[int, ...] = (0,),
    progress: Progress | None = None,
) -> None:
    """A forward pass that keeps its maps, one sample at a time; hidden states are not known."""
    del on_states
    assert inputs is not None
    stacked = [maps_of(model, name, row[None]) for row in inputs]
    layers = len(stacked[0])
    for layer in range(layers):
        maps = torch.cat([sample[layer] for sample in stacked]).float().cpu().numpy()
        if on_map is not None:
            for sample in map_samples:
                for head in range(maps.shape[1]):
                    on_map(layer, sample, head, maps[sample, head])
        on_attention(reduce_map(layer, maps))
        if progress is not None:
            progress(layer + 1, layers)
