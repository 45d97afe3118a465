"""A pretrained model with a Krause branch: what the first token gets, layer by layer, and what it costs."""

from __future__ import annotations

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from app.figures.base import Figure, layout, quantity, share
from app.figures.krause_emergence import apart
from app.figures.krause_settings import spread
from app.theme import SMALLEST, Palette
from models.attention.metrics import window_mass_ceiling

_RIGHT = 112
GATE_START = 0.2  # weight of the branch before training (ICML 2026, adaptation setting)


def first_token_by_layer(frame: pd.DataFrame, window: int, length: int, palette: Palette) -> Figure:
    """First-token mass by layer: the model as it is, both branches after training, and their mixture;
    below it, the weight that the gate gives to the Krause branch.

    `frame` has seed, stage (base, gated, trained, control), layer, standard_first, krause_first,
    mixed_first and gate, means over heads.
    """
    lines = (
        ("base", "standard_first", "as it is", palette.ink, "solid"),
        ("trained", "standard_first", "standard branch", palette.categories[0], "solid"),
        ("trained", "mixed_first", "mixed", palette.hot, "solid"),
        ("trained", "krause_first", "Krause branch", palette.hot, "dot"),
        ("control", "standard_first", "trained, no branch", palette.muted, "dash"),
    )
    fig = make_subplots(2, 1, shared_xaxes=True, vertical_spacing=0.09, row_heights=[0.72, 0.28])
    ends = []
    for stage, column, name, tint, dash in lines:
        by = frame[frame["stage"] == stage].groupby("layer")[column].mean()
        if by.empty or by.isna().all():
            continue
        fig.add_trace(
            go.Scatter(
                x=by.index,
                y=by,
                mode="lines",
                line={"color": tint, "width": 2, "dash": dash},
                customdata=[[share(float(v))] for v in by],
                hovertemplate=f"{name}<br>layer %{{x}}: <b>%{{customdata[0]}}</b><extra></extra>",
            ),
            row=1,
            col=1,
        )
        ends.append((name, tint, float(by.iloc[-1])))
    top = window_mass_ceiling(window, length)
    layout(fig, palette, 560, "", "first-token mass (share)", right=_RIGHT, left=64)
    fig.add_hline(top, line={"color": palette.ink, "width": 1}, row=1, col=1)
    fig.add_annotation(
        x=1,
        y=top,
        xref="paper",
        yref="y",
        xanchor="right",
        yanchor="bottom",
        showarrow=False,
        text=f"ceiling of the Krause branch: {share(top)}",
        font={"size": 11, "color": palette.ink},
    )
    fig.update_yaxes(range=[0, 1], tickformat=".0%", fixedrange=True, row=1, col=1)
    fig.update_xaxes(fixedrange=True, tickformat="d")
    fig.update_xaxes(title_text="layer (from the input)", row=2, col=1)
    _gate(fig, frame, palette)
    for (name, tint, _), y in zip(ends, apart([e[2] for e in ends], 0.05, 0.0), strict=True):
        _end(fig, name, tint, y)
    means = {name: _mean(frame, stage, column) for stage, column, name, _, _ in lines}
    alt = "First-token mass, mean over layers: " + "; ".join(
        f"{name} {share(value)}" for name, value in means.items() if value is not None
    )
    return Figure(fig, alt + ".", adaptation_reading(frame, window))


def _end(fig: go.Figure, name: str, tint: str, y: float, axis: str = "y") -> None:
    """The name of a line, right of its end."""
    place = {"x": 1, "y": y, "xref": "paper", "yref": axis, "xanchor": "left", "xshift": 8}
    fig.add_annotation(text=name, showarrow=False, font={"size": SMALLEST, "color": tint}, **place)


def _gate(fig: go.Figure, frame: pd.DataFrame, palette: Palette) -> None:
    """The lower panel: mean weight of the Krause branch by layer, and where training started."""
    gate = frame[frame["stage"] == "trained"].groupby("layer")["gate"].mean().dropna()
    fig.add_trace(
        go.Scatter(
            x=gate.index,
            y=gate,
            mode="lines",
            line={"color": palette.hot, "width": 2},
            customdata=[[share(float(v))] for v in gate],
            hovertemplate="gate<br>layer %{x}: <b>%{customdata[0]}</b><extra></extra>",
        ),
        row=2,
        col=1,
    )
    fig.add_hline(GATE_START, line={"color": palette.reference, "width": 1, "dash": "dash"}, row=2, col=1)
    most = max([2 * GATE_START, *(1.1 * gate)])
    fig.update_yaxes(
        range=[0, most], tickformat=".0%", fixedrange=True, title_text="gate (share)", row=2, col=1
    )
    labels = [("at the start", palette.reference, GATE_START)]
    labels += [("trained", palette.hot, float(gate.iloc[-1]))] if len(gate) else []
    for (name, tint, _), y in zip(labels, apart([v for _, _, v in labels], 0.16 * most, 0.0), strict=True):
        _end(fig, name, tint, y, "y2")


def _mean(frame: pd.DataFrame, stage: str, column: str) -> float | None:
    values = frame.loc[frame["stage"] == stage, column].dropna()
    return float(values.mean()) if len(values) else None


def adaptation_reading(frame: pd.DataFrame, window: int) -> str:
    """How much the first token loses, and how much of that is the gate's share alone."""
    base, standard = _mean(frame, "base", "standard_first"), _mean(frame, "trained", "standard_first")
    mixed, gate = _mean(frame, "trained", "mixed_first"), _mean(frame, "trained", "gate")
    if base is None or standard is None or mixed is None or gate is None:
        return ""
    kept = standard / base
    text = (
        f"The first token gets {share(base)} of attention in the model as it is and **{share(mixed)}** of "
        "the "
        f"mixture after training. The gate hands {share(gate)} to the Krause branch, whose window of "
        f"{window} keys "
        f"hides the first token from query {window} on; that part of the fall is **by construction**. "
    )
    layers = frame[frame["stage"] == "trained"].groupby("layer")["gate"].mean()
    if len(layers) > 1 and layers.max() - layers.min() >= 0.01:
        text += (
            f"By layer the gate lies between {share(float(layers.min()))} (layer {layers.idxmin()}) and "
            f"{share(float(layers.max()))} (layer {layers.idxmax()}). "
        )
    if kept > 0.95:
        return text + f"The standard branch keeps its sink: {share(standard)}, {kept:.2f} times what it was."
    return text + f"The standard branch itself falls to {share(standard)}, {kept:.2f} times what it was."


def _paired(losses: pd.DataFrame) -> str:
    """Final perplexity with the branch over that without it, paired by seed."""
    final = losses[losses["step"] == losses["step"].max()]
    ends = final.pivot_table(index="seed", columns="split", values="loss_nats").dropna()
    if len(ends) < 2:
        return " One seed: there is no interval and nothing to claim."
    ratio, low, high = np.exp(spread((ends["validation"] - ends["control"]).to_numpy(float)))
    claim = "no difference can be claimed" if low <= 1 <= high else "the interval leaves out 1"
    return f" The ratio is {ratio:.3f} [{low:.3f}, {high:.3f}] over {len(ends)} paired seeds; {claim}."


def perplexity_lines(losses: pd.DataFrame, palette: Palette) -> Figure:
    """Held-out perplexity over the updates, with the branch and without; mean over seeds."""
    fig = go.Figure()
    ends = []
    for split, name, tint, dash in (
        ("validation", "with the branch", palette.hot, "solid"),
        ("control", "without it", palette.muted, "dash"),
    ):
        rows = losses[losses["split"] == split]
        if rows.empty:
            continue
        by = np.exp(rows.groupby("step")["loss_nats"].mean())
        fig.add_trace(
            go.Scatter(
                x=by.index,
                y=by,
                mode="lines+markers",
                line={"color": tint, "width": 2, "dash": dash},
                customdata=[[quantity(float(v))] for v in by],
                hovertemplate=f"{name}<br>%{{x}} updates: <b>%{{customdata[0]}}</b><extra></extra>",
            )
        )
        ends.append((name, tint, float(by.iloc[-1]), float(by.iloc[0])))
    layout(fig, palette, 320, "optimiser updates", "held-out perplexity", right=_RIGHT, left=64)
    fig.update_xaxes(fixedrange=True)
    fig.update_yaxes(fixedrange=True)
    span = max((max(e[2:]) for e in ends), default=1) - min((min(e[2:]) for e in ends), default=0) or 1
    for (name, tint, _, _), y in zip(ends, apart([e[2] for e in ends], 0.08 * span), strict=True):
        _end(fig, name, tint, y)
    reading = ""
    if len(ends) == 2:
        reading = (
            f"The untrained branch alone raises perplexity from {quantity(ends[1][3])} to "
            f"{quantity(ends[0][3])}; "
            f"after training it is **{quantity(ends[0][2])}**, against {quantity(ends[1][2])} after the same "
            "training without a branch."
        )
        reading += _paired(losses)
    words = "; ".join(f"{n} {quantity(start)} to {quantity(end)}" for n, _, end, start in ends)
    return Figure(fig, f"Held-out perplexity: {words}.", reading)
