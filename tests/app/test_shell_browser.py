"""What only a browser can tell of the shell: its first address, its typefaces, and dusk."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.app.small_store import publish_small

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

    from tests.browser.server import Server

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that nobody has visited."""
    from tests.browser.server import Server

    home = tmp_path_factory.mktemp("shell")
    publish_small(home / "traces.duckdb")
    with Server(home) as server:
        yield server


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A visitor by day."""
    from tests.browser.chromium import new_context

    with new_context(browser) as context:
        yield context.new_page()


def test_the_first_visit_may_go_straight_to_a_page(fresh: Server, page: Page) -> None:
    # Streamlit's older multipage mode would run pages/ledger.py alone, and list the files as pages.
    from tests.browser.chromium import settle, visit

    visit(page, f"{fresh.url}/ledger?verdict=reproduced")
    page.get_by_text("23 claims:").wait_for()
    settle(page)
    names = page.get_by_test_id("stSidebarNavLink").all_inner_texts()
    assert [name.splitlines()[-1] for name in names] == [
        "Cloud Chamber",
        "Attention sinks",
        "Krause attention",
        "Ledger",
        "Columns",
    ]
    assert page.locator("[class*='st-key-claim_']").count() == 3
    assert page.url.endswith("/ledger?verdict=reproduced")


def test_titles_are_serif_and_everything_else_is_not(fresh: Server, page: Page) -> None:
    from tests.browser.chromium import visit

    visit(page, fresh.url)
    loaded = page.evaluate(
        "() => [...document.fonts].filter(f => f.status === 'loaded').map(f => `${f.family} ${f.weight}`)"
    )
    loaded = {face.replace('"', "") for face in loaded}
    assert {"Cloud Chamber Headings 600", "Cloud Chamber Headings 650", "Inter 100 900"} <= loaded
    main = page.get_by_test_id("stMain")
    style = "e => { const s = getComputedStyle(e); return [s.fontWeight, s.fontSize] }"
    title, header, text = (main.locator(name).first.evaluate(style) for name in ("h1", "h2", "p"))
    assert [title, header, text] == [["600", "32px"], ["650", "20px"], ["400", "15px"]]


def test_figures_follow_the_theme(fresh: Server, page: Page) -> None:
    from tests.browser.chromium import settle, visit

    visit(page, fresh.url)
    picture = page.get_by_test_id("stImage").locator("img")
    by_day = picture.get_attribute("src")
    page.get_by_test_id("stMainMenu").click()
    page.get_by_test_id("stMainMenuPopover").get_by_text("Dark").click()
    page.wait_for_function(
        "before => document.querySelector('[data-testid=stImage] img').src !== before", arg=by_day
    )
    settle(page)
    by_night = picture.get_attribute("src")
    ground = page.get_by_test_id("stApp").evaluate("e => getComputedStyle(e).backgroundColor")
    assert ground == "rgb(12, 19, 28)"

    # The same picture as for a visitor who comes at night.
    page.emulate_media(color_scheme="dark")
    page.evaluate("localStorage.clear()")
    visit(page, fresh.url)
    assert picture.get_attribute("src") == by_night
