"""A visitor's own model, from the file chooser to every view; refused, cancelled, and unseen by others."""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from app.views.attention_bring_files import EXAMPLES, packaged
from tests.browser import bring_files, figures
from tests.browser.chromium import settle
from tests.browser.controls import choose, options
from tests.browser.fixtures import OpenPage
from tests.browser.server import Server, seeded_home

pytest.importorskip("torch")
pytestmark = [pytest.mark.browser, pytest.mark.models]
TAB = "attention_sinks?view=Bring+your+own"
NAME = "Yours: LlamaForCausalLM"
TTL = 3


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The app, with visits that end soon after their tab is closed."""
    home = seeded_home(tmp_path_factory.mktemp("bring"))
    with Server(home, options={"server.disconnectedSessionTTL": str(TTL)}) as server:
        yield server


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return bring_files.llama_zip(tmp_path_factory.mktemp("llama"), "secret-llama.zip")


def upload(page: Page, *paths: Path) -> None:
    """Choose files in the drop zone; returns when the page has taken them."""
    page.locator(
        ".stFileUploader input[type=file], [data-testid=stFileUploader] input[type=file]"
    ).first.set_input_files([str(path) for path in paths])
    expect(page.get_by_role("combobox", name="On your shelf")).to_be_visible(timeout=60_000)
    settle(page)


def trace(page: Page) -> None:
    """Press the button and wait for the model to be on screen."""
    page.get_by_role("button", name="Trace it").click(timeout=60_000)
    expect(page.get_by_text("Traced in")).to_be_visible(timeout=120_000)
    settle(page)


def test_a_model_is_inspected_traced_compared_and_taken_along(
    open_page: OpenPage, live: Server, llama: Path, tmp_path: Path
) -> None:
    page = open_page(TAB, server=live)
    upload(page, llama)
    expect(page.get_by_text("LlamaForCausalLM (llama)")).to_be_visible(timeout=60_000)
    expect(page.get_by_label(re.compile("Bytes by type of number: F32"))).to_be_visible()
    assert "of LlamaForCausalLM" not in page.content()

    page.get_by_role("spinbutton", name="Chunks").fill("2")
    page.get_by_role("spinbutton", name="Chunks").press("Enter")
    settle(page)
    trace(page)
    expect(page.get_by_role("combobox", name="Model", exact=True)).to_be_visible()
    expect(page.get_by_text(f"Every head of {NAME}").first).to_be_visible(timeout=15_000)
    cells = figures.data(page, "heads")[0]
    assert (len(cells["x"]), len(cells["y"])) == (bring_files.LAYERS, bring_files.HEADS)
    assert "secret" not in page.url
    assert "secret" not in live.log.read_text()

    page.get_by_role("tab", name="Compare").click()
    expect(page.get_by_role("combobox", name="Beside it, model")).to_be_visible(timeout=15_000)
    choose(page, "Beside it, model", "all-MiniLM-L6-v2")
    expect(page.get_by_text("of heads sink at ε").first).to_be_visible(timeout=15_000)

    # The model stays for the visit: away to another page and back, it can be chosen again.
    assert "Yours" in page.url
    page.get_by_role("link", name="Ledger").click()
    expect(page).to_have_url(re.compile("ledger"))
    settle(page)
    page.get_by_role("link", name="Attention sinks").click()
    settle(page)
    choose(page, "Model", "Yours")
    expect(page.get_by_text(f"of {NAME}").first).to_be_visible(timeout=15_000)

    page.get_by_role("tab", name="Numbers").click()
    expect(page.get_by_role("button", name="Traces (Parquet, zip)")).to_be_visible(timeout=15_000)
    with page.expect_download() as started:
        page.get_by_role("button", name="Traces (Parquet, zip)").click()
    with zipfile.ZipFile(started.value.path()) as archive:
        assert "attention_heads-000.parquet" in archive.namelist()
        assert json.loads(archive.read("manifest.json"))
    with page.expect_download() as started:
        page.get_by_role("button", name="Report (HTML)").click()
    report = Path(started.value.path()).read_text()
    assert "LlamaForCausalLM" in report
    assert "Plotly" in report

    page.get_by_role("tab", name="Bring your own").click()
    page.get_by_role("button", name="Remove").click(timeout=15_000)
    settle(page)
    assert options(page, "Model", "Yours") == 0


def test_several_files_are_one_model_and_its_statistics_come_on_demand(
    open_page: OpenPage, live: Server, tmp_path: Path
) -> None:
    page = open_page(TAB, server=live)
    upload(page, *bring_files.llama_files(tmp_path / "files"))
    page.get_by_text(re.compile(r"^Tensors \(")).click(timeout=60_000)
    page.get_by_role("button", name="Compute statistics").click()
    expect(page.get_by_text("Every entry is a finite number.")).to_be_visible(timeout=60_000)


def test_maps_need_no_text(open_page: OpenPage, live: Server, tmp_path: Path) -> None:
    page = open_page(TAB, server=live)
    upload(page, bring_files.maps_npy(tmp_path))
    expect(page.get_by_text("the maps are there already")).to_be_visible(timeout=60_000)
    trace(page)
    cells = figures.data(page, "heads")[0]
    assert (len(cells["x"]), len(cells["y"])) == (bring_files.LAYERS, bring_files.HEADS)
    expect(page.get_by_text("Every head of Yours").first).to_be_visible(timeout=15_000)


@pytest.mark.parametrize(
    ("key", "name", "shape", "word"),
    [
        ("minilm", "MiniLM, ONNX", (3, 12), "beginning"),
        ("ocr", "PP-OCRv4 recogniser, ONNX", (2, 8), "column 0"),
    ],
)
def test_packaged_examples_work_like_an_upload(
    open_page: OpenPage, live: Server, key: str, name: str, shape: tuple[int, int], word: str
) -> None:
    (example,) = [e for e in EXAMPLES if e.key == key]
    if packaged(example.module, example.file) is None:
        pytest.skip(f"{example.package} is not installed")
    page = open_page(TAB, server=live)
    page.get_by_role("button", name=name).click()
    trace(page)
    cells = figures.data(page, "heads")[0]
    assert (len(cells["x"]), len(cells["y"])) == shape
    (strip,) = [t for t in figures.data(page, "head_map") if "customdata" in t and "y" in t]
    assert any(word in label for label in strip["text"])


def test_cancel_stops_and_the_model_can_be_traced_again(
    open_page: OpenPage, live: Server, tmp_path: Path
) -> None:
    page = open_page(TAB, server=live)
    upload(page, bring_files.llama_zip(tmp_path, layers=24))
    for name, value in (("Tokens in a chunk", "1024"), ("Chunks", "20")):
        box = page.get_by_role("spinbutton", name=name)
        box.fill(value, timeout=60_000)
        box.press("Enter")
        settle(page)
    page.get_by_role("button", name="Trace it").click()
    page.get_by_role("button", name="Cancel").click(timeout=30_000)
    expect(page.get_by_text("Cancelled. Nothing was kept.")).to_be_visible(timeout=15_000)
    settle(page)
    assert options(page, "Model", "Yours") == 0
    for name, value in (("Tokens in a chunk", "16"), ("Chunks", "1")):
        box = page.get_by_role("spinbutton", name=name)
        box.fill(value)
        box.press("Enter")
        settle(page)
    trace(page)


def test_a_pickle_is_refused_and_does_nothing(open_page: OpenPage, live: Server, tmp_path: Path) -> None:
    marker = tmp_path / "pwned"
    page = open_page(TAB, server=live)
    upload(page, bring_files.evil_pickle(tmp_path, marker))
    expect(page.get_by_text("This is not taken")).to_be_visible(timeout=60_000)
    expect(page.get_by_text("pytorch_model.bin").first).to_be_visible()
    expect(page.get_by_role("button", name="Trace it")).to_have_count(0)
    assert not marker.exists()


def test_visitors_see_nothing_of_each_other(
    open_page: OpenPage, live: Server, llama: Path, tmp_path: Path
) -> None:
    one, other = open_page(TAB, server=live), open_page(TAB, server=live)
    upload(one, llama)
    upload(other, bring_files.maps_npy(tmp_path, "other-maps.npy"))
    trace(one)
    settle(other)
    assert "secret-llama" not in other.content()
    assert "other-maps" not in one.content()
    assert options(other, "Model", "LlamaForCausalLM") == 0
    third = open_page(one.url.removeprefix(f"{live.url}/"), server=live)
    expect(third.get_by_text("kept for one visit")).to_be_visible(timeout=15_000)
    assert options(third, "Model", "Yours") == 0


def test_uploads_past_the_page_are_refused(open_page: OpenPage, live: Server, problems: list[str]) -> None:
    page = open_page(TAB, server=live)
    target = f"{live.url}/_stcore/upload_file"
    forged = page.request.put(
        f"{target}/00000000-0000-0000-0000-000000000000/1",
        multipart={"file": {"name": "a.exe", "mimeType": "application/x-msdownload", "buffer": b"MZ"}},
    )
    assert forged.status in (400, 403)
    assert page.request.post(f"{target}/x/1", data=b"MZ").status in (400, 403, 405)
    huge = page.request.put(
        f"{target}/00000000-0000-0000-0000-000000000000/1",
        headers={"Content-Length": str(3 * 2**30)},
        data=b"x",
    )
    assert huge.status in (400, 403, 413)
    problems.clear()
