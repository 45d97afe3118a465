"""One attention head: its map at full resolution, and under each key column that key's importance.

The map is two PNG images on top of each other: the one that is seen, and an invisible one whose
colours are numbers. Plotly hands a pixel's red and green to the hover label, so that 4 million
weights need no list of numbers: red is the weight in whole per cent, green its tenths.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from app.figures import tokens as words
from app.figures.assemble import assemble, flat_legend, note
from app.figures.attention_pixels import is_causal, pooled, weight_png
from app.figures.attention_sinks import percent_strip
from app.figures.attention_windows import Sight, edge_lines
from app.figures.base import Figure, listed, matrix_png, quantity, share
from app.figures.raster import MAX_PIXELS
from app.theme import MONO, SMALLEST, Palette
from models.attention.metrics import MIN_QUERIES, seen_by

TOP, GAP, STRIP = 40, 24, 88  # px, as in attention_sinks: the two figures stand level
LEFT, RIGHT = 88, 16
LETTER = 6.7  # px of a character of the tokens' face at 11 px
SCALE = (0.0, 0.04, 0.25, 1.0)  # weights written on the legend; even steps of the square root
_ALL = Sight()  # of a layer without a window


def head_view(
    weights: np.ndarray,
    tokens: list[str],
    importance: pd.DataFrame,
    place: tuple[int, int],
    eps: float,
    palette: Palette,
    height: int = 640,
    sight: Sight = _ALL,
) -> Figure:
    """The map of one head, (queries, keys), and under each column the importance of that key.

    `importance` has position, importance, low, high (shares) and samples, over all chunks: it gives
    the band; the columns are of the chunk whose map is shown. Colour runs with the square root of the
    weight, so that a weight of 1 % can be seen; its ends are 0 and 100 % for every head. Cells that a
    causal model or the layer's window cannot see are left out, and the window's edge is drawn. Above
    1,024 tokens each pixel is the largest of a block, in the hover label too.
    """
    causal = is_causal(weights)
    factor = max(1, -(-max(weights.shape) // MAX_PIXELS))
    shown = pooled(weights, factor)
    exists = sight.seen(len(shown), factor)
    if causal:
        exists &= np.tri(*shown.shape) > 0
    seen = shown if exists.all() else np.where(exists, shown, np.nan)
    labels = words.axis_labels(tokens, factor)
    curve = importance.sort_values("position").head(len(tokens)).reset_index(drop=True)
    queries = seen_by(weights.shape[0], causal)
    curve["here"] = weights.sum(axis=0) / queries
    # Packing lets go of the interpreter, so two pictures take the time of one.
    with ThreadPoolExecutor(1) as other:
        numbers = other.submit(weight_png, shown)
        picture = matrix_png(np.sqrt(seen), palette, 0.0, 1.0)
    traces = [
        _image(picture.uri, hoverinfo="skip"),
        *_hover_layers(numbers.result(), labels, factor),
        _legend(palette),
        *_importance(_blocks(curve, factor), labels, palette),
        *_holders(labels),
    ]
    axes = _axes(palette, labels, height, f"layer {place[0]}, head {place[1]}")
    unsure = len(weights) - MIN_QUERIES + 1 if causal else None
    edges = edge_lines(sight, len(weights), factor, palette)
    fig = _put_together(
        traces, palette, height, axes, eps, curve, unsure_from=unsure, factor=factor, edges=edges
    )
    reading = head_reading(curve, tokens, place, eps, causal, sight)
    if factor > 1:
        reading += f" Each pixel is the largest of {factor} × {factor} weights."
    return Figure(fig, _alt(weights, tokens, curve, place, eps, causal), reading)


def importance_view(
    tokens: list[str],
    importance: pd.DataFrame,
    place: tuple[int, int],
    eps: float,
    palette: Palette,
    sight: Sight = _ALL,
) -> Figure:
    """The importance of every key of a head whose map was not stored. Arguments as in `head_view`."""
    labels = words.axis_labels(tokens)
    curve = importance.sort_values("position").head(len(tokens)).reset_index(drop=True)
    curve["here"] = curve["importance"]
    height = TOP + 240 + _bottom(labels)
    axes = _axes(palette, labels, height, f"layer {place[0]}, head {place[1]}")
    for name in ("yaxis", "yaxis3"):
        axes[name] |= {"visible": False, "domain": [0.99, 1]}
    for name in ("yaxis2", "yaxis4"):
        axes[name] |= {"domain": [0, 0.98]}
    traces = [*_importance(curve, labels, palette), *_holders(labels)]
    fig = _put_together(traces, palette, height, axes, eps, curve)
    alt = (
        f"Importance of every key position of layer {place[0]}, head {place[1]}, against a threshold of "
        f"{quantity(eps)}: the first token, {words.plain(tokens[0])}, has "
        f"{share(float(curve['importance'].iloc[0]))}."
    )
    return Figure(fig, alt, head_reading(curve, tokens, place, eps, sight.causal, sight))


def _put_together(
    traces: list[dict[str, Any]],
    palette: Palette,
    height: int,
    axes: dict[str, Any],
    eps: float,
    curve: pd.DataFrame,
    *,
    unsure_from: int | None = None,
    factor: int = 1,
    edges: Sequence[dict[str, Any]] = (),
) -> go.Figure:
    """The figure with its threshold line, what the strip shows, and its unsure end made faint."""
    chunks, bottom = int(curve["samples"].max()), _bottom(axes["xaxis3"]["categoryarray"])
    line = {"color": palette.muted, "width": 1, "dash": "dash"}
    shapes = [
        {"type": "line", "x0": 0, "x1": 1, "xref": "paper", "y0": eps, "y1": eps, "yref": "y2", "line": line},
        *edges,
    ]
    if unsure_from is not None and unsure_from > MIN_QUERIES:
        veil = {"type": "rect", "fillcolor": palette.ground, "opacity": 0.7, "line": {"width": 0}}
        end = axes["xaxis"]["range"][1]
        shapes.insert(
            0, {**veil, "x0": unsure_from / factor - 0.5, "x1": end, "y0": 0, "y1": 1, "yref": "y2"}
        )
    strip = {"xref": "paper", "yref": "y2", "yanchor": "bottom"}
    title = "importance of each key" + (f"; band: {chunks} chunks" if chunks > 1 else "")
    notes = [
        note(
            "key: the token looked at",
            palette.muted,
            xref="paper",
            yref="paper",
            x=0.5,
            y=0,
            yanchor="bottom",
            yshift=-bottom,
        ),
        note(title, palette.muted, **strip, x=0, xanchor="left", y=1.02, yshift=2),
        note(
            f"ε = {eps:.2f}",
            palette.muted,
            **strip | {"yanchor": "bottom" if eps < 0.75 else "top"},
            x=0.8,  # left of the end, where few queries make high columns
            xanchor="right",
            y=eps,
        ),
    ]
    more = {
        "dragmode": "zoom",
        "hovermode": "x unified",
        "hoverlabel": {"font": {"family": MONO}},
        **axes,
        "shapes": shapes,
        "annotations": notes,
    }
    return assemble(traces, palette, height, (LEFT, RIGHT, TOP, bottom), more)


def _bottom(labels: list[str]) -> int:
    """Room for the longest token below the strip, upright, and for the axis title below it; px."""
    longest = max(len(html.unescape(label).rstrip("\u200b")) for label in labels)
    return 8 * round((30 + LETTER * min(max(longest, 3), 13)) / 8)


def _image(uri: str, **settings: object) -> dict[str, Any]:
    return {"type": "image", "source": uri, "x0": 0, "dx": 1, "y0": 0, "dy": 1, **settings}


def _hover_layers(weights_uri: str, labels: list[str], factor: int) -> list[dict[str, Any]]:
    """What the pointer meets on the map, three invisible layers and a line of the label from each.

    The weight comes from the picture of numbers; query and key from heat maps of a single column and
    a single row that cover the map, since an image knows nothing but its pixel's place.
    """
    size = len(labels)
    weight = "weight" if factor == 1 else f"largest of {factor} × {factor}"
    numbers = _image(
        weights_uri, opacity=0, hovertemplate=f"{weight} <b>%{{z[0]}}.%{{z[1]}} %</b><extra></extra>"
    )
    edges, middles = [-0.5, size - 0.5], np.arange(size)
    names = np.array(_numbered(labels))
    common = {"type": "heatmap", "opacity": 0, "showscale": False, "zsmooth": "fast"}
    query = {**common, "x": edges, "y": middles, "z": np.zeros((size, 1), np.uint8), "text": names[:, None]}
    key = {**common, "x": middles, "y": edges, "z": np.zeros((1, size), np.uint8), "text": names[None, :]}
    # The first layer decides at which key the label is made, and it must be the one with the right middle.
    return [
        numbers,
        key | {"hovertemplate": "key %{text}<extra></extra>"},
        query | {"hovertemplate": "query %{text}<extra></extra>"},
    ]


def _numbered(labels: list[str]) -> list[str]:
    """Labels with their position; those of long texts carry it already."""
    return [f"{i} {label}" for i, label in enumerate(labels)] if len(labels) <= words.FEW else labels


def _legend(palette: Palette) -> dict[str, Any]:
    """An invisible trace with the colour legend, which an image trace has not."""
    bar = flat_legend(palette, [weight**0.5 for weight in SCALE], [share(weight) for weight in SCALE])
    scale = {
        "color": [0],
        "cmin": 0,
        "cmax": 1,
        "colorscale": palette.colorscale,
        "showscale": True,
        "colorbar": bar,
    }
    return {
        "type": "scatter",
        "x": [None],
        "y": [None],
        "mode": "markers",
        "hoverinfo": "skip",
        "marker": scale,
    }


def _blocks(curve: pd.DataFrame, factor: int) -> pd.DataFrame:
    """The curve by blocks of `factor` positions, each by its maximum, as in the map."""
    if factor == 1:
        return curve
    grouped = curve.groupby(curve["position"] // factor)
    return grouped[["here", "low", "high", "samples"]].max().reset_index()


def _importance(curve: pd.DataFrame, labels: list[str], palette: Palette) -> list[dict[str, Any]]:
    """Steps on the columns of the map, and behind them the band over chunks."""
    steps = {"type": "scatter", "mode": "lines", "x0": 0, "dx": 1, "yaxis": "y2"}
    many = bool(curve["samples"].max() > 1)
    band = [
        {
            **steps,
            "y": curve[name].to_numpy(dtype=np.float32),
            "line": {"width": 0, "shape": "hvh"},
            "fill": fill,
            "fillcolor": faint(palette.hot, 0.28),
            "hoverinfo": "skip",
        }
        for name, fill in (("low", "none"), ("high", "tonexty"))
        if many
    ]
    spread = "<br>in 8 of 10 chunks %{customdata[0]:.1%} to %{customdata[1]:.1%}" if many else ""
    line = {
        **steps,
        "y": curve["here"].to_numpy(dtype=np.float32),
        "line": {"width": 1, "shape": "hvh", "color": palette.hot},
        "fill": "tozeroy",
        "fillcolor": palette.hot,
        "customdata": curve[["low", "high"]].to_numpy(dtype=np.float32),
        "text": np.array(_numbered(labels)),
        "hovertemplate": f"key %{{text}}<br>importance <b>%{{y:.1%}}</b>{spread}<extra></extra>",
    }
    return [*band, line]


def _axes(palette: Palette, labels: list[str], height: int, title: str) -> dict[str, dict[str, Any]]:
    """Positions on the axes of the map, tokens on axes that lie over them.

    Plotly takes an image as it is only on linear axes; on category axes it paints it cell by cell,
    which takes seconds. So the image lies on positions (x, y), and the tokens stand on category axes
    (x3, y3) of the same extent, which Plotly thins to what fits and fills in again on zoom. x3 and y4
    keep them together when the strip is zoomed. `title` heads the hover label.
    """
    plot = height - TOP - _bottom(labels)
    few = len(labels) <= words.FEW
    extent = [-0.5, len(labels) - 0.5]
    hidden = {"showticklabels": False, "showspikes": False}
    tokens = {
        "type": "category",
        "categoryorder": "array",
        "categoryarray": labels,
        "tickfont": {"family": MONO, "size": SMALLEST, "color": palette.ink if few else palette.muted},
        "nticks": 0 if few else 8,
    }
    strip = percent_strip(palette, STRIP / plot)
    return {
        "xaxis": hidden | {"range": extent, "anchor": "y2", "unifiedhovertitle": {"text": title}},
        "yaxis": hidden | {"range": extent[::-1], "domain": [(STRIP + GAP) / plot, 1], "scaleanchor": False},
        "yaxis2": strip,
        "xaxis3": tokens
        | {
            "overlaying": "x",
            "anchor": "y2",
            "side": "bottom",
            "range": extent,
            "tickangle": -90,
        },
        "yaxis3": tokens
        | {
            "overlaying": "y",
            "anchor": "x",
            "side": "left",
            "range": extent[::-1],
            "title": {"text": "query: the token that looks", "standoff": 4},
        },
        "yaxis4": strip | {"overlaying": "y2", "visible": False, "showgrid": False},
    }


def _holders(labels: list[str]) -> list[dict[str, Any]]:
    """Traces without a mark: an axis exists only where something is drawn on it."""
    bare = {
        "type": "scatter",
        "mode": "markers",
        "hoverinfo": "skip",
        "marker": {"opacity": 0},
        "xaxis": "x3",
    }
    return [
        {**bare, "x": labels[:1], "y": labels[:1], "yaxis": "y3"},
        {**bare, "x": labels[:1], "y": [0], "yaxis": "y4"},
    ]


def head_reading(
    curve: pd.DataFrame,
    tokens: list[str],
    place: tuple[int, int],
    eps: float,
    causal: bool,
    sight: Sight = _ALL,
) -> str:
    """What one head does, in Markdown: the first token's part, and the other keys above ε.

    `curve` has importance (mean over chunks), here (the chunk on screen) and samples, by position.
    Keys that fewer than 8 queries see are left out.
    """
    layer, head = place
    sure = curve.head(max(1, len(tokens) - MIN_QUERIES + 1)) if causal else curve
    here = sure["here"].to_numpy(dtype=float)
    chunks = int(curve["samples"].max())
    mean = f", mean of {chunks} chunks" if chunks > 1 else ""
    text = (
        f"Layer {layer}, head {head} gives its first token **{share(float(curve['importance'].iloc[0]))}** "
        f"of its attention{mean}."
    )
    if sight.window is not None:
        most = f": at most {share(sight.ceiling)} is possible" if sight.ceiling < 1 else ""
        text += f" This layer {sight.words()}{most}."
    where = " In this chunk" if chunks > 1 else " Here"
    others = [int(position) for position in np.argsort(-here) if here[position] > eps and position > 0]
    if others:
        named = listed([_key(here, tokens, position) for position in others[:3]])
        more = f" and {len(others) - 3} more" if len(others) > 3 else ""
        return f"{text}{where} **{named}**{more} {'is' if len(others) == 1 else 'are'} above ε as well."
    if here[0] > eps:
        return f"{text}{where} {words.markdown(tokens[0])} is the only key above ε."
    return f"{text}{where} **no key** is above ε; the strongest is {_key(here, tokens, int(here.argmax()))}."


def _key(here: np.ndarray, tokens: list[str], position: int) -> str:
    return f"{words.markdown(tokens[position])} at position {position} ({share(float(here[position]))})"


def _alt(
    weights: np.ndarray,
    tokens: list[str],
    curve: pd.DataFrame,
    place: tuple[int, int],
    eps: float,
    causal: bool,
) -> str:
    layer, head = place
    kept = ", keys after the query left out" if causal else ""
    return (
        f"Attention of layer {layer}, head {head}: {weights.shape[0]} queries by {weights.shape[1]} "
        f"keys{kept}. The largest weight is {share(float(np.nanmax(weights)))}. Below it the importance of "
        f"every key, against a threshold of {quantity(eps)}: the first token, {words.plain(tokens[0])}, has "
        f"{share(float(curve['here'].iloc[0]))}."
    )


def faint(colour: str, opacity: float) -> str:
    """A colour `#RRGGBB` with an opacity, as Plotly takes it."""
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},{opacity})"
