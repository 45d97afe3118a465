"""Words and files that come from elsewhere: shown as they are, run by nobody."""

from __future__ import annotations

import io
import json

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from app.widgets.downloads import columns_of, to_csv, to_parquet
from app.widgets.explain import source_code
from app.widgets.prose import cite, cite_short, inert, sentence
from app.widgets.provenance import provenance_rows
from data.paths import source_root
from data.records.attention_sinks import HEADS, TOKENS
from precompute.registry import STUDIES
from precompute.study import Paper
from tests.app.small_store import run_row


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain", "plain"),
        ("<b>x</b>", r"\<b\>x\</b\>"),
        ("**bold** `code` [a](b)", r"\*\*bold\*\* \`code\` \[a\](b)"),
        (":material/home: $x$", r"\:material/home\: \$x\$"),
        ("a\u202eb\u200bc\ud800", "a\ufffdb\ufffdc\ufffd"),
        ("x" * 300, "x" * 199 + "…"),
    ],
)
def test_foreign_text_is_inert(text: str, shown: str) -> None:
    assert inert(text) == shown


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("Run `cloudchamber precompute`.", "Run `cloudchamber precompute`."),
        ("Cannot open /home/someone/.cloudchamber/traces.duckdb: no.", r"Cannot open traces.duckdb\: no."),
        ("Delete `/var/lib/x/traces.duckdb.wal`; go on.", "Delete `traces.duckdb.wal`; go on."),
        ("store and/or cache, 10 tokens/s", "store and/or cache, 10 tokens/s"),
        ("see https://arxiv.org/abs/2410.10781", r"see https\://arxiv.org/abs/2410.10781"),
        ("one ` backtick and <i>", r"one \` backtick and \<i\>"),
    ],
)
def test_messages_keep_code_and_tell_no_path(message: str, shown: str) -> None:
    assert sentence(message) == shown


def test_papers_are_cited_with_a_link() -> None:
    many = Paper("k", "A Title", "Gu, Pang, Du", "ICLR", 2025, "https://example.org/a")
    one = Paper("k", "A Title", "Gu", "ICLR", 2025, "https://example.org/a")
    assert cite(many) == "[Gu et al. 2025](https://example.org/a), A Title (ICLR)"
    assert cite_short(one) == "[Gu 2025](https://example.org/a)"


def test_csv_cells_are_never_formulas_and_headers_carry_units() -> None:
    frame = pd.DataFrame(
        {
            "token": ["=cmd|' /C calc'!A0", "+1", "-", "@SUM(A1)", "\tx", "plain", 'a"b,c', None],
            "first_token_mass": [-0.5, 0.25, 0, 1, 1, 1, 1, np.nan],
            "importance": [[0.5, 0.5]] * 8,
            "=evil": range(8),
        }
    )
    text = to_csv(frame, columns_of(TOKENS, HEADS)).decode("utf-8")
    read = pd.read_csv(io.StringIO(text), keep_default_na=False)
    assert list(read.columns) == ["token", "first_token_mass [share]", "importance [share]", "'=evil"]
    formulas = ["'=cmd|' /C calc'!A0", "'+1", "'-", "'@SUM(A1)", "'\tx"]
    assert list(read["token"]) == [*formulas, "plain", 'a"b,c', ""]
    assert float(read["first_token_mass [share]"][0]) == -0.5  # a negative number is a number
    assert json.loads(read["importance [share]"][0]) == [0.5, 0.5]


def test_csv_survives_text_that_is_not_text() -> None:
    frame = pd.DataFrame({"token": pd.Series(["a\ud800b", "line\nbreak"], dtype=object)})
    read = pd.read_csv(io.StringIO(to_csv(frame).decode("utf-8")))
    assert list(read["token"]) == ["a?b", "line\nbreak"]


def test_parquet_is_exact_and_carries_units() -> None:
    frame = pd.DataFrame({"token": ["=cmd"], "first_token_mass": np.float32([0.1]), "mine": [1]})
    read = pq.read_table(pa.BufferReader(to_parquet(frame, columns_of(TOKENS, HEADS))))
    assert read["token"].to_pylist() == ["=cmd"]
    assert read["first_token_mass"].to_pylist() == [np.float32(0.1)]
    field = read.schema.field("first_token_mass").metadata
    assert field[b"unit"] == b"share"
    assert field[b"meaning"].decode() == HEADS.column("first_token_mass").meaning
    assert not read.schema.field("mine").metadata


def test_source_code_is_read_without_importing() -> None:
    path, line, code = source_code("app.figures.numbers:share")
    assert path == "app/figures/numbers.py"
    assert code.startswith("def share(")
    assert code.endswith('.replace("-", "−")')
    lines = (source_root() / path).read_text(encoding="utf-8").splitlines()
    assert lines[line - 1] == code.splitlines()[0]
    with pytest.raises(LookupError, match="defines no"):
        source_code("app.figures.numbers:absent")
    with pytest.raises(LookupError, match="no module"):
        source_code("app.absent:absent")


def test_provenance_says_where_a_run_comes_from() -> None:
    row = run_row()
    rows = dict(provenance_rows(vars(row), STUDIES["attention_sinks"]))
    assert rows["Run"] == f"`{row.run_id}`"
    assert rows["Subject"].startswith("SmolLM2 135M Instruct (Apache-2.0;")
    assert "text kjv" in rows["Configuration"]
    assert "bos no" in rows["Configuration"]
    assert "content" not in rows["Configuration"]  # what is not set is not shown
    assert rows["Device"] == "cpu: no CUDA device is visible"
    assert rows["Versions"] == "python 3.11.2 · torch 2.13.0"
    assert rows["Computed"].replace("\xa0", " ") == "2026-01-02 03:04 UTC, in 1 min 23 s"
    assert rows["Sources"] == "`abababababab…` (study version 1)"


def test_provenance_of_an_unreadable_row_is_inert_text() -> None:
    row = vars(run_row()) | {"config": "<script>", "versions": "[1]", "started": "yesterday"}
    rows = dict(provenance_rows(row))
    assert rows["Configuration"] == r"\<script\>"
    assert rows["Versions"] == r"\[1\]"
    assert rows["Computed"].startswith("yesterday")
