"""Cost of the operators: measured time and memory against length, with growth exponents."""

from __future__ import annotations

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from app.figures.base import Figure, layout, listed, quantity
from app.figures.krause_emergence import apart
from app.theme import SMALLEST, Palette
from models.attention.slopes import loglog_slope

FROM = 1_024  # tokens from which on slopes are fitted: below it, fixed costs show
_RIGHT = 132
_TICKS = 4  # lengths written along the axis: more collide on a phone


Slope = tuple[float, tuple[float, float]]  # exponent and its 95 % interval
_PANELS = ((1, "seconds", "s"), (2, "peak_bytes", "B"))


def _powers(values: pd.Series) -> dict[str, object]:
    """Ticks at the powers of ten, in the size of all other labels."""
    seen = values[values > 0]
    if seen.empty:
        return {}
    low, high = np.floor(np.log10(seen.min())), np.ceil(np.log10(seen.max()))
    ticks = [10.0**p for p in np.arange(low, high + 1)]
    return {"tickmode": "array", "tickvals": ticks, "ticktext": [quantity(t) for t in ticks]}


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
    slopes: dict[tuple[str, int], Slope] = {}
    ends: dict[int, list[tuple[str, str, float]]] = {1: [], 2: []}
    for path, topk in times[["path", "topk"]].drop_duplicates().itertuples(index=False):
        key = (str(path), int(topk))
        rows = times[(times["path"] == path) & (times["topk"] == topk)]
        tint, name = _colour(*key, palette), operator_name(*key)
        far = rows[rows["length"] >= FROM]
        if far["length"].nunique() > 2:
            slopes[key] = loglog_slope(far["length"].to_numpy(), far["seconds"].to_numpy())
        for row, column, unit in _PANELS:
            by = rows.groupby("length")[column].agg(["median", "min", "max"])
            by = by[by["median"] > 0]
            if by.empty:
                continue
            slope = slopes.get(key) if row == 1 else None
            fig.add_trace(_line(by, name, tint, unit, slope), row, 1)
            label = name if slope is None else f"{name} <b>N<sup>{slope[0]:.2f}</sup></b>"
            ends[row].append((label, tint, float(np.log10(by["median"].iloc[-1]))))
    layout(fig, palette, 620, left=64, right=_RIGHT)
    for row, column, _ in _PANELS:
        _labels(fig, ends[row], times[column], row)
    lengths = sorted({int(n) for n in times["length"]})
    written = lengths[:: -(1 + (len(lengths) - 1) // _TICKS)]  # the longest is among them
    fig.update_xaxes(type="log", tickmode="array", tickvals=written, fixedrange=True, tickangle=0)
    fig.update_xaxes(ticktext=[f"{n:,}" for n in written])
    fig.update_xaxes(title_text="tokens (log scale)", row=2, col=1)
    fig.update_yaxes(type="log", fixedrange=True)
    fig.update_yaxes(title_text="time (s, log scale)", **_powers(times["seconds"]), row=1, col=1)
    fig.update_yaxes(title_text="peak memory (B, log scale)", **_powers(times["peak_bytes"]), row=2, col=1)
    alt = "Time against length: " + "; ".join(
        f"{operator_name(*key)} grows as N to the {slope:.2f} [{low:.2f}, {high:.2f}]"
        for key, (slope, (low, high)) in slopes.items()
    )
    return Figure(fig, alt + ".", cost_reading(times, slopes))


def _line(by: pd.DataFrame, name: str, tint: str, unit: str, slope: Slope | None) -> go.Scatter:
    """Medians by length with bars from the smallest to the largest repetition."""
    grows = ""
    if slope is not None:
        grows = f"<br>grows as N<sup>{slope[0]:.2f}</sup> [{slope[1][0]:.2f}, {slope[1][1]:.2f}]"
    bars = {"array": by["max"] - by["median"], "arrayminus": by["median"] - by["min"]}
    return go.Scatter(
        x=by.index,
        y=by["median"],
        mode="lines+markers",
        marker={"size": 6},
        line={"color": tint, "width": 2},
        error_y={"type": "data", "symmetric": False, "color": tint, "width": 0, "thickness": 1} | bars,
        customdata=[[quantity(float(v), unit)] for v in by["median"]],
        hovertemplate=f"{name}<br>%{{x:,}} tokens: <b>%{{customdata[0]}}</b>{grows}<extra></extra>",
    )


def _labels(fig: go.Figure, ends: list[tuple[str, str, float]], drawn: pd.Series, row: int) -> None:
    """Names right of the lines' ends, a line of words apart. `ends`: label, colour, log10 of the value."""
    seen = drawn[drawn > 0]
    decades = float(np.log10(seen.max() / seen.min())) if len(seen) else 1.0
    placed = apart([end for _, _, end in ends], (decades or 1.0) * (0.055 if row == 1 else 0.08))
    for (label, tint, _), y in zip(ends, placed, strict=True):
        place = {
            "x": 1,
            "y": y,
            "xref": "paper",
            "yref": "y" if row == 1 else "y2",
            "xanchor": "left",
            "xshift": 10,
        }
        fig.add_annotation(text=label, showarrow=False, font={"size": SMALLEST, "color": tint}, **place)


def _seconds(times: pd.DataFrame, path: str, topk: int) -> pd.DataFrame:
    """Median, quickest and slowest repetition of an operator by length."""
    rows = times[(times["path"] == path) & (times["topk"] == topk)]
    return rows.groupby("length")["seconds"].agg(["median", "min", "max"])


def ahead_from(quicker: pd.Series, slower: pd.Series) -> int | None:
    """The length from which on `quicker` (seconds by length) lies below `slower`, at every common one;
    None where it does not at the longest."""
    found = None
    for length in sorted(quicker.index.intersection(slower.index), reverse=True):
        if not quicker[length] < slower[length]:
            break
        found = int(length)
    return found


def cost_reading(times: pd.DataFrame, slopes: dict[tuple[str, int], Slope]) -> str:
    """Growth of gathered and dense, and from where on gathered is ahead of the fused kernel."""
    parts = []
    for key, grows in (
        (("gathered", 0), "gathered Krause attention grows"),
        (("dense", 0), "dense scores grow"),
        (("sdpa", 0), "the fused kernel grows"),
    ):
        if key in slopes:
            slope, (low, high) = slopes[key]
            parts.append(f"{grows} as N^**{slope:.2f}** [{low:.2f}, {high:.2f}]")
    text = f"From {FROM:,} tokens on, {listed(parts)}." if parts else ""
    sdpa = _seconds(times, "sdpa", 0)
    for topk, name in ((0, "Without top-k"), (96, "With the 96 nearest of 128 keys")):
        ours = _seconds(times, "gathered", topk)
        common = sdpa.index.intersection(ours.index)
        if not len(common):
            continue
        last = int(common.max())
        ahead = ahead_from(ours["median"], sdpa["median"])
        if ahead is None:
            text += f" {name} gathered attention is behind the fused kernel up to {last:,} tokens."
            continue
        sure = ahead_from(ours["max"], sdpa["min"])
        text += f" {name} gathered attention is ahead of the fused kernel from **{ahead:,} tokens** on, "
        text += f"{sdpa['median'][last] / ours['median'][last]:.1f} times at {last:,}"
        if sure is None:
            text += ", but repetitions of the two overlap."
        else:
            text += "." if sure == ahead else f"; in every repetition only from {sure:,} on."
    return text.strip()
