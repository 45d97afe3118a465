"""The data dictionary: every table and column of every study, with unit and meaning."""

from __future__ import annotations

from collections.abc import Iterable

import pandas as pd
import streamlit as st

from app.widgets import controls, prose, share, states
from data.runs import RUNS
from data.schema import DUCKDB_TYPES, Column, TableSpec
from precompute.registry import STUDIES

_OTHERS = {"runs": "Runs", "words": "Words"}


def matches(column: Column, wanted: str) -> bool:
    """Whether a column's name, unit or meaning holds the text, in any case."""
    return wanted.lower() in f"{column.name} {column.unit} {column.meaning}".lower()


def sql_type(column: Column) -> str:
    """A column's type as SQL users see it: "float[]", "varchar or null"."""
    return prose.inert(DUCKDB_TYPES[column.type].lower() + (" or null" if column.nullable else ""))


def column_table(columns: Iterable[Column]) -> pd.DataFrame:
    """Columns as a table of Markdown cells."""
    return pd.DataFrame(
        [
            {
                "column": f"`{column.name}` :small[:gray[{sql_type(column)}]]",
                "unit": prose.inert(column.unit) or "–",
                "meaning": prose.sentence(column.meaning),
            }
            for column in columns
        ]
    )


def table_section(table: TableSpec, wanted: str) -> bool:
    """One table with the columns that fit; False when none does."""
    columns = [column for column in table.columns if matches(column, wanted)]
    if not columns:
        return False
    st.header(f"`{table.name}`", anchor=table.name)
    key = f" One row per {', '.join(table.key)} of a run." if table.key else ""
    st.markdown(prose.sentence(table.meaning + key))
    st.table(column_table(columns), border="horizontal", hide_index=True, alt=f"Columns of {table.name}")
    return True


def words_section(wanted: str) -> bool:
    """The words that the pages use without explaining them; False when none fits."""
    words = {
        term: line for term, line in prose.GLOSSARY.items() if wanted.lower() in f"{term} {line}".lower()
    }
    if not words:
        return False
    st.header("Words", anchor="words")
    rows = pd.DataFrame({"word": list(words), "meaning": [prose.inert(line) for line in words.values()]})
    st.table(rows, border="horizontal", hide_index=True, alt="Words and their meaning")
    return True


def page() -> None:
    prose.page_head(
        "Columns",
        "What does each number mean, and in which unit?",
        "The tables below are declared once; the same declaration checks what is written, makes the "
        "database, labels the downloads and fills this page. Every row also carries the id of its run, "
        "`run_id`.",
    )
    studies = {"": "Everything"} | {study.slug: study.title for study in STUDIES.values()} | _OTHERS
    which, find, sharing = st.columns([2, 3, 1], vertical_alignment="bottom")
    with which:
        study = controls.choice("Study", studies, "study")
    with find:
        wanted = controls.text("Find", "find", longest=80, help="A part of a name, unit or meaning.")
    with sharing:
        share.share_popover()
    groups = [(s.slug, tuple(s.tables.values())) for s in STUDIES.values()] + [("runs", (RUNS,))]
    tables = [table for slug, group in groups if study in ("", slug) for table in group]
    shown = [table_section(table, wanted) for table in tables]
    if study in ("", "words"):
        shown.append(words_section(wanted))
    if not any(shown):
        states.empty_state("Nothing fits.", "Shorten what is sought, or choose everything.")


page()
