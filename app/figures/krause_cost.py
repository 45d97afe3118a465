"""Cost of the operators: measured time and memory against length, with growth exponents."""

from __future__ import annotations

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from app.figures.base import Figure, layout, quantity
from app.figures.krause_emergence import apart
from app.theme import Palette
from models.attention.slopes import loglog_slope

FROM = 1_024  # tokens from which on slopes are fitted: below it, fixed costs show
_RIGHT = 176


def operator_name(path: str, topk: int) -> str:
    """An operator for people."""
    names = {"dense": "dense scores", "sdpa": "SDPA (fused)", "linear": "linear (elu + 1)"}
    return names.get(path, f"gathered, k {topk}" if topk else "gathered")


def _colour(path: str, topk: int, palette: Palette) -> str:
    if path == "gathered":
        return {0: palette.hot, 96: palette.categories[4], 16: palette.categories[3]}.get(topk, palette.hot)
    return {"dense": palette.ink, "sdpa": palette.categories[0]}.get(path, palette.muted)


def cost_curves(times: pd.DataFrame, palette: Palette) -> Figure:
    """Above: seconds against tokens, below: bytes at the peak; both axes logarithmic.

    `times` has path, topk, length, repetition, seconds and peak_bytes of one direction.
    """
    fig = make_subplots(2, 1, shared_xaxes=True, vertical_spacing=0.07, row_heights=[0.58, 0.42])
    found = [(str(p), int(k)) for p, k in times[["path", "topk"]].drop_duplicates().itertuples(index=False)]
    slopes: dict[tuple[str, int], tuple[float, tuple[float, float]]] = {}
    ends: dict[int, list[tuple[str, str, float]]] = {1: [], 2: []}
    for path, topk in found:
        rows = times[(times["path"] == path) & (times["topk"] == topk)]
        tint, name = _colour(path, topk, palette), operator_name(path, topk)
        far = rows[rows["length"] >= FROM]
        if far["length"].nunique() > 2:
            slopes[path, topk] = loglog_slope(far["length"].to_numpy(), far["seconds"].to_numpy())
        for row, column, unit in ((1, "seconds", "s"), (2, "peak_bytes", "B")):
            by = rows.groupby("length")[column].agg(["median", "min", "max"])
            by = by[by["median"] > 0]
            if by.empty:
                continue
            fig.add_trace(
                go.Scatter(
                    x=by.index,
                    y=by["median"],
                    mode="lines+markers",
                    marker={"size": 6},
                    line={"color": tint, "width": 2},
                    error_y={
                        "type": "data",
                        "symmetric": False,
                        "array": by["max"] - by["median"],
                        "arrayminus": by["median"] - by["min"],
                        "color": tint,
                        "width": 0,
                        "thickness": 1,
                    },
                    customdata=[[quantity(float(v), unit)] for v in by["median"]],
                    hovertemplate=f"{name}<br>%{{x:,}} tokens: <b>%{{customdata[0]}}</b><extra></extra>",
                ),
                row,
                1,
            )
            label = name
            if row == 1 and (path, topk) in slopes:
                label += f"  <b>N<sup>{slopes[path, topk][0]:.2f}</sup></b>"
            ends[row].append((label, tint, float(np.log10(by["median"].iloc[-1]))))
    layout(fig, palette, 620, left=72, right=_RIGHT)
    for row in (1, 2):
        span = max((e[2] for e in ends[row]), default=1) - min((e[2] for e in ends[row]), default=0) or 1
        placed = apart([e[2] for e in ends[row]], span * (0.09 if row == 1 else 0.14))
        for (label, tint, _), y in zip(ends[row], placed, strict=True):
            fig.add_annotation(
                x=1,
                y=y,
                xref="paper",
                yref="y" if row == 1 else "y2",
                text=label,
                showarrow=False,
                xanchor="left",
                xshift=10,
                font={"size": 11, "color": tint},
            )
    lengths = sorted({int(n) for n in times["length"]})
    fig.update_xaxes(
        type="log",
        tickmode="array",
        tickvals=lengths,
        ticktext=[f"{n:,}" for n in lengths],
        fixedrange=True,
        tickangle=0,
    )
    fig.update_xaxes(title_text="tokens (log scale)", row=2, col=1)
    fig.update_yaxes(type="log", fixedrange=True, exponentformat="power", dtick=1)
    fig.update_yaxes(title_text="time (s, log scale)", row=1, col=1)
    fig.update_yaxes(title_text="memory at the peak (B, log scale)", row=2, col=1)
    alt = "Time against length: " + "; ".join(
        f"{operator_name(*key)} grows as N to the {slope:.2f} [{low:.2f}, {high:.2f}]"
        for key, (slope, (low, high)) in slopes.items()
    )
    return Figure(fig, alt + ".", cost_reading(times, slopes))


def _medians(times: pd.DataFrame, path: str, topk: int, column: str = "seconds") -> pd.Series:
    rows = times[(times["path"] == path) & (times["topk"] == topk)]
    return rows.groupby("length")[column].median()


def cost_reading(
    times: pd.DataFrame, slopes: dict[tuple[str, int], tuple[float, tuple[float, float]]]
) -> str:
    """Growth of gathered and dense, and from where on gathered is ahead of the fused kernel."""
    parts = []
    for key, name in ((("gathered", 0), "gathered Krause attention"), (("dense", 0), "dense scores")):
        if key in slopes:
            slope, (low, high) = slopes[key]
            parts.append(
                f"{name} grow{'s' if key[0] == 'gathered' else ''} as N^**{slope:.2f}** [{low:.2f}, "
                f"{high:.2f}]"
            )
    text = f"From {FROM:,} tokens on, {' and '.join(parts)}." if parts else ""
    sdpa = _medians(times, "sdpa", 0)
    for topk, name in ((0, "Without top-k"), (96, "With the 96 nearest of 128 keys")):
        ours = _medians(times, "gathered", topk)
        common = sdpa.index.intersection(ours.index)
        ahead = [
            int(n) for n in common if ours[n] < sdpa[n] and all(ours[m] < sdpa[m] for m in common if m >= n)
        ]
        if len(common) and ahead:
            last = int(common.max())
            text += f" {name} it is ahead of the fused kernel from **{ahead[0]:,} tokens** on, "
            text += f"{sdpa[last] / ours[last]:.1f} times at {last:,}."
        elif len(common):
            text += f" {name} it is behind the fused kernel up to {int(common.max()):,} tokens."
    return text
