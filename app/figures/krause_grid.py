"""The ablation of the byte language model: windows, kept keys, and what sigma may learn."""

from __future__ import annotations

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from app.figures.base import Figure, layout, quantity, share
from app.theme import TICK, Palette

_SIGMA = {"head": "a width per head", "layer": "a width per layer", "fixed": "a fixed width"}


def window_grid(runs: pd.DataFrame, softmax_nats: float | None, palette: Palette) -> Figure:
    """Bits per byte by window (x) and kept keys (colour), one seed; softmax as the reference.

    `runs` has window, topk, sigma, seed, loss_nats and first_mass of Krause networks.
    """
    base = runs[(runs["sigma"] == "head") & (runs["seed"] == 0)].copy()
    base["bits"] = base["loss_nats"] / np.log(2)
    kept = sorted({int(k) for k in base["topk"].dropna()})
    lines: list[int | None] = [*kept, *([None] if base["topk"].isna().any() else [])]
    fig = go.Figure()
    tints = (palette.hot, palette.categories[0], palette.categories[2], palette.categories[3])
    for number, topk in enumerate(lines):
        rows = base[base["topk"].isna()] if topk is None else base[base["topk"] == topk]
        rows = rows.sort_values("window")
        name = "every key" if topk is None else f"{topk} keys kept"
        fig.add_trace(
            go.Scatter(
                x=rows["window"],
                y=rows["bits"],
                mode="lines+markers",
                line={"color": tints[number % 4], "width": 2},
                marker={"size": 10},
                customdata=[
                    [quantity(b), share(m)] for b, m in zip(rows["bits"], rows["first_mass"], strict=True)
                ],
                hovertemplate=f"window %{{x}}, {name}<br><b>%{{customdata[0]}}</b> bits per byte<br>"
                "first token %{customdata[1]}<extra></extra>",
            )
        )
        if len(rows):
            end = rows.iloc[-1]
            fig.add_annotation(
                x=np.log10(float(end["window"])),
                y=float(end["bits"]),
                text=name,
                showarrow=False,
                xanchor="left",
                xshift=10,
                font={"size": TICK, "color": tints[number % 4]},
            )
    layout(fig, palette, 380, "window (keys, log scale)", "bits per byte, held out", right=140, left=64)
    windows = sorted({int(w) for w in base["window"].dropna()})
    fig.update_xaxes(
        type="log",
        tickmode="array",
        tickvals=windows,
        ticktext=[str(w) for w in windows],
        fixedrange=True,
        range=[np.log10(windows[0] * 0.85), np.log10(windows[-1] * 1.1)] if windows else None,
    )
    fig.update_yaxes(fixedrange=True)
    if softmax_nats is not None:
        bits = softmax_nats / np.log(2)
        fig.add_hline(bits, line={"color": palette.reference, "width": 1, "dash": "dash"})
        fig.add_annotation(
            x=1,
            y=bits,
            xref="paper",
            text=f"softmax {quantity(bits)}",
            showarrow=False,
            xanchor="left",
            xshift=8,
            yshift=-9,
            font={"size": TICK, "color": palette.muted},
        )
    return Figure(fig, _alt(base), _reading(base, runs, softmax_nats))


def _keys(topk: float) -> str:
    return "every key" if pd.isna(topk) else f"{topk:.0f} keys"


def _alt(base: pd.DataFrame) -> str:
    rows = base.sort_values(["window", "topk"]).to_dict("records")
    parts = [f"window {r['window']:.0f}, {_keys(r['topk'])}: {quantity(r['bits'])}" for r in rows]
    return f"Bits per byte of Krause attention by window and kept keys: {'; '.join(parts)}."


def _reading(base: pd.DataFrame, runs: pd.DataFrame, softmax_nats: float | None) -> str:
    if base.empty:
        return ""
    ordered = base.sort_values("bits")
    best, worst = ordered.iloc[0], ordered.iloc[-1]

    def named(row: pd.Series) -> str:
        return f"{quantity(float(row['bits']))} with {_keys(row['topk'])} of a window of {row['window']:.0f}"

    parts = [f"From {named(worst)} to **{named(best)}**, one seed each."]
    if softmax_nats is not None:
        gap = float(best["bits"]) - softmax_nats / np.log(2)
        parts.append(
            f"Softmax over everything is {quantity(abs(gap))} bits {'better' if gap > 0 else 'worse'}."
        )
    same = runs[(runs["window"] == 64) & (runs["topk"] == 16) & (runs["seed"] == 0)]
    by_sigma = dict(zip(same["sigma"], same["loss_nats"] / np.log(2), strict=True))
    if len(by_sigma) > 1:
        listed = ", ".join(f"{_SIGMA[s]} {quantity(b, digits=4)}" for s, b in by_sigma.items())
        parts.append(f"What σ may learn (window 64, 16 keys): {listed}.")
    return " ".join(parts)
