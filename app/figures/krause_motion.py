"""Particles in motion: two panels from the same start, with a slider and a button over the steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from app.figures.assemble import assemble, note
from app.figures.base import Figure
from app.theme import LABEL, TICK, Palette
from models.attention.particles import Trajectory, cluster_count, clusters, order_parameter

_SCALE = 1_000  # places go to the browser as whole numbers, which takes a third of the bytes
_EDGE = 1.1 * _SCALE
_INNER = 0.6  # radius of the innermost lane
_ARC = 24  # points of an arc
_TRACKS = 60  # particles of a panel whose whole way is drawn


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


def _frame(points: np.ndarray, colours: list[str], palette: Palette) -> dict[str, Any]:
    """What changes from frame to frame. On the sphere that is the colours too: the far side is paler.

    Paler, not transparent: a cluster is many particles in one place, and together they would be opaque.
    """
    places = _flat(points)
    change: dict[str, Any] = {"type": "scatter", "x": places[:, 0], "y": places[:, 1]}
    if points.shape[1] == 3:
        number = np.array([tints(palette).index(colour) for colour in colours])
        change["marker"] = {"color": (number + len(tints(palette)) * (points[:, 2] < 0)).astype(np.int8)}
    return change


def _dots(points: np.ndarray, colours: list[str], palette: Palette) -> dict[str, Any]:
    """The trace of a panel's particles."""
    trace = _frame(points, colours, palette) | {"mode": "markers", "hoverinfo": "skip"}
    if "marker" not in trace:
        return trace | {"marker": {"color": colours, "size": 6, "opacity": 0.9}}
    scale = [*tints(palette), *(_paler(colour, palette.ground) for colour in tints(palette))]
    stops = [[n / (len(scale) - 1), colour] for n, colour in enumerate(scale)]
    numbered = {"colorscale": stops, "cmin": 0, "cmax": len(scale) - 1, "size": 8, "line": {"width": 0}}
    return trace | {"marker": trace["marker"] | numbered}


def _paler(colour: str, ground: str, part: float = 0.35) -> str:
    """`part` of a colour, the rest ground."""
    pairs = [(int(colour[i : i + 2], 16), int(ground[i : i + 2], 16)) for i in (1, 3, 5)]
    return "#" + "".join(f"{round(part * one + (1 - part) * other):02X}" for one, other in pairs)


def _ways(points: np.ndarray) -> np.ndarray:
    """The way of each particle on screen, (m, n, 2), for its places (frames, n, d)."""
    if points.shape[2] == 3:
        return _flat(points).astype(float)
    angle = np.unwrap(np.arctan2(points[..., 1], points[..., 0]), axis=0)
    arc = np.linspace(angle.min(axis=0), angle.max(axis=0), _ARC)  # smooth, where kept steps lie apart
    return np.stack([np.cos(arc), np.sin(arc)], axis=-1) * _lanes(points)[:, None] * _SCALE


def _tracks(path: Trajectory, colours: Sequence[str], axes: dict[str, str], dark: bool) -> list[dict]:
    """The whole way of some of the particles, one faint trace a colour."""
    chosen = np.unique(np.linspace(0, len(colours) - 1, _TRACKS).astype(int))
    ways = _ways(path.points)[:, chosen]
    traces = []
    for colour in dict.fromkeys(colours):
        mine = [n for n, particle in enumerate(chosen) if colours[particle] == colour]
        lines = np.concatenate([ways[:, mine], np.full((1, len(mine), 2), np.nan)])
        x, y = (lines[..., d].T.reshape(-1).astype(np.float32) for d in (0, 1))
        line = {"color": colour, "width": 1}
        traces.append(
            {"type": "scatter", "mode": "lines", "x": x, "y": y, "line": line, "hoverinfo": "skip"}
            | {"opacity": 0.45 if dark else 0.3}
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
    traces = [
        t
        for p, c, a in zip(sides, colours, axes, strict=True)
        for t in _tracks(p, c, a, palette.mode == "dark")
    ]
    moving = [len(traces), len(traces) + 1]
    for path, tint, axis in zip(sides, colours, axes, strict=True):
        traces.append(_dots(path.points[-1], tint, palette) | axis)
    circle = {"type": "circle", "x0": -_SCALE, "x1": _SCALE, "y0": -_SCALE, "y1": _SCALE, "layer": "below"}
    span = {"visible": False, "range": [-_EDGE, _EDGE], "fixedrange": True, "constrain": "domain"}
    more: dict[str, Any] = {
        "shapes": [
            circle | {"line": {"color": palette.line, "width": 1}, "xref": a["xaxis"], "yref": a["yaxis"]}
            for a in axes
        ],
        "annotations": [  # right above the circle, however wide the page is
            note(
                f"<b>{w}</b> at the end<br>{name}",
                palette.ink,
                x=0,
                y=_SCALE,
                xref=a["xaxis"],
                yref=a["yaxis"],
            )
            | {"xanchor": "center", "yanchor": "bottom", "yshift": 12}
            | {"font": {"size": LABEL, "color": palette.ink}}
            for w, name, a in zip(what, names, axes, strict=True)
        ],
    }
    for number, domain in (("", [0, 0.49]), ("2", [0.51, 1])):
        more[f"xaxis{number}"] = span | {"domain": domain, "anchor": f"y{number}"}
        more[f"yaxis{number}"] = span | {"anchor": f"x{number}", "scaleanchor": f"x{number}"}
    fig = assemble(traces, palette, 480, (8, 8, 48, 80), more | _player(left.steps, palette))
    fig.frames = [
        {
            "name": str(step),
            "traces": moving,
            "data": [_frame(path.points[n], c, palette) for path, c in zip(sides, colours, strict=True)],
        }
        for n, step in enumerate(left.steps)
    ]
    alt, reading = _animation_words(sides, names, what)
    return Figure(fig, alt, reading)


def _animation_words(
    sides: tuple[Trajectory, Trajectory], names: tuple[str, str], what: list[str]
) -> tuple[str, str]:
    """Alt text and reading."""
    points, steps = sides[0].points, sides[0].steps[-1]
    orders = [order_parameter(path.points[-1]) for path in sides]
    alt = (
        f"{points.shape[1]} particles on a {'circle' if points.shape[2] == 2 else 'sphere'}, two panels from "
        f"the same start. After {steps:,} steps: {what[0]} under {names[0]}; {what[1]} under {names[1]}."
    )
    bold = [f"**{text.replace(' ', '** ', 1)}" for text in what]
    shown = (
        "Only the angle counts: each particle has a lane of its own."
        if points.shape[2] == 2
        else "The sphere is seen from above; what is paler lies on its far side."
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
        "bgcolor": palette.action,
        "bordercolor": palette.action,
        "activebgcolor": palette.ink,
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
