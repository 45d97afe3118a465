"""Particles that attend to each other: clusters over time, the negative control, and opinions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go

from app.figures.assemble import assemble, note
from app.figures.base import Figure, direct_label, layout, quantity
from app.figures.krause_emergence import apart
from app.figures.krause_motion import animation, tints
from app.theme import Palette
from models.attention.particles import Trajectory, cluster_count, clusters, order_parameter

__all__ = ["OPINION_TOUCH", "animation", "negative_control", "opinions", "over_time"]

OPINION_TOUCH = 1e-3
_EPSILON = float(np.finfo(float).eps)
_EXACT = 1e-10  # below it two trajectories are the same but for rounding
_START = 0.6  # where step 0 stands on a log axis
_COUNTS = (1, 2, 5, 10, 20, 50, 100, 200, 400)


def _step_axis(steps: tuple[int, ...], title: str = "") -> dict[str, Any]:
    """A log axis of steps whose first tick is step 0."""
    ticks = [10**power for power in range(5) if 10**power <= steps[-1]]
    return {
        "type": "log",
        "fixedrange": True,
        "range": [np.log10(_START) - 0.03, np.log10(max(steps[-1], 2)) + 0.03],
        "tickmode": "array",
        "tickvals": [_START, *ticks],
        "ticktext": ["0", *(f"{tick:,}" for tick in ticks)],
        "tickangle": 0,
        "title": {"text": title},
    }


def _value_axis(title: str, ticks: Sequence[float]) -> dict[str, Any]:
    named = {"tickmode": "array", "tickvals": ticks, "ticktext": [f"{tick:g}" for tick in ticks]}
    return named | {"title": {"text": title}, "fixedrange": True, "showgrid": True}


def _on_log(steps: tuple[int, ...]) -> list[float]:
    return [max(step, _START) for step in steps]


def _labels(ends: Sequence[float], least: float, low: float, high: float) -> list[float]:
    """Where the names of lines that end at `ends` stand: apart, and within the axis, outside which
    Plotly draws none."""
    placed = apart(ends, least)
    shift = max(0.0, low - min(placed)) - max(0.0, max(placed) - high)
    return [place + shift for place in placed]


def over_time(left: Trajectory, right: Trajectory, names: tuple[str, str], palette: Palette) -> Figure:
    """Number of clusters, and below it the order parameter, over the steps (log)."""
    sides, colours = (left, right), (palette.ink, palette.hot)
    counts = [[cluster_count(points) for points in path.points] for path in sides]
    orders = [[order_parameter(points) for points in path.points] for path in sides]
    highest = float(np.log10(max(map(max, counts))))
    traces: list[dict[str, Any]] = []
    notes: list[dict[str, Any]] = []
    panels: tuple[tuple[str, Sequence[Sequence[float]], str], ...] = (
        ("y", counts, "hv"),
        ("y2", orders, "linear"),
    )
    for axis, series, shape in panels:
        places = [float(np.log10(values[-1])) if axis == "y" else values[-1] for values in series]
        top = highest if axis == "y" else 1.0
        for name, tint, values, path, place in zip(
            names, colours, series, sides, _labels(places, 0.13 * top, 0, top), strict=True
        ):
            hover = f"{name}<br>step %{{customdata}}: <b>%{{y:.3g}}</b><extra></extra>"
            traces.append(
                {"type": "scatter", "mode": "lines", "x": _on_log(path.steps), "y": values}
                | {"xaxis": "x" if axis == "y" else "x2", "yaxis": axis, "hovertemplate": hover}
                | {"customdata": [f"{s:,}" for s in path.steps]}
                | {"line": {"color": tint, "width": 2, "shape": shape}}
            )
            end = f"{values[-1]}" if axis == "y" else f"{values[-1]:.2f}"
            notes.append(
                note(f"{name.split(',')[0]} <b>{end}</b>", tint, x=1, xref="paper", y=place, yref=axis)
                | {"xanchor": "left", "xshift": 4}
            )
    steps = left.steps if left.steps[-1] >= right.steps[-1] else right.steps
    more = {
        "xaxis": _step_axis(steps) | {"showticklabels": False, "anchor": "y"},
        "xaxis2": _step_axis(steps, "step (layer), log scale") | {"anchor": "y2", "matches": "x"},
        "yaxis": _value_axis("clusters (log)", _COUNTS)
        | {"type": "log", "domain": [0.55, 1], "range": [-0.08, highest + 0.08]},
        "yaxis2": _value_axis("order parameter", (0, 0.5, 1))
        | {"domain": [0, 0.45], "range": [-0.02, 1.05], "anchor": "x2"},
        "annotations": notes,
    }
    fig = assemble(traces, palette, 360, (56, 96, 16, 48), more)
    alt = "; ".join(
        f"{name}: {c[-1]} cluster{'s' if c[-1] != 1 else ''}, order parameter {o[-1]:.2f} at the end"
        for name, c, o in zip(names, counts, orders, strict=True)
    )
    told = [_told(n, c, o, p) for n, c, o, p in zip(names, counts, orders, sides, strict=True)]
    return Figure(fig, f"{alt}.", " ".join(told))


def _told(name: str, counts: list[int], orders: list[float], path: Trajectory) -> str:
    """One side over time, in a sentence."""
    settled = next(n for n in range(len(counts)) if len(set(counts[n:])) == 1)
    upper = name[0].upper() + name[1:]
    rest = (
        "" if path.rest is None else f", and from step {path.rest:,} on no particle moves by more than 10⁻⁹"
    )
    still = "has" if settled < len(counts) - 1 else "still changes and has"
    when = f"from step {path.steps[settled]:,} on" if settled < len(counts) - 1 else "at the end"
    return (
        f"{upper} {still} **{counts[-1]}** cluster{'s' if counts[-1] != 1 else ''} {when} (order parameter "
        f"{orders[0]:.2f} at the start, {orders[-1]:.2f} at the end){rest}."
    )


def negative_control(
    softmax: Trajectory,
    kernel: Trajectory,
    beta: float,
    palette: Palette,
    truncated: Trajectory | None = None,
    truncation: str = "truncated",
) -> Figure:
    """Largest distance between a particle under softmax and under the full Gaussian kernel, by step.

    `truncated` is the same kernel cut off, and `truncation` says where ("radius 0.5").
    """
    paths = {"full Gaussian": (kernel, palette.ink)}
    if truncated is not None:
        paths[f"cut off at<br>{truncation}"] = (truncated, palette.hot)
    fig = go.Figure()
    worst: list[float] = []
    ends: list[float] = []
    for path, tint in paths.values():
        far = np.linalg.norm(softmax.points - path.points, axis=-1).max(axis=1)
        worst.append(float(far.max()))
        seen = np.flatnonzero(far)  # they start from the same places, and a logarithm shows no zero
        fig.add_scatter(
            x=[_on_log(softmax.steps)[n] for n in seen],
            y=far[seen],
            mode="lines",
            line={"color": tint, "width": 2},
            customdata=[[f"{softmax.steps[n]:,}", quantity(float(far[n]), digits=2)] for n in seen],
            hovertemplate="step %{customdata[0]}: <b>%{customdata[1]}</b><extra></extra>",
        )
        ends.append(float(np.log10(far[seen[-1]])) if len(seen) else -16)
    for (name, (_, tint)), end in zip(paths.items(), _labels(ends, 2, -17, 1), strict=True):
        direct_label(fig, palette, 1, end, name, tint, xref="paper", xshift=4, align="left")
    layout(fig, palette, 360, y_title="largest distance to softmax (log)", left=56, right=96)
    fig.update_xaxes(_step_axis(softmax.steps, "step (layer), log scale"))
    powers = range(-16, 1, 4)
    ticks = {"tickmode": "array", "tickvals": [10.0**p for p in powers]}
    labels = [quantity(10.0**p) for p in powers]
    fig.update_yaxes(type="log", range=[-17.8, 1.2], fixedrange=True, ticktext=labels, **ticks)
    for value, text, tint, dash, side in (
        (2.0, "2: across the sphere", palette.ink, "solid", "bottom"),
        (_EPSILON, "rounding: 2 × 10⁻¹⁶", palette.reference, "dash", "top"),
    ):
        fig.add_hline(value, line={"color": tint, "width": 1, "dash": dash})
        place = {"xref": "paper", "xshift": 0, "yanchor": side}
        direct_label(fig, palette, 0, float(np.log10(value)), text, tint, **place)
    alt = f"Largest distance between the two trajectories: {quantity(worst[0], digits=2)}."
    cut = f" Cut off at {truncation}, the same kernel comes {worst[-1]:.2f} apart." if len(worst) > 1 else ""
    return Figure(fig, alt + cut, _control_reading(worst, softmax, beta, truncation))


def _control_reading(worst: list[float], softmax: Trajectory, beta: float, truncation: str) -> str:
    same = (
        f"The full Gaussian kernel with σ² = 1/β moves every particle exactly as softmax does: at most "
        f"**{quantity(worst[0], digits=1)}** apart, which is rounding. "
        if worst[0] < _EXACT
        else f"The two come {quantity(worst[0])} apart. "
    )
    cut = ""
    if len(worst) > 1:
        cut = f" (cut off at {truncation}, it goes {worst[1]:.2f} away)"
        cut = cut if worst[1] > _EXACT else f" ({truncation} cuts nothing off, so it changes nothing either)"
    steps = softmax.steps[-1]
    half = next(n for n, step in enumerate(softmax.steps) if step >= steps / 2)
    count, before = (cluster_count(softmax.points[n]) for n in (-1, half))
    end = (
        f"softmax shows {count} clusters too after {steps:,} steps, but nothing keeps them apart: they are "
        f"only slow to merge{' (metastable)' if count == before else ''}."
        if count > 1
        else "both reach one cluster."
    )
    return (
        f"{same}On the sphere all vectors have the same length, so a Gaussian distance alone changes "
        f"nothing: **truncation makes the clusters that last**{cut}. At β = {beta:g} {end}"
    )


def opinions(path: Trajectory, eps: float, palette: Palette) -> Figure:
    """Hegselmann-Krause opinions over the steps, coloured by their cluster at the end."""
    values = path.points[..., 0]
    found = clusters(path.points[-1], OPINION_TOUCH)
    colours = tints(palette)
    fig = go.Figure()
    count = int(found.max()) + 1
    centres = [float(values[-1, found == c].mean()) for c in range(count)]
    ranks = np.argsort(np.argsort(centres))
    labels = apart(centres, 0.045)
    for cluster in range(count):
        lines = values[:, found == cluster]
        x = np.tile([*path.steps, np.nan], lines.shape[1])
        y = np.concatenate([lines, np.full((1, lines.shape[1]), np.nan)]).T.reshape(-1)
        tint = colours[ranks[cluster] % len(colours)]
        fig.add_scatter(
            x=x.astype(np.float32),
            y=y.astype(np.float32),
            mode="lines",
            line={"color": tint, "width": 1},
            opacity=0.75,
            hovertemplate="step %{x}: opinion %{y:.3f}<extra></extra>",
        )
        text = f"<b>{centres[cluster]:.2f}</b> · {lines.shape[1]}"
        direct_label(fig, palette, 1, labels[cluster], text, xref="paper", xshift=4)
    layout(fig, palette, 420, "step", "opinion (0 to 1)", left=56, right=96)
    fig.update_yaxes(range=[-0.02, 1.02], fixedrange=True)
    fig.update_xaxes(fixedrange=True, range=[0, max(path.steps[-1], 1)], tickformat="d", nticks=8)
    gap = (
        f" Neighbouring clusters are at least {np.diff(np.sort(centres)).min():.2f} apart, more than ε."
        if count > 1
        else ""
    )
    reading = (
        f"With confidence ε = {eps:g}, {values.shape[1]} opinions settle in **{count} cluster"
        f"{'s' if count != 1 else ''}** after {path.steps[-1]} steps.{gap} At the right: where each cluster "
        "ends, and how many hold it."
    )
    return Figure(
        fig, f"{values.shape[1]} opinions over {path.steps[-1]} steps end in {count} clusters.", reading
    )
