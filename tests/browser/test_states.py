"""Failures are pages too, and the app follows its store without a restart."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest
from playwright.sync_api import Page, expect

from data.publish import remove_runs
from data.records import attention_sinks_queries as queries
from data.store import open_store
from tests.browser.axe import findings
from tests.browser.chromium import settle
from tests.browser.controls import options
from tests.browser.fixtures import OpenPage
from tests.browser.server import Server, seeded_home

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The app with a home of its own, whose store the tests put there and take away."""
    with Server(tmp_path_factory.mktemp("bare")) as server:
        yield server


def break_store(kind: str, store: Path, source: Path) -> None:
    """Leave `store` as it is in a state of failure."""
    store.unlink(missing_ok=True)
    if kind == "corrupt":
        store.write_bytes(source.read_bytes()[:100_000])
    elif kind == "garbage":
        store.write_text("this is not a database\n" * 100)
    elif kind == "newer":
        store.write_bytes(source.read_bytes())
        with duckdb.connect(str(store)) as connection:
            connection.execute("UPDATE meta SET schema_version = 999")


def says(page: Page, words: str) -> None:
    expect(page.get_by_text(words).first).to_be_visible(timeout=15_000)


@pytest.mark.parametrize(
    ("kind", "words", "remedy"),
    [
        ("missing", "No traces yet", "make demo"),
        ("corrupt", "The traces cannot be read", "make demo"),
        ("garbage", "The traces cannot be read", "make demo"),
        ("newer", "newer than the app", "Update Cloud Chamber"),
    ],
)
def test_a_store_that_cannot_be_read_is_a_page_with_a_remedy(
    open_page: OpenPage, server: Server, bare: Server, kind: str, words: str, remedy: str
) -> None:
    break_store(kind, bare.home / "traces.duckdb", server.home / "traces.duckdb")
    for path in ("", "attention_sinks", "ledger"):
        page = open_page(path, server=bare)
        says(page, words)
        says(page, remedy)
        text = page.locator("body").inner_text()
        assert str(bare.home) not in text
        assert "Traceback" not in text
        if kind == "missing":
            assert findings(page) == []


def test_traces_appear_and_change_without_a_restart(open_page: OpenPage, bare: Server) -> None:
    store = bare.home / "traces.duckdb"
    store.unlink(missing_ok=True)
    page = open_page("attention_sinks", server=bare)
    says(page, "No traces yet")
    seeded_home(bare.home)
    page.reload()
    says(page, "who looks at whom")
    settle(page)

    with open_store(store) as view:
        runs = queries.trace_runs(view)
    gone = runs[(runs.subject == "smollm2-135m-instruct") & (runs.text == "code")]
    assert len(gone) > 0
    assert options(page, "Text", "Python code") == len(gone)
    remove_runs(store, list(gone.run_id))
    # Any interaction brings the new generation; the page in front of the visitor keeps working.
    layer = page.get_by_role("spinbutton", name="Layer")
    layer.fill("3")
    layer.press("Enter")
    says(page, "Layer 3, head")
    page.reload()
    settle(page)
    assert options(page, "Text", "Python code") == 0
