"""The numbers that every head has, as the page offers them: name, unit, scale, one line of meaning."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType

import numpy as np
import pandas as pd

from app.figures.base import quantity, share


@dataclass(frozen=True)
class Metric:
    """One number per head. `column` is of the heads' frame; `hover` stands after the value in a hover
    label; `meaning` is one line for the control's help; `top` is the end of its colour scale, None
    for the largest value on screen; `at_threshold`: it counts what exceeds ε."""

    slug: str
    title: str
    column: str
    hover: str
    meaning: str
    write: Callable[[float], str]
    top: float | None = None
    at_threshold: bool = False


_tokens = partial(quantity, unit="tokens", digits=3)
_keys = partial(quantity, unit="keys", digits=3)
_bits = partial(quantity, unit="bits", digits=3)
_times = partial(quantity, unit="×", digits=3)

_METRICS = (
    Metric(
        "sink",
        "Sink rate at ε",
        "sink_rate",
        "of chunks sink",
        "Share of text chunks in which the first token's importance exceeds ε (Gu et al.).",
        share,
        1.0,
        at_threshold=True,
    ),
    Metric(
        "importance",
        "First-token importance",
        "first_importance",
        "on the first token",
        "Mean attention the first token gets from all queries, itself included.",
        share,
        1.0,
    ),
    Metric(
        "mass",
        "First-token mass",
        "first_token_mass",
        "on the first token",
        "The same mean over the later queries only, as in StreamingLLM.",
        share,
        1.0,
    ),
    Metric(
        "entropy",
        "Row entropy",
        "row_entropy_bits",
        "row entropy",
        "How spread out a query's attention is: 0 bits looks at one key, log₂ T at all alike.",
        _bits,
    ),
    Metric(
        "keys",
        "Effective keys",
        "effective_keys",
        "in effect",
        "2 to the power of the row entropy: how many keys a query attends to in effect.",
        _keys,
    ),
    Metric(
        "gini",
        "Key inequality (Gini)",
        "column_gini",
        "Gini coefficient",
        "How unevenly attention is received: 0 all keys alike, 1 everything on one key.",
        partial(quantity, digits=2),
        1.0,
    ),
    Metric(
        "top",
        "Top key share",
        "top_key_share",
        "on the strongest key",
        "Share of all attention that the single most attended key receives, wherever it stands.",
        share,
        1.0,
    ),
    Metric(
        "distance",
        "Mean distance",
        "mean_distance",
        "away on average",
        "How far from the query the attended keys are, in tokens.",
        _tokens,
    ),
    Metric(
        "keynorm",
        "First token's key norm",
        "key_norm_ratio",
        "the other keys' length",
        "Length of the first token's key vector over the mean length of the other keys.",
        _times,
    ),
    Metric(
        "valuenorm",
        "First token's value norm",
        "value_norm_ratio",
        "the other values' length",
        "The same for value vectors: a sink that adds nothing has a small one.",
        _times,
    ),
)
METRICS: Mapping[str, Metric] = MappingProxyType({metric.slug: metric for metric in _METRICS})


def scale_top(metric: Metric, *frames: pd.DataFrame) -> float:
    """The end of the metric's colour scale over all `frames`, so that maps side by side compare."""
    if metric.top is not None:
        return metric.top
    values = np.concatenate([frame[metric.column].to_numpy(dtype=float) for frame in frames])
    values = values[np.isfinite(values)]
    return float(values.max()) if values.size and values.max() > 0 else 1.0
