"""Frames and figures of one run, straight from a store. No Streamlit: reports are made of them too."""

from __future__ import annotations

import numpy as np
import pandas as pd

from app.figures.attention_metrics import METRICS
from app.figures.attention_sinks import heads_map
from app.figures.attention_windows import masked, out_of_sight
from app.figures.base import Figure
from app.theme import Mode, palette
from data.records import attention_sinks_queries as queries
from data.store import Store


def heads(store: Store, run_id: str, eps: float) -> pd.DataFrame:
    """Every head's scalars with its sink rate at `eps`, NaN where its layer cannot show one."""
    rates = masked(queries.sink_rates(store, run_id, eps), "sink_rate", queries.windows(store, run_id), eps)
    return queries.heads(store, run_id).merge(rates, on=["layer", "head"], how="left")


def by_layer(store: Store, run_id: str, eps: float) -> pd.DataFrame:
    """Sink rate by layer, NaN for a layer that cannot show one at `eps`."""
    return masked(queries.sinks_by_layer(store, run_id, eps), "rate", queries.windows(store, run_id), eps)


def rates(store: Store, run_id: str) -> pd.DataFrame:
    """Sink rate of the first token at every threshold from 0 to 1: eps, rate. NaN where no layer sees it."""
    grid = [step / 20 for step in range(21)]
    windows = queries.windows(store, run_id)
    means = []
    for eps in grid:
        found = queries.sink_rates(store, run_id, eps)
        hidden = out_of_sight(windows, eps) if eps < 1 else []
        means.append(float(found.loc[~found["layer"].isin(hidden), "sink_rate"].mean()))
    return pd.DataFrame({"eps": grid, "rate": means})


def heads_figure(store: Store, run_id: str, metric: str, eps: float, mode: Mode) -> Figure:
    """The map of heads of a run. It stays the same from click to click, so pages keep it."""
    frames = heads(store, run_id, eps), by_layer(store, run_id, eps)
    windows = queries.windows(store, run_id)
    return heads_map(*frames, METRICS[metric], eps, palette(mode), windows=windows)


def default_head(heads: pd.DataFrame) -> tuple[int, int]:
    """The head to open with: the one that gives its first token nearest to half of its attention, so
    that both the sink and what else it looks at can be seen."""
    apart = (heads["first_importance"] - 0.5).abs()
    row = heads.iloc[int(np.nanargmin(apart.to_numpy()))] if apart.notna().any() else heads.iloc[0]
    return int(row["layer"]), int(row["head"])
