"""Bring your own: a model of the visitor's own, or a text of theirs, in three steps."""

from __future__ import annotations

import streamlit as st

from app.views.attention_bring_files import choose_file
from app.views.attention_bring_inspector import inspector
from app.views.attention_bring_run import run_it, what_it_reads
from app.views.attention_runs import Run
from app.views.attention_text import missing, own_text, warm

_SOURCES = {"file": "A file of yours", "reference": "A reference model"}


def bring(run: Run) -> None:
    """The tab. `run` is on screen above."""
    st.markdown(
        "A model of your own, or a text of your own for a reference model. Everything is read on this "
        "machine, in a process with limits; nothing in a file is executed, nobody else sees it, and it is "
        "gone when you leave.",
        width=720,
    )
    if not missing(""):
        warm()
    st.header("1  Model", anchor=False)
    source = st.segmented_control(
        "Where the model comes from",
        list(_SOURCES),
        default="file",
        format_func=_SOURCES.__getitem__,
        required=True,
        key="bring_source",
        label_visibility="collapsed",
        help="A file of yours is inspected first. A reference model is here already, and reads your text.",
    )
    if source == "reference":
        own_text(run)
        return
    entry = choose_file()
    if entry is None:
        return
    found = inspector(entry)
    if found is None or found.refusal is not None or not found.opener:
        return
    st.header("2  What it reads", anchor=False)
    config = what_it_reads(entry, found)
    st.header("3  Run", anchor=False)
    run_it(entry, found, config, run)
