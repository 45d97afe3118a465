"""The still of the attention-sink study: every head of a model, by how much it gives the first token."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from app.figures.numbers import share
from app.figures.raster import matrix_png
from app.theme import Mode, palette
from data.records import attention_sinks_queries as queries
from precompute.studies.attention_sinks import SUBJECTS

if TYPE_CHECKING:
    from data.store import Store

ICON = ":material/filter_center_focus:"

# The run that shows the study best, if it is there: a language model on running text, as in the reference.
_PREFERRED = {"subject": "smollm2-135m-instruct", "text": "kjv", "bos": False, "length": 64}
_CELL, _GAP = 28, 4  # px of the picture; the page scales it


def shown_run(store: Store) -> pd.Series | None:
    """The run that shows the study best, a row of `trace_runs`; None without runs."""
    runs = queries.trace_runs(store)
    if runs.empty:
        return None
    fits = np.stack([(runs[name] == value).to_numpy() for name, value in _PREFERRED.items()])
    return runs.iloc[int(fits.sum(axis=0).argmax())]


def sink_map(store: Store) -> np.ndarray | None:
    """Importance of the first token of that run, (heads, layers); None when there is none."""
    run = shown_run(store)
    frame = pd.DataFrame() if run is None else queries.heads(store, str(run["run_id"]))
    if frame.empty:
        return None
    return frame.pivot(index="head", columns="layer", values="first_importance").to_numpy(dtype=np.float32)


def still(store: Store, mode: Mode) -> str | None:
    """The picture as a PNG data URI on the track scale from 0 to 1, or None when there is no trace."""
    heads = sink_map(store)
    if heads is None:
        return None
    pitch = _CELL + _GAP
    field = np.full((heads.shape[0] * pitch - _GAP, heads.shape[1] * pitch - _GAP), np.nan, np.float32)
    for head, layer in np.ndindex(heads.shape):
        field[head * pitch : head * pitch + _CELL, layer * pitch : layer * pitch + _CELL] = heads[head, layer]
    return matrix_png(field, palette(mode), 0.0, 1.0, max_px=2_048).uri


def caption(store: Store) -> str:
    """What the picture shows, in one sentence with its numbers; empty without traces."""
    heads, run = sink_map(store), shown_run(store)
    if heads is None or run is None:
        return ""
    subject = SUBJECTS[run["subject"]].title if run["subject"] in SUBJECTS else str(run["subject"])
    return (
        f"{subject}: {heads.shape[1]} layers across, {heads.shape[0]} heads down. A cell's colour is the "
        f"share of its attention that a head gives to the first token: {share(float(np.nanmean(heads)))} on "
        f"average, {share(float(np.nanmax(heads)))} at most."
    )
