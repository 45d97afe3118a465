"""All heads at once: every map as a stamp in one image, and two runs side by side in words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from app.figures.assemble import CellFrame, assemble, flat_legend, note
from app.figures.attention_head import SCALE
from app.figures.attention_pixels import is_causal
from app.figures.base import Figure, matrix_png, share
from app.theme import Palette

GUTTER = 4  # pixels between stamps
WIDEST = 16  # stamps side by side; deeper models go on in a second band below
MARGIN_TOP, MARGIN_LEFT, MARGIN = 40, 48, 8


@dataclass(frozen=True)
class Sheet:
    """Where stamps lie: bands of `columns` layers, the layers' heads under each other.

    One stamp of `size` = (rows, columns) pixels and its gutter are one unit; the layers' numbers stand
    in half a unit above each band.
    """

    layers: int
    heads: int
    size: tuple[int, int]

    @property
    def bands(self) -> int:
        """As few as keep at most `WIDEST` stamps side by side."""
        return -(-self.layers // WIDEST)

    @property
    def columns(self) -> int:
        """Layers in a band; bands are filled evenly."""
        return -(-self.layers // self.bands)

    @property
    def side(self) -> int:
        """Height of a stamp with its gutter on the page, px; a narrow sheet has room for larger ones."""
        return 56 if self.columns > 8 else 72

    @property
    def space(self) -> int:
        """Pixels above a band."""
        return (self.size[0] + GUTTER) // 2

    def corner(self, layer: int, head: int) -> tuple[int, int]:
        """(row, column) of a stamp's first pixel."""
        band, column = divmod(layer, self.columns)
        step = self.size[0] + GUTTER
        return (band + 1) * self.space + (band * self.heads + head) * step, column * (self.size[1] + GUTTER)

    def middle(self, layer: int, head: int) -> tuple[float, float]:
        """(x, y) of a stamp's middle in units; the first layer's is at x = 0."""
        row, column = self.corner(layer, head)
        return column / (self.size[1] + GUTTER), (row - self.space) / (self.size[0] + GUTTER)

    @property
    def shape(self) -> tuple[int, int]:
        """Pixels of the whole sheet, (rows, columns)."""
        row, _ = self.corner(self.layers - 1, self.heads - 1)
        return row + self.size[0], self.columns * (self.size[1] + GUTTER) - GUTTER


def mosaic(stamps: np.ndarray, sheet: Sheet) -> np.ndarray:
    """One matrix of all stamps (layers, heads, r, c), square-rooted; NaN between them and where a
    causal model cannot look."""
    high, wide = sheet.size
    canvas = np.full(sheet.shape, np.nan, dtype=np.float32)
    causal = is_causal(stamps.reshape(-1, high, wide).max(axis=0))
    future = np.tri(high, wide) == 0 if causal else np.zeros((high, wide), dtype=bool)
    for layer, head in np.ndindex(sheet.layers, sheet.heads):
        row, column = sheet.corner(layer, head)
        canvas[row : row + high, column : column + wide] = np.where(
            future, np.nan, np.sqrt(stamps[layer, head])
        )
    return canvas


def overview(stamps: np.ndarray, heads: pd.DataFrame, palette: Palette) -> Figure:
    """Every head's map as a stamp, one image. Invisible markers over the middles take clicks.

    `stamps` (layers, heads, r, c) are maps pooled by maximum; `heads` has layer, head, first_importance.
    """
    layers, count, high, wide = stamps.shape
    sheet = Sheet(layers, count, (high, wide))
    image = matrix_png(mosaic(stamps, sheet), palette, 0.0, 1.0, max_px=4_096)
    dx, dy = 1 / (wide + GUTTER), 1 / (high + GUTTER)
    picture = {
        "type": "image",
        "source": image.uri,
        "x0": -(wide - 1) / 2 * dx,
        "dx": dx,
        "y0": -((high - 1) / 2 + sheet.space) * dy,
        "dy": dy,
        "hoverinfo": "skip",
    }
    units = sheet.shape[0] * dy
    height = MARGIN_TOP + round(units * sheet.side) + MARGIN
    fig = assemble(
        [picture, _targets(heads, sheet, palette)],
        palette,
        height,
        (MARGIN_LEFT, MARGIN, MARGIN_TOP, MARGIN),
        {
            "clickmode": "event+select",
            "hoverdistance": 60,
            **_axes(sheet, units),
            "annotations": _layer_notes(sheet, palette),
        },
    )
    return Figure(fig, _alt(heads, layers, count), _reading(heads, stamps))


def stamp_frame(stamps: np.ndarray, place: tuple[int, int]) -> CellFrame | None:
    """Where the stamp of (layer, head) lies in `overview`; None when the model has no such head."""
    layers, count, high, wide = stamps.shape
    if place[0] >= layers or place[1] >= count:
        return None
    sheet = Sheet(layers, count, (high, wide))
    x, y = sheet.middle(*place)
    top = MARGIN_TOP + (y + sheet.space / (high + GUTTER)) * sheet.side
    return CellFrame(MARGIN_LEFT, MARGIN, x / sheet.columns, 1 / sheet.columns, top, sheet.side)


def _targets(heads: pd.DataFrame, sheet: Sheet, palette: Palette) -> dict[str, Any]:
    """Invisible markers on the stamps' middles take the clicks; they carry the colour legend too."""
    cells = list(zip(heads["layer"], heads["head"], heads["first_importance"], strict=True))
    places = [sheet.middle(int(layer), int(head)) for layer, head, _ in cells]
    legend = flat_legend(
        palette, [w**0.5 for w in SCALE], [share(w) for w in SCALE], lenmode="pixels", len=200
    )
    return {
        "type": "scatter",
        "x": [x for x, _ in places],
        "y": [y for _, y in places],
        "mode": "markers",
        "marker": {
            "size": 6,
            "opacity": 0,
            "color": [0] * len(places),
            "cmin": 0,
            "cmax": 1,
            "colorscale": palette.colorscale,
            "showscale": True,
            "colorbar": legend,
        },
        "selected": {"marker": {"opacity": 0}},
        "unselected": {"marker": {"opacity": 0}},
        "customdata": [[int(layer), int(head), share(value)] for layer, head, value in cells],
        "hovertemplate": (
            "layer %{customdata[0]}, head %{customdata[1]}<br><b>%{customdata[2]}</b> on the first "
            "token<extra></extra>"
        ),
    }


def _axes(sheet: Sheet, units: float) -> dict[str, dict[str, Any]]:
    """Heads at the left; the layers' numbers are notes above each band."""
    rows = [
        (sheet.middle(band * sheet.columns, head)[1], head)
        for band, head in np.ndindex(sheet.bands, sheet.heads)
    ]
    top = -0.5 - sheet.space / (sheet.size[0] + GUTTER)
    return {
        "xaxis": {"range": [-0.5, sheet.columns - 0.5], "fixedrange": True, "visible": False},
        "yaxis": {
            "range": [top + units, top],
            "fixedrange": True,
            "scaleanchor": False,
            "tickmode": "array",
            "tickvals": [y for y, _ in rows],
            "ticktext": [str(head) for _, head in rows],
            "title": {"text": "head", "standoff": 4},
        },
    }


def _layer_notes(sheet: Sheet, palette: Palette) -> list[dict[str, Any]]:
    """The layers' numbers above their stamps, and the word before each band."""
    found = []
    for layer in range(sheet.layers):
        x, y = sheet.middle(layer, 0)
        found.append(note(str(layer), palette.muted, x=x, y=y - 0.5, yanchor="bottom"))
        if layer % sheet.columns == 0:
            found.append(
                note("layer", palette.muted, x=-0.5, y=y - 0.5, xanchor="right", yanchor="bottom", xshift=-2)
            )
    return found


def _reading(heads: pd.DataFrame, stamps: np.ndarray) -> str:
    strongest = heads.iloc[int(np.nanargmax(heads["first_importance"].to_numpy()))]
    quiet = int((heads["first_importance"] < 0.1).sum())
    return (
        "A line down the left edge of a stamp is a sink on the first token: the strongest is layer "
        f"{strongest['layer']:.0f}, head {strongest['head']:.0f}, with "
        f"**{share(strongest['first_importance'])}**; {quiet} of {len(heads)} heads give it less than "
        f"{share(0.1)}. Each stamp is a map pooled to {stamps.shape[2]} × {stamps.shape[3]} by maximum."
    )


def _alt(heads: pd.DataFrame, layers: int, count: int) -> str:
    mean = float(heads["first_importance"].mean())
    return (
        f"Attention maps of all {layers * count} heads as stamps, {layers} layers of {count} heads; on "
        f"average {share(mean)} of attention is on the first token, the left edge of a stamp."
    )


def compare_reading(one: pd.DataFrame, other: pd.DataFrame, names: tuple[str, str], eps: float) -> str:
    """Two runs in words: their sink rates and, where the models have the same heads, which heads agree.

    Both frames have layer, head, sink_rate and first_importance.
    """
    first, second = float(one["sink_rate"].mean()), float(other["sink_rate"].mean())
    text = f"{names[0]}: **{share(first)}** of heads sink at ε = {eps:.2f}; {names[1]}: **{share(second)}**."
    both = one.merge(other, on=["layer", "head"], suffixes=("_a", "_b"))
    if len(both) != len(one) or len(both) != len(other):
        return f"{text} The models have different heads, so cells do not correspond."
    apart = (both["first_importance_a"] - both["first_importance_b"]).abs()
    most = both.iloc[int(np.nanargmax(apart.to_numpy()))]
    text += (
        f" The same head differs by {share(float(apart.mean()))} of its attention on average, most in layer "
        f"{most['layer']:.0f}, head {most['head']:.0f}: {share(most['first_importance_a'])} against "
        f"{share(most['first_importance_b'])}."
    )
    spread = both["first_importance_a"].std(), both["first_importance_b"].std()
    if min(spread) > 1e-6:
        r = float(np.corrcoef(both["first_importance_a"], both["first_importance_b"])[0, 1])
        text += f" Across heads the two correlate with r = {r:.2f}."
    return text
