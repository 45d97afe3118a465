"""The look: tokens said once, readable in both modes, magnitude that only gets darker or lighter."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from streamlit import config

from app.theme import DARK, LIGHT, Palette, contrast, lightened, lightness, luminance, palette, track_rgb

ROOT = Path(__file__).resolve().parents[2]
CONFIG = tomllib.loads((ROOT / ".streamlit" / "config.toml").read_text(encoding="utf-8"))
BOTH = pytest.mark.parametrize("colours", [LIGHT, DARK], ids=lambda p: p.mode)


def _names(tree: dict[str, Any], above: str = "") -> Iterator[str]:
    for name, value in tree.items():
        yield from _names(value, f"{above}{name}.") if isinstance(value, dict) else [above + name]


def section(mode: str) -> dict[str, Any]:
    return CONFIG["theme"][mode]


def test_known_values_of_contrast_and_lightness() -> None:
    assert contrast("#000000", "#FFFFFF") == pytest.approx(21)
    assert contrast("#777777", "#FFFFFF") == pytest.approx(4.48, abs=0.01)  # the WCAG textbook near miss
    assert lightness("#FFFFFF") == pytest.approx(100)
    assert lightness("#777777") == pytest.approx(50.03, abs=0.01)
    assert luminance("#FF0000") == pytest.approx(0.2126)


@BOTH
def test_tokens_are_the_same_for_streamlit_and_for_figures(colours: Palette) -> None:
    says = section(colours.mode)
    assert says["backgroundColor"] == colours.ground
    assert says["secondaryBackgroundColor"] == colours.raised
    assert says["borderColor"] == colours.line
    assert says["textColor"] == colours.ink
    assert says["primaryColor"] == says["linkColor"] == colours.action
    assert says["orangeColor"] == colours.hot
    assert tuple(says["chartCategoricalColors"]) == colours.categories


@BOTH
def test_text_is_readable_on_both_grounds(colours: Palette) -> None:
    for ground in (colours.ground, colours.raised):
        for text in (colours.ink, colours.muted, colours.action):
            assert contrast(text, ground) >= 4.5, (text, ground)


@BOTH
def test_badges_are_readable(colours: Palette) -> None:
    says = section(colours.mode)
    for name in ("red", "orange", "yellow", "blue", "green", "violet", "gray"):
        for ground in (says[f"{name}BackgroundColor"], colours.ground):
            assert contrast(says[f"{name}TextColor"], ground) >= 4.5, (name, ground)


@BOTH
def test_marks_stand_out_from_the_ground(colours: Palette) -> None:
    assert contrast(colours.hot, colours.ground) >= 3
    # By day the look keeps Okabe-Ito as it is: the first three reach 3:1, the rest is labelled directly.
    visible = colours.categories if colours.mode == "dark" else colours.categories[:3]
    for colour in visible:
        assert contrast(colour, colours.ground) >= 3, colour


def test_lightened_mixes_as_little_white_as_it_needs() -> None:
    assert lightened("#0072B2", "#0C131C") == "#0072B2"  # 3.6:1 already
    assert contrast("#003050", "#0C131C") < 3
    mixed = lightened("#003050", "#0C131C")
    assert 3 <= contrast(mixed, "#0C131C") < 3.15


@pytest.mark.parametrize(
    ("colours", "expected"),
    [(LIGHT, [95.1, 88.9, 74.7, 53.1, 27.1]), (DARK, [8.9, 21.1, 40.1, 67.4, 93.6])],
    ids=["light", "dark"],
)
def test_track_lightness_goes_one_way(colours: Palette, expected: list[float]) -> None:
    assert [round(lightness(c), 1) for c in colours.track] == expected
    steps = ["#{:02X}{:02X}{:02X}".format(*rgb) for rgb in track_rgb(colours.mode)]
    sign = 1 if colours.mode == "dark" else -1
    # Between neighbours, 8-bit rounding may turn L* by a hair; over four steps it never does.
    assert min(sign * (lightness(b) - lightness(a)) for a, b in pairwise(steps)) > -0.15
    assert all(sign * (lightness(b) - lightness(a)) > 0 for a, b in pairwise(steps[::4]))


@BOTH
def test_track_table_passes_through_its_stops(colours: Palette) -> None:
    table = track_rgb(colours.mode, 257)  # 257 steps put the five stops on whole indices
    for i, colour in enumerate(colours.track):
        assert table[i * 64].tolist() == [int(colour[k : k + 2], 16) for k in (1, 3, 5)]
    halfway = (table[0].astype(int) + table[64]) / 2
    assert np.abs(table[32] - halfway).max() <= 1  # linear in sRGB, as Plotly interpolates
    with pytest.raises(ValueError, match="read-only"):
        table[0] = 0


def test_scales_for_plotly_span_zero_to_one() -> None:
    assert [at for at, _ in palette("dark").colorscale] == [0, 0.25, 0.5, 0.75, 1]
    assert palette("light").diverging_scale[2][1] == LIGHT.track[0]


def test_config_names_exist_and_visitors_see_no_internals() -> None:
    known = config.get_config_options(force_reparse=False)
    assert set(_names(CONFIG)) <= set(known)
    assert CONFIG["client"] == {"showErrorDetails": "none", "showErrorLinks": False, "toolbarMode": "minimal"}
    assert CONFIG["browser"]["gatherUsageStats"] is False


def test_fonts_lie_where_streamlit_serves_them_and_are_small() -> None:
    faces = CONFIG["theme"]["fontFaces"]
    files = {ROOT / face["url"] for face in faces}
    assert {path.parent for path in files} == {ROOT / "app" / "static" / "fonts"}
    for path in files:
        assert path.read_bytes()[:4] == b"wOF2"
        assert path.stat().st_size < 120_000
    licences = {path.name for path in (ROOT / "app/static/fonts").glob("OFL-*.txt")}
    assert licences == {"OFL-inter.txt", "OFL-jetbrains-mono.txt", "OFL-source-serif-4.txt"}


def test_only_the_page_title_is_serif() -> None:
    says = CONFIG["theme"]
    serif = {face["weight"] for face in says["fontFaces"] if "serif" in face["url"]}
    assert serif == {str(says["headingFontWeights"][0])}
    assert serif.isdisjoint({str(weight) for weight in says["headingFontWeights"][1:]})
    assert says["headingFontSizes"][:3] == ["32px", "20px", "15px"]
