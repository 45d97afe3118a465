"""Figures put together in one go, for those that are drawn anew with every click.

Plotly checks each property when it is set; a figure that is built up step by step costs 50 ms, the
same one from plain dictionaries 5 ms. The frame is the house's own (`base.layout`), asked for once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import plotly.graph_objects as go

from app.figures.base import layout
from app.theme import TICK, Mode, Palette, palette

Margins = tuple[int, int, int, int]  # left, right, top, bottom; px


@lru_cache(maxsize=32)
def _frame(mode: Mode, margins: Margins) -> tuple[dict[str, Any], dict[str, Any]]:
    """The house's layout without axes, and the style of every axis. Not to be changed in place."""
    left, right, top, bottom = margins
    fig = layout(
        go.Figure(), palette(mode), 100, left=left, right=right, top=top, bottom=bottom, y_grid=False
    )
    frame = fig.to_plotly_json()["layout"]
    axis = frame.pop("xaxis")
    frame.pop("yaxis")
    return frame, axis


def merged(base: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with `more` over it, level by level."""
    found = dict(base)
    for key, value in more.items():
        old = found.get(key)
        found[key] = merged(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return found


def assemble(
    traces: Sequence[Mapping[str, Any]],
    colours: Palette,
    height: int,
    margins: Margins,
    more: Mapping[str, Any],
) -> go.Figure:
    """A figure in the house's frame from plain dictionaries.

    `traces` carry their "type"; `more` is the rest of the layout: axes (each gets the house's style),
    shapes, annotations.
    """
    frame, style = _frame(colours.mode, margins)
    axes = {name: merged(style, axis) for name, axis in more.items() if name[1:5] == "axis"}
    return go.Figure(data=list(traces), layout=merged(frame, {**more, **axes, "height": height}))


def note(text: str, colour: str, **place: Any) -> dict[str, Any]:
    """An annotation: a few words in the figure, 12 px, without an arrow."""
    return {"text": text, "showarrow": False, "font": {"size": TICK, "color": colour}, **place}


@dataclass(frozen=True)
class CellFrame:
    """Where one cell of a figure lies on the page: its sides as parts of the plot's width, its top
    and height in px, beside margins of `left` and `right` px.

    A frame that is part of a figure makes another figure of it, which the browser builds anew. So the
    frame of the chosen cell lies over the figure, and choosing another one moves nothing else.
    """

    left: int
    right: int
    start: float
    width: float
    top: float
    height: float

    def html(self, colours: Palette) -> str:
        """The frame as an element that takes no clicks: ink, with a line of ground on both sides."""
        plot = f"(100% - {self.left + self.right}px)"
        ground = f"0 0 0 1.5px {colours.ground}"
        style = {
            "left": f"calc({self.left}px + {plot} * {self.start:.6f})",
            "width": f"calc({plot} * {self.width:.6f})",
            "top": f"{self.top:.2f}px",
            "height": f"{self.height:.2f}px",
            "border": f"2.5px solid {colours.ink}",
            "box-shadow": f"{ground}, inset {ground}",
        }
        return f'<div class="cell-frame" style="{"; ".join(f"{k}: {v}" for k, v in style.items())}"></div>'


def flat_legend(
    colours: Palette, ticks: Sequence[float], labels: Sequence[str], **place: Any
) -> dict[str, Any]:
    """A colour legend that lies above the figure's left half, its numbers below it."""
    font = {"size": TICK, "color": colours.muted}
    return {
        "orientation": "h",
        "thickness": 8,
        "lenmode": "fraction",
        "len": 0.5,
        "x": 0,
        "xanchor": "left",
        "xpad": 0,
        "y": 1,
        "yanchor": "bottom",
        "ypad": 6,
        "outlinewidth": 0,
        "ticks": "",
        "tickmode": "array",
        "tickvals": list(ticks),
        "ticktext": list(labels),
        "ticklabelposition": "outside top",
        "tickfont": font,
        **place,
    }
