"""Vision models: what a head looks at, laid out as the picture whose patches its positions are."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import pandas as pd

from app.figures.assemble import assemble, flat_legend
from app.figures.base import Figure, share
from app.theme import Palette

_PATCH = re.compile(r"(\d{1,4}),(\d{1,4})")
_CELL, _WIDEST, _MOST_HIGH = 28, 1_024, 64


def grid_of(tokens: Sequence[str]) -> np.ndarray | None:
    """Position of every patch, (rows, columns), -1 where there is none; None when these are no patches.

    Patches are called "row,column"; other positions ("[CLS]") come before or after them.
    """
    places = [
        (position, int(found[1]), int(found[2]))
        for position, token in enumerate(tokens)
        if (found := _PATCH.fullmatch(token)) is not None
    ]
    if len(places) < 2 or len(places) < len(tokens) - 8:
        return None
    rows, columns = max(r for _, r, _ in places) + 1, max(c for _, _, c in places) + 1
    if rows > _MOST_HIGH or columns > _WIDEST or rows * columns > 4 * len(places):
        return None
    grid = np.full((rows, columns), -1)
    for position, row, column in places:
        grid[row, column] = position
    return grid


def patches_view(
    tokens: Sequence[str], importance: pd.DataFrame, place: tuple[int, int], palette: Palette
) -> Figure | None:
    """The importance of every patch where it lies in the picture; None when positions are no patches.

    `importance` has position and importance (shares). The colour scale ends at the strongest patch.
    """
    grid = grid_of(tokens)
    if grid is None:
        return None
    values = importance.sort_values("position")["importance"].to_numpy(dtype=float)
    shown = np.where(grid >= 0, values[np.maximum(grid, 0)], np.nan)
    rows, columns = grid.shape
    top = float(np.nanmax(shown)) or 1.0
    row, column = np.unravel_index(int(np.nanargmax(shown)), grid.shape)
    height = 40 + max(56, min(_CELL * rows, 360)) + 48
    cells = {
        "type": "heatmap",
        "z": shown,
        "zmin": 0,
        "zmax": top,
        "colorscale": palette.colorscale,
        "xgap": 1,
        "ygap": 1,
        "customdata": [[share(value) for value in line] for line in shown],
        "hovertemplate": "row %{y}, column %{x}<br>importance <b>%{customdata}</b><extra></extra>",
        "colorbar": flat_legend(palette, [0, top / 2, top], [share(v) for v in (0, top / 2, top)]),
    }
    fig = assemble(
        [cells],
        palette,
        height,
        (48, 16, 40, 48),
        {
            "xaxis": {"title": {"text": "column of the picture"}, "constrain": "domain", "nticks": 8},
            "yaxis": {
                "autorange": "reversed",
                "scaleanchor": "x",
                "constrain": "domain",
                "nticks": 6,
                "title": {"text": "row", "standoff": 4},
            },
        },
    )
    patches = float(np.nansum(shown))
    best = f"row {row}, column {column} ({share(top)})"
    text = f"The patch at **{best}** receives most; all patches together {share(patches / values.sum())}."
    alt = (
        f"Importance of {int((grid >= 0).sum())} patches, {rows} rows by {columns} columns, for layer "
        f"{place[0]}, head {place[1]}; the strongest is at {best}."
    )
    return Figure(fig, alt, text)
