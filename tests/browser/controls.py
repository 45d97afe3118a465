"""Streamlit's controls as a person works them."""

from __future__ import annotations

from playwright.sync_api import Page, TimeoutError, expect

from tests.browser.chromium import settle


def open_options(page: Page, label: str) -> None:
    """Open the list of a select box; a list that a rerun closed again is opened once more."""
    box = page.get_by_role("combobox", name=label, exact=True)
    expect(box).to_be_visible(timeout=15_000)
    settle(page)
    for _ in range(4):
        box.click()
        try:
            page.get_by_role("option").first.wait_for(timeout=2_000)
            return
        except TimeoutError:
            page.keyboard.press("Escape")
    expect(page.get_by_role("option").first).to_be_visible()


def choose(page: Page, label: str, option: str) -> None:
    """Choose the first option of a select box whose name holds `option`."""
    open_options(page, label)
    page.get_by_role("option").filter(has_text=option).first.click()
    settle(page)


def options(page: Page, label: str, holding: str) -> int:
    """How many options of a select box hold some words."""
    open_options(page, label)
    count = page.get_by_role("option").filter(has_text=holding).count()
    page.keyboard.press("Escape")
    return count
