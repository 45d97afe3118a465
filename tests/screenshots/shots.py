"""Take pictures of pages and hold them against their baselines.

Baselines are drawn by one browser on one platform, named in baselines.json. The same major version
on the same platform must match to AREA. Another major version may move a few glyphs, so it gets
OTHER_VERSION_AREA. Another platform (macOS, ARM) draws text differently: there a page that matches
passes, and one that does not is skipped, which says so; nothing is claimed that was not checked.
"""

from __future__ import annotations

import io
import json
import platform
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from PIL import Image
from playwright.sync_api import Locator, Page

from tests.browser.chromium import settle
from tests.screenshots.compare import AREA, Comparison, compare

BASELINES = Path(__file__).resolve().parent / "baselines"
OTHER_VERSION_AREA = 0.01
MAX_HEIGHT = 6_000
SIZES = [("light", 1280), ("dark", 1280), ("light", 390), ("dark", 390)]
every_size = pytest.mark.parametrize(("scheme", "width"), SIZES, ids=[f"{s}-{w}" for s, w in SIZES])
UPDATE = "run pytest with --update-screenshots and review the new pictures"


@dataclass
class Screenshots:
    """Checks pictures against `baselines`; what failed is kept in `artifacts`."""

    browser_version: str
    update: bool
    artifacts: Path
    baselines: Path = BASELINES

    def check(self, page: Page, name: str, *, full: bool = True, below: Locator | None = None) -> None:
        """Fail unless the page looks as baselines/`name`.png. A missing baseline is written, and fails.

        `full` takes the whole page, not only what fits into the window; `below` leaves out what is above
        an element of a page that stands at its top, so that a tab's baseline does not repeat the page's.
        """
        image = capture(page, full=full)
        box = below.bounding_box() if below is not None else None
        self.compare(image.crop((0, int(box["y"]), *image.size)) if box else image, name)

    def compare(self, actual: Image.Image, name: str) -> None:
        """Hold one picture against its baseline."""
        baseline = self.baselines / f"{name}.png"
        if self.update or not baseline.exists():
            known = baseline.exists()
            if not known or compare(Image.open(baseline), actual).differing:
                self._write(actual, baseline)
            if not known and not self.update:
                pytest.fail(f"{name} has no baseline; it was written to {baseline.name}: review and keep it")
            return
        expected = Image.open(baseline)
        result = compare(expected, actual)
        drawn, here = self._drawn(), self._here()
        same_version = _major(drawn["browser"]) == _major(here["browser"])
        if result.share <= (AREA if same_version else OTHER_VERSION_AREA):
            return
        self._keep(name, expected, actual, result)
        story = f"{name}: {result.reason}"
        if drawn["platform"] != here["platform"]:
            pytest.skip(f"{story}; the baseline was drawn on {drawn['platform']}, this is {here['platform']}")
        if not same_version:
            story += f"; the baseline was drawn by Chromium {drawn['browser']}, this is {here['browser']}"
        pytest.fail(f"{story}. Expected, actual and diff are in {self.artifacts}. If it is meant, {UPDATE}.")

    def _write(self, image: Image.Image, path: Path) -> None:
        self.baselines.mkdir(parents=True, exist_ok=True)
        image.convert("RGB").save(path, optimize=True)
        (self.baselines / "baselines.json").write_text(json.dumps(self._here(), indent=1) + "\n")

    def _keep(self, name: str, expected: Image.Image, actual: Image.Image, result: Comparison) -> None:
        self.artifacts.mkdir(parents=True, exist_ok=True)
        expected.save(self.artifacts / f"{name}-expected.png")
        actual.save(self.artifacts / f"{name}-actual.png")
        if result.diff is not None:
            result.diff.save(self.artifacts / f"{name}-diff.png")

    def _here(self) -> dict[str, str]:
        return {"browser": self.browser_version, "platform": f"{platform.system()} {platform.machine()}"}

    def _drawn(self) -> dict[str, str]:
        path = self.baselines / "baselines.json"
        return dict(json.loads(path.read_text())) if path.exists() else self._here()


def capture(page: Page, *, full: bool = True) -> Image.Image:
    """A picture of the page at rest: taken again until two in a row are the same."""
    size = page.viewport_size
    assert size is not None
    settle(page)  # what is still to be drawn counts in the height
    if full:
        # Streamlit scrolls inside the page, so the window is made as tall as what is in it.
        height = page.evaluate("() => document.querySelector('[data-testid=\"stMain\"]').scrollHeight")
        page.set_viewport_size(
            {"width": size["width"], "height": min(MAX_HEIGHT, max(height, size["height"]))}
        )
    page.mouse.move(0, 0)
    settle(page)
    end = time.monotonic() + 10
    last = b""
    while True:
        shot = page.screenshot(animations="disabled", caret="hide", scale="css")
        if shot == last or time.monotonic() > end:
            break
        last = shot
        page.wait_for_timeout(100)
    if full:
        page.set_viewport_size(size)
    return Image.open(io.BytesIO(shot)).convert("RGB")


def _major(version: str) -> str:
    return version.split(".")[0]
