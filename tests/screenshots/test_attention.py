"""The attention page: as it opens, after a click, and tab by tab. See test_shell for the other pages."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import expect

from tests.browser import figures
from tests.browser.chromium import Scheme, settle
from tests.browser.fixtures import OpenPage
from tests.screenshots.shots import every_size

pytestmark = [pytest.mark.browser, pytest.mark.screenshot]
Check = Callable[..., None]


@every_size
def test_attention(open_page: OpenPage, assert_screenshot: Check, scheme: Scheme, width: int) -> None:
    page = open_page("attention_sinks", scheme=scheme, width=width)
    assert_screenshot(page, f"attention-default-{scheme}-{width}")
    figures.click(page, "heads", 20, 5)
    expect(page.get_by_text("Layer 20, head 5: who looks at whom")).to_be_visible(timeout=15_000)
    page.get_by_role("tab", name="What if").click()
    expect(page).to_have_url(re.compile("view="))
    settle(page)
    assert_screenshot(page, f"attention-clicked-{scheme}-{width}")


TABS = ("Streaming", "Compare", "All heads", "Claims", "How this is computed", "Bring your own")


@pytest.mark.parametrize("tab", TABS)
def test_attention_tabs(open_page: OpenPage, assert_screenshot: Check, tab: str) -> None:
    page = open_page(f"attention_sinks?view={tab.replace(' ', '+')}")
    expect(page.get_by_role("tab", name=tab)).to_have_attribute("aria-selected", "true")
    assert_screenshot(page, f"attention-{tab.lower().replace(' ', '-')}-light-1280")
