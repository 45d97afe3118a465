"""The ledger: every claim of every study, with the paper's figure, ours, and the verdict."""

from __future__ import annotations

import streamlit as st

from app.figures.numbers import listed
from app.widgets import claims, controls, downloads, prose, share, states
from app.widgets.store import current_store
from precompute.registry import STUDIES
from precompute.study import Verdict


def summary(tally: dict[Verdict, int]) -> str:
    """The counts as one sentence."""
    parts = [f"{count} {verdict.value}" for verdict, count in tally.items() if count]
    return f"{sum(tally.values())} claims: {listed(parts)}." if parts else "There are no claims yet."


def page() -> None:
    prose.page_head(
        "Ledger",
        "What do the papers say, and what do the traces say?",
        "Every claim carries the paper's own figure and a criterion that was fixed before measuring. The "
        "verdict is computed from the traces each time they change; a claim that fails stays here with its "
        "numbers.",
    )
    found = claims.entries(current_store(), STUDIES.values())
    tally = claims.counts(found)
    studies = {"": "All studies"} | {study.slug: study.title for study in STUDIES.values()}
    filters, sharing = st.columns([6, 1], vertical_alignment="bottom")
    with filters:
        wanted = controls.choices(
            "Verdict",
            {verdict: verdict.value for verdict in Verdict},
            "verdict",
            help=prose.GLOSSARY["verdict"] + " None chosen shows all.",
            wrap=True,
        )
        study = controls.choice("Study", studies, "study") if len(STUDIES) > 1 else ""
    with sharing:
        share.share_popover()
    st.markdown(summary(tally))
    shown = [
        entry
        for entry in found
        if (not wanted or entry.result.verdict in wanted) and study in ("", entry.study.slug)
    ]
    if not shown:
        states.empty_state("No claim has this verdict.", "Choose another verdict, or none to see all.")
    claims.claims_table(shown)
    if shown:
        downloads.downloads(claims.ledger_frame(shown), "ledger")


page()
