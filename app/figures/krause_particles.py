"""Particles that attend to each other: the animated pair, clusters over time, and the negative control."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go

from app.figures.assemble import assemble, note
from app.figures.base import Figure, guarantee_line, layout, quantity, reference_line
from app.figures.krause_emergence import apart
from app.theme import LABEL, TICK, Palette
from models.attention.particles import Trajectory, cluster_count, clusters, order_parameter

OPINION_TOUCH = 1e-3
_EXACT = 1e-10  # below it two trajectories are the same but for rounding
_SCALE = 1_000  # places go to the browser as whole numbers, which takes a third of the bytes
_EDGE = 1.1 * _SCALE
_INNER = 0.6  # radius of the innermost lane
_TRACKS = 60  # particles of a panel whose whole way is drawn
_START = 0.6  # where step 0 stands on a log axis
_COUNTS = (1, 2, 5, 10, 20, 50, 100, 200, 400)


def tints(palette: Palette) -> list[str]:
    """Colours of clusters: the hot one, then the categories but for the one that is nearly the same."""
    return [palette.hot, *(c for place, c in enumerate(palette.categories[:6]) if place != 1)]


def cluster_colours(points: np.ndarray, palette: Palette) -> list[str]:
    """A colour per particle by its cluster at the end; the largest cluster is the hot one.

    Colours go round from there, so that neighbours on the circle never share one.
    """
    found = clusters(points)
    count = int(found.max()) + 1
    centres = np.stack([points[found == c].mean(axis=0) for c in range(count)])
    angle = np.arctan2(centres[:, 1], centres[:, 0])
    largest = int(np.argmax(np.bincount(found)))
    around = np.argsort((angle - angle[largest]) % (2 * np.pi), kind="stable")
    rank = np.empty(count, dtype=int)
    rank[around] = np.arange(count)
    colours = tints(palette)
    each = [colours[r % len(colours)] for r in rank]
    if count > 1 and count % len(colours) == 1:  # the last one stands beside the first
        each[around[-1]] = colours[len(colours) // 2]
    return [each[c] for c in found]


def _lanes(points: np.ndarray) -> np.ndarray:
    """Radius of each particle's lane, for (..., n, d): on the circle a cluster would be a single dot."""
    return np.linspace(_INNER, 1.0, points.shape[-2]) if points.shape[-1] == 2 else np.ones(points.shape[-2])


def _flat(points: np.ndarray) -> np.ndarray:
    """Places on screen, (..., n, 2) whole numbers, of (..., n, 2 or 3): seen from above."""
    return np.rint(points[..., :2] * _lanes(points)[:, None] * _SCALE).astype(np.int16)


def _frame(points: np.ndarray) -> dict[str, Any]:
    """What changes from frame to frame; on the sphere the far side is fainter."""
    places = _flat(points)
    change: dict[str, Any] = {"type": "scatter", "x": places[:, 0], "y": places[:, 1]}
    if points.shape[1] == 3:
        change["marker"] = {"opacity": [0.25 if z < 0 else 0.9 for z in points[:, 2]]}
    return change


def _tracks(path: Trajectory, colours: Sequence[str], axes: dict[str, str]) -> list[dict[str, Any]]:
    """The whole way of some of the particles, one faint trace a colour."""
    chosen = np.unique(np.linspace(0, len(colours) - 1, _TRACKS).astype(int))
    places = _flat(path.points)[:, chosen].astype(float)
    traces = []
    for colour in dict.fromkeys(colours):
        mine = [n for n, particle in enumerate(chosen) if colours[particle] == colour]
        lines = np.concatenate([places[:, mine], np.full((1, len(mine), 2), np.nan)])
        x, y = (lines[..., d].T.reshape(-1).astype(np.float32) for d in (0, 1))
        line = {"color": colour, "width": 1}
        traces.append(
            {"type": "scatter", "mode": "lines", "x": x, "y": y, "line": line, "opacity": 0.22}
            | {"hoverinfo": "skip"}
            | axes
        )
    return traces


def animation(left: Trajectory, right: Trajectory, names: tuple[str, str], palette: Palette) -> Figure:
    """Two panels from the same start; a slider and a button move through the steps.

    Nothing plays by itself. It opens on the last step, because that is where the difference is.
    """
    sides, axes = (left, right), ({"xaxis": "x", "yaxis": "y"}, {"xaxis": "x2", "yaxis": "y2"})
    colours = [cluster_colours(path.points[-1], palette) for path in sides]
    counts = [cluster_count(path.points[-1]) for path in sides]
    what = [f"{n} cluster{'s' if n != 1 else ''}" for n in counts]
    traces = [t for p, c, a in zip(sides, colours, axes, strict=True) for t in _tracks(p, c, a)]
    moving = [len(traces), len(traces) + 1]
    for path, tint, axis in zip(sides, colours, axes, strict=True):
        first = _frame(path.points[-1])
        marker = {"size": 6, "opacity": 0.9} | first.pop("marker", {}) | {"color": tint, "line": {"width": 0}}
        traces.append(first | {"mode": "markers", "hoverinfo": "skip", "marker": marker} | axis)
    circle = {"type": "circle", "x0": -_SCALE, "x1": _SCALE, "y0": -_SCALE, "y1": _SCALE, "layer": "below"}
    span = {"visible": False, "range": [-_EDGE, _EDGE], "fixedrange": True, "constrain": "domain"}
    more: dict[str, Any] = {
        "shapes": [
            circle | {"line": {"color": palette.line, "width": 1}, "xref": a["xaxis"], "yref": a["yaxis"]}
            for a in axes
        ],
        "annotations": [
            note(f"<b>{w}</b><br>{name}", palette.ink, x=x, y=1, xref="paper", yref="paper", yshift=4)
            | {"yanchor": "bottom", "font": {"size": LABEL, "color": palette.ink}}
            for w, name, x in zip(what, names, (0.245, 0.755), strict=True)
        ],
    }
    for number, domain in (("", [0, 0.49]), ("2", [0.51, 1])):
        more[f"xaxis{number}"] = span | {"domain": domain, "anchor": f"y{number}"}
        more[f"yaxis{number}"] = span | {"anchor": f"x{number}", "scaleanchor": f"x{number}"}
    fig = assemble(traces, palette, 480, (8, 8, 48, 80), more | _player(left.steps, palette))
    fig.frames = [
        {"name": str(step), "traces": moving, "data": [_frame(path.points[n]) for path in sides]}
        for n, step in enumerate(left.steps)
    ]
    return Figure(fig, *_animation_words(sides, names, what))


def _animation_words(
    sides: tuple[Trajectory, Trajectory], names: tuple[str, str], what: list[str]
) -> tuple[str, str]:
    """Alt text and reading."""
    points, steps = sides[0].points, sides[0].steps[-1]
    orders = [order_parameter(path.points[-1]) for path in sides]
    alt = (
        f"{points.shape[1]} particles on a {'circle' if points.shape[2] == 2 else 'sphere'}, two panels from "
        f"the same start. After {steps:,} steps: {names[0]} {what[0]}, {names[1]} {what[1]}."
    )
    bold = [f"**{text.replace(' ', '** ', 1)}" for text in what]
    shown = (
        "Only the angle counts: each particle has a lane of its own."
        if points.shape[2] == 2
        else "The sphere is seen from above; what is fainter lies on its far side."
    )
    reading = (
        f"From the same start, after {steps:,} steps: {bold[0]} under {names[0]} (order parameter "
        f"{orders[0]:.2f}), {bold[1]} under {names[1]} ({orders[1]:.2f}). Colours mark the clusters at the "
        f"end, faint lines the way there. {shown}"
    )
    return alt, reading


def _player(steps: tuple[int, ...], palette: Palette) -> dict[str, Any]:
    """The button and the slider. No frame is tweened, and nothing moves until it is asked to."""
    still = {"frame": {"duration": 0, "redraw": False}, "mode": "immediate", "transition": {"duration": 0}}
    moving = {"frame": {"duration": 90, "redraw": False}, "fromcurrent": False, "transition": {"duration": 0}}
    font = {"size": TICK, "color": palette.muted}
    menu = {
        "type": "buttons",
        "direction": "left",
        "x": 0,
        "y": 0,
        "xanchor": "left",
        "yanchor": "top",
        "pad": {"t": 24, "r": 8},
        "bgcolor": palette.raised,
        "bordercolor": palette.line,
        "font": {"size": TICK, "color": palette.ink},
        "showactive": False,
        "buttons": [
            {"label": "▶ play", "method": "animate", "args": [None, moving]},
            {"label": "❚❚", "method": "animate", "args": [[None], still]},
        ],
    }
    slider = {
        "x": 1,
        "xanchor": "right",
        "len": 0.66,
        "y": 0,
        "yanchor": "top",
        "pad": {"t": 16, "b": 0, "r": 8},
        "font": {"size": 1, "color": "rgba(0,0,0,0)"},
        "active": len(steps) - 1,
        "bgcolor": palette.line,
        "bordercolor": palette.line,
        "activebgcolor": palette.action,
        "tickcolor": palette.line,
        "ticklen": 0,
        "minorticklen": 0,
        "currentvalue": {"prefix": "step ", "font": font, "xanchor": "left", "offset": 6},
        "steps": [
            {"label": f"{s:,}", "value": str(s), "method": "animate", "args": [[str(s)], still]}
            for s in steps
        ],
    }
    return {"updatemenus": [menu], "sliders": [slider]}


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


def _on_log(steps: tuple[int, ...]) -> list[float]:
    return [max(step, _START) for step in steps]


def over_time(left: Trajectory, right: Trajectory, names: tuple[str, str], palette: Palette) -> Figure:
    """Number of clusters, and below it the order parameter, over the steps (log)."""
    sides, colours = (left, right), (palette.ink, palette.hot)
    counts = [[cluster_count(points) for points in path.points] for path in sides]
    orders = [[order_parameter(points) for points in path.points] for path in sides]
    traces, notes = [], []
    for axis, series, shape in (("y", counts, "hv"), ("y2", orders, "linear")):
        places = [float(np.log10(values[-1])) if axis == "y" else values[-1] for values in series]
        top = np.log10(max(map(max, counts))) if axis == "y" else 1.0
        for name, tint, values, path, place in zip(
            names, colours, series, sides, apart(places, 0.13 * top), strict=True
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
    above, below = [0.55, 1], [0, 0.45]
    steps = left.steps if left.steps[-1] >= right.steps[-1] else right.steps
    more = {
        "xaxis": _step_axis(steps) | {"showticklabels": False, "anchor": "y"},
        "xaxis2": _step_axis(steps, "step (layer), log scale") | {"anchor": "y2", "matches": "x"},
        "yaxis": {"type": "log", "domain": above, "title": {"text": "clusters (log)"}, "tickmode": "array"}
        | {"tickvals": _COUNTS, "ticktext": [str(c) for c in _COUNTS], "fixedrange": True, "showgrid": True}
        | {"range": [-0.08, np.log10(max(map(max, counts))) + 0.08]},
        "yaxis2": {"domain": below, "range": [-0.02, 1.05], "title": {"text": "order parameter"}}
        | {
            "tickmode": "array",
            "tickvals": [0, 0.5, 1],
            "fixedrange": True,
            "showgrid": True,
            "anchor": "x2",
        },
        "annotations": notes,
    }
    fig = assemble(traces, palette, 360, (56, 96, 16, 48), more)
    alt = "; ".join(
        f"{name}: {c[-1]} clusters, order parameter {o[-1]:.2f} at the end"
        for name, c, o in zip(names, counts, orders, strict=True)
    )
    told = [_told(n, c, o, p) for n, c, o, p in zip(names, counts, orders, sides, strict=True)]
    return Figure(fig, f"{alt}.", " ".join(told))


def _told(name: str, counts: list[int], orders: list[float], path: Trajectory) -> str:
    """One side over time, in a sentence."""
    settled = next(n for n in range(len(counts)) if len(set(counts[n:])) == 1)
    upper = name[0].upper() + name[1:]
    rest = "" if path.rest is None else f", and nothing moves any more from step {path.rest:,} on"
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
    for name, (path, tint) in paths.items():
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
        end = float(far[seen[-1]]) if len(seen) else 1e-16
        place = {"x": 1, "xref": "paper", "y": np.log10(end), "xanchor": "left", "xshift": 4, "align": "left"}
        fig.add_annotation(text=name, showarrow=False, font={"size": TICK, "color": tint}, **place)
    layout(fig, palette, 360, y_title="largest distance to softmax (log)", left=56, right=96)
    fig.update_xaxes(_step_axis(softmax.steps, "step (layer), log scale"))
    powers = range(-16, 1, 4)
    ticks = {"tickmode": "array", "tickvals": [10.0**p for p in powers]}
    labels = [quantity(10.0**p) for p in powers]
    fig.update_yaxes(type="log", range=[-17.5, 1.2], fixedrange=True, ticktext=labels, **ticks)
    guarantee_line(fig, palette, "2: across the sphere", y=2)
    reference_line(fig, palette, "rounding of one number: 2 × 10⁻¹⁶", y=2.2e-16)
    fig.layout.annotations[-1].update(xanchor="left", x=0, yanchor="top")
    fig.layout.annotations[-2].update(xanchor="left", x=0)
    alt = f"Largest distance between the two trajectories: {quantity(worst[0], digits=2)}."
    cut = f" Cut off at {truncation}, the same kernel comes {worst[-1]:.2f} apart." if len(worst) > 1 else ""
    return Figure(
        fig, alt + cut, _control_reading(worst, cluster_count(softmax.points[-1]), beta, truncation)
    )


def _control_reading(worst: list[float], count: int, beta: float, truncation: str) -> str:
    same = (
        f"The full Gaussian kernel with σ² = 1/β moves every particle exactly as softmax does: at most "
        f"**{quantity(worst[0], digits=1)}** apart, which is rounding. "
        if worst[0] < _EXACT
        else f"The two come {quantity(worst[0])} apart. "
    )
    cut = f" (cut off at {truncation}, it goes {worst[1]:.2f} away)" if len(worst) > 1 else ""
    return (
        same
        + "On the sphere all vectors have the same length, so a Gaussian distance alone changes nothing: "
        + f"**truncation makes the clusters that last**{cut}. "
        + (
            f"At β = {beta:g} softmax shows {count} clusters too, but they are metastable: only slow to merge."
            if count > 1
            else f"At β = {beta:g} both reach one cluster."
        )
    )


def opinions(path: Trajectory, eps: float, palette: Palette) -> Figure:
    """Hegselmann-Krause opinions over the steps, coloured by their cluster at the end."""
    values = path.points[..., 0]
    found = clusters(path.points[-1], OPINION_TOUCH)
    colours = tints(palette)
    fig = go.Figure()
    count, right = int(found.max()) + 1, 96
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
            opacity=0.6,
            hovertemplate="step %{x}: opinion %{y:.3f}<extra></extra>",
        )
        text = f"<b>{centres[cluster]:.2f}</b> · {lines.shape[1]}"
        place = {"x": 1, "xref": "paper", "y": labels[cluster], "xanchor": "left", "xshift": 4}
        fig.add_annotation(text=text, showarrow=False, font={"size": TICK, "color": tint}, **place)
    layout(fig, palette, 420, "step", "opinion (0 to 1)", left=56, right=right)
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
