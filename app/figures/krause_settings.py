"""Names and order of the attention settings that the Krause study compares, the same in every figure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from app.figures.numbers import listed
from app.theme import Palette
from models.attention.mechanisms import MECHANISMS
from models.intervals import student_mean

ORDER = tuple(MECHANISMS)
SETTING = ["mechanism", "window", "topk"]
Setting = tuple[str, int | None, int | None]


def number(value: object) -> int | None:
    """A stored whole number, None where there is none."""
    return None if value is None or pd.isna(value) else int(value)  # type: ignore[call-overload]


def setting_name(mechanism: str, window: object, topk: object, *, short: bool = False) -> str:
    """A setting for people: "Krause, window 64, k 8"; `short` is "Krause, W 64"."""
    spec = MECHANISMS.get(mechanism)
    parts = [mechanism if spec is None else spec.short if short else spec.title]
    if spec is not None and spec.local and number(window) is not None:
        parts.append(f"{'W' if short else 'window'} {number(window)}")
        parts += [f"k {number(topk)}"] if spec.sparse and not short and number(topk) is not None else []
    return ", ".join(parts)


def two_lines(mechanism: str, window: object, topk: object) -> str:
    """A setting as a narrow label: its short name, and below it "W 64, k 8"."""
    spec = MECHANISMS.get(mechanism)
    if spec is None or not spec.local or number(window) is None:
        return setting_name(mechanism, window, topk, short=True)
    kept = f", k {number(topk)}" if spec.sparse and number(topk) is not None else ""
    return f"{spec.short}<br>W {number(window)}{kept}"


def settings(frame: pd.DataFrame) -> list[Setting]:
    """The settings in a frame: mechanisms in the study's order, wider windows first."""
    found = {
        (str(r.mechanism), number(r.window), number(r.topk))
        for r in frame[SETTING].drop_duplicates().itertuples()
    }
    rank = {slug: place for place, slug in enumerate(ORDER)}
    return sorted(found, key=lambda s: (rank.get(s[0], 99), -(s[1] or 0), -(s[2] or 0)))


def of_setting(frame: pd.DataFrame, setting: Setting) -> pd.DataFrame:
    """The rows of one setting."""
    mechanism, window, topk = setting
    rows = frame[frame["mechanism"] == mechanism]
    for name, value in (("window", window), ("topk", topk)):
        rows = rows[rows[name].isna()] if value is None else rows[rows[name] == value]
    return rows


def colour(mechanism: str, palette: Palette) -> str:
    """Krause is the hot one, its controls take the categories, softmax is the reference in ink."""
    if mechanism == "softmax":
        return palette.ink
    if mechanism == "krause":
        return palette.hot
    others = [slug for slug in ORDER if slug not in ("softmax", "krause")]
    colours = [c for c in palette.categories if c.lower() != palette.hot.lower()]
    place = others.index(mechanism) if mechanism in others else len(others)
    return colours[(0, 2, 3, 5, 6, 4)[place % 6] % len(colours)]


def spread(values: Sequence[float] | np.ndarray) -> tuple[float, float, float]:
    """Mean and Student's 95 % interval over seeds; with one seed the interval is the value."""
    data = np.asarray(values, dtype=float)
    mean = float(data.mean())
    return (mean, *student_mean(data)) if len(data) > 1 else (mean, mean, mean)


def seed_count(count: int) -> str:
    """ "1 seed", "3 seeds"."""
    return f"{count} seed" if count == 1 else f"{count} seeds"


def lone_seeds(outcomes: pd.DataFrame) -> str:
    """A sentence on the settings that one seed stands for; empty when there are none, or only such."""
    found = settings(outcomes)
    lone = [s for s in found if of_setting(outcomes, s)["seed"].nunique() == 1]
    if not lone or len(lone) == len(found):
        return ""
    names = listed([setting_name(*s) for s in lone])
    return f"{names} {'has' if len(lone) == 1 else 'have'} one seed and no interval."
