"""Failures are pages too: one sentence, its remedy, nothing of the machine.

Messages come from CloudChamberError. Its `where` often is a path and stays in the log; a traceback is
never shown.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NoReturn

import streamlit as st
import structlog

from app.widgets.prose import inert, sentence
from data.errors import CloudChamberError

_TITLES = {
    "store_missing": "No traces yet",
    "store_older": "These traces are older than the app",
    "store_newer": "These traces are newer than the app",
    "store_corrupt": "The traces cannot be read",
    "store_unreadable": "The traces cannot be read",
    "store_locked": "The traces are in use elsewhere",
    "home_unwritable": "There is no place for traces",
    "brought_gone": "This is gone",
    "shelf_full": "The shelf is full",
}

_log = structlog.get_logger("app")


def error_state(error: CloudChamberError) -> None:
    """Say what is wrong and what mends it, in place of what cannot be shown."""
    _log.warning("state shown", kind=error.kind, message=error.message, where=error.where)
    with st.container(border=True, key=f"state_{error.kind}"):
        brought = "This is not taken" if error.kind.startswith("brought_") else "This cannot be shown"
        st.header(_TITLES.get(error.kind, brought), anchor=False)
        st.markdown(sentence(error.message))
        st.markdown(sentence(error.remedy))


def stop_with(error: CloudChamberError) -> NoReturn:
    """Show the error and end the page here."""
    error_state(error)
    st.stop()


@contextmanager
def guarded() -> Iterator[None]:
    """Show a CloudChamberError raised inside as a state of the page, in place of the rest of the block."""
    try:
        yield
    except CloudChamberError as error:
        error_state(error)


def empty_state(what: str, remedy: str) -> None:
    """Nothing fits the selection: say so, and what to change. Both are sentences of ours."""
    with st.container(border=True):
        st.markdown(f"**{sentence(what)}**")
        st.markdown(sentence(remedy))


def failed_run_state(run_id: str, error: str | None) -> None:
    """A stored run that failed: the sentence its error begins with, without the traceback."""
    lines = (error or "").strip().splitlines()
    with st.container(border=True):
        st.markdown(f"**Run `{inert(run_id, 16)}` failed and has no traces.**")
        if lines:
            st.markdown(sentence(lines[0]))
        st.markdown("`cloudchamber precompute` tries it again; `cloudchamber runs` shows the full error.")


def failed_runs_notice(run_ids: Sequence[str]) -> None:
    """Runs that failed beside others that are done: which, and what mends it. Nothing without any."""
    if not run_ids:
        return
    named = ", ".join(f"`{inert(name, 16)}`" for name in run_ids[:3])
    more = f" and {len(run_ids) - 3} more" if len(run_ids) > 3 else ""
    which = "A run failed and is" if len(run_ids) == 1 else f"{len(run_ids)} runs failed and are"
    again = "it" if len(run_ids) == 1 else "them"
    notice(
        f"{which} not shown: {named}{more}. `cloudchamber precompute` tries {again} again; "
        "`cloudchamber runs` shows the full error."
    )


def notice(text: str) -> None:
    """Something that was changed or left out without being asked: say it, quietly. Ours, or made inert."""
    st.caption(f":orange[:material/info:] {text}")
