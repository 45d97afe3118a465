"""The attention page under a visitor's hands: what is clicked, typed, linked and downloaded."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlencode, urlsplit

import numpy as np
import pandas as pd
import pytest
from playwright.sync_api import Page, expect

from data.records import attention_sinks_queries as queries
from data.store import Store, open_store
from tests.browser import figures
from tests.browser.chromium import settle
from tests.browser.controls import choose
from tests.browser.fixtures import OpenPage
from tests.browser.server import Server

pytestmark = pytest.mark.browser
PAGE = "attention_sinks"


@pytest.fixture
def store(server: Server) -> Iterator[Store]:
    """The traces that the app shows, read independently of it."""
    with open_store(server.home / "traces.duckdb") as store:
        yield store


@pytest.fixture
def run(store: Store) -> str:
    """The run that the page opens with: SmolLM2 on 20 chunks of Genesis, without BOS."""
    runs = queries.trace_runs(store)
    chosen = runs[
        (runs.subject == "smollm2-135m-instruct") & (runs.text == "kjv") & (runs.length == 64) & ~runs.bos
    ]
    return str(chosen.run_id.iloc[0])


def head_title(page: Page, layer: int, head: int) -> None:
    expect(page.get_by_text(f"Layer {layer}, head {head}: who looks at whom")).to_be_visible(timeout=15_000)
    settle(page)


def parameters(page: Page) -> dict[str, str]:
    return {key: values[-1] for key, values in parse_qs(urlsplit(page.url).query).items()}


def shows_head(page: Page, store: Store, run: str, layer: int, head: int) -> None:
    """The strip under the map: the first chunk's importances, with the band over all chunks."""
    (curve,) = [t for t in figures.data(page, "head_map") if "customdata" in t and "y" in t]
    band = queries.importance(store, run, layer, head)[["low", "high"]]
    assert np.asarray(curve["customdata"], float) == pytest.approx(band.to_numpy(), abs=1e-6)
    weights = queries.attention_map(store, run, layer, head)
    assert weights is not None
    size = len(weights)
    importance = weights.sum(axis=0) / np.arange(size, 0, -1)  # key k is seen by the size - k last queries
    assert np.asarray(curve["y"], float) == pytest.approx(importance, abs=2e-3)


def test_a_click_on_a_cell_shows_that_head(open_page: OpenPage, store: Store, run: str) -> None:
    page = open_page(PAGE)
    before = figures.data(page, "head_map")
    figures.click(page, "heads", 20, 5)
    head_title(page, 20, 5)
    after = figures.data(page, "head_map")
    assert [t.get("source") for t in after] != [t.get("source") for t in before]
    shows_head(page, store, run, 20, 5)
    assert {key: float(parameters(page)[key]) for key in ("layer", "head")} == {"layer": 20, "head": 5}
    expect(page.get_by_role("spinbutton", name="Layer")).to_have_value("20")
    expect(page.get_by_role("spinbutton", name="Head")).to_have_value("5")


def test_layer_and_head_can_be_typed(open_page: OpenPage, store: Store, run: str) -> None:
    page = open_page(PAGE)
    layer = page.get_by_role("spinbutton", name="Layer")
    layer.fill("7")
    layer.press("Enter")
    head_title(page, 7, 4)
    head = page.get_by_role("spinbutton", name="Head")
    head.press("ArrowUp")
    head.press("Enter")
    head_title(page, 7, 5)
    shows_head(page, store, run, 7, 5)


def test_the_map_of_heads_holds_the_store_s_sink_rates(open_page: OpenPage, store: Store, run: str) -> None:
    page = open_page(PAGE + "?eps=0.5")
    (drawn,) = [t for t in figures.data(page, "heads") if t["type"] == "heatmap"]
    rates = queries.sink_rates(store, run, 0.5).pivot(index="head", columns="layer", values="sink_rate")
    assert np.asarray(drawn["z"], float) == pytest.approx(rates.to_numpy(), abs=1e-6)
    above = (queries.sink_rates(store, run, 0.5).sink_rate).mean()
    expect(
        page.get_by_text(re.compile(rf"^{above:.0%}".replace("%", r"\s%") + " of the 270 heads"))
    ).to_be_visible()


def test_metric_and_threshold_redraw_the_map(open_page: OpenPage, store: Store, run: str) -> None:
    page = open_page(PAGE)
    choose(page, "Metric", "entropy")
    expect(page).to_have_url(re.compile("metric="))
    settle(page)
    (drawn,) = [t for t in figures.data(page, "heads") if t["type"] == "heatmap"]
    entropy = queries.heads(store, run).pivot(index="head", columns="layer", values="row_entropy_bits")
    assert np.asarray(drawn["z"], float) == pytest.approx(entropy.to_numpy(), abs=1e-5)

    slider = page.get_by_role("slider", name="Sink threshold")
    slider.focus()
    slider.press("ArrowRight")
    expect(page).to_have_url(re.compile(r"eps=0\.35"))
    settle(page)
    expect(page.get_by_text("more than 35")).to_be_visible()


def test_a_link_reproduces_the_screen(open_page: OpenPage) -> None:
    first = open_page(PAGE)
    figures.click(first, "heads", 25, 2)
    head_title(first, 25, 2)
    first.get_by_role("tab", name="All heads").click()
    expect(first).to_have_url(re.compile("view="))
    settle(first)
    first.get_by_role("button", name="Share").click()
    link = first.get_by_test_id("stPopoverBody").locator("code")
    expect(link).to_contain_text("layer=25")
    address = urlsplit(link.inner_text())

    second = open_page(f"{PAGE}?{address.query}")
    head_title(second, 25, 2)
    expect(second.get_by_role("tab", name="All heads")).to_have_attribute("aria-selected", "true")
    for key in ("heads", "head_map", "stamps"):
        ours, theirs = figures.data(first, key), figures.data(second, key)
        assert [t.get("source") for t in ours] == [t.get("source") for t in theirs]


HOSTILE = {
    "model": "gpt-5",
    "text": "../../etc/passwd",
    "metric": '<img src=x onerror="window.pwned=1">',
    "eps": "nan",
    "layer": "-1",
    "head": "99999999999999999999999",
    "view": '"><script>window.pwned=1</script>',
    "nonsense": "\u202e\u0000%00",
}


@pytest.mark.parametrize(
    "values",
    [
        HOSTILE,
        {"layer": "1e400", "head": "0x3", "eps": "", "text": "x" * 5000, "view": "[]", "metric": "**b**"},
    ],
    ids=["hostile", "odd"],
)
def test_values_of_a_link_are_input(open_page: OpenPage, values: dict[str, str]) -> None:
    page = open_page(f"{PAGE}?{urlencode(values)}")
    head_title(page, 13, 4)
    for name in set(values) - {"nonsense", "eps"}:
        said = page.get_by_text("The link asks for").filter(has_text=values[name][:30].strip("*"))
        expect(said.first).to_be_visible()
    assert page.evaluate("window.pwned") is None
    assert page.locator("img[src=x]").count() == 0
    assert page.get_by_text("Traceback").count() == 0
    assert page.get_by_test_id("stException").count() == 0


def test_downloads_hold_the_store_s_numbers(open_page: OpenPage, store: Store, run: str) -> None:
    page = open_page(PAGE + "?view=Numbers&eps=0.4")
    files = {}
    for label in ("CSV", "Parquet"):
        with page.expect_download() as started:
            page.get_by_role("button", name=label, exact=True).click()
        files[label] = Path(started.value.path()).read_bytes()
        assert started.value.suggested_filename == f"attention_heads_{run}.{label.lower()}"
    expected = queries.heads(store, run).merge(queries.sink_rates(store, run, 0.4), on=["layer", "head"])
    parquet = pd.read_parquet(io.BytesIO(files["Parquet"]))
    csv = pd.read_csv(io.BytesIO(files["CSV"]))
    csv.columns = [re.sub(r" \[.*\]$", "", name) for name in csv.columns]
    for name in expected.columns:
        wanted = expected[name].to_numpy()
        for got in (parquet[name].to_numpy(), csv[name].to_numpy()):
            assert got == pytest.approx(wanted, rel=1e-6, nan_ok=True), name
    assert len(csv) == len(expected) == 270


def test_every_tab_opens(open_page: OpenPage) -> None:
    page = open_page(PAGE)
    names = page.get_by_role("tab").all_inner_texts()
    assert len(names) >= 8
    for name in names:
        page.get_by_role("tab", name=name).click()
        expect(page.get_by_role("tab", name=name)).to_have_attribute("aria-selected", "true")
        panel = page.get_by_role("tabpanel", name=name)
        expect(panel).to_contain_text(re.compile(r"\w{3}"), timeout=15_000)
        settle(page)
        assert page.get_by_test_id("stException").count() == 0


def test_everything_can_be_reached_by_keyboard(open_page: OpenPage) -> None:
    page = open_page(PAGE)
    reached = []
    for _ in range(60):
        page.keyboard.press("Tab")
        reached.append(
            page.evaluate(
                "() => { const e = document.activeElement; return (e.getAttribute('aria-label')"
                " || e.labels?.[0]?.innerText || e.innerText || '').trim(); }"
            )
        )
    text = "\n".join(reached)
    for wanted in (
        "Ledger",
        "Share",
        "Model",
        "Text",
        "Metric",
        "Sink threshold",
        "Layer",
        "Head",
        "Where sinks",
    ):
        assert wanted in text, f"{wanted} is not reached"
    tab = page.get_by_role("tab", name="Where sinks live")
    tab.focus()
    tab.press("ArrowRight")
    expect(page.get_by_role("tab", name="What if")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_role("tab", name="What if")).to_have_attribute("aria-selected", "true")
    settle(page)
