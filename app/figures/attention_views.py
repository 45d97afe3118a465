"""Where sinks live: by kind of token, by head, by threshold, and the hidden states by layer."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from app.figures.attention_windows import lowered, out_of_sight
from app.figures.base import Figure, direct_label, guarantee_line, layout, quantity, reference_line, share
from app.theme import TICK, Palette

HEIGHT = 280  # px of each small figure
_KINDS = {
    "first": "first position",
    "special": "special",
    "newline": "line break",
    "punctuation": "punctuation",
    "number": "number",
    "space": "space",
    "word": "word",
    "other": "other",
}
_PERCENT = {"tickvals": [0, 0.25, 0.5, 0.75, 1], "ticktext": ["0", "25 %", "50 %", "75 %", "100 %"]}


def kinds_bars(
    kinds: pd.DataFrame, eps: float, palette: Palette, windows: pd.DataFrame | None = None
) -> Figure:
    """How often each kind of token is a sink. `kinds` has kind, positions, sinks and rate (0..1)."""
    frame = kinds.sort_values("rate", ascending=False).reset_index(drop=True)
    names = [
        f"{_KINDS.get(kind, kind)} ({count:,})"
        for kind, count in zip(frame["kind"], frame["positions"], strict=True)
    ]
    fig = _bars(frame["rate"], names, palette, hot=frame["kind"] == "first")
    layout(
        fig,
        palette,
        max(HEIGHT, 48 + 28 * len(frame)),
        "share of heads and chunks above ε",
        left=144,
        y_grid=False,
        x_grid=True,
    )
    _percent_bars(fig, frame["rate"])
    others = frame[frame["kind"] != "first"]
    text = (
        f"The first position is a sink in **{share(_rate(frame, 'first'))}** of heads and chunks, whatever "
        "stands there."
    )
    if len(others):
        best = others.iloc[0]
        text += f" Of all other tokens, {_plural(best['kind'])} come nearest, with {share(best['rate'])}."
    if hidden := out_of_sight(windows, eps):
        text += (
            f" {len(hidden)} layers cannot see it from most positions; they count here, so its bar is lower "
            "than among the layers that can."
        )
    alt = "Bars of sink rate by kind of token: " + _pairs(names, frame["rate"]) + f". Threshold {eps:.2f}."
    return Figure(fig, alt, text)


def heads_bars(heads: pd.DataFrame, palette: Palette) -> Figure:
    """Sink rate by place of the head in its layer. `heads` has layer, head, sink_rate."""
    means = heads.groupby("head")["sink_rate"].agg(["mean", "min", "max"]).reset_index()
    names = [f"head {head}" for head in means["head"]]
    fig = _bars(means["mean"], names, palette)
    layout(
        fig,
        palette,
        max(HEIGHT, 48 + 24 * len(means)),
        "sink rate, mean over layers",
        left=72,
        y_grid=False,
        x_grid=True,
    )
    _percent_bars(fig, means["mean"])
    low, high = (
        means.iloc[int(np.nanargmin(means["mean"].to_numpy()))],
        means.iloc[int(np.nanargmax(means["mean"].to_numpy()))],
    )
    text = (
        f"The place of a head in its layer says little: from {share(low['mean'])} (head {low['head']:.0f}) "
        f"to {share(high['mean'])} (head {high['head']:.0f})."
    )
    if high["mean"] == 0:
        text = "No head sinks at this ε, whatever its place in the layer."
    elif high["mean"] - low["mean"] > 0.25:
        text = (
            f"Head {high['head']:.0f} of each layer sinks in **{share(high['mean'])}** of cases, head "
            f"{low['head']:.0f} in {share(low['mean'])}."
        )
    return Figure(fig, "Bars of sink rate by head: " + _pairs(names, means["mean"]) + ".", text)


def threshold_curve(
    curve: pd.DataFrame,
    eps: float,
    even: float | None,
    palette: Palette,
    windows: pd.DataFrame | None = None,
) -> Figure:
    """The sink rate of the first token for every threshold. `curve` has eps and rate (0..1), eps rising.

    `even` is the importance that even attention would give, drawn as a reference. Where `windows` keep
    the first token out of sight of some layers, the ceilings are drawn beyond which those fall out of
    the count.
    """
    here = _at(curve, eps)
    fig = go.Figure(
        go.Scatter(
            x=curve["eps"],
            y=curve["rate"],
            mode="lines",
            line={"color": palette.hot, "width": 2},
            hovertemplate="ε = %{x:.2f}<br><b>%{y:.0%}</b> of heads and chunks above<extra></extra>",
        )
    )
    layout(fig, palette, HEIGHT, "threshold ε", "sink rate")
    fig.update_layout(xaxis={"range": [0, 1], "dtick": 0.2}, yaxis={"range": [0, 1.04], **_PERCENT})
    if even is not None:
        reference_line(fig, palette, "", x=even)
        low = _at(curve, even + 0.1) < 0.5  # the curve, its point and the point's label then lie below
        fig.add_annotation(
            text=f"even attention would<br>give each head {share(even)}",
            x=even,
            y=1 if low else 0,
            xanchor="left",
            yanchor="top" if low else "bottom",
            xshift=6,
            align="left",
            showarrow=False,
            font={"size": TICK, "color": palette.muted},
        )
    _ceiling_lines(fig, windows, palette)
    marker = {"color": palette.ink, "size": 9}
    fig.add_trace(go.Scatter(x=[eps], y=[here], mode="markers", marker=marker, hoverinfo="skip"))
    right = eps < 0.6
    direct_label(
        fig,
        palette,
        eps,
        here,
        f"ε = {eps:.2f}: {share(here)}",
        xanchor="left" if right else "right",
        xshift=10 if right else -10,
        yanchor="bottom",
    )
    less, more = share(_at(curve, eps - 0.1)), share(_at(curve, eps + 0.1))
    text = f"The choice of ε matters: 0.1 less gives {less} instead of {share(here)}, 0.1 more gives {more}."
    if lowered(windows):
        text += " Beyond a ceiling, layers that cannot reach it fall out of the count."
    alt = f"Sink rate against the threshold; at {eps:.2f} it is {share(here)}."
    return Figure(fig, alt, text)


def _ceiling_lines(fig: go.Figure, windows: pd.DataFrame | None, palette: Palette, most: int = 3) -> None:
    """The ceilings of narrow layers as thin lines with their values; beyond `most` only the outermost."""
    if windows is None or not lowered(windows):
        return
    low = windows[windows["importance_ceiling"] < 1]
    values = low.groupby("importance_ceiling")["layer"].count()
    shown = list(values.items())
    for at, count in shown if len(shown) <= most else [shown[0], shown[-1]]:
        guarantee_line(fig, palette, "", x=float(str(at)))
        fig.add_annotation(
            text=f"ceiling of {count} layer{'s' if count > 1 else ''}: {share(float(str(at)))}",
            x=float(str(at)),
            y=1.0,
            xanchor="left" if float(str(at)) < 0.6 else "right",
            yanchor="top",
            xshift=6 if float(str(at)) < 0.6 else -6,
            showarrow=False,
            font={"size": TICK, "color": palette.ink},
        )


def _at(curve: pd.DataFrame, eps: float) -> float:
    return float(np.interp(eps, curve["eps"], curve["rate"]))


def norms_by_layer(layers: pd.DataFrame, dry: list[list[int]], palette: Palette) -> Figure:
    """Largest hidden activation and lengths of hidden states by layer, on a log axis.

    `layers` has layer (-1 is the embedding), max_abs, median_abs, first_token_norm, other_norm and
    at_first (share of chunks whose largest activation is at position 0). `dry` are runs of layers
    with almost no sinks, shaded at the states that they read: a layer reads what the one before wrote.
    """
    fig = go.Figure()
    series = (
        ("first_token_norm", "first token's length", palette.hot, "solid", 2.5),
        ("max_abs", "largest activation", palette.categories[0], "solid", 1.5),
        ("other_norm", "other tokens' length", palette.muted, "solid", 1.5),
        ("median_abs", "median activation", palette.muted, "dash", 1.5),
    )
    names = ["embedding" if layer < 0 else f"layer {layer}" for layer in layers["layer"]]
    for column, name, colour, dash, width in series:
        fig.add_trace(
            go.Scatter(
                x=layers["layer"],
                y=layers[column],
                mode="lines",
                line={"color": colour, "width": width, "dash": dash},
                customdata=[
                    [label, quantity(value)] for label, value in zip(names, layers[column], strict=True)
                ],
                hovertemplate=f"%{{customdata[0]}}<br>{name} <b>%{{customdata[1]}}</b><extra></extra>",
            )
        )
    layout(
        fig, palette, HEIGHT + 40, "after layer (−1 is the embedding)", "activation (log scale)", right=136
    )
    _log_axes(fig, layers)
    for block in dry:
        fig.add_vrect(
            block[0] - 1.5, block[-1] - 0.5, fillcolor=palette.line, opacity=0.5, line_width=0, layer="below"
        )
    ends = np.log10([max(float(layers[column].iloc[-1]), 1e-6) for column, *_ in series])
    for (_, name, colour, _, _), y in zip(series, _apart(ends, fig, HEIGHT - 24), strict=True):
        direct_label(fig, palette, float(layers["layer"].iloc[-1]), y, name, colour)
    return Figure(fig, _norms_alt(layers), _norms_reading(layers))


def _log_axes(fig: go.Figure, layers: pd.DataFrame) -> None:
    columns = ["first_token_norm", "max_abs", "other_norm", "median_abs"]
    values = np.log10(np.maximum(layers[columns].to_numpy(dtype=float), 1e-6))
    low, high = float(values.min()), float(values.max())
    powers = list(range(int(np.ceil(low)), int(np.floor(high)) + 1))
    fig.update_layout(
        xaxis={"range": [float(layers["layer"].min()), float(layers["layer"].max())]},
        yaxis={
            "type": "log",
            "range": [low - 0.1, high + 0.2],
            "tickvals": [10.0**power for power in powers],
            "ticktext": [quantity(10.0**power) for power in powers],
        },
    )


def _norms_reading(layers: pd.DataFrame) -> str:
    blocks = layers[layers["layer"] >= 0]
    ratio = blocks["max_abs"] / blocks["median_abs"]
    peak = blocks.iloc[int(np.nanargmax(ratio.to_numpy()))]
    first = blocks.iloc[int(np.nanargmax((blocks["first_token_norm"] / blocks["other_norm"]).to_numpy()))]
    text = (
        f"After layer {peak['layer']:.0f} one activation is **{quantity(float(ratio.max()), digits=2)} "
        f"times** the median, at the first token in {share(peak['at_first'])} of chunks"
    )
    times = float(first["first_token_norm"] / first["other_norm"])
    if times > 2:
        return (
            f"{text}; its hidden state is {quantity(times, digits=2)} times as long as the others'. Shaded: "
            "the states that layers with almost no sinks read."
        )
    most = quantity(times, digits=2)
    return f"{text}; its hidden state is never more than {most} times as long as the others."


def _norms_alt(layers: pd.DataFrame) -> str:
    blocks = layers[layers["layer"] >= 0]
    peak = blocks.iloc[int(np.nanargmax(blocks["max_abs"].to_numpy()))]
    return (
        "Hidden states by layer on a log scale: length at the first token and elsewhere, largest and median "
        f"activation. The largest activation is {quantity(float(peak['max_abs']))} after layer "
        f"{peak['layer']:.0f}."
    )


def _apart(values: np.ndarray, fig: go.Figure, pixels: int, least: float = 15.0) -> list[float]:
    """Places for labels near `values` (in axis units), at least `least` px apart on an axis of all the "
    "data."""
    data = np.concatenate([np.log10(np.maximum(np.asarray(t.y, dtype=float), 1e-6)) for t in fig.data])
    span = float(data.max() - data.min()) or 1.0
    step = least * span * 1.1 / pixels
    order = np.argsort(values)
    places = np.asarray(values, dtype=float).copy()
    for before, after in pairwise(order):
        places[after] = max(places[after], places[before] + step)
    return places.tolist()


def _bars(values: pd.Series, names: list[str], palette: Palette, hot: pd.Series | None = None) -> go.Figure:
    colours = [
        palette.hot if hot is None or is_hot else palette.muted
        for is_hot in (hot if hot is not None else values)
    ]
    return go.Figure(
        go.Bar(
            x=values,
            y=names,
            orientation="h",
            marker={"color": colours},
            text=[share(value) for value in values],
            textposition="outside",
            cliponaxis=False,
            textfont={"size": TICK, "color": palette.ink},
            hoverinfo="skip",
        )
    )


def _percent_bars(fig: go.Figure, values: pd.Series) -> None:
    top = 1.0 if float(values.max()) > 0.25 else max(0.01, 1.25 * float(values.max()))
    ticks = _PERCENT if top == 1.0 else {"tickformat": ".0%" if top > 0.05 else ".1%", "nticks": 5}
    fig.update_layout(
        bargap=0.3,
        xaxis={"range": [0, top * 1.12], "fixedrange": True, **ticks},
        yaxis={"autorange": "reversed", "fixedrange": True},
    )


def _pairs(names: list[str], values: pd.Series) -> str:
    return ", ".join(f"{name} {share(value)}" for name, value in zip(names, values, strict=True))


def _rate(kinds: pd.DataFrame, kind: str) -> float:
    found = kinds.loc[kinds["kind"] == kind, "rate"]
    return float(found.iloc[0]) if len(found) else float("nan")


def _plural(kind: str) -> str:
    return {"punctuation": "punctuation marks", "other": "other tokens", "special": "special tokens"}.get(
        kind, f"{_KINDS.get(kind, kind)}s"
    )
