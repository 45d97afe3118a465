"""The tokens of the look, for figures: one palette by day, one by night.

Streamlit reads the same tokens from `.streamlit/config.toml`; a test compares the two. Figures take a
`Palette` as an argument and stay pure; only `current_mode` asks Streamlit which one the visitor sees.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np

Mode = Literal["light", "dark"]

FONT = "Inter, system-ui, sans-serif"
MONO = "'JetBrains Mono', ui-monospace, monospace"
# px, for figures; the look's other sizes, 32, 20 and 15, are in the theme. Nothing is below 11.
LABEL = 13
TICK = 12
SMALLEST = 11

OKABE_ITO = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7A828C")


def luminance(colour: str) -> float:
    """Relative luminance of `#RRGGBB`, 0..1 (WCAG 2.2)."""
    linear = [
        c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4
        for c in (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def lightness(colour: str) -> float:
    """CIE L* of `#RRGGBB`, 0..100 (D65)."""
    y = luminance(colour)
    return 116 * y ** (1 / 3) - 16 if y > 216 / 24389 else y * 24389 / 27


def contrast(one: str, other: str) -> float:
    """Contrast ratio of two colours, 1..21 (WCAG 2.2)."""
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def lightened(colour: str, ground: str, ratio: float = 3.0) -> str:
    """`colour`, mixed with as little white as gives it `ratio` on a dark `ground`."""
    channels = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)], dtype=float)
    for step in range(101):
        mixed = np.rint(channels + (255 - channels) * step / 100).astype(int)
        candidate = "#{:02X}{:02X}{:02X}".format(*mixed)
        if contrast(candidate, ground) >= ratio:
            return candidate
    raise ValueError(f"{ground} is too light for anything to reach {ratio}:1 on it")


@dataclass(frozen=True)
class Palette:
    """Colours of one mode, all `#RRGGBB`.

    `track` is the scale for magnitude (5 even stops, L* monotone), `hot` its single colour;
    `categories` are for up to seven series (label them directly: by day the fourth to sixth fall
    below 3:1 on the ground); `diverging` is only for values around a meaningful zero; `reference`
    is drawn dashed.
    """

    mode: Mode
    ground: str
    raised: str
    line: str
    ink: str
    muted: str
    action: str
    track: tuple[str, ...]
    hot: str
    categories: tuple[str, ...]
    diverging: tuple[str, ...]

    @property
    def reference(self) -> str:
        """Colour of references, controls and baselines; the line itself is dashed."""
        return self.muted

    @property
    def colorscale(self) -> list[list[float | str]]:
        """The track scale as Plotly takes it: `[[0.0, colour], …, [1.0, colour]]`."""
        return _stops(self.track)

    @property
    def diverging_scale(self) -> list[list[float | str]]:
        """The diverging scale as Plotly takes it; put zero in the middle with `zmid=0`."""
        return _stops(self.diverging)


def _stops(colours: tuple[str, ...]) -> list[list[float | str]]:
    return [[i / (len(colours) - 1), colour] for i, colour in enumerate(colours)]


_DARK_GROUND = "#0C131C"

LIGHT = Palette(
    mode="light",
    ground="#FBFAF7",
    raised="#F1EFE9",
    line="#DEDAD1",
    ink="#16212E",
    muted="#5F6975",
    action="#0B6E8A",
    track=("#F4F1E8", "#F6DDA4", "#EFAA55", "#CC5F1B", "#74260F"),
    hot="#CC5F1B",
    categories=OKABE_ITO,
    diverging=("#0B5F77", "#7FB4C4", "#F4F1E8", "#EFAA55", "#9A430D"),
)

DARK = Palette(
    mode="dark",
    ground=_DARK_GROUND,
    raised="#141E2A",
    line="#263241",
    ink="#E6EAEE",
    muted="#93A3B4",
    action="#5CC8E0",
    track=("#111A25", "#43294A", "#A13C4C", "#EF8B3B", "#FFEBBE"),
    hot="#EF8B3B",
    categories=tuple(lightened(colour, _DARK_GROUND) for colour in OKABE_ITO),
    diverging=("#86D8EA", "#2C7288", "#111A25", "#B2552A", "#F5AE73"),
)


def palette(mode: Mode) -> Palette:
    """The palette of a mode."""
    return DARK if mode == "dark" else LIGHT


@lru_cache(maxsize=8)
def track_rgb(mode: Mode, steps: int = 256) -> np.ndarray:
    """The track scale as `uint8` (steps, 3): linear in sRGB between its stops, as Plotly draws it."""
    stops = np.array([[int(c[i : i + 2], 16) for i in (1, 3, 5)] for c in palette(mode).track], dtype=float)
    at = np.linspace(0, len(stops) - 1, steps)
    table = np.stack([np.interp(at, np.arange(len(stops)), stops[:, k]) for k in range(3)], axis=1)
    table = np.rint(table).astype(np.uint8)
    table.setflags(write=False)
    return table


def current_mode() -> Mode:
    """The mode the visitor sees now: what the browser reported with this run, by day when it did not."""
    import streamlit as st

    return "dark" if st.context.theme.type == "dark" else "light"


def current_palette() -> Palette:
    """The palette the visitor sees now."""
    return palette(current_mode())
