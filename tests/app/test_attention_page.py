"""The attention page under every one of its controls, on a store with known numbers."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import streamlit as st
from streamlit.testing.v1 import AppTest

from app.figures.attention_metrics import METRICS
from app.views import attention_text
from app.views.attention_tabs import NAMES
from data.paths import published_dir
from data.publish import StagedRun, import_published, publish
from data.records import attention_sinks_queries as queries
from data.records.attention_sinks import TABLES
from data.store import open_store
from tests.app import attention_store
from tests.app.attention_store import publish_all
from tests.app.small_store import stage

PAGE = Path(__file__).resolve().parents[2] / "app" / "pages" / "attention_sinks.py"
OWN = "Bring your own"


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("published") / "traces.duckdb"
    publish_all(path)
    return path.read_bytes()


@pytest.fixture
def home(tmp_path: Path, published: bytes, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A home with the store; what pages cached is dropped at the end, workers included."""
    monkeypatch.setenv("CLOUDCHAMBER_HOME", str(tmp_path))
    (tmp_path / "traces.duckdb").write_bytes(published)
    yield tmp_path
    st.cache_resource.clear()


def visit(**params: str) -> AppTest:
    at = AppTest.from_file(str(PAGE), default_timeout=30)
    at.query_params.update(params)
    at.run()
    assert not at.exception, at.exception
    return at


def words(at: AppTest) -> str:
    """Everything the page says, numbers with plain spaces."""
    found = [*at.title, *at.header, *at.markdown, *at.caption]
    return "\n".join(str(element.value) for element in found).replace("\N{NO-BREAK SPACE}", " ")


def figures(at: AppTest) -> list[str]:
    """The descriptions of the figures on the page."""
    return [chart.proto.alt for chart in at.get("plotly_chart")]


def test_page_opens_with_the_question_and_the_reading(home: Path) -> None:
    at = visit()
    assert at.title[0].value == "Attention sinks"
    said = words(at)
    assert "Where does attention go when it has nowhere to go?" in said
    # 9 of 15 heads are above 0.3; layers 0 and 2 have none.
    assert "**60 % of the 15 heads** give the first token more than 30 % of their attention" in said
    assert (
        "Layer 2 has **no sink at all**, although the layers on both sides do. Sinks begin in layer 1."
        in said
    )
    assert "**Layer 1, head 2**: who looks at whom, first chunk" in said
    assert len(figures(at)) == 6
    assert all(len(alt) > 40 for alt in figures(at))


def test_every_metric_colours_the_map(home: Path) -> None:
    at = visit()
    for slug, metric in METRICS.items():
        at.selectbox(key="metric").set_value(slug).run()
        assert not at.exception
        assert f"coloured by {metric.title.lower()}" in figures(at)[0]
        assert (metric.title + ": from" in words(at)) == (slug != "sink")


def test_every_model_and_text_is_drawn(home: Path) -> None:
    at = visit()
    seen = 0
    for model in at.selectbox(key="model").options:
        at.selectbox(key="model").select(model).run()
        for text in list(at.selectbox(key="text").options):
            at.selectbox(key="text").select(text).run()
            assert not at.exception
            seen += 1
    assert seen == 5


def test_text_keeps_when_the_model_changes(home: Path) -> None:
    at = visit()
    at.selectbox(key="model").set_value(attention_store.MINILM).run()
    assert at.selectbox(key="text").value == "kjv-2x24-bare"
    assert "3 queries" not in figures(at)[0]
    assert "2 layers by 2 heads" in figures(at)[0]


def test_threshold_recounts(home: Path) -> None:
    at = visit()
    at.slider(key="eps").set_value(0.85).run()
    assert "**13 % of the 15 heads** give the first token more than 85 %" in words(at)


def test_layer_and_head_choose_the_map(home: Path) -> None:
    at = visit()
    at.number_input(key="layer").set_value(3).run()
    at.number_input(key="head").set_value(0).run()
    assert not at.exception
    assert "**Layer 3, head 0**: who looks at whom" in words(at)
    assert any(alt.startswith("Attention of layer 3, head 0: 24 queries by 24 keys") for alt in figures(at))
    linked = visit(layer="3", head="0")
    assert "**Layer 3, head 0**: who looks at whom" in words(linked)


def test_a_run_without_maps_shows_the_curve_and_says_so(home: Path) -> None:
    at = visit(text="Encyclopaedia prose, no BOS, 3 × 24")
    assert "This run keeps no maps" in words(at)
    assert any(alt.startswith("Importance of every key position of layer") for alt in figures(at))
    at = visit(text="Encyclopaedia prose, no BOS, 3 × 24", view="All heads")
    assert "This run keeps no maps." in words(at)


@pytest.mark.parametrize("view", NAMES)
def test_every_tab_is_drawn_and_only_the_open_one(home: Path, view: str) -> None:
    at = visit(view=view)
    said, charts = words(at), len(figures(at))
    expected, count = {
        "Where sinks live": ("By kind of token", 6),
        "What if": ("the sink belongs to the position, not to the token", 4),
        "Streaming": ("**1 kept token repairs it.**", 3),
        "Compare": ("of heads sink at ε = 0.30", 6),
        "All heads": ("A line down the left edge of a stamp", 3),
        "Claims": ("Most heads of a pretrained language model sink on the first token.", 2),
        "Numbers": ("Layer 1, head 2", 2),
        "How this is computed": ("**Traps**", 2),
        OWN: ("nobody else sees it", 2),
    }[view]
    assert expected in said
    assert charts == count


def test_tabs_of_a_model_without_such_runs_say_what_to_do(home: Path) -> None:
    for view in ("What if", "Streaming"):
        at = visit(model="all-MiniLM-L6-v2", view=view)
        assert "run of all-MiniLM-L6-v2." in words(at)
        assert "cloudchamber precompute attention_sinks" in words(at)


def test_compare_takes_another_model_and_another_text(home: Path) -> None:
    at = visit(view="Compare")
    for text in list(at.selectbox(key="with_text").options):
        at.selectbox(key="with_text").select(text).run()
        assert not at.exception
    at.selectbox(key="with_model").set_value(attention_store.MINILM).run()
    assert not at.exception
    assert "The models have different heads, so cells do not correspond." in words(at)


def test_every_table_of_numbers_is_what_the_store_holds(home: Path) -> None:
    at = visit(view="Numbers")
    assert len(at.dataframe[0].value) == 15
    tables = at.get("button_group")[0]
    lengths = {}
    for name in tables.options:
        at = visit(view="Numbers", table=str(getattr(name, "content", name)))
        lengths[str(getattr(name, "content", name))] = len(at.dataframe[0].value)
    assert lengths == {
        "All heads": 15,
        "Layers: hidden states": 6,
        "Importance, layer 1 head 2": 24,
        "Tokens": 24,
        "Sinks by kind of token": 4,
    }
    with open_store(home / "traces.duckdb") as store:
        run = queries.trace_runs(store).query("text == 'kjv' and not bos and samples == 2").iloc[-1]
        assert len(queries.importance(store, run["run_id"], 1, 2)) == 24


def saved_as(at: AppTest) -> set[str]:
    """The formats in which the cameras of the page's figures save."""
    charts = at.get("plotly_chart")
    return {json.loads(chart.proto.config)["toImageButtonOptions"]["format"] for chart in charts}


def test_figures_are_saved_as_svg_when_asked_on_the_whole_page(home: Path) -> None:
    at = visit(view="Numbers")
    assert saved_as(at) == {"png"}
    at.segmented_control(key="figure_format_control").set_value("SVG").run()
    assert not at.exception
    assert saved_as(at) == {"svg"}
    kept = at.session_state["figure_format"]  # no widget's key: it holds when the tab is closed
    for view in ("Streaming", "Numbers"):
        again = AppTest.from_file(str(PAGE), default_timeout=30)
        again.query_params["view"] = view
        again.session_state["figure_format"] = kept
        again.run()
        assert saved_as(again) == {"svg"}
    assert again.segmented_control(key="figure_format_control").value == "SVG"
    again.segmented_control(key="figure_format_control").set_value("PNG").run()
    assert saved_as(again) == {"png"}


def failed(folder: Path, error: str, **settings: object) -> StagedRun:
    """A run that failed."""
    run = replace(attention_store.row(attention_store.config(**settings)), status="failed", error=error)
    return stage(folder / run.run_id, run, {})


def test_runs_that_failed_are_said_beside_those_that_did_not(home: Path, tmp_path: Path) -> None:
    assert "failed" not in words(visit())
    one = failed(tmp_path / "failed", "ValueError: no\n\nTraceback …", text="random")
    publish(home / "traces.duckdb", [one], TABLES)
    at = visit()
    assert f"A run failed and is not shown: `{one.row.run_id}`. `cloudchamber precompute` tries it" in words(
        at
    )
    more = [failed(tmp_path / "failed", "no", text="random", length=n) for n in range(8, 12)]
    publish(home / "traces.duckdb", more, TABLES)
    said = words(visit())
    assert "5 runs failed and are not shown: `" in said
    assert "and 2 more. `cloudchamber precompute` tries them again" in said
    assert "who looks at whom" in said


def test_only_failed_runs_say_what_went_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLOUDCHAMBER_HOME", str(tmp_path))
    error = "ValueError: no <b>text in /home/someone/text.txt\n\nTraceback (most recent call last):\n  File"
    run = failed(tmp_path / "failed", error)
    publish(tmp_path / "traces.duckdb", [run], TABLES)
    said = words(visit())
    assert f"Run `{run.row.run_id}` failed and has no traces." in said
    assert "ValueError\\: no \\<b\\>text in text.txt" in said
    assert "Traceback" not in said
    assert "/home" not in said
    assert "no attention traces yet" not in said
    st.cache_resource.clear()


def test_values_of_a_link_that_do_not_exist_are_said(home: Path) -> None:
    at = visit(
        model="gpt-5", text="../../etc/passwd", metric="<img src=x>", layer="-1", head="1e400", view="[]"
    )
    said = words(at)
    for asked in ("gpt-5", "../../etc/passwd", "-1", "1e400"):
        assert f"The link asks for “{asked}”" in said
    assert "<img" not in said.replace("\\<img", "")
    assert at.selectbox(key="model").value == attention_store.SMOLLM2


def test_an_empty_store_says_what_to_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLOUDCHAMBER_HOME", str(tmp_path))
    publish(tmp_path / "traces.duckdb", [attention_store.stream(tmp_path / "staged")], TABLES)
    at = visit()
    assert "The store holds no attention traces yet." in words(at)
    st.cache_resource.clear()


def test_no_text_is_said_before_anything_runs(home: Path) -> None:
    at = visit(view=OWN)
    at.segmented_control(key="bring_source").set_value("reference").run()
    at.button(key="own_go").click().run()
    assert not at.exception
    assert "There is no text to trace yet." in words(at)
    at.text_area(key="own_content").set_value("  \n ")
    at.button(key="own_go").click().run()
    assert "There is no text to trace yet." in words(at)


def test_a_model_that_is_not_installed_says_how_to_get_it(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attention_text.missing.cache_clear()
    monkeypatch.setattr(attention_text, "_LIBRARIES", ("torch", "no_such_library"))
    try:
        at = visit(view=OWN)
        at.segmented_control(key="bring_source").set_value("reference").run()
    finally:
        attention_text.missing.cache_clear()
    assert "is not installed here" in words(at)
    assert "make setup" in words(at)
    assert at.button(key="own_go").disabled


@pytest.fixture
def shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A home with the traces that ship."""
    if not (published_dir() / "manifest.json").exists():
        pytest.skip("no traces ship with this checkout")
    monkeypatch.setenv("CLOUDCHAMBER_HOME", str(tmp_path))
    import_published(published_dir(), tmp_path / "traces.duckdb", TABLES)
    yield
    st.cache_resource.clear()


def test_shipped_traces_say_where_smollm2_has_no_sink(shipped: None) -> None:
    at = visit()
    said = words(at)
    assert re.search(r"\*\*7\d % of the 270 heads\*\* give the first token more than 30 %", said)
    assert "Layer 11 has **no sink at all**" in said
    for model in ("all-MiniLM-L6-v2", "RXNMapper ALBERT"):
        at.selectbox(key="model").select(model).run()
        assert not at.exception
        assert f"of {model}" in words(at)


def test_shipped_traces_fill_every_tab(shipped: None) -> None:
    for view in NAMES:
        at = visit(view=view)
        assert all(len(alt) > 40 for alt in figures(at))
        assert "There is no" not in words(at)
