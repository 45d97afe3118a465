"""Vision: where a patch looks under each attention, what the class token takes in, accuracy against cost."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from app.figures.base import Figure, layout, legend_trace, matrix_png, matrix_trace, quantity, share
from app.figures.krause_emergence import apart
from app.figures.krause_settings import (
    colour,
    lone_seeds,
    of_setting,
    seed_count,
    setting_name,
    settings,
    spread,
)
from app.figures.raster import data_uri, indexed_png
from app.theme import TICK, Palette
from models.intervals import student_mean

GREY = np.repeat(np.arange(256, dtype=np.uint8)[:, None], 3, axis=1)


def grey_uri(pixels: np.ndarray) -> str:
    """A grey image (rows, columns) of bytes as a PNG data URI."""
    return data_uri(indexed_png(pixels, GREY))


def query_name(query: int, side: int) -> str:
    """A query for people: the class token, or a patch by row and column from 1."""
    if query == 0:
        return "the class token"
    row, column = divmod(query - 1, side)
    return f"the patch in row {row + 1}, column {column + 1}"


def picture(pixels: np.ndarray, side: int, query: int, label: str, palette: Palette) -> Figure:
    """The image in its patches; a click on one makes it the query. The chosen one is framed."""
    size = pixels.shape[0]
    step = size / side
    centres = (np.arange(side) + 0.5) * step - 0.5
    fig = go.Figure(go.Image(source=grey_uri(pixels), hoverinfo="skip"))
    grid = [(row, column) for row in range(side) for column in range(side)]
    fig.add_trace(
        go.Scatter(
            x=[centres[c] for _, c in grid],
            y=[centres[r] for r, _ in grid],
            mode="markers",
            marker={"symbol": "square", "size": 38, "opacity": 0},
            customdata=[[1 + r * side + c] for r, c in grid],
            hovertemplate="row %{text}<extra></extra>",
            text=[f"{r + 1}, column {c + 1}" for r, c in grid],
        )
    )
    for line in range(1, side):
        for axis in ("x", "y"):
            other = "y" if axis == "x" else "x"
            fig.add_shape(
                type="line",
                line={"color": palette.muted, "width": 0.5},
                opacity=0.5,
                **{
                    f"{axis}0": line * step - 0.5,
                    f"{axis}1": line * step - 0.5,
                    f"{other}0": -0.5,
                    f"{other}1": size - 0.5,
                },
            )
    if query > 0:
        row, column = divmod(query - 1, side)
        fig.add_shape(
            type="rect",
            x0=column * step - 0.5,
            x1=(column + 1) * step - 0.5,
            y0=row * step - 0.5,
            y1=(row + 1) * step - 0.5,
            line={"color": palette.hot, "width": 3},
        )
    layout(fig, palette, 320, left=0, right=0, top=0, bottom=0, y_grid=False)
    fig.update_xaxes(visible=False, range=[-0.5, size - 0.5], constrain="domain", fixedrange=True)
    fig.update_yaxes(visible=False, range=[size - 0.5, -0.5], scaleanchor="x", fixedrange=True)
    return Figure(
        fig,
        f"A picture of class {label} in {side} x {side} patches; the query is {query_name(query, side)}.",
        "",
    )


def tiles(maps: np.ndarray, query: int, side: int, top: float, palette: Palette) -> Figure:
    """Where one query looks: rows are layers, columns heads, each tile the image's patches.

    `maps` is (layers, heads, N, N) with the class token first; under a tile stands its share.
    `top` is the end of the colour scale, shared between attentions.
    """
    layers, heads = maps.shape[:2]
    across, down = side + 1, side + 3  # under a tile there is room for a line of words
    field = np.full((layers * down - 3, heads * across - 1), np.nan, np.float32)
    rows = maps[:, :, query]
    for layer in range(layers):
        for head in range(heads):
            tile = rows[layer, head, 1:].reshape(side, side)
            field[layer * down : layer * down + side, head * across : head * across + side] = tile
    fig = go.Figure(matrix_trace(matrix_png(field, palette, 0.0, top)))
    labels = ("0", share(top / 2), share(top))
    place = {"orientation": "h", "x": 0, "xanchor": "left", "y": 0, "yanchor": "top", "len": 0.6}
    fig.add_trace(legend_trace(palette, 0, top, "", labels, ypad=8, ticklabelposition="outside", **place))
    middle = (side - 1) / 2
    for layer in range(layers):
        for head in range(heads):
            fig.add_annotation(
                x=head * across + middle,
                y=layer * down + side - 0.45,
                yanchor="top",
                showarrow=False,
                text=f"cls {share(float(rows[layer, head, 0]))}",
                font={"size": 11, "color": palette.muted},
            )
    layout(fig, palette, 380, left=52, right=0, top=24, bottom=40, y_grid=False)
    fig.update_xaxes(
        tickmode="array",
        tickvals=[h * across + middle for h in range(heads)],
        ticktext=[f"head {h}" for h in range(heads)],
        range=[-0.5, heads * across - 1.5],
        side="top",
        fixedrange=True,
    )
    fig.update_yaxes(
        tickmode="array",
        tickvals=[n * down + middle for n in range(layers)],
        ticktext=[f"layer {n}" for n in range(layers)],
        range=[layers * down - 1.2, -0.5],
        fixedrange=True,
    )
    seen = float((rows > 0.005).sum(-1).mean())
    alt = (
        f"Attention of {query_name(query, side)} over the patches, {layers} layers by {heads} heads; "
        f"{quantity(seen, digits=2)} keys above 0.5 % on average, class token "
        f"{share(float(rows[..., 0].mean()))}."
    )
    return Figure(fig, alt, "")


def looks_reading(softmax: np.ndarray, other: np.ndarray, name: str, query: int, side: int) -> str:
    """How many keys a query uses under both, and what goes to the class token."""

    def used(maps: np.ndarray) -> float:
        rows = np.clip(maps[:, :, query].astype(float), 1e-12, None)
        rows = rows / rows.sum(-1, keepdims=True)
        return float(np.exp2(-(rows * np.log2(rows)).sum(-1)).mean())

    return (
        f"{query_name(query, side).capitalize()} spreads over **{quantity(used(other), digits=2)}** keys "
        "under "
        f"{name} and over {quantity(used(softmax), digits=2)} of {softmax.shape[-1]} under softmax "
        f"(effective keys, mean over heads). {share(float(other[:, :, query, 0].mean()))} and "
        f"{share(float(softmax[:, :, query, 0].mean()))} go to the class token."
    )


def flow(values: np.ndarray, side: int, top: float, name: str, palette: Palette) -> Figure:
    """Attention rollout of the class token over the patches. `values` is (N,), class token first."""
    fig = go.Figure(matrix_trace(matrix_png(values[1:].reshape(side, side), palette, 0.0, top)))
    layout(fig, palette, 200, left=0, right=0, top=0, bottom=0, y_grid=False)
    fig.update_xaxes(visible=False, range=[-0.5, side - 0.5], constrain="domain", fixedrange=True)
    fig.update_yaxes(visible=False, range=[side - 0.5, -0.5], scaleanchor="x", fixedrange=True)
    alt = (
        f"Rollout of the class token under {name}: {share(float(values[0]))} stays with it, the strongest "
        "patch "
        f"gets {share(float(values[1:].max()))}."
    )
    return Figure(fig, alt, "")


@dataclass(frozen=True)
class Cost:
    """A cost of a network: column of the outcomes, title with unit."""

    slug: str
    title: str
    axis: str


COSTS = {
    c.slug: c
    for c in (
        Cost("pairs", "Scored pairs", "pairs scored per image and head"),
        Cost("forward_ms", "Forward pass", "forward pass of 500 images (ms)"),
    )
}


def accuracy_cost(outcomes: pd.DataFrame, cost: Cost, palette: Palette) -> Figure:
    """Test accuracy against what it costs: a dot per seed, mean with its 95 % interval."""
    fig = go.Figure()
    found = settings(outcomes)
    ends = []
    for setting in found:
        rows = of_setting(outcomes, setting)
        tint = colour(setting[0], palette)
        x = rows[cost.slug].to_numpy(float)
        mean, low, high = spread(rows["accuracy"].to_numpy(float))
        fig.add_trace(
            go.Scatter(
                x=x,
                y=rows["accuracy"],
                mode="markers",
                hoverinfo="skip",
                marker={"size": 7, "color": tint, "opacity": 0.4},
            )
        )
        fig.add_trace(
            go.Scatter(
                x=[x.mean()],
                y=[mean],
                mode="markers",
                marker={"size": 12, "color": tint},
                error_y={
                    "type": "data",
                    "symmetric": False,
                    "array": [high - mean],
                    "arrayminus": [mean - low],
                    "color": tint,
                    "thickness": 1.5,
                    "width": 0,
                },
                hovertemplate=f"{setting_name(*setting)}<br><b>{share(mean)}</b> right, "
                f"{seed_count(len(rows))}<br>"
                f"{cost.title.lower()} {quantity(float(x.mean()))}<extra></extra>",
            )
        )
        ends.append((setting, tint, float(x.mean()), mean))
    layout(fig, palette, 420, f"{cost.axis} (log scale)", "test accuracy (share)", left=64, right=104)
    span = outcomes["accuracy"].max() - outcomes["accuracy"].min() or 0.01
    for (setting, tint, centre, _), y in zip(ends, apart([e[3] for e in ends], 0.09 * span), strict=True):
        fig.add_annotation(
            x=np.log10(centre),
            y=y,
            text=setting_name(*setting, short=True).partition(", W")[0],
            showarrow=False,
            xanchor="left",
            xshift=12,
            font={"size": TICK, "color": tint},
        )
    values = outcomes[cost.slug].to_numpy(float)
    low, high = float(values.min()), float(values.max())
    round_values = [
        m * 10**e for e in range(-1, 6) for m in (1, 2, 5) if 0.7 * low <= m * 10**e <= 1.4 * high
    ]
    exact = sorted({float(v) for v in values}) if cost.slug == "pairs" else round_values
    fig.update_xaxes(
        type="log",
        range=[np.log10(low * 0.8), np.log10(high * 1.25)],
        tickmode="array",
        tickvals=exact,
        ticktext=[quantity(v) for v in exact],
        tickangle=0,
        fixedrange=True,
    )
    fig.update_yaxes(tickformat=".1%", fixedrange=True)
    parts = [f"{setting_name(*s)}: {share(y)} at {quantity(x)}" for s, _, x, y in ends]
    return Figure(
        fig, f"Test accuracy and {cost.title.lower()}: {'; '.join(parts)}.", accuracy_reading(outcomes)
    )


def accuracy_reading(outcomes: pd.DataFrame) -> str:
    """Krause against softmax and against the same support, paired by seed; no claim when 0 is inside."""
    parts = []
    krause = outcomes[outcomes["mechanism"] == "krause"].set_index("seed")
    for mechanism, name in (
        ("softmax", "softmax over everything"),
        ("window_topk", "softmax on the same support"),
    ):
        other = outcomes[outcomes["mechanism"] == mechanism].set_index("seed")
        seeds = krause.index.intersection(other.index)
        if len(seeds) < 2:
            continue  # said once, below
        gap = (krause.loc[seeds, "accuracy"] - other.loc[seeds, "accuracy"]).to_numpy(float)
        low, high = student_mean(gap)
        points = f"{100 * gap.mean():+.2f} points [{100 * low:+.2f}, {100 * high:+.2f}]".replace("-", "−")
        claim = "no difference can be claimed" if low <= 0 <= high else "the interval leaves out 0"
        parts.append(f"Krause against {name}: **{points}** over {len(gap)} paired seeds; {claim}.")
    if not parts and len(outcomes):
        parts.append("One seed each: there is no interval, so no difference can be claimed.")
    parts += [text for text in (lone_seeds(outcomes),) if text]
    if len(krause):
        saved = 1 - float(krause["pairs"].iloc[0] / krause["pairs_dense"].iloc[0])
        softmax = outcomes[outcomes["mechanism"] == "softmax"]
        time = float(krause["forward_ms"].mean() / softmax["forward_ms"].mean()) if len(softmax) else None
        parts.append(
            f"Krause scores {share(saved)} fewer pairs"
            + (f"; a forward pass takes {quantity(time, digits=2)} times as long." if time else ".")
        )
    return " ".join(parts)
