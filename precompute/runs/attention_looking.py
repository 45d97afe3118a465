"""Looking at a model's attention on some samples: the same for every model, packaged or brought."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from data.records.attention_sinks import HEADS, LAYERS, MAPS, WINDOWS
from models.attention.trace import LayerAttention, LayerStates
from precompute.runs import attention_tables as rows
from precompute.studies.attention_sinks import AttentionConfig
from precompute.study import Recorder


@dataclass(frozen=True)
class Looked:
    """A model, ready to be looked at: `trace(inputs, on_attention=…, …)` as models.attention.trace.trace
    does it, and its inputs in groups, each with the numbers of the samples that it holds."""

    layers: int
    trace: Callable[..., None]
    groups: Sequence[tuple[Sequence[int], torch.Tensor | None]]


def look(config: AttentionConfig, looked: Looked, recorder: Recorder) -> None:
    """Trace every sample and write what is seen; the maps are of the first one."""
    total = looked.layers * len(looked.groups)
    for number, (group, inputs) in enumerate(looked.groups):

        def on_attention(layer: LayerAttention, group: Sequence[int] = group, number: int = number) -> None:
            if number == 0:
                recorder.write(WINDOWS.name, rows.window(layer))
            recorder.write(HEADS.name, rows.heads(layer, group))

        def on_states(states: LayerStates, group: Sequence[int] = group) -> None:
            recorder.write(LAYERS.name, rows.layers(states, group))

        def progress(done: int, _: int, before: int = number * looked.layers) -> None:
            recorder.progress(before + done, total, "tracing layers")

        def on_map(layer: int, sample: int, head: int, weights: npt.NDArray[np.float32]) -> None:
            recorder.write(MAPS.name, rows.attention_map(layer, head, weights, config.codec))

        looked.trace(
            inputs,
            on_attention=on_attention,
            on_states=on_states,
            on_map=on_map if config.maps and number == 0 else None,  # the first sample is in the first group
            map_samples=(0,),
            progress=progress,
        )
