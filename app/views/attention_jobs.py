"""A job on the attention page: its progress with Cancel, and what became of it."""

from __future__ import annotations

import time
from collections.abc import Callable

import streamlit as st

from app import jobs
from app.figures.numbers import duration
from app.jobs import JobStatus
from app.widgets import states
from app.widgets.prose import inert, sentence
from data.errors import CloudChamberError

_POLL = 0.02  # seconds between two looks at a job that is waited for
SHOW = "_own_show"  # session state: a finished run to put on screen


def status_of(job: str) -> JobStatus | None:
    """Where a job stands; None, with a sentence on the page, when it is not known any more."""
    try:
        return jobs.pool().status(job)
    except CloudChamberError as error:
        states.error_state(error)
        return None


def follow(
    job: str, done: Callable[[JobStatus], None] | None = None, patience: float = 0.0
) -> JobStatus | None:
    """Progress while the job runs (then None is returned), its notices and its error once it has ended.

    `done` is called once, in the run of the script that sees the job finished well. A job that ends
    within `patience` seconds needs no progress, and no second run of the whole page.
    """
    until = time.monotonic() + patience
    while (status := status_of(job)) is not None and not status.finished and time.monotonic() < until:
        time.sleep(_POLL)
    if status is None:
        return None
    if not status.finished:
        _progress(job, done)
        return None
    for text in status.notices:
        states.notice(sentence(text))
    if status.state == "failed":
        refused(status.kind or "job_error", status.message, status.remedy, status.where)
    elif status.state == "cancelled":
        st.markdown("Cancelled. Nothing was kept.")
    return status


def refused(kind: str, message: str, remedy: str, where: str = "") -> None:
    """Why something cannot be done, what it is about, and what mends it."""
    place = f" ({where})" if where and where not in message else ""
    states.error_state(CloudChamberError(kind, f"{message.rstrip('.')}{place}.", remedy, where))


def show(run_id: str) -> None:
    """Put a run of this visit on screen."""
    st.session_state[SHOW] = run_id
    st.rerun()


@st.fragment(run_every=0.5)
def _progress(job: str, done: Callable[[JobStatus], None] | None) -> None:
    """Stage, elapsed time and Cancel, twice a second; the whole page once it is done."""
    status = jobs.pool().status(job)
    if status.finished:
        if status.state == "done" and done is not None:
            done(status)
        st.rerun()
    known = status.total > 0
    part = status.done / status.total if known else 0.0
    stage = inert(status.stage or "Waiting")
    if status.state == "queued" and status.queue_position > 1:
        stage = f"Waiting, {status.queue_position - 1} before it"
    steps = f", {status.done:,} of {status.total:,}" if known else ""
    st.progress(min(max(part, 0.0), 1.0), text=f"{stage[:1].upper()}{stage[1:]}{steps}")
    with st.container(horizontal=True, vertical_alignment="center"):
        st.caption(f"{duration(status.elapsed_s)} so far")
        st.button(
            "Cancel",
            key=f"cancel_{status.task}",
            icon=":material/close:",
            on_click=jobs.pool().cancel,
            args=(job,),
            help="Stops it at once and keeps nothing.",
        )
