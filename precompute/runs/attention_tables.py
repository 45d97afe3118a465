"""From what the tracer hands out to rows of the attention study's tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from data.blobs import encode_map
from data.records.attention_sinks import HEADS, LAYERS, MAPS, MODELS, TOKENS, WINDOWS
from data.schema import TableSpec
from models.attention.tokens import token_kind
from models.attention.trace import LayerAttention, LayerStates

_IMPORTANCE_STEPS = 2.0**14  # rounding makes published importances compress; error <= 3e-5


def table(spec: TableSpec, columns: dict[str, Any]) -> pa.Table:
    """Columns of any length-one or sequence values to a table of `spec`."""
    return pa.table({c.name: pa.array(columns[c.name], type=c.type) for c in spec.columns})


def tokens(
    samples: Sequence[Sequence[int]],
    pieces: Callable[[Sequence[int]], Sequence[str]],
    is_special: Callable[[int], bool],
) -> pa.Table:
    """The positions of every sample: ids, what they are called, and their kind."""
    columns: dict[str, list[Any]] = {c.name: [] for c in TOKENS.columns}
    for sample, ids in enumerate(samples):
        names = list(pieces(ids))
        columns["sample"] += [sample] * len(ids)
        columns["position"] += range(len(ids))
        columns["token_id"] += ids
        columns["token"] += names
        columns["kind"] += [
            token_kind(name, special=is_special(i)) for i, name in zip(ids, names, strict=True)
        ]
    return table(TOKENS, columns)


def heads(layer: LayerAttention, group: Sequence[int]) -> pa.Table:
    """The heads of one layer on the samples `group`."""
    n, h, _ = layer.importance.shape
    importance = np.round(layer.importance * _IMPORTANCE_STEPS) / _IMPORTANCE_STEPS
    columns: dict[str, Any] = {
        "sample": np.repeat(np.asarray(group), h),
        "layer": np.full(n * h, layer.layer),
        "head": np.tile(np.arange(h), n),
        "importance": list(importance.reshape(n * h, -1)),
        "distance_mass": list(layer.distance_mass.reshape(n * h, -1)),
    }
    for column in HEADS.columns:
        if column.name not in columns:
            columns[column.name] = getattr(layer, column.name).reshape(-1)
    return table(HEADS, columns)


def layers(states: LayerStates, group: Sequence[int]) -> pa.Table:
    """Hidden states after one block on the samples `group`."""
    columns: dict[str, Any] = {"sample": list(group), "layer": [states.layer] * len(group)}
    for column in LAYERS.columns:
        if column.name not in columns:
            columns[column.name] = getattr(states, column.name)
    return table(LAYERS, columns)


def attention_map(layer: int, head: int, weights: npt.NDArray[np.float32], codec: str) -> pa.Table:
    """One head's map of the first sample."""
    rows, cols = weights.shape
    columns = {
        "sample": [0],
        "layer": [layer],
        "head": [head],
        "rows": [rows],
        "cols": [cols],
        "codec": [codec],
        "weights": [encode_map(weights, codec)],
    }
    return table(MAPS, columns)


def window(layer: LayerAttention) -> pa.Table:
    """What the queries of a layer can see of its first sample.

    A layer is causal when its last key is seen by one query only. The first key is seen by `seen`
    queries, itself among them: its first-token mass can be (seen - 1)/(T - 1) at most, and its
    importance seen/T, as it is divided by what a mask without window would let see.
    """
    seen = layer.seen_by[0].astype(np.int64)
    length = len(seen)
    most, causal = int(seen.max()), bool(seen[-1] == 1)
    columns = {
        "layer": [layer.layer],
        "causal": [causal],
        "window": [most if most < length else None],
        "first_seen": [(seen[0] - 1) / (length - 1) if length > 1 else float("nan")],
        "importance_ceiling": [seen[0] / length],
    }
    return table(WINDOWS, columns)


def model(**facts: Any) -> pa.Table:
    """What was looked at; `facts` are the columns of attention_models."""
    return table(MODELS, {name: [value] for name, value in facts.items()})
