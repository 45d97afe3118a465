"""What holds on every page: accessible, no wider than the screen, in both themes, without torch."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.browser.axe import findings
from tests.browser.chromium import Scheme, settle
from tests.browser.fixtures import OpenPage
from tests.browser.server import Server

pytestmark = pytest.mark.browser
PAGES = ("", "attention_sinks", "ledger", "columns")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("path", PAGES, ids=[path or "home" for path in PAGES])
def test_a_page_is_accessible_and_fits(open_page: OpenPage, path: str, scheme: Scheme) -> None:
    page = open_page(path, scheme=scheme)
    assert findings(page) == []
    assert page.locator("h1").count() == 1
    nameless = page.locator("img:not([alt]), img[alt='']").all()
    assert [image.get_attribute("src") for image in nameless] == []

    page.set_viewport_size({"width": 390, "height": 800})
    settle(page)
    widths = page.evaluate(
        "() => [document.documentElement, document.querySelector('[data-testid=\"stMain\"]')]"
        ".map(e => e.scrollWidth - e.clientWidth)"
    )
    assert widths == [0, 0]
    assert findings(page) == []


@pytest.mark.parametrize("path", PAGES[1:])
def test_the_share_button_ends_where_the_page_does(open_page: OpenPage, path: str) -> None:
    page = open_page(path)
    gap = page.evaluate(
        """() => {
          const main = document.querySelector('[data-testid="stMainBlockContainer"]');
          const edge = main.getBoundingClientRect().right - parseFloat(getComputedStyle(main).paddingRight);
          return edge - document.querySelector('.st-key-share button').getBoundingClientRect().right;
        }"""
    )
    assert abs(gap) < 1


def test_every_figure_has_a_description(open_page: OpenPage) -> None:
    page = open_page("attention_sinks")
    charts = page.get_by_test_id("stPlotlyChart").all()
    assert len(charts) >= 2
    for chart in charts:
        label = chart.evaluate(
            "e => (e.closest('[aria-label]') || e.querySelector('[aria-label]'))?.getAttribute('aria-label')"
        )
        assert label is not None
        assert len(label) > 30, label


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs /proc")
def test_the_app_process_holds_no_torch(open_page: OpenPage, server: Server) -> None:
    for path in PAGES:
        open_page(path)
    maps = Path(f"/proc/{server.process.pid}/maps").read_text()
    assert "duckdb" in maps
    assert "libtorch" not in maps
    assert "/tokenizers/" not in maps
