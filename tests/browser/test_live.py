"""A visitor's own text, from the keyboard to the figure: traced in a child process, private, gone after."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import psutil
import pytest
from playwright.sync_api import Page, expect

from tests.browser import figures
from tests.browser.chromium import settle
from tests.browser.controls import choose, options
from tests.browser.fixtures import OpenPage
from tests.browser.server import Server, seeded_home

pytest.importorskip("torch")
pytestmark = [pytest.mark.browser, pytest.mark.models]
MINILM, SMOLLM2 = "all-MiniLM-L6-v2", "SmolLM2 135M Instruct"
TTL = 3


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The app, with visits that end soon after their tab is closed."""
    home = seeded_home(tmp_path_factory.mktemp("live"))
    with Server(home, options={"server.disconnectedSessionTTL": str(TTL)}) as server:
        yield server


def visits(server: Server) -> list[Path]:
    """The folders of visits that this server holds at the moment."""
    return [folder for root in (server.home / "tmp").glob("cloudchamber-*/*/") for folder in root.glob("*/")]


def workers(server: Server) -> list[psutil.Process]:
    """Child processes of the app."""
    return [p for p in psutil.Process(server.process.pid).children(recursive=True) if p.is_running()]


def trace(page: Page, model: str, text: str) -> None:
    """Type `text` into the form, choose the model that reads it, and press the button."""
    page.get_by_role("tab", name="Bring your own").click()
    page.get_by_role("radio", name="A reference model").or_(
        page.get_by_role("button", name="A reference model")
    ).first.click()
    box = page.get_by_role("textbox", name="Your text")
    expect(box).to_be_visible()
    choose(page, "Model that reads it", model)
    box.fill(text)
    box.press("Control+Enter")
    settle(page)
    page.get_by_role("button", name="Trace it").click()


def wait_gone(what: str, seconds: float, gone) -> None:  # type: ignore[no-untyped-def]
    end = time.monotonic() + seconds
    while not gone():
        assert time.monotonic() < end, f"{what} after {seconds:.0f} s"
        time.sleep(0.1)


def test_a_text_is_traced_drawn_and_forgotten(open_page: OpenPage, live: Server) -> None:
    words = "The quick brown fox jumps over the lazy dog."
    page = open_page("attention_sinks", server=live)
    trace(page, MINILM, words)
    expect(page.get_by_text("so far")).to_be_visible(timeout=15_000)  # elapsed time, from the first second
    expect(page.get_by_role("button", name="Cancel")).to_be_visible()
    expect(page.get_by_text("Traced in")).to_be_visible(timeout=90_000)
    expect(page.get_by_text("Your text 1").first).to_be_visible(timeout=30_000)
    settle(page)
    # Ten word pieces, one label and one row and column each.
    (strip,) = [t for t in figures.data(page, "head_map") if "customdata" in t and "y" in t]
    assert len(strip["y"]) == 10
    assert "fox" not in page.url
    assert "fox" not in live.log.read_text()

    other = open_page("attention_sinks", server=live)
    assert options(other, "Text", "Your text") == 0
    assert len(visits(live)) == 2

    for context in (page.context, other.context):
        context.close()
    wait_gone("a visit's folder is still there", TTL + 10, lambda: not visits(live))
    assert len(workers(live)) <= 2  # the workers themselves stay warm for the next visitor


def test_cancel_stops_the_trace_and_the_next_one_runs(open_page: OpenPage, live: Server) -> None:
    page = open_page("attention_sinks", server=live)
    trace(page, SMOLLM2, "All work and no play makes Jack a dull boy. " * 100)
    page.get_by_role("button", name="Cancel").click(timeout=15_000)
    expect(page.get_by_text("Cancelled.")).to_be_visible(timeout=15_000)
    settle(page)
    trace(page, MINILM, "again")
    expect(page.get_by_text("Traced in")).to_be_visible(timeout=90_000)


def test_visits_leave_no_process_and_no_file(open_page: OpenPage, live: Server) -> None:
    before = {p.pid for p in workers(live)}
    for _ in range(5):
        page = open_page("attention_sinks", server=live)
        page.context.close()
    wait_gone("a visit's folder is still there", TTL + 10, lambda: not visits(live))
    assert {p.pid for p in workers(live)} <= before


def test_the_app_goes_and_leaves_nothing(open_page: OpenPage, tmp_path: Path) -> None:
    with Server(seeded_home(tmp_path)) as server:
        page = open_page("attention_sinks", server=server)
        trace(page, MINILM, "last words")
        expect(page.get_by_text("Traced in")).to_be_visible(timeout=90_000)
        page.context.close()
        children = workers(server)
        assert children
        assert visits(server)
    assert visits(server) == []
    wait_gone("a worker is still there", 5, lambda: not any(p.is_running() for p in children))


HOSTILE = {
    "html": '<img src=x onerror="window.pwned=1"><script>window.pwned=1</script>',
    "markdown": "**bold** [link](javascript:window.pwned=1) $$x^2$$ :red[red] `code`",
    "bidi": "\u202eevil\u202c \u200b\u200d zero \u05e9\u05dc\u05d5\u05dd \U0001f468\u200d\U0001f469",
}


def test_hostile_text_is_inert_and_aligned(open_page: OpenPage, live: Server) -> None:
    page = open_page("attention_sinks", server=live)
    trace(page, MINILM, "\n".join(HOSTILE.values()))
    expect(page.get_by_text("Traced in")).to_be_visible(timeout=90_000)
    settle(page)
    assert page.evaluate("window.pwned") is None
    assert page.locator("img[src=x]").count() == 0
    assert page.locator("a[href^='javascript']").count() == 0
    (strip,) = [t for t in figures.data(page, "head_map") if "customdata" in t and "y" in t]
    page.get_by_role("tab", name="Numbers").click()
    page.get_by_role("radio", name="Tokens").or_(page.get_by_role("button", name="Tokens")).first.click()
    expect(page.get_by_label("Tokens of").first).to_be_visible(timeout=15_000)
    settle(page)
    with page.expect_download() as started:
        page.get_by_role("button", name="CSV", exact=True).click()
    tokens = pd.read_csv(started.value.path(), keep_default_na=False)
    assert len(tokens) == len(strip["y"]) > 40
    assert {"<", "script", ">"} <= set(tokens["token"])
