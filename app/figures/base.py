"""What every figure shares: the frame, the colour legend, labels, and how a figure is handed over.

Figures are pure functions: a DataFrame or an array and a `Palette` in, a `Figure` out. They know no
Streamlit. `app.widgets.figure.draw` puts one on a page.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import plotly.graph_objects as go

from app.figures.numbers import duration, interval, listed, measured, quantity, ranges, share
from app.figures.raster import MatrixImage, matrix_png, max_pool
from app.theme import FONT, LABEL, MONO, SMALLEST, TICK, Palette

__all__ = [
    "Figure",
    "MatrixImage",
    "colorbar",
    "direct_label",
    "duration",
    "guarantee_line",
    "interval",
    "layout",
    "legend_trace",
    "listed",
    "matrix_png",
    "matrix_trace",
    "max_pool",
    "measured",
    "quantity",
    "ranges",
    "reference_line",
    "share",
    "token_axis",
]

# The same for all figures of a page, so that stacked ones share their x-axis to the pixel (8 px grid).
LEFT, RIGHT, TOP, BOTTOM = 56, 16, 16, 48


@dataclass(frozen=True)
class Figure:
    """A figure with its words: `alt` says what is drawn and its main numbers, for those who do not
    see it; `reading` is the sentence under it, composed from the numbers on screen (Markdown)."""

    fig: go.Figure
    alt: str
    reading: str


def layout(
    fig: go.Figure,
    palette: Palette,
    height: int,
    x_title: str = "",
    y_title: str = "",
    *,
    left: int = LEFT,
    right: int = RIGHT,
    top: int = TOP,
    bottom: int = BOTTOM,
    x_grid: bool = False,
    y_grid: bool = True,
) -> go.Figure:
    """Give a figure the house frame: transparent ground, no frame, few lines, 12 px labels.

    `height` is in px. Axis titles carry the unit: "importance of key 0 (share)". All axes of the
    figure are styled, titles go to the first pair. Returns the same figure.
    """
    fig.update_layout(
        template="none",
        height=height,
        margin={"l": left, "r": right, "t": top, "b": bottom, "pad": 0, "autoexpand": False},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        font={"family": FONT, "size": TICK, "color": palette.muted},
        colorway=list(palette.categories),
        showlegend=False,
        dragmode=False,
        bargap=0.25,
        hovermode="closest",
        hoverlabel={
            "bgcolor": palette.raised,
            "bordercolor": palette.line,
            "font": {"family": FONT, "size": LABEL, "color": palette.ink},
            "align": "left",
        },
        modebar={"bgcolor": "rgba(0,0,0,0)", "color": palette.muted, "activecolor": palette.action},
    )
    axis = {
        "showline": False,
        "zeroline": False,
        "gridcolor": palette.line,
        "gridwidth": 1,
        "ticks": "",
        "tickfont": {"size": TICK, "color": palette.muted},
        "title": {"font": {"size": TICK, "color": palette.muted}, "standoff": 8},
        "automargin": False,
        "fixedrange": False,
    }
    fig.update_xaxes(**axis, showgrid=x_grid)
    fig.update_yaxes(**axis, showgrid=y_grid)
    if x_title:
        fig.update_layout(xaxis_title_text=x_title)
    if y_title:
        fig.update_layout(yaxis_title_text=y_title)
    return fig


def colorbar(
    palette: Palette,
    title: str,
    ticks: Sequence[float] | None = None,
    labels: Sequence[str] | None = None,
    **place: Any,
) -> dict[str, Any]:
    """A quiet colour legend for a heat map: 8 px wide, its title (with the unit) above it.

    `ticks` and `labels` write the end points; `place` overrides Plotly's colorbar settings.
    """
    bar: dict[str, Any] = {
        "title": {"text": title, "side": "top", "font": {"size": TICK, "color": palette.muted}},
        "thickness": 8,
        "outlinewidth": 0,
        "ticks": "",
        "tickfont": {"size": TICK, "color": palette.muted},
        "xpad": 8,
        "ypad": 0,
    }
    if ticks is not None:
        bar |= {"tickmode": "array", "tickvals": list(ticks)}
        if labels is not None:
            bar["ticktext"] = list(labels)
    return bar | place


def legend_trace(
    palette: Palette, vmin: float, vmax: float, title: str, labels: Sequence[str] | None = None, **place: Any
) -> go.Scatter:
    """An invisible trace that carries the colour legend of a `matrix_png`, which has none of its own."""
    ticks = [vmin, (vmin + vmax) / 2, vmax] if labels is None or len(labels) == 3 else [vmin, vmax]
    return go.Scatter(
        x=[None],
        y=[None],
        mode="markers",
        hoverinfo="skip",
        showlegend=False,
        marker={
            "color": [vmin],
            "cmin": vmin,
            "cmax": vmax,
            "colorscale": palette.colorscale,
            "showscale": True,
            "colorbar": colorbar(palette, title, ticks, labels, **place),
        },
    )


def matrix_trace(image: MatrixImage, **settings: Any) -> go.Image:
    """A matrix image whose axes count the matrix's own rows and columns, pooled or not."""
    offset = (image.factor - 1) / 2
    return go.Image(
        source=image.uri, x0=offset, dx=image.factor, y0=offset, dy=image.factor, hoverinfo="skip", **settings
    )


def token_axis(tokens: Sequence[str], palette: Palette, most: int = 48) -> dict[str, Any]:
    """Axis settings that write tokens along it, in mono; every n-th where they would not fit.

    Whitespace is made visible and anything that is markup is inert.
    """
    step = max(1, -(-len(tokens) // most))
    places = list(range(0, len(tokens), step))
    return {
        "tickmode": "array",
        "tickvals": places,
        "ticktext": [visible_token(tokens[i]) for i in places],
        "tickfont": {"family": MONO, "size": SMALLEST, "color": palette.muted},
    }


def visible_token(token: str, longest: int = 12) -> str:
    """A token as a label: a space is "␣" only where it is all there is, a newline "↵", markup inert."""
    text = token.replace("\r", "").replace("\n", "↵").replace("\t", "→")
    text = text.strip(" ") or "␣" * max(1, min(len(text), 3))
    text = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)
    text = text if len(text) <= longest else text[: longest - 1] + "…"
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def direct_label(
    fig: go.Figure, palette: Palette, x: float, y: float, text: str, colour: str | None = None, **place: Any
) -> None:
    """Write a series' name beside its end, instead of a legend (up to five series)."""
    settings: dict[str, Any] = {"xanchor": "left", "yanchor": "middle", "xshift": 8} | place
    fig.add_annotation(
        x=x, y=y, text=text, showarrow=False, font={"size": TICK, "color": colour or palette.ink}, **settings
    )


def reference_line(fig: go.Figure, palette: Palette, text: str, **at: Any) -> None:
    """A reference, control or baseline: muted and dashed, named on the line. `at` is x= or y=."""
    _line(fig, palette.reference, "dash", text, **at)


def guarantee_line(fig: go.Figure, palette: Palette, text: str, **at: Any) -> None:
    """A guarantee or ceiling: a thin ink line with its value written on it. `at` is x= or y=."""
    _line(fig, palette.ink, "solid", text, **at)


def _line(fig: go.Figure, colour: str, dash: str, text: str, **at: Any) -> None:
    settings = {
        "line": {"color": colour, "width": 1, "dash": dash},
        "annotation": {"text": text, "font": {"size": TICK, "color": colour}},
        "annotation_position": "top right",
    }
    if "y" in at:
        fig.add_hline(at.pop("y"), **settings, **at)
    else:
        fig.add_vline(at.pop("x"), **settings, **at)
