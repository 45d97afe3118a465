"""How sinks come to be: a metric over the steps of training, and the loss on the same axis."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from app.figures.base import Figure, layout, quantity, share
from app.figures.krause_settings import colour, of_setting, setting_name, settings
from app.figures.krause_text import SinkMetric
from app.theme import TICK, Palette

_RIGHT = 136
_LABEL_APART = 0.052  # of an axis: labels closer than that are pushed apart


def apart(values: Sequence[float], least: float, lowest: float = -np.inf) -> list[float]:
    """`values` moved as little as needed so that neighbours lie at least `least` apart, order kept, and
    none lies below `lowest`."""
    order = np.argsort(np.asarray(values, dtype=float), kind="stable")
    placed = np.array(values, dtype=float)[order]
    for _ in range(200):
        gaps = np.diff(placed)
        tight = np.flatnonzero(gaps < least - 1e-9)
        if not len(tight):
            break
        for i in tight:
            push = (least - (placed[i + 1] - placed[i])) / 2
            placed[i] -= push
            placed[i + 1] += push
    placed = np.maximum(placed, lowest + least * np.arange(len(placed)))
    result = np.empty_like(placed)
    result[order] = placed
    return [float(v) for v in result]


def emergence(
    sinks: pd.DataFrame, losses: pd.DataFrame, metric: SinkMetric, unit: str, palette: Palette
) -> Figure:
    """Above: the metric by step, mean over seeds with its smallest and largest. Below: held-out loss.

    `sinks` has the setting, seed, step and the metric; `losses` the setting, seed, step, split
    (validation or floor) and bits. `unit` is that of the loss: "bits per byte".
    """
    sinks = sinks[sinks[metric.slug].notna()]
    fig = make_subplots(2, 1, shared_xaxes=True, vertical_spacing=0.09, row_heights=[0.6, 0.4])
    held = losses[losses["split"] == "validation"]
    for row, frame, column in ((1, sinks, metric.slug), (2, held, "bits")):
        _lines(fig, row, frame, column, palette)
    floor = losses[losses["split"] == "floor"]["bits"]
    if len(floor):
        y = float(floor.mean())
        fig.add_hline(y, row=2, line={"color": palette.ink, "width": 1})
    layout(fig, palette, 560, right=_RIGHT, left=64, bottom=48)
    last = int(sinks["step"].max()) if len(sinks) else 1
    first = int(sinks.loc[sinks["step"] > 0, "step"].min()) if (sinks["step"] > 0).any() else 1
    ticks = sorted({int(s) for s in sinks["step"].unique()})
    shown = _spaced(ticks, first, last)
    fig.update_xaxes(
        type="log",
        range=[np.log10(first * 0.55), np.log10(last)],
        tickmode="array",
        tickvals=[first * 0.6 if t == 0 else t for t in shown],
        ticktext=[f"{t:,}" for t in shown],
        tickangle=0,
        fixedrange=True,
    )
    fig.update_xaxes(title_text="optimiser updates (log scale)", row=2, col=1)
    fig.update_yaxes(
        title_text=f"{metric.title.lower()} (share)", tickformat=".0%", rangemode="tozero", row=1, col=1
    )
    fig.update_yaxes(title_text=unit, row=2, col=1)
    fig.update_yaxes(fixedrange=True)
    if len(floor):
        fig.add_annotation(
            x=np.log10(first * 0.6),
            y=float(floor.mean()),
            xref="x2",
            yref="y2",
            showarrow=False,
            text=f"the process itself: {quantity(float(floor.mean()))}",
            xanchor="left",
            yanchor="top",
            font={"size": TICK, "color": palette.ink},
        )
    return Figure(fig, _alt(sinks, metric, last), emergence_reading(sinks, held, metric, unit))


def _spaced(ticks: Sequence[int], first: int, last: int) -> list[int]:
    """Steps to write on the log axis: 0, the first, the last, and those far enough from their neighbours."""
    shown, before = [t for t in ticks if t == 0], 0.0
    span = np.log10(last) - np.log10(first * 0.55)
    for tick in ticks:
        if tick and (not before or np.log10(tick) - before > 0.13 * span):
            shown.append(tick)
            before = np.log10(tick)
    return shown


def _lines(fig: go.Figure, row: int, frame: pd.DataFrame, column: str, palette: Palette) -> None:
    if frame.empty:
        return
    first = frame.loc[frame["step"] > 0, "step"].min()
    ends: list[tuple[str, str, float]] = []
    for setting in settings(frame):
        by_step = of_setting(frame, setting).groupby("step")[column].agg(["mean", "min", "max"])
        x = [first * 0.6 if s == 0 else s for s in by_step.index]
        tint = colour(setting[0], palette)
        dash = "dot" if _narrow(setting, frame) else "solid"
        fig.add_trace(
            go.Scatter(
                x=[*x, *x[::-1]],
                y=[*by_step["max"], *by_step["min"][::-1]],
                fill="toself",
                mode="none",
                fillcolor=_faint(tint),
                hoverinfo="skip",
            ),
            row,
            1,
        )
        fig.add_trace(
            go.Scatter(
                x=x,
                y=by_step["mean"],
                mode="lines",
                line={"color": tint, "width": 2, "dash": dash},
                customdata=[[f"{s:,}", quantity(v)] for s, v in by_step["mean"].items()],
                hovertemplate=f"{setting_name(*setting)}<br>%{{customdata[0]}} updates: "
                "<b>%{customdata[1]}</b><extra></extra>",
            ),
            row,
            1,
        )
        ends.append((setting_name(*setting, short=True), tint, float(by_step["mean"].iloc[-1])))
    low, high = float(frame[column].min()), float(frame[column].max())
    low = 0.0 if row == 1 else low
    places = apart(
        [v for _, _, v in ends], _LABEL_APART * (1 if row == 1 else 1.55) * max(high - low, 1e-9), low
    )
    for (name, tint, _), y in zip(ends, places, strict=True):
        if row == 1:
            fig.add_annotation(
                x=1,
                y=y,
                xref="paper",
                yref="y",
                text=name,
                showarrow=False,
                xanchor="left",
                xshift=8,
                font={"size": 11, "color": tint},
            )


def _narrow(setting: tuple[str, int | None, int | None], frame: pd.DataFrame) -> bool:
    """Whether another setting of the same mechanism has a wider window: it is drawn dotted."""
    same = [s for s in settings(frame) if s[0] == setting[0]]
    return len(same) > 1 and setting != same[0]


def _faint(colour: str) -> str:
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},0.14)"


def _alt(sinks: pd.DataFrame, metric: SinkMetric, last: int) -> str:
    ends = sinks[sinks["step"] == last]
    parts = [
        f"{setting_name(*s)} {share(float(of_setting(ends, s)[metric.slug].mean()))}" for s in settings(ends)
    ]
    return f"{metric.title} over training up to {last:,} updates: {'; '.join(parts)}."


def emergence_reading(sinks: pd.DataFrame, held: pd.DataFrame, metric: SinkMetric, unit: str) -> str:
    """When the sink of softmax is half grown, and what the losses have to do with it."""
    softmax = of_setting(sinks, ("softmax", None, None))
    parts = []
    if len(softmax):
        curve = softmax.groupby("step")[metric.slug].mean()
        end = float(curve.iloc[-1])
        if end >= 0.1:
            steps = curve.index.to_numpy()
            half = int(steps[int(np.argmax(curve.to_numpy() >= end / 2))])
            parts.append(
                f"Softmax has half of its {share(end)} within **{half:,} updates** of "
                f"{int(curve.index[-1]):,}."
            )
        else:
            parts.append(f"Softmax ends at {share(end)}: no sink forms in {int(curve.index[-1]):,} updates.")
    finals = held[held["step"] == held["step"].max()]
    if len(finals):
        means = finals.groupby("mechanism")["bits"].mean()
        if {"softmax", "krause"} <= set(means.index):
            gap = float(means["krause"] - means["softmax"])
            size = "as well as" if abs(gap) < 0.01 else ("better than" if gap < 0 else "worse than")
            parts.append(
                f"Krause predicts {size} softmax ({quantity(float(means['krause']))} against "
                f"{quantity(float(means['softmax']))} {unit})."
            )
    return " ".join(parts)


def by_query(profiles: pd.DataFrame, palette: Palette) -> Figure:
    """Attention on the first token by the position of the query, mean over layers, heads and seeds."""
    fig = go.Figure()
    ends: list[tuple[str, str, float]] = []
    found = settings(profiles)
    for setting in found:
        rows = of_setting(profiles, setting).sort_values("query")
        tint = colour(setting[0], palette)
        dash = "dot" if _narrow(setting, profiles) else "solid"
        fig.add_trace(
            go.Scatter(
                x=rows["query"],
                y=rows["mass"],
                mode="lines",
                line={"color": tint, "width": 2, "dash": dash},
                customdata=[[share(v)] for v in rows["mass"]],
                hovertemplate=f"{setting_name(*setting)}<br>query %{{x}}: "
                f"<b>%{{customdata[0]}}</b><extra></extra>",
            )
        )
        ends.append((setting_name(*setting, short=True), tint, float(rows["mass"].iloc[-8:].mean())))
    layout(
        fig, palette, 320, "query position (tokens)", "attention on the first token", right=_RIGHT, left=64
    )
    fig.update_yaxes(range=[0, 1.02], tickformat=".0%", fixedrange=True)
    fig.update_xaxes(fixedrange=True)
    for (name, tint, _), y in zip(ends, apart([v for _, _, v in ends], 0.066, 0.0), strict=True):
        fig.add_annotation(
            x=1,
            y=y,
            xref="paper",
            text=name,
            showarrow=False,
            xanchor="left",
            xshift=8,
            font={"size": 11, "color": tint},
        )
    late = "; ".join(f"{name} {share(v)}" for name, _, v in ends)
    hidden = [s for s in found if s[1] is not None and s[1] < int(profiles["query"].max())]
    reading = ""
    if hidden:
        window = min(s[1] for s in hidden if s[1] is not None)
        reading = (
            f"Under a window of {window} keys the curve is 0 from query {window} on, **by construction**; "
            "what "
            "it does before is what was learned."
        )
    return Figure(fig, f"Attention on the first token at the last queries: {late}.", reading)
