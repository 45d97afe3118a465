"""What a layer can see: windows of attention, ceilings of the first token, and how figures draw them.

Where the queries of a layer see only the last W tokens, most of them cannot see the first token. Its
importance then has a ceiling below 1, and a layer whose ceiling does not exceed ε cannot show a sink,
whatever it does: it is out of sight, not without a sink.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from app.figures.base import listed, ranges, share
from app.theme import Palette


@dataclass(frozen=True)
class Sight:
    """What the queries of one layer see: the last `window` keys (None: all), in causal models those up
    to themselves. `ceiling` is the most that the first token's importance can be."""

    window: int | None = None
    causal: bool = True
    ceiling: float = 1.0

    def hides(self, eps: float) -> bool:
        """Whether the first token's importance cannot exceed `eps`."""
        return self.ceiling <= eps

    @property
    def reach(self) -> int | None:
        """How many tokens away a key is no longer seen; None where that never happens."""
        if self.window is None:
            return None
        return self.window if self.causal else self.window // 2 + 1

    def seen(self, size: int, factor: int = 1) -> np.ndarray:
        """Which cells of a (size, size) map exist by window alone; a cell stands for `factor` x `factor`
        query-key pairs and exists when one of them does."""
        if self.reach is None:
            return np.ones((size, size), dtype=bool)
        apart = np.abs(np.arange(size)[:, None] - np.arange(size)[None, :])
        return apart * factor < self.reach + factor - 1

    def words(self) -> str:
        """The sight as the end of a sentence: "sees only the last 64 tokens"."""
        if self.window is None:
            return "sees every token"
        return f"sees only {'the last' if self.causal else 'the nearest'} {self.window:,} tokens"


def sight_of(windows: pd.DataFrame, layer: int) -> Sight:
    """The sight of one layer; everything when the run says nothing of it."""
    row = windows[windows["layer"] == layer]
    if row.empty:
        return Sight()
    first = row.iloc[0]
    window = None if pd.isna(first["window"]) else int(first["window"])
    return Sight(window, bool(first["causal"]), float(first["importance_ceiling"]))


def limited(windows: pd.DataFrame | None) -> bool:
    """Whether any layer sees less than all."""
    return windows is not None and bool(len(windows)) and bool(windows["window"].notna().any())


def lowered(windows: pd.DataFrame | None) -> bool:
    """Whether the first token's importance has a ceiling below 1 in any layer."""
    return windows is not None and bool(len(windows)) and bool((windows["importance_ceiling"] < 1).any())


def out_of_sight(windows: pd.DataFrame | None, eps: float) -> list[int]:
    """Layers in which the first token's importance cannot exceed `eps`."""
    if windows is None or windows.empty:
        return []
    return [int(layer) for layer in windows.loc[windows["importance_ceiling"] <= eps, "layer"]]


def masked(frame: pd.DataFrame, column: str, windows: pd.DataFrame | None, eps: float) -> pd.DataFrame:
    """`frame` (with layer) with NaN in `column` where a layer cannot show it at `eps`: not known, not 0."""
    hidden = out_of_sight(windows, eps)
    if not hidden:
        return frame
    return frame.assign(**{column: frame[column].where(~frame["layer"].isin(hidden))})


def window_reading(windows: pd.DataFrame | None, eps: float, length: int) -> str:
    """How many layers cannot show a sink, and why, in Markdown; empty when all can see everything."""
    if windows is None or not limited(windows):
        return ""
    hidden = set(out_of_sight(windows, eps))
    narrow = windows[windows["window"].notna()]
    layers = len(windows)
    sizes = sorted({int(w) for w in narrow["window"]})
    causal = bool(narrow["causal"].all())
    reach = f"{'the last' if causal else 'the nearest'} {listed([f'{w:,}' for w in sizes])} tokens"
    most = float(narrow["importance_ceiling"].max())
    blind = narrow[narrow["layer"].isin(hidden)]
    text = (
        f"{len(narrow)} of {layers} layers see only {reach}; at {length:,} tokens their first-token "
        f"importance can be at most {share(most)}"
    )
    if not len(blind):
        return f"{text}, which is above ε: every layer can show a sink."
    named = "it" if len(blind) == 1 else "they"
    which = _layers([int(layer) for layer in blind["layer"]])
    return (
        f"{text}. **{which} cannot show a sink at ε = {eps:.2f}**: {named} "
        f"{'is' if len(blind) == 1 else 'are'} hatched, and left out of the share."
    )


def _layers(numbers: Sequence[int]) -> str:
    one = len(numbers) == 1
    return f"Layer {numbers[0]}" if one else f"Layers {listed(ranges(numbers).split(', '))}"


def hatching(
    layers: Sequence[int], base: float, height: float, palette: Palette, axis: str = "y"
) -> dict[str, Any]:
    """Hatched columns over `layers`, from `base` to `base + height` on the axis `axis`; takes no pointer."""
    return {
        "type": "bar",
        "x": list(layers),
        "y": [height] * len(layers),
        "base": base,
        "width": 0.94,
        "yaxis": axis,
        "hoverinfo": "skip",
        "marker": {
            "color": "rgba(0,0,0,0)",
            "line": {"width": 0},
            "pattern": {
                "shape": "/",
                "size": 7,
                "solidity": 0.12,
                "fgcolor": palette.muted,
                "bgcolor": "rgba(0,0,0,0)",
            },
        },
    }


def edge_lines(sight: Sight, size: int, factor: int, palette: Palette) -> list[dict[str, Any]]:
    """The edge of the window on a map of `size` positions whose pixels stand for `factor` of them."""
    reach = sight.reach
    if reach is None or reach >= size:
        return []
    line = {"color": palette.muted, "width": 1, "dash": "dot"}
    low, high = -0.5, (size - reach) / factor - 0.5
    start, end = reach / factor - 0.5, size / factor - 0.5
    lower = {"type": "line", "x0": low, "x1": high, "y0": start, "y1": end, "line": line}
    if sight.causal:
        return [lower]
    return [lower, {"type": "line", "x0": start, "x1": end, "y0": low, "y1": high, "line": line}]
