"""The still of the Krause study: the same head under softmax and under Krause attention."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from app.figures.numbers import share
from app.figures.raster import matrix_png
from app.theme import Mode, palette
from data.records import krause_attention_queries as queries
from precompute.studies.krause_attention import BACK_COPY

if TYPE_CHECKING:
    from data.store import Store

ICON = ":material/hub:"

_GAP = 4  # cells between the two maps
_SCALE = 6  # px a cell


def pair(store: Store) -> tuple[np.ndarray, np.ndarray] | None:
    """Maps of softmax and of Krause attention with a window that hides nothing; None without them."""
    if not store.has_table("krause_maps"):
        return None
    runs = queries.text_runs(store, BACK_COPY)
    runs = runs[runs["has_maps"]]
    softmax = runs[runs["mechanism"] == "softmax"]
    krause = runs[(runs["mechanism"] == "krause") & (runs["window"] >= runs["length"])]
    if softmax.empty or krause.empty:
        return None
    maps = [queries.attention_map(store, str(rows["run_id"].iloc[0]), 0, 0) for rows in (softmax, krause)]
    return None if maps[0] is None or maps[1] is None else (maps[0], maps[1])


def still(store: Store, mode: Mode) -> str | None:
    """The two maps beside each other as a PNG data URI on the track scale, or None without traces."""
    maps = pair(store)
    if maps is None:
        return None
    rows = min(len(maps[0]), len(maps[1])) // 2  # the first queries fill a card's wide shape
    field = np.full((rows, 2 * rows * 2 + _GAP), np.nan, np.float32)
    for place, weights in ((0, maps[0]), (2 * rows + _GAP, maps[1])):
        part = weights[-rows:, : 2 * rows]
        field[:, place : place + part.shape[1]] = part
    return matrix_png(
        np.kron(field, np.ones((_SCALE, _SCALE), np.float32)), palette(mode), 0.0, 1.0, 2_048
    ).uri


def caption(store: Store) -> str:
    """What the picture shows, in one sentence with its numbers; empty without traces."""
    maps = pair(store)
    if maps is None:
        return ""
    softmax, krause = (float(m[1:, 0].mean()) for m in maps)
    return (
        f"One head on one text, queries down, keys across: softmax at the left gives the first token "
        f"{share(softmax)} of its attention, Krause attention at the right {share(krause)}."
    )
