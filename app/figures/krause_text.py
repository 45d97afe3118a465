"""Sinks side by side: what the first token gets under each attention, its ceiling, and the maps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from app.figures.base import Figure, layout, legend_trace, matrix_png, matrix_trace, share
from app.figures.krause_settings import (
    Setting,
    colour,
    of_setting,
    setting_name,
    settings,
    spread,
    two_lines,
)
from app.theme import TICK, Palette
from models.attention.mechanisms import MECHANISMS
from models.attention.metrics import window_importance_ceiling, window_mass_ceiling


@dataclass(frozen=True)
class SinkMetric:
    """A metric of the first token: its column, its name, what it says."""

    slug: str
    title: str
    meaning: str


METRICS = {
    m.slug: m
    for m in (
        SinkMetric(
            "first_mass", "First-token mass", "mean attention on the first token over all later queries"
        ),
        SinkMetric(
            "sink_rate",
            "Sink rate",
            "share of heads and chunks whose importance of the first token exceeds ε",
        ),
        SinkMetric(
            "early_first_mass",
            "Mass over queries 1–15",
            "the same mass over the queries that every window here lets see the first token: no window "
            "hides it",
        ),
        SinkMetric(
            "oldest_mass",
            "Oldest visible key",
            "mean attention on the oldest key a query may see: where a sink would move when the window "
            "moves on",
        ),
        SinkMetric("null_mass", "Null key", "mean attention on the learned key of value zero"),
    )
}


def ceiling(metric: str, window: int | None, length: int, eps: float) -> float | None:
    """The largest value the metric can take under a window; None where the window caps nothing."""
    if window is None or window >= length:
        return None
    if metric == "first_mass":
        return window_mass_ceiling(window, length)
    if metric == "sink_rate":
        return 0.0 if window_importance_ceiling(window, length) <= eps else None
    return None


def sinks_dots(ends: pd.DataFrame, metric: SinkMetric, length: int, eps: float, palette: Palette) -> Figure:
    """One row per setting: a dot per seed, mean and interval, and the ceiling of its window.

    `ends` has the setting, seed and the metric at the end of training (ledger.final_sinks).
    """
    ends = ends[ends[metric.slug].notna()]
    rows = settings(ends)
    names = [two_lines(*s) for s in rows]
    fig = go.Figure()
    for row, setting in enumerate(rows):
        values = of_setting(ends, setting)[metric.slug].to_numpy(float)
        mean, low, high = spread(values)
        tint = colour(setting[0], palette)
        fig.add_trace(
            go.Scatter(
                x=[max(low, 0), min(high, 1)],
                y=[row, row],
                mode="lines",
                hoverinfo="skip",
                line={"color": tint, "width": 2},
            )
        )
        fig.add_trace(
            go.Scatter(
                x=values,
                y=[row] * len(values),
                mode="markers",
                hoverinfo="skip",
                marker={"size": 7, "color": tint, "opacity": 0.45, "line": {"width": 0}},
            )
        )
        fig.add_trace(
            go.Scatter(
                x=[mean],
                y=[row],
                mode="markers",
                marker={"size": 12, "color": tint},
                hovertemplate=f"{setting_name(*setting)}<br><b>{share(mean)}</b>, {len(values)} seeds, "
                f"95 % {share(max(low, 0))} to {share(min(high, 1))}<extra></extra>",
            )
        )
        fig.add_annotation(
            x=1.0,
            y=row,
            xref="paper",
            xanchor="right",
            xshift=52,
            text=f"<b>{share(mean)}</b>",
            showarrow=False,
            font={"size": TICK, "color": palette.ink},
        )
        top = ceiling(metric.slug, setting[1] if MECHANISMS[setting[0]].local else None, length, eps)
        if top is not None:
            _mark_ceiling(fig, row, top, palette)
    layout(
        fig,
        palette,
        56 + 44 * max(len(rows), 1),
        f"{metric.title.lower()} (share)",
        left=112,
        right=60,
        x_grid=True,
        y_grid=False,
        top=8,
    )
    fig.update_layout(
        xaxis={"range": [-0.02, 1.02], "tickformat": ".0%", "dtick": 0.5, "tickangle": 0, "fixedrange": True},
        yaxis={
            "range": [len(rows) - 0.4, -0.6],
            "tickmode": "array",
            "tickvals": list(range(len(rows))),
            "ticktext": names,
            "tickfont": {"color": palette.ink},
            "fixedrange": True,
        },
    )
    alt = f"{metric.title} by attention, mean over seeds: " + "; ".join(
        f"{setting_name(*s)} {share(spread(of_setting(ends, s)[metric.slug].to_numpy(float))[0])}"
        for s in rows
    )
    return Figure(fig, alt + ".", sinks_reading(ends, metric, length, eps))


def _mark_ceiling(fig: go.Figure, row: int, top: float, palette: Palette) -> None:
    fig.add_shape(
        type="line", x0=top, x1=top, y0=row - 0.34, y1=row + 0.34, line={"color": palette.ink, "width": 1.5}
    )
    text = f"ceiling {share(top)}" if top > 0 else "0 by construction"
    fig.add_annotation(
        x=top,
        y=row,
        text=text,
        showarrow=False,
        xanchor="left",
        xshift=6,
        yshift=11,
        font={"size": 11, "color": palette.muted},
    )


def _mean(ends: pd.DataFrame, metric: str, mechanism: str, window: int | None = None) -> float | None:
    rows = ends[ends["mechanism"] == mechanism]
    if window is not None:
        rows = rows[rows["window"] == window]
    return float(rows[metric].mean()) if len(rows) else None


def sinks_reading(ends: pd.DataFrame, metric: SinkMetric, length: int, eps: float) -> str:
    """What the rows show: what a window does by construction, what the score does beyond it."""
    if ends.empty:
        return f"No attention here has a {metric.title.lower()}."
    unit = {
        "sink_rate": f"of heads and chunks sink (ε = {eps:.2f})",
        "null_mass": "of attention goes to the null key",
    }
    what = unit.get(metric.slug, "of attention")
    softmax = _mean(ends, metric.slug, "softmax")
    parts = []
    if softmax is not None:
        place = {
            "first_mass": " is on the first token",
            "early_first_mass": " is on the first token",
            "oldest_mass": " is on the oldest visible key",
        }.get(metric.slug, "")
        parts.append(f"With softmax **{share(softmax)}** {what}{place}.")
        if softmax < 0.1 and metric.slug in ("first_mass", "sink_rate", "early_first_mass"):
            parts.append("No sink forms at this size and length of training, so there is none to moderate.")
            return " ".join(parts)
    wide = _wide_pair(ends, metric.slug, length)
    if wide is not None and metric.slug != "null_mass":
        krause, control = wide
        parts.append(
            f"With a window that hides nothing, softmax on the same number of keys gives {share(control)} "
            "and "
            f"Krause **{share(krause)}**: that difference is due to the distance score."
        )
    capped = [
        (s, top)
        for s in settings(ends)
        if MECHANISMS[s[0]].local and (top := ceiling(metric.slug, s[1], length, eps)) is not None
    ]
    if capped:
        (_, window, _), top = capped[0]
        parts.append(
            f"A window of {window} in {length} tokens cannot exceed {share(top)}, whatever is learned there."
        )
    null = _mean(ends, metric.slug, "null_key")
    if null is not None and softmax is not None and metric.slug in ("first_mass", "sink_rate"):
        verb = "does not take the sink over" if null > 0.8 * softmax else "takes the sink over"
        parts.append(f"A null key beside softmax {verb}: {share(null)}.")
    return " ".join(parts)


def _wide_pair(ends: pd.DataFrame, metric: str, length: int) -> tuple[float, float] | None:
    krause = _mean(ends, metric, "krause", length)
    control = _mean(ends, metric, "window_topk", length)
    return None if krause is None or control is None else (krause, control)


def maps_grid(
    maps: Sequence[tuple[Setting, np.ndarray]],
    tokens: Sequence[str],
    place: tuple[int, int],
    palette: Palette,
    columns: int = 3,
) -> Figure:
    """The same text under each attention, on one scale from 0 to 1: small multiples."""
    rows = -(-len(maps) // columns)
    fig = make_subplots(
        rows,
        columns,
        horizontal_spacing=0.03,
        vertical_spacing=0.66 / max(rows, 1) / max(rows, 1) if rows > 1 else 0,
        subplot_titles=[two_lines(*setting) for setting, _ in maps],
    )
    for number, (_, weights) in enumerate(maps):
        row, column = divmod(number, columns)
        fig.add_trace(matrix_trace(matrix_png(weights, palette, 0.0, 1.0)), row + 1, column + 1)
    fig.add_trace(legend_trace(palette, 0, 1, "", labels=("0", "50 %", "100 %"), len=0.4, y=1, yanchor="top"))
    layout(fig, palette, 40 + 196 * rows, left=24, right=64, top=40, bottom=24, y_grid=False)
    size = maps[0][1].shape[0] if maps else 1
    fig.update_xaxes(visible=False, range=[-0.5, size - 0.5], constrain="domain")
    fig.update_yaxes(visible=False, range=[size - 0.5, -0.5], scaleanchor=None)
    for title in fig.layout.annotations:
        title.update(font={"size": 11, "color": palette.ink}, yshift=2)
    fig.update_layout(
        annotations=[
            *fig.layout.annotations,
            {
                "text": f"key, from “{_begin(tokens)}” on the left →",
                "x": 0,
                "y": 0,
                "xref": "paper",
                "yref": "paper",
                "xanchor": "left",
                "yanchor": "top",
                "yshift": -4,
                "showarrow": False,
                "font": {"size": 11, "color": palette.muted},
            },
            {
                "text": "query ↓",
                "x": 0,
                "y": 1,
                "xref": "paper",
                "yref": "paper",
                "xanchor": "right",
                "yanchor": "top",
                "textangle": -90,
                "xshift": -2,
                "showarrow": False,
                "font": {"size": 11, "color": palette.muted},
            },
        ]
    )
    firsts = "; ".join(f"{setting_name(*s)} {share(float(w[1:, 0].mean()))}" for s, w in maps)
    alt = (
        f"Attention maps of layer {place[0]}, head {place[1]} on one text; share of the first key: {firsts}."
    )
    return Figure(fig, alt, "")


def _begin(tokens: Sequence[str]) -> str:
    text = "".join(t for t in tokens[1:13] if t.isprintable())
    return ("<s>" + text).replace("<", "&lt;").replace(">", "&gt;")
