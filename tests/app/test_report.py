"""The report of a run: self-contained, its numbers those of the headline, strangers' words inert."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest

from app.figures.base import share
from app.report import html
from app.report_page import rich
from data.errors import CloudChamberError
from data.publish import publish
from data.records import attention_sinks_queries as queries
from data.records.attention_sinks import TABLES
from data.store import Store, open_store
from precompute.studies.attention_sinks import STUDY
from tests.app import attention_store, brought_store
from tests.app.brought_store import EVIL

EPS = 0.3


class Reader(HTMLParser):
    """Tags with their attributes, and the text outside scripts and styles."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self._skip = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._skip = tag in ("script", "style")

    def handle_endtag(self, tag: str) -> None:
        self._skip = False

    def handle_data(self, data: str) -> None:
        if not self._skip:
            self.words.append(data)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    folder = tmp_path_factory.mktemp("report")
    hostile = brought_store.card(name=EVIL, architecture=EVIL, family=EVIL, format=EVIL, tokenizer=EVIL)
    runs = [
        brought_store.trace(folder / "a"),
        brought_store.trace(
            folder / "b",
            brought_store.BARE,
            windows=[None] * 6,
            words=(EVIL, "</script><script>alert(1)</script>"),
            model=hostile,
        ),
        attention_store.trace(folder / "c", attention_store.config(maps=False)),
    ]
    publish(folder / "traces.duckdb", runs, TABLES)
    with open_store(folder / "traces.duckdb") as opened:
        yield opened


def run_of(store: Store, subject: str) -> str:
    runs = queries.trace_runs(store)
    return str(runs.loc[runs["subject"] == subject, "run_id"].iloc[0])


def read(store: Store, subject: str) -> tuple[str, Reader]:
    text = html(store, run_of(store, subject), EPS)
    reader = Reader()
    reader.feed(text)
    return text, reader


def test_it_asks_the_network_for_nothing(store: Store) -> None:
    text, reader = read(store, brought_store.WINDOWED)
    links = [a["href"] for _, a in reader.tags if "href" in a]
    assert sorted(map(str, links)) == sorted(paper.url for paper in STUDY.papers)
    assert not [a for _, a in reader.tags if "src" in a]
    assert "default-src 'none'" in text
    assert text.count("Plotly.js v") + text.count("plotly.js v") >= 1
    assert "url(http" not in re.sub(r"<script.*?</script>", "", text, flags=re.S)


def test_its_numbers_are_the_headlines(store: Store) -> None:
    run = run_of(store, brought_store.WINDOWED)
    found = queries.headline(store, run, EPS)
    text, reader = read(store, brought_store.WINDOWED)
    tiles = dict(re.findall(r'<b data-key="(\w+)">([^<]*)</b>', text))
    assert tiles["sink_rate"] == share(found["sink_rate"]).replace("\N{NO-BREAK SPACE}", " ") == "75 %"
    assert tiles["first_token_mass"] == share(found["first_token_mass"]).replace("\N{NO-BREAK SPACE}", " ")
    assert tiles["shape"] == "6 × 2"
    said = " ".join(reader.words)
    assert "cannot show a sink at ε = 0.30" in said
    assert "Gemma3ForCausalLM, 268.1 M" in said


@pytest.mark.parametrize("subject", [brought_store.WINDOWED, brought_store.BARE, attention_store.SMOLLM2])
def test_every_figure_is_there_in_both_modes(store: Store, subject: str) -> None:
    text, reader = read(store, subject)
    named = [a["id"] for tag, a in reader.tags if tag == "div" and a.get("class") == "plot"]
    assert named == ["heads", "depth", "head", "threshold"]
    blocks = re.findall(r'data-figure="(\w+)" data-mode="(\w+)">(.*?)</script>', text, re.S)
    assert [(n, m) for n, m, _ in blocks] == [(n, m) for n in named for m in ("light", "dark")]
    assert all(json.loads(body)["data"] for _, _, body in blocks)
    assert all(a.get("aria-label") for tag, a in reader.tags if a.get("class") == "plot")


def test_strangers_words_are_inert(store: Store) -> None:
    text, reader = read(store, brought_store.BARE)
    assert not [tag for tag, _ in reader.tags if tag == "img"]
    assert EVIL not in text
    assert "<script>alert(1)" not in text
    scripts = [a for tag, a in reader.tags if tag == "script"]
    assert len(scripts) == 2 + 8  # the library, the few lines that draw, four figures in two modes
    assert not [a for _, a in reader.tags if any(name.startswith("on") for name in a)]


def test_readings_become_html() -> None:
    assert rich("**a** \\*b\\* `c` <i> &amp; 5 %") == (
        "<strong>a</strong> *b* <code>c</code> &lt;i&gt; &amp; 5 %"
    )
    assert rich("**open") == "<strong>open</strong>"


def test_a_run_that_is_not_there_is_an_error_of_ours(store: Store) -> None:
    with pytest.raises(CloudChamberError, match="no finished run"):
        html(store, "0" * 16, EPS)


def test_it_is_written_without_streamlit() -> None:
    import subprocess
    import sys

    code = "import sys, app.report; print([m for m in ('streamlit', 'torch') if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).resolve().parents[2],
    )
    assert done.stdout.strip() == "[]"
