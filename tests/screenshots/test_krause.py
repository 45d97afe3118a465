"""The Krause page: as it opens, after a choice, and tab by tab. See test_shell for the other pages."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playwright.sync_api import expect

from tests.browser.chromium import Scheme, settle
from tests.browser.fixtures import OpenPage
from tests.screenshots.shots import every_size

pytestmark = [pytest.mark.browser, pytest.mark.screenshot]
Check = Callable[..., None]


@every_size
def test_krause(open_page: OpenPage, assert_screenshot: Check, scheme: Scheme, width: int) -> None:
    page = open_page("krause_attention", scheme=scheme, width=width)
    assert_screenshot(page, f"krause-default-{scheme}-{width}")


TABS = ("Vision", "Cost", "Generation", "In a pretrained model", "Windows and widths")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("tab", TABS)
def test_krause_tabs(open_page: OpenPage, assert_screenshot: Check, tab: str, scheme: Scheme) -> None:
    page = open_page(f"krause_attention?view={tab.replace(' ', '+')}", scheme=scheme)
    expect(page.get_by_role("tab", name=tab)).to_have_attribute("aria-selected", "true")
    assert_screenshot(
        page, f"krause-{tab.lower().replace(' ', '-')}-{scheme}-1280", below=page.get_by_role("tablist")
    )


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 390)])
def test_particles(open_page: OpenPage, assert_screenshot: Check, scheme: Scheme, width: int) -> None:
    page = open_page("krause_attention?view=Particles&p_steps=60", scheme=scheme, width=width)
    settle(page)
    assert_screenshot(page, f"krause-particles-{scheme}-{width}", below=page.get_by_role("tablist"))
