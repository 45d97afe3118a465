"""The Krause page under a visitor's hands: patches clicked, particles played, links shared."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect

from app.views.krause_tabs import NAMES
from tests.browser import figures
from tests.browser.axe import findings
from tests.browser.chromium import settle
from tests.browser.fixtures import OpenPage

pytestmark = pytest.mark.browser
PAGE = "krause_attention"


def test_a_click_on_a_patch_makes_it_the_query(open_page: OpenPage) -> None:
    page = open_page(f"{PAGE}?view=Vision")
    expect(page.get_by_text("The patch in row 4, column 4 spreads over")).to_be_visible(timeout=15_000)
    figures.click(page, "krause_picture", 2, 2)  # image pixels: the first patch
    expect(page.get_by_text("The patch in row 1, column 1 spreads over")).to_be_visible(timeout=15_000)
    expect(page.get_by_role("spinbutton", name="Query")).to_have_value("1")
    assert "v_query=1" in page.url


def _places(page: Page) -> list[float]:
    return [float(x) for x in figures.data(page, "krause_particles")[-2]["x"]]


def test_particles_move_when_played_and_not_by_themselves(open_page: OpenPage) -> None:
    page = open_page(f"{PAGE}?view=Particles&p_steps=60&p_n=60")
    settle(page)
    end = _places(page)
    page.wait_for_timeout(600)
    assert _places(page) == end
    figures.locate(page, "krause_particles").locator(".updatemenu-button").first.click()
    page.wait_for_timeout(300)
    assert _places(page) != end


@pytest.mark.parametrize("tab", NAMES)
def test_every_tab_opens_without_a_complaint_and_is_accessible(open_page: OpenPage, tab: str) -> None:
    page = open_page(f"{PAGE}?view={tab.replace(' ', '+')}")
    expect(page.get_by_role("tab", name=tab)).to_have_attribute("aria-selected", "true")
    settle(page)
    assert findings(page) == []


def test_a_link_reproduces_the_screen(open_page: OpenPage) -> None:
    page = open_page(
        f"{PAGE}?network=Byte+language+model,+King+James&metric=Oldest+visible+key&layer=1&head=2"
    )
    expect(page.get_by_role("spinbutton", name="Layer")).to_have_value("1")
    expect(page.get_by_role("spinbutton", name="Head")).to_have_value("2")
    expect(page.get_by_text("Oldest visible key", exact=True).first).to_be_visible()


def test_moving_the_threshold_recounts_without_leaving_the_page(open_page: OpenPage) -> None:
    page = open_page(f"{PAGE}?metric=Sink+rate")
    slider = page.get_by_role("slider", name="Sink threshold ε")
    slider.focus()
    for _ in range(3):
        slider.press("ArrowLeft")
    expect(page).to_have_url(re.compile("eps=0.15"), timeout=15_000)
