"""Home, ledger and columns on a small real store, and where there is none that can be read."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator
from pathlib import Path

import duckdb
import numpy as np
import pytest
import streamlit as st
from PIL import Image
from streamlit.testing.v1 import AppTest

from app.theme import track_rgb
from app.widgets import claims
from data.errors import CloudChamberError
from data.store import open_store
from precompute.registry import STUDIES
from precompute.study import Claim, ClaimResult, Paper, Study, Verdict
from tests.app.small_store import HEAD_COUNT, LAYER_COUNT, SINKLESS_LAYERS, first_importance, publish_small

MAIN = Path(__file__).resolve().parents[2] / "app" / "main.py"

KRAUSE = len(STUDIES["krause_attention"].claims)  # the small store holds no run of it


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with one run, as bytes to copy."""
    path = tmp_path_factory.mktemp("published") / "traces.duckdb"
    publish_small(path)
    return path


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty home of the app; what pages cached is dropped at the end."""
    monkeypatch.setenv("CLOUDCHAMBER_HOME", str(tmp_path))
    yield tmp_path
    st.cache_resource.clear()


@pytest.fixture
def with_store(home: Path, published: Path) -> Path:
    """A home with the small store."""
    (home / "traces.duckdb").write_bytes(published.read_bytes())
    return home


def visit(page: str = "home", **params: str) -> AppTest:
    """Open a page of the app as a visitor does, through its entry."""
    at = AppTest.from_file(str(MAIN), default_timeout=30).run()
    if page != "home":
        at.query_params.update(params)
        at.switch_page(f"pages/{page}.py").run()
    assert not at.exception
    return at


def words(at: AppTest) -> str:
    """Everything the page says."""
    found = [*at.title, *at.header, *at.subheader, *at.markdown, *at.caption, *at.code, *at.error]
    return "\n".join(str(element.value) for element in found)


def test_home_says_what_it_is_and_leads_on(with_store: Path) -> None:
    at = visit()
    assert [title.value for title in at.title] == ["Cloud Chamber"]
    said = words(at)
    for study in STUDIES.values():
        assert study.question in said
        assert study.summary in said
    assert {metric.label.split(": ")[-1].rstrip("]"): metric.value for metric in at.metric} == {
        "reproduced": "3",
        "not reproduced": "0",
        "true by construction": "0",
        "not testable at this scale": str(5 + KRAUSE),
    }


def test_home_counts_agree_with_the_ledger(with_store: Path) -> None:
    assert f"{8 + KRAUSE} claims, each" in words(visit())
    told = f"{8 + KRAUSE} claims: 3 reproduced and {5 + KRAUSE} not testable at this scale."
    assert told in words(visit("ledger"))


def test_still_shows_the_store(with_store: Path) -> None:
    from app.figures.stills import attention_sinks as stills

    with open_store(with_store / "traces.duckdb") as store:
        uri, caption = stills.still(store, "dark"), stills.caption(store)
    assert uri is not None
    drawn = np.asarray(Image.open(io.BytesIO(base64.b64decode(uri.partition(",")[2]))).convert("RGBA"))
    assert drawn.shape[:2] == (HEAD_COUNT * 32 - 4, LAYER_COUNT * 32 - 4)
    scale = track_rgb("dark", 255)
    for layer, head in ((0, 0), (5, 3), (29, 8)):
        expected = scale[round(254 * first_importance(layer, head))]
        assert drawn[head * 32 + 14, layer * 32 + 14, :3].tolist() == expected.tolist()
    assert drawn[30, 14, 3] == 0  # the gap between two heads
    sinking = LAYER_COUNT - len(SINKLESS_LAYERS)
    mean = np.mean([first_importance(layer, head) for layer, head in np.ndindex(LAYER_COUNT, HEAD_COUNT)])
    assert sinking == 26
    assert f"{LAYER_COUNT} layers across, {HEAD_COUNT} heads down" in caption
    assert f"{100 * mean:.0f}\xa0% on average, 83\xa0% at most" in caption


def test_ledger_shows_every_claim_in_full(with_store: Path) -> None:
    at = visit("ledger")
    said = words(at)
    every = [claim for study in STUDIES.values() for claim in study.claims]
    titles = [header.value for header in at.header]
    assert len(titles) == len(every)
    for claim, title in zip(every, titles, strict=True):
        assert title.replace("\\", "") == claim.text
        assert claim.reported in said.replace("\\", "")
        assert claim.criterion in said.replace("\\", "")
    share_of_heads = 100 * (LAYER_COUNT - len(SINKLESS_LAYERS)) / LAYER_COUNT
    assert f"**{share_of_heads:.0f}\xa0% of heads**" in said
    assert "https://arxiv.org/abs/2410.10781" in said


def test_ledger_filters_by_verdict_from_the_url(with_store: Path) -> None:
    at = visit("ledger", verdict="reproduced")
    assert len(at.header) == 3
    none = visit("ledger", verdict="not reproduced")
    assert not none.header
    assert "No claim has this verdict." in words(none)


def test_columns_documents_every_table_and_column(with_store: Path) -> None:
    at = visit("columns")
    headers = [header.value for header in at.header]
    tables = [table for study in STUDIES.values() for table in study.tables.values()]
    assert headers == [f"`{table.name}`" for table in tables] + ["`runs`", "Words"]
    for table, shown in zip(tables, at.table, strict=False):
        cells = shown.value
        assert [cell.split("`")[1] for cell in cells["column"]] == [column.name for column in table.columns]
        for column, unit, meaning in zip(table.columns, cells["unit"], cells["meaning"], strict=True):
            assert unit.replace("\\", "") == (column.unit or "–")
            assert meaning.replace("\\", "") == column.meaning


def test_columns_finds_by_unit_name_or_meaning(with_store: Path) -> None:
    at = visit("columns", find="gini")
    assert [header.value for header in at.header] == ["`attention_heads`", "`krause_sinks`", "Words"]
    assert at.table[2].value["word"].tolist() == ["gini"]
    nothing = visit("columns", find="no such thing")
    assert "Nothing fits." in words(nothing)


def _truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:5_000])


def _garbage(path: Path) -> None:
    path.write_bytes(b"not a database" * 400)


def _version(path: Path, version: int) -> None:
    with duckdb.connect(str(path)) as connection:
        connection.execute("UPDATE meta SET schema_version = ?", [version])


BROKEN = {
    "missing": (Path.unlink, "No traces yet", "There is no trace store yet.", "`cloudchamber precompute`"),
    "truncated": (_truncated, "The traces cannot be read", "The trace store is damaged", "`make demo`"),
    "garbage": (_garbage, "The traces cannot be read", "The trace store is damaged", "`make demo`"),
    "newer": (
        lambda path: _version(path, 99),
        "These traces are newer than the app",
        "written by a newer version",
        "Update Cloud Chamber",
    ),
    "older": (
        lambda path: _version(path, 0),
        "These traces are older than the app",
        "older than this code",
        "`cloudchamber precompute`",
    ),
}


@pytest.mark.parametrize("page", ["home", "ledger"])
@pytest.mark.parametrize("state", list(BROKEN))
def test_a_store_that_cannot_be_read_is_a_page(state: str, page: str, with_store: Path) -> None:
    spoil, title, message, remedy = BROKEN[state]
    spoil(with_store / "traces.duckdb")
    at = visit(page)
    said = words(at)
    assert title in [header.value for header in at.header]
    assert message in said.replace("\\", "")
    assert remedy in said.replace("\\", "")
    assert str(with_store) not in said
    assert "Traceback" not in said
    if page == "home":  # what needs no traces is still there
        assert next(iter(STUDIES.values())).question in said


def test_columns_needs_no_store(home: Path) -> None:
    assert [title.value for title in visit("columns").title] == ["Columns"]


def test_a_store_that_appears_or_changes_is_seen_without_a_restart(home: Path, published: Path) -> None:
    path = home / "traces.duckdb"
    at = visit()
    assert "There is no trace store yet." in words(at)
    path.write_bytes(published.read_bytes())
    at.run()
    assert [metric.value for metric in at.metric] == ["3", "0", "0", str(5 + KRAUSE)]
    publish_small(path, "random")  # a second run: now two more claims can be measured
    at.run()
    assert [metric.value for metric in at.metric] == ["4", "0", "0", str(4 + KRAUSE)]
    path.unlink()
    at.run()
    assert "There is no trace store yet." in words(at)


def test_a_measurement_that_fails_leaves_its_claim_untested(with_store: Path) -> None:
    def fails(store: object) -> ClaimResult:
        raise CloudChamberError("store_older", "A column is missing.", "Rebuild the store.")

    study = next(iter(STUDIES.values()))
    paper: Paper = study.papers[0]
    claim = Claim("fails", "A claim.", paper.key, "", "", fails)
    broken = Study(**{**vars(study), "slug": "broken", "claims": (claim,)})
    with open_store(with_store / "traces.duckdb") as store:
        (entry,) = claims.entries(store, [broken])
    assert entry.result.verdict is Verdict.untestable
    assert entry.result.detail == "A column is missing. Rebuild the store."
    assert claims.counts([entry])[Verdict.untestable] == 1
    row = claims.ledger_frame([entry]).iloc[0]
    assert (row["verdict"], row["runs"], row["value"]) == ("not testable at this scale", "", None)
