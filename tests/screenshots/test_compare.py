"""The screenshot machinery itself: what it must catch, and what it must let pass."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageDraw

from tests.screenshots.compare import AREA, compare
from tests.screenshots.shots import BASELINES, Screenshots

VERSION = "156.0.1.2"


def drawing(shift: int = 0) -> Image.Image:
    image = Image.new("RGB", (400, 300), "#FBFAF7")
    pen = ImageDraw.Draw(image)
    for k in range(0, 380, 8):
        pen.rectangle((k + shift, k * 0.7, k + shift + 4, k * 0.7 + 30), fill="#CC5F1B")
    return image


def shots(tmp_path: Path, update: bool = False, version: str = VERSION) -> Screenshots:
    return Screenshots(
        version, update=update, artifacts=tmp_path / "artifacts", baselines=tmp_path / "baselines"
    )


def test_equal_pictures_pass_and_a_shift_by_one_pixel_does_not() -> None:
    assert compare(drawing(), drawing()).differing == 0
    shifted = compare(drawing(), drawing(1))
    assert shifted.share > AREA
    assert shifted.diff is not None
    red = (np.asarray(shifted.diff) == (255, 0, 0)).all(axis=2).sum()
    assert red == shifted.differing


def test_the_count_is_that_of_the_whole_picture() -> None:
    from pixelmatch.contrib.PIL import pixelmatch

    a, b = drawing(), drawing()
    ImageDraw.Draw(b).text((200, 20), "one more word", fill="black")
    assert compare(a, b).differing == pixelmatch(a, b, threshold=0.05) > 0


def test_a_difference_that_no_eye_sees_passes() -> None:
    a = drawing()
    b = Image.fromarray(np.clip(np.asarray(a).astype(int) + 2, 0, 255).astype(np.uint8))
    assert compare(a, b).differing == 0


def test_sizes_must_agree() -> None:
    result = compare(drawing(), drawing().crop((0, 0, 400, 299)))
    assert result.share == 1
    assert "400 x 300 and 400 x 299" in result.reason


def outcome(check: Callable[[], None]) -> str:
    try:
        check()
    except pytest.fail.Exception as failure:
        return f"failed: {failure}"
    except pytest.skip.Exception as skip:
        return f"skipped: {skip}"
    return "passed"


def test_a_missing_baseline_is_written_and_fails_once(tmp_path: Path) -> None:
    checker = shots(tmp_path)
    assert "has no baseline" in outcome(lambda: checker.compare(drawing(), "home"))
    assert outcome(lambda: checker.compare(drawing(), "home")) == "passed"
    assert json.loads((tmp_path / "baselines" / "baselines.json").read_text())["browser"] == VERSION


def test_a_difference_fails_and_keeps_what_one_needs_to_see_it(tmp_path: Path) -> None:
    shots(tmp_path, update=True).compare(drawing(), "home")
    assert "--update-screenshots" in outcome(lambda: shots(tmp_path).compare(drawing(1), "home"))
    kept = {path.name for path in (tmp_path / "artifacts").iterdir()}
    assert kept == {"home-expected.png", "home-actual.png", "home-diff.png"}
    shots(tmp_path, update=True).compare(drawing(1), "home")
    assert outcome(lambda: shots(tmp_path).compare(drawing(1), "home")) == "passed"


def test_another_browser_or_platform_is_named(tmp_path: Path) -> None:
    shots(tmp_path, update=True).compare(drawing(), "home")
    newer = shots(tmp_path, version="157.0.0.0")
    assert outcome(lambda: newer.compare(drawing(), "home")) == "passed"
    assert "156.0.1.2, this is 157.0.0.0" in outcome(lambda: newer.compare(drawing(5), "home"))
    manifest = tmp_path / "baselines" / "baselines.json"
    manifest.write_text(json.dumps({"browser": VERSION, "platform": "Darwin arm64"}))
    assert outcome(lambda: shots(tmp_path).compare(drawing(), "home")) == "passed"
    assert "skipped" in outcome(lambda: shots(tmp_path).compare(drawing(5), "home"))


def test_baselines_stay_small() -> None:
    sizes = {path.name: path.stat().st_size for path in BASELINES.glob("*.png")}
    assert sum(sizes.values()) <= 15 * 2**20, sizes
