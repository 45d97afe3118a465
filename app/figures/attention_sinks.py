"""The main figure of attention sinks: every head of a model, and the layers below it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from app.figures.assemble import CellFrame, assemble, flat_legend, note
from app.figures.attention_metrics import Metric, scale_top
from app.figures.attention_windows import hatching, out_of_sight
from app.figures.base import Figure, listed, ranges, share
from app.theme import Palette

# Pixels, the same for the heads' map and for the head beside it, so that the two stand level.
TOP, GAP, STRIP = 40, 24, 88
CELL, BOTTOM, LEFT, RIGHT = 32, 48, 48, 16
DRY = 0.05  # a layer whose sink rate is below this has almost no sinks
WANTED_CELLS = 288  # height of the cells together: 9 heads of 32 px


def holds(heads: pd.DataFrame, place: tuple[int, int]) -> bool:
    """Whether `heads` has the head at (layer, head)."""
    return bool(((heads["layer"] == place[0]) & (heads["head"] == place[1])).any())


def heads_map(
    heads: pd.DataFrame,
    by_layer: pd.DataFrame,
    metric: Metric,
    eps: float,
    palette: Palette,
    top: float | None = None,
    windows: pd.DataFrame | None = None,
) -> Figure:
    """Layers x heads of one metric, and under it, on the same axis, the share of heads that sink.

    `heads` has layer, head and the metric's column; `by_layer` has layer and rate (0..1); `top` is
    the end of the colour scale if it is not the metric's own. Layers that by `windows` cannot show a
    sink at `eps` are hatched; their rates are NaN (see attention_windows.masked).
    """
    hidden = out_of_sight(windows, eps)
    grid = heads.pivot(index="head", columns="layer", values=metric.column).sort_index()
    layers, rows = [int(i) for i in grid.columns], [int(i) for i in grid.index]
    end = scale_top(metric, heads) if top is None else top
    height, cells = _heights(len(rows))
    plot = height - TOP - BOTTOM
    traces = [
        _cells(grid, layers, rows, metric, end, palette),
        _targets(heads, metric),
        _strip(by_layer, palette),
        *_hatched(hidden, rows, metric, palette),
    ]
    words = [
        note(
            f"share of heads above ε = {eps:.2f}",
            palette.muted,
            x=0,
            xref="paper",
            xanchor="left",
            y=(STRIP + 3) / plot,
            yref="paper",
            yanchor="bottom",
        )
    ]
    fig = assemble(
        traces,
        palette,
        height,
        (LEFT, RIGHT, TOP, BOTTOM),
        {
            "clickmode": "event+select",
            "hoverdistance": 40,
            "bargap": 0.18,
            **({"barmode": "overlay"} if hidden else {}),
            **_axes(palette, layers, rows, cells / plot, STRIP / plot),
            "annotations": words
            + _empty_notes(by_layer, palette)
            + _missing_notes(grid.drop(columns=hidden if metric.at_threshold else []), palette),
        },
    )
    return Figure(fig, _alt(grid, by_layer, metric, eps, hidden), _metric_reading(heads, metric, hidden))


def _hatched(hidden: list[int], rows: list[int], metric: Metric, palette: Palette) -> list[dict[str, Any]]:
    """Layers out of sight, hatched in the strip and, for the metric that counts at ε, in the cells."""
    if not hidden:
        return []
    strip = hatching(hidden, 0, 1, palette, "y2")
    return [strip, hatching(hidden, min(rows) - 0.5, len(rows), palette)] if metric.at_threshold else [strip]


def cell_frame(heads: pd.DataFrame, place: tuple[int, int]) -> CellFrame:
    """Where the cell of (layer, head) lies in `heads_map`."""
    layers, rows = sorted(heads["layer"].unique()), sorted(heads["head"].unique())
    _, cells = _heights(len(rows))
    side = cells / len(rows)
    return CellFrame(
        LEFT,
        RIGHT,
        (place[0] - layers[0]) / len(layers),
        1 / len(layers),
        TOP + side * (place[1] - rows[0]),
        side,
    )


def _heights(heads: int) -> tuple[int, int]:
    """Height of the figure and of its cells, px: 9 and 12 heads stand as high, fewer are not stretched."""
    cells = heads * min(CELL, max(WANTED_CELLS // heads, 14))
    return TOP + cells + GAP + STRIP + BOTTOM, cells


def _cells(
    grid: pd.DataFrame, layers: list[int], rows: list[int], metric: Metric, end: float, palette: Palette
) -> dict[str, Any]:
    ticks = [0, end / 2, end]
    return {
        "type": "heatmap",
        "x": layers,
        "y": rows,
        "z": grid.to_numpy(dtype=np.float32),
        "zmin": 0,
        "zmax": end,
        "colorscale": palette.colorscale,
        "xgap": 1.5,
        "ygap": 1.5,
        "hoverinfo": "skip",
        "colorbar": flat_legend(palette, ticks, [metric.write(tick) for tick in ticks]),
    }


def _targets(heads: pd.DataFrame, metric: Metric) -> dict[str, Any]:
    """What the pointer meets: a heat map sends no selection, so each cell has an invisible marker in
    its middle, small, so that the nearest one wins and every point of a cell belongs to it."""
    return {
        "type": "scatter",
        "x": heads["layer"].to_numpy(),
        "y": heads["head"].to_numpy(),
        "mode": "markers",
        "marker": {"symbol": "square", "size": 6, "opacity": 0},
        "selected": {"marker": {"opacity": 0}},
        "unselected": {"marker": {"opacity": 0}},
        "customdata": [[metric.write(value)] for value in heads[metric.column]],
        "hovertemplate": "layer %{x}, head %{y}<br><b>%{customdata[0]}</b> "
        + metric.hover
        + "<extra></extra>",
    }


def _strip(by_layer: pd.DataFrame, palette: Palette) -> dict[str, Any]:
    return {
        "type": "bar",
        "x": by_layer["layer"].to_numpy(),
        "y": by_layer["rate"].to_numpy(),
        "marker": {"color": palette.hot},
        "yaxis": "y2",
        "customdata": [[share(rate)] for rate in by_layer["rate"]],
        "hovertemplate": "layer %{x}<br><b>%{customdata[0]}</b> of heads and chunks sink<extra></extra>",
    }


def _axes(
    palette: Palette, layers: list[int], rows: list[int], cells: float, strip: float
) -> dict[str, dict[str, Any]]:
    """Layers along both parts, heads at the left of the cells; `cells` and `strip` are parts of the "
    "height."""
    return {
        "xaxis": {
            "range": [min(layers) - 0.5, max(layers) + 0.5],
            "fixedrange": True,
            "dtick": 1 if len(layers) <= 16 else 5,
            "tick0": 0,
            "anchor": "y2",
            "title": {"text": "layer, from the input", "standoff": 6},
        },
        "yaxis": {
            "domain": [1 - cells, 1],
            "range": [max(rows) + 0.5, min(rows) - 0.5],
            "fixedrange": True,
            "dtick": 1 if len(rows) <= 16 else 4,
            "title": {"text": "head", "standoff": 4},
        },
        "yaxis2": percent_strip(palette, strip),
    }


def percent_strip(palette: Palette, top: float) -> dict[str, Any]:
    """The vertical axis of a strip below a map: 0 to 100 % on the lowest `top` of the figure."""
    return {
        "domain": [0, top],
        "range": [0, 1.02],
        "fixedrange": True,
        "tickvals": [0, 0.5, 1],
        "ticktext": ["0", "50 %", "100 %"],
        "showgrid": True,
        "gridcolor": palette.line,
        "anchor": "x",
    }


def _empty_notes(by_layer: pd.DataFrame, palette: Palette) -> list[dict[str, Any]]:
    """Say it where layers between sinking ones have no sinking head, or next to none."""
    found = []
    for block in dry_blocks(by_layer, inner=True):
        empty = float(by_layer.loc[by_layer["layer"].isin(block), "rate"].max()) == 0
        wide = len(block) > 0.1 * len(by_layer)
        found.append(
            note(
                "none" if empty else "almost none",
                palette.ink,
                x=(block[0] + block[-1]) / 2,
                y=0.06,
                yref="y2",
                yanchor="bottom",
                textangle=0 if wide and empty else -90,
            )
        )
    return found


def _missing_notes(grid: pd.DataFrame, palette: Palette) -> list[dict[str, Any]]:
    """Cells without a number stay empty and carry a dash: a gap is not a zero."""
    cells = grid.isna().to_numpy()
    if cells.size and cells.all():
        middle = {"xref": "paper", "x": 0.5, "y": float(grid.index.to_numpy().mean())}
        return [note("not known for this format", palette.muted, **middle)]
    layers, heads = grid.columns.to_numpy(), grid.index.to_numpy()
    return [note("–", palette.muted, x=int(layers[x]), y=int(heads[y])) for y, x in np.argwhere(cells)]


def dry_blocks(by_layer: pd.DataFrame, *, inner: bool) -> list[list[int]]:
    """Runs of neighbouring layers whose sink rate is below `DRY`; `inner`: only between layers above it."""
    rates = by_layer.sort_values("layer")
    layers, dry = rates["layer"].tolist(), (rates["rate"] < DRY).tolist()
    blocks: list[list[int]] = []
    for layer, is_dry in zip(layers, dry, strict=True):
        if not is_dry:
            continue
        if blocks and blocks[-1][-1] == layer - 1:
            blocks[-1].append(layer)
        else:
            blocks.append([layer])
    if not inner:
        return blocks
    return [block for block in blocks if block[0] > layers[0] and block[-1] < layers[-1]]


def sink_reading(by_layer: pd.DataFrame, heads: int, chunks: int, eps: float) -> str:
    """What the sink strip shows, in Markdown: the share of heads that sink, and the layers that do not.

    `by_layer` has layer, rate (0..1, mean over the layer's heads and the chunks) and heads; a rate of
    NaN is of a layer that cannot show a sink, and counts in neither way.
    """
    seen = by_layer[by_layer["rate"].notna()]
    if seen.empty:
        return (
            f"**No layer can show a sink at ε = {eps:.2f}**: their windows keep the first token out of sight "
            "of most queries."
        )
    if len(seen) < len(by_layer):
        return _partly_seen_reading(seen, chunks, eps)
    rate = float(np.average(by_layer["rate"], weights=by_layer["heads"]))
    over = f", mean of {chunks} chunks" if chunks > 1 else ""
    limit = f"more than {share(eps)} of their attention (ε = {eps:.2f}{over})"
    if rate == 0:
        return f"**None of the {heads} heads** gives the first token {limit}."
    words = [f"**{share(rate)} of the {heads} heads** give the first token {limit}."]
    rates = {int(layer): float(r) for layer, r in zip(by_layer["layer"], by_layer["rate"], strict=True)}
    between = [layer for block in dry_blocks(by_layer, inner=True) for layer in block]
    early = [
        layer for block in dry_blocks(by_layer, inner=False) for layer in block if block[0] == min(rates)
    ]
    if between:
        words.append(_dry_words(between, rates))
    if early and len(early) < len(rates):
        begin = f"Sinks begin in layer {max(early) + 1}"
        none = "none at all" if all(rates[layer] == 0 for layer in early) else "almost none"
        words.append(f"{begin}." if between else f"{begin}: {_named(early)} **{none}**.")
    if not between and not early and min(rates.values()) < 1:
        weakest = min(rates, key=lambda layer: rates[layer])
        words.append(f"Every layer has some; layer {weakest} has the fewest, {share(rates[weakest])}.")
    return " ".join(words)


def _partly_seen_reading(by_layer: pd.DataFrame, chunks: int, eps: float) -> str:
    """`sink_reading` where some layers cannot show a sink; `by_layer` has the others."""
    rate = float(np.average(by_layer["rate"], weights=by_layer["heads"]))
    over = f", mean of {chunks} chunks" if chunks > 1 else ""
    most = int(by_layer["heads"].sum())
    text = (
        f"Of the {most} heads that see far enough, **{share(rate)}** give the first token more than "
        f"{share(eps)} of their attention (ε = {eps:.2f}{over})."
    )
    empty = [int(layer) for layer in by_layer.loc[by_layer["rate"] == 0, "layer"]]
    return f"{text} {_named(empty, start=True)} **no sink**." if empty and rate > 0 else text


def _dry_words(layers: Sequence[int], rates: dict[int, float]) -> str:
    """The layers without sinks between layers with sinks: which have none at all, which almost none."""
    empty = [layer for layer in layers if rates[layer] == 0]
    scarce = [layer for layer in layers if rates[layer] > 0]
    if not empty:
        return f"{_named(scarce, start=True)} **almost none**, although the layers on both sides do."
    rest = f" and {_named(scarce)} almost none" if scarce else ""
    return f"{_named(empty, start=True)} **no sink at all**{rest}, although the layers on both sides do."


def _named(layers: Sequence[int], *, start: bool = False) -> str:
    """[10] -> "layer 10 has", [0, 1, 2, 10] -> "layers 0–2 and 10 have"."""
    one = len(layers) == 1
    text = f"layer {layers[0]} has" if one else f"layers {listed(ranges(layers).split(', '))} have"
    return text[0].upper() + text[1:] if start else text


def _metric_reading(heads: pd.DataFrame, metric: Metric, hidden: Sequence[int] = ()) -> str:
    """Where the metric is lowest and highest, and its median, in Markdown."""
    if metric.at_threshold:
        heads = heads[~heads["layer"].isin(hidden)]
    known = heads.dropna(subset=[metric.column])
    if known.empty:
        return f"This run has no number for “{metric.title}”."
    values = known[metric.column]
    low, high = (
        known.iloc[int(np.nanargmin(values.to_numpy()))],
        known.iloc[int(np.nanargmax(values.to_numpy()))],
    )
    missing = len(heads) - len(known)
    gaps = f" {missing} heads have no number and stay empty." if missing else ""
    return (
        f"{metric.title}: from {metric.write(low[metric.column])} (layer {low['layer']:.0f}, head "
        f"{low['head']:.0f}) to **{metric.write(high[metric.column])}** (layer {high['layer']:.0f}, head "
        f"{high['head']:.0f}), median {metric.write(float(values.median()))}.{gaps}"
    )


def _alt(
    grid: pd.DataFrame, by_layer: pd.DataFrame, metric: Metric, eps: float, hidden: Sequence[int] = ()
) -> str:
    values = grid.to_numpy(dtype=float)
    known = values[np.isfinite(values)]
    middle = f", median {metric.write(float(np.median(known)))}" if known.size else ""
    rate = float(by_layer["rate"].mean()) if len(by_layer) else float("nan")
    dry = [layer for block in dry_blocks(by_layer, inner=False) for layer in block]
    none = f"; layers with almost none: {ranges(dry)}" if dry else ""
    if hidden:
        none += f"; layers whose window keeps the first token out of sight: {ranges(hidden)}"
    return (
        f"Map of {grid.shape[1]} layers by {grid.shape[0]} heads coloured by "
        f"{metric.title.lower()}{middle}. Below it, by layer, the share of heads whose first-token "
        f"importance exceeds {eps:.2f}: {share(rate)} on average{none}."
    )
