"""By depth: the first token's importance of every head, layer by layer, under what the layer can see."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from app.figures.assemble import assemble, note
from app.figures.attention_windows import lowered
from app.figures.base import Figure, share
from app.theme import Palette

HEIGHT = 280  # px, as the small figures beside it


def importance_by_layer(heads: pd.DataFrame, windows: pd.DataFrame, eps: float, palette: Palette) -> Figure:
    """One dot a head. `heads` has layer, head and first_importance (shares), `windows` layer and
    importance_ceiling, which is drawn where it is below 1 for some layer."""
    low, high = float(heads["layer"].min()) - 0.5, float(heads["layer"].max()) + 0.5
    threshold = {"color": palette.muted, "width": 1, "dash": "dash"}
    traces = [_dots(heads, palette)]
    notes = [note(f"ε = {eps:.2f}", palette.muted, x=high, y=eps, xanchor="right", yanchor="bottom")]
    if lowered(windows):
        traces.append(_ceiling(windows, palette))
        notes.append(_lowest(windows, low, high, palette))
    fig = assemble(
        traces,
        palette,
        HEIGHT,
        (56, 16, 16, 48),
        {
            "xaxis": {
                "range": [low, high],
                "fixedrange": True,
                "tick0": 0,
                "dtick": 1 if high - low <= 16 else 5,
                "title": {"text": "layer, from the input"},
            },
            "yaxis": {
                "range": [0, 1.06],
                "fixedrange": True,
                "showgrid": True,
                "gridcolor": palette.line,
                "tickvals": [0, 0.25, 0.5, 0.75, 1],
                "ticktext": ["0", "25 %", "50 %", "75 %", "100 %"],
                "title": {"text": "first-token importance"},
            },
            "shapes": [{"type": "line", "x0": low, "x1": high, "y0": eps, "y1": eps, "line": threshold}],
            "annotations": notes,
        },
    )
    return Figure(fig, _alt(heads, windows, eps), _reading(heads, windows))


def _dots(heads: pd.DataFrame, palette: Palette) -> dict[str, Any]:
    cells = zip(heads["head"], heads["first_importance"], strict=True)
    return {
        "type": "scatter",
        "mode": "markers",
        "x": heads["layer"].to_numpy(),
        "y": heads["first_importance"].to_numpy(),
        "marker": {"color": palette.hot, "size": 6, "opacity": 0.75, "line": {"width": 0}},
        "customdata": [[int(head), share(value)] for head, value in cells],
        "hovertemplate": "layer %{x}, head %{customdata[0]}<br><b>%{customdata[1]}</b> on the first token"
        "<extra></extra>",
    }


def _ceiling(windows: pd.DataFrame, palette: Palette) -> dict[str, Any]:
    """A step over each layer; broken where the next layer's ceiling is another one."""
    x: list[float | None] = []
    y: list[float | None] = []
    rows = windows.sort_values("layer")
    for layer, top in zip(rows["layer"], rows["importance_ceiling"], strict=True):
        x += [float(layer) - 0.42, float(layer) + 0.42, None]
        y += [float(top), float(top), None]
    line = {"color": palette.ink, "width": 1.5}
    return {"type": "scatter", "mode": "lines", "x": x, "y": y, "line": line, "hoverinfo": "skip"}


def _lowest(windows: pd.DataFrame, low: float, high: float, palette: Palette) -> dict[str, Any]:
    row = windows.iloc[int(np.nanargmin(windows["importance_ceiling"].to_numpy()))]
    where, value = float(row["layer"]), float(row["importance_ceiling"])
    left = where < (low + high) / 2
    return note(
        f"ceiling {share(value)}",
        palette.ink,
        x=where - 0.42 if left else where + 0.42,
        y=value,
        xanchor="left" if left else "right",
        yanchor="top",
    )


def _reading(heads: pd.DataFrame, windows: pd.DataFrame) -> str:
    if not lowered(windows):
        best = heads.iloc[int(np.nanargmax(heads["first_importance"].to_numpy()))]
        return (
            f"The strongest head is layer {best['layer']:.0f}, head {best['head']:.0f}, with "
            f"**{share(best['first_importance'])}**; the median head gives the first token "
            f"{share(float(heads['first_importance'].median()))}."
        )
    both = heads.merge(windows[["layer", "importance_ceiling"]], on="layer")
    near = both[both["importance_ceiling"] < 1]
    full = int((near["first_importance"] > 0.9 * near["importance_ceiling"]).sum())
    return (
        "The line is the most that a layer's window lets the first token have. "
        f"**{full} of {len(near)} heads** under a lowered ceiling reach nine tenths of it."
    )


def _alt(heads: pd.DataFrame, windows: pd.DataFrame, eps: float) -> str:
    ceiling = ""
    if lowered(windows):
        lowest = float(windows["importance_ceiling"].min())
        ceiling = f", under the ceiling that each layer's window sets, {share(lowest)} at the lowest"
    return (
        f"First-token importance of {len(heads)} heads by layer{ceiling}; median "
        f"{share(float(heads['first_importance'].median()))}, threshold {eps:.2f}."
    )
