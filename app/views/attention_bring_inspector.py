"""The inspector: what is in the files that were brought, before anything is computed."""

from __future__ import annotations

import streamlit as st

from app import jobs
from app.figures import inspector as figures
from app.theme import current_palette
from app.views.attention_bring_files import job_key, said
from app.views.attention_jobs import follow, refused
from app.widgets import downloads, states
from app.widgets.figure import draw
from app.widgets.prose import sentence
from data.shelf import Entry
from models.checkpoints.inspection import Inspection, Statistics

HEADER_SECONDS = 1.0  # most headers are read by then, and no progress need be shown
MOST_ROWS = 20_000  # of the table on screen; the download has all
_PARSED = "_bring_parsed"  # of this visit: the last inspection and statistics that were read


def inspector(entry: Entry) -> Inspection | None:
    """Look at the header, then show it. None while the look is under way, or when it found nothing."""
    job = st.session_state.get(job_key("inspect", entry.slug))
    if job is not None:
        status = follow(job, patience=HEADER_SECONDS)
        if status is None or status.state != "done":
            if status is not None and status.finished:
                _again(entry)
            return None
    found = _inspection(entry)
    if found is None:
        _again(entry)
        return None
    _card(found)
    _notices(found)
    values = _values(entry, found)
    if found.tensors:
        with st.expander(f"Tensors ({len(found.tensors):,})", icon=":material/table:", expanded=bool(values)):
            _table(entry, found, values)
    if found.refusal is not None:
        _refusal(entry, found)
    return found


def _again(entry: Entry) -> None:
    if st.button("Look again", key="bring_again", icon=":material/refresh:", help="Reads the header anew."):
        look(entry)


def look(entry: Entry) -> None:
    """Queue a look at the header."""
    with states.guarded():
        st.session_state[job_key("inspect", entry.slug)] = jobs.pool().inspect(jobs.visit(), entry.slug)
        st.rerun()


def _inspection(entry: Entry) -> Inspection | None:
    text = entry.read("inspection")
    if text is None:
        return None
    known = st.session_state.get(_PARSED, {})
    if known.get("inspection") != (entry.slug, hash(text)):
        try:
            found = Inspection.from_json(text)
        except ValueError:
            return None
        known = {"inspection": (entry.slug, hash(text)), "found": found}
        st.session_state[_PARSED] = known
    result: Inspection = known["found"]
    return result


def _card(found: Inspection) -> None:
    left, right = st.columns([0.55, 0.45], gap="medium")
    with left:
        rows = [f"| {said(name)} | {said(value)} |" for name, value in figures.card(found)]
        st.markdown("\n".join([*rows[:1], "|:--|:--|", *rows[1:]]))
    with right:
        if found.tensors:
            st.markdown("**Bytes by type of number**")
            draw(figures.dtype_bars(found, current_palette()), "inspector_types")


def _notices(found: Inspection) -> None:
    for one in found.notices:
        count = f" ({one.count:,} times)" if one.count > 1 and f"{one.count:,}" not in one.message else ""
        states.notice(sentence(one.message) + count)


def _table(entry: Entry, found: Inspection, values: list[Statistics] | None) -> None:
    st.markdown(figures.table_reading(found, values))
    frame = figures.tensor_table(found, values)
    number = {"MB": "%.3f", "share": "percent", "mean": "%.3g", "std": "%.3g", "min": "%.3g", "max": "%.3g"}
    config = {
        name: st.column_config.NumberColumn(name, help=meaning, format=number.get(name, "localized"))
        if name in number or name in ("zeros", "NaN", "Inf")
        else st.column_config.TextColumn(name, help=meaning, width="medium" if name == "name" else None)
        for name, meaning in figures.COLUMNS.items()
    }
    st.dataframe(
        frame.head(MOST_ROWS),
        hide_index=True,
        height=min(400, 38 + 35 * len(frame)),
        column_config=config,
        alt=f"Table of {len(frame):,} tensors, sortable and searchable.",
    )
    if len(frame) > MOST_ROWS:
        states.notice(f"The table shows {MOST_ROWS:,} of {len(frame):,} tensors; the download has all.")
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        downloads.downloads(frame, f"tensors_{entry.slug}")
        asked = job_key("statistics", entry.slug) in st.session_state
        if values is None and not asked and found.takes != "nothing":
            st.button(
                "Compute statistics",
                key="bring_statistics",
                icon=":material/functions:",
                on_click=_compute,
                args=(entry,),
                help="Mean, spread, extremes, zeros, NaN and Inf of every tensor. Reads the whole file once.",
            )


def _compute(entry: Entry) -> None:
    st.session_state[job_key("statistics", entry.slug)] = jobs.pool().statistics(jobs.visit(), entry.slug)


def _values(entry: Entry, found: Inspection) -> list[Statistics] | None:
    """Statistics once they are there; progress while they are computed."""
    key = job_key("statistics", entry.slug)
    if key in st.session_state:
        status = follow(st.session_state[key])
        if status is None:
            return None
        if status.state != "done":
            del st.session_state[key]
            return None
    text = entry.read("statistics")
    if text is None:
        return None
    known = st.session_state[_PARSED]
    if "values" not in known:
        try:
            known["values"] = figures.statistics_of(text)
        except ValueError:
            return None
    result: list[Statistics] = known["values"]
    return result


def _refusal(entry: Entry, found: Inspection) -> None:
    """Why no analysis can start; where the visitor may allow it, the tick that does."""
    assert found.refusal is not None
    told = found.refusal
    refused(told["kind"], told["message"], told["remedy"], told.get("where", ""))
    if not found.consent:
        return
    st.markdown(
        "A pickle is a program that builds objects. The restricted reader builds tensors, numbers and plain "
        "containers, refuses everything else, and runs in a process of its own with limits on memory and "
        "time.",
        width=720,
    )
    allowed = st.checkbox(
        "I know where these files come from: open them with the restricted reader",
        key=f"bring_consent_{entry.slug}",
        help="Holds for these files and this visit only.",
    )
    if st.button("Look again", key="bring_consent_go", disabled=not allowed, help="Needs the tick."):
        entry.write("consent", "true")
        look(entry)
