"""Home: what this is, one card per study, and how its claims fare."""

from __future__ import annotations

import streamlit as st

from app import navigation
from app.theme import Mode, current_mode
from app.widgets import claims, prose, states
from app.widgets.store import cached_on, try_store
from data.errors import CloudChamberError
from data.store import Store
from precompute.registry import STUDIES
from precompute.study import Study


def study_card(study: Study, store: Store | None, mode: Mode) -> None:
    """A still from the study's own traces, its question, and the way in."""
    stills = navigation.stills_of(study.slug)
    with st.container(key=f"card_{study.slug}", gap="small"):
        if store is not None and stills is not None:
            with states.guarded():
                picture = cached_on(store, stills.still, mode)
                if picture:
                    caption = cached_on(store, stills.caption)
                    st.image(picture, width="stretch", alt=caption)
                    st.caption(caption)
        st.header(study.question, anchor=False)
        st.markdown(study.summary, width=720)
        _way_in(navigation.study_page(study.slug), study.title)


def ledger_counts(store: Store) -> None:
    """How many claims hold, with the way to each of them."""
    tally = claims.counts(claims.entries(store, STUDIES.values()))
    st.header("What do the papers say, and what do the traces say?", anchor=False)
    st.markdown(f"{sum(tally.values())} claims, each with a criterion that was fixed before measuring.")
    with st.container(horizontal=True, gap="medium"):
        for verdict, count in tally.items():
            st.metric(claims.verdict_markdown(verdict), count, width="content")
    _way_in(navigation.LEDGER, "Ledger")


def _way_in(target: str, title: str) -> None:
    st.page_link(target, label=f":primary[{title}]", icon=":material/arrow_forward:", icon_position="right")


def page() -> None:
    prose.page_head("Cloud Chamber")
    st.markdown(
        "A cloud chamber makes the tracks of invisible particles visible; this one does it for models. "
        "Each explorer takes the mechanism of a paper, records what it leaves behind in a real model, and "
        "draws it so that you can move it.",
        width=720,
    )
    problem: CloudChamberError | None = None
    store: Store | None = None
    try:
        store = try_store()
    except CloudChamberError as error:
        problem = error
    mode = current_mode()
    fields = st.columns(1 if len(STUDIES) == 1 else 2, gap="large")
    for i, study in enumerate(STUDIES.values()):
        with fields[i % len(fields)]:
            study_card(study, store, mode)
    if problem is not None:
        states.error_state(problem)
    if store is not None:
        with states.guarded():
            ledger_counts(store)


page()
