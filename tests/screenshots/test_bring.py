"""Bring your own: the inspector, a refusal, and a model with windows in every view."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from data.publish import publish
from data.records.attention_sinks import TABLES
from tests.app import brought_store
from tests.browser import bring_files
from tests.browser.chromium import Scheme
from tests.browser.fixtures import OpenPage
from tests.browser.server import Server, seeded_home
from tests.browser.test_bring import TAB, upload

pytestmark = [pytest.mark.browser, pytest.mark.screenshot]
Check = Callable[..., None]


def below(page: Page, check: Check, name: str) -> None:
    """The tabs' baseline does not repeat the page above them."""
    check(page, name, below=page.get_by_role("tablist"))


@pytest.mark.models
@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 390)])
def test_inspector(
    open_page: OpenPage, assert_screenshot: Check, tmp_path: Path, scheme: Scheme, width: int
) -> None:
    pytest.importorskip("torch")
    page = open_page(TAB, scheme=scheme, width=width)
    upload(page, bring_files.llama_zip(tmp_path))
    expect(page.get_by_text("LlamaForCausalLM (llama)")).to_be_visible(timeout=60_000)
    below(page, assert_screenshot, f"bring-inspector-{scheme}-{width}")


def test_refusal(open_page: OpenPage, assert_screenshot: Check, tmp_path: Path) -> None:
    page = open_page(TAB)
    upload(page, bring_files.evil_pickle(tmp_path, tmp_path / "pwned"))
    expect(page.get_by_text("This is not taken")).to_be_visible(timeout=60_000)
    below(page, assert_screenshot, "bring-refusal-light-1280")


@pytest.fixture(scope="module")
def windowed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The app on shipped traces and those of a model whose layers have windows."""
    home = seeded_home(tmp_path_factory.mktemp("windowed"))
    publish(home / "traces.duckdb", [brought_store.trace(home / "staged")], TABLES)
    with Server(home) as server:
        yield server


def test_windows(open_page: OpenPage, assert_screenshot: Check, windowed: Server) -> None:
    page = open_page(f"attention_sinks?model={brought_store.WINDOWED}&layer=1&head=0", server=windowed)
    expect(page.get_by_text("Of the 4 heads that see far enough")).to_be_visible(timeout=15_000)
    assert_screenshot(page, "bring-windows-light-1280")
