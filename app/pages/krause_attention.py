"""Krause attention: trained beside controls that take one part of it at a time. Layout only."""

from __future__ import annotations

import streamlit as st

from app.views import krause_tabs, krause_text
from app.widgets import prose, states
from app.widgets.share import share_popover
from app.widgets.store import current_store
from precompute.studies.krause_attention import STUDY


def page() -> None:
    head, link = st.columns([6, 1])
    with head:
        papers = ", ".join(prose.cite_short(paper) for paper in STUDY.papers)
        prose.page_head(STUDY.title, STUDY.question, f"{STUDY.summary} {papers}.")
    store = current_store()
    found = krause_text.subjects(store)
    if not found:
        states.empty_state(
            "The store holds no networks with Krause attention yet.",
            "Run `cloudchamber precompute krause_attention --profile laptop`.",
        )
        st.stop()
    chosen = krause_text.control_row(found)
    with link:
        share_popover()
    krause_text.side_by_side(store, chosen)
    krause_tabs.views(store, chosen)


page()
