"""Home and the reference pages, and every page without traces; light and dark, wide and narrow.

Baselines are in baselines/; `pytest --update-screenshots` draws them anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.browser.chromium import Scheme, settle
from tests.browser.fixtures import OpenPage
from tests.browser.server import Server
from tests.screenshots.shots import every_size

pytestmark = [pytest.mark.browser, pytest.mark.screenshot]
Check = Callable[..., None]


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The app with no traces at all."""
    with Server(tmp_path_factory.mktemp("empty")) as server:
        yield server


@every_size
def test_home(open_page: OpenPage, assert_screenshot: Check, scheme: Scheme, width: int) -> None:
    page = open_page("", scheme=scheme, width=width)
    assert_screenshot(page, f"home-default-{scheme}-{width}")
    # The way to the other pages: put away on a wide screen, opened on a narrow one.
    page.get_by_test_id("stExpandSidebarButton" if width < 500 else "stSidebarCollapseButton").click()
    settle(page)
    assert_screenshot(page, f"home-navigation-{scheme}-{width}", full=False)


@every_size
def test_ledger(open_page: OpenPage, assert_screenshot: Check, scheme: Scheme, width: int) -> None:
    assert_screenshot(open_page("ledger", scheme=scheme, width=width), f"ledger-default-{scheme}-{width}")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_columns(open_page: OpenPage, assert_screenshot: Check, scheme: Scheme) -> None:
    assert_screenshot(open_page("columns", scheme=scheme), f"columns-default-{scheme}-1280", full=False)


@every_size
@pytest.mark.parametrize("path", ["", "attention_sinks", "ledger"], ids=["home", "attention", "ledger"])
def test_no_traces(
    open_page: OpenPage, assert_screenshot: Check, empty: Server, path: str, scheme: Scheme, width: int
) -> None:
    page = open_page(path, scheme=scheme, width=width, server=empty)
    assert_screenshot(page, f"{path.split('_')[0] or 'home'}-no-traces-{scheme}-{width}")
