"""The pages of the app: home, one explorer per registered study, and the reference pages."""

from __future__ import annotations

import importlib
import importlib.util
from types import ModuleType

import streamlit as st

from precompute.registry import STUDIES

HOME = "pages/home.py"
LEDGER = "pages/ledger.py"
COLUMNS = "pages/columns.py"


def study_page(slug: str) -> str:
    """The page of a study, as `st.page_link` takes it."""
    return f"pages/{slug}.py"


def stills_of(slug: str) -> ModuleType | None:
    """The module `app.figures.stills.<slug>`, if there is one: ICON, still() and caption()."""
    name = f"app.figures.stills.{slug}"
    return importlib.import_module(name) if importlib.util.find_spec(name) else None


def pages() -> dict[str, list]:
    """Every page under its heading in the sidebar."""
    explorers = [
        st.Page(
            study_page(study.slug),
            title=study.title,
            url_path=study.slug,
            icon=getattr(stills_of(study.slug), "ICON", ":material/blur_on:"),
        )
        for study in STUDIES.values()
    ]
    return {
        "": [st.Page(HOME, title="Cloud Chamber", icon=":material/scatter_plot:", default=True)],
        "Explorers": explorers,
        "Reference": [
            st.Page(LEDGER, title="Ledger", url_path="ledger", icon=":material/fact_check:"),
            st.Page(COLUMNS, title="Columns", url_path="columns", icon=":material/table_rows:"),
        ],
    }
