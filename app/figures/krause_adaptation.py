"""A pretrained model with a Krause branch: what the first token gets, layer by layer, and what it costs."""

from __future__ import annotations

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from app.figures.base import Figure, layout, quantity, share
from app.figures.krause_emergence import apart
from app.theme import Palette
from models.attention.metrics import window_mass_ceiling

_RIGHT = 136


def first_token_by_layer(frame: pd.DataFrame, window: int, length: int, palette: Palette) -> Figure:
    """First-token mass by layer: the model as it is, both branches after training, and their mixture.

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
    fig = go.Figure()
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
            )
        )
        ends.append((name, tint, float(by.iloc[-1])))
    top = window_mass_ceiling(window, length)
    layout(fig, palette, 420, "layer (from the input)", "first-token mass (share)", right=_RIGHT, left=64)
    fig.add_hline(top, line={"color": palette.ink, "width": 1})
    fig.add_annotation(
        x=0,
        y=top,
        xref="paper",
        xanchor="left",
        yanchor="bottom",
        showarrow=False,
        text=f"ceiling of the Krause branch: {share(top)}",
        font={"size": 11, "color": palette.ink},
    )
    fig.update_yaxes(range=[0, 1], tickformat=".0%", fixedrange=True)
    fig.update_xaxes(fixedrange=True)
    for (name, tint, _), y in zip(ends, apart([e[2] for e in ends], 0.05, 0.0), strict=True):
        fig.add_annotation(
            x=1,
            y=y,
            xref="paper",
            xanchor="left",
            xshift=8,
            text=name,
            showarrow=False,
            font={"size": 11, "color": tint},
        )
    means = {name: _mean(frame, stage, column) for stage, column, name, _, _ in lines}
    alt = "First-token mass, mean over layers: " + "; ".join(
        f"{name} {share(value)}" for name, value in means.items() if value is not None
    )
    return Figure(fig, alt + ".", adaptation_reading(frame, window))


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
    if kept > 0.95:
        return text + f"The standard branch keeps its sink: {share(standard)}, {kept:.2f} times what it was."
    return text + f"The standard branch itself falls to {share(standard)}, {kept:.2f} times what it was."


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
        fig.add_annotation(
            x=1,
            y=y,
            xref="paper",
            xanchor="left",
            xshift=8,
            text=name,
            showarrow=False,
            font={"size": 11, "color": tint},
        )
    reading = ""
    if len(ends) == 2:
        reading = (
            f"The untrained branch alone raises perplexity from {quantity(ends[1][3])} to "
            f"{quantity(ends[0][3])}; "
            f"after training it is **{quantity(ends[0][2])}**, against {quantity(ends[1][2])} after the same "
            "training without a branch."
        )
    words = "; ".join(f"{n} {quantity(start)} to {quantity(end)}" for n, _, end, start in ends)
    return Figure(fig, f"Held-out perplexity: {words}.", reading)
