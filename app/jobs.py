"""The app's jobs: one pool for all visitors (app.jobs_pool), tied to Streamlit's sessions."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from threading import Lock
from typing import BinaryIO

import streamlit as st
from streamlit.runtime import exists, get_instance
from streamlit.runtime.scriptrunner import get_script_run_ctx

from app.jobs_model import MAX_CHARACTERS, JobStatus
from app.jobs_pool import JobPool
from app.jobs_process import Limits
from app.jobs_visits import Visit
from data.shelf import Entry

__all__ = ["MAX_CHARACTERS", "JobPool", "JobStatus", "Limits", "Visit", "bring", "pool", "visit"]


@st.cache_resource(show_spinner=False, on_release=JobPool.close)
def pool() -> JobPool:
    """The app's one pool, made on first use; visits end with the sessions of Streamlit's runtime."""
    grace = float(st.get_option("server.disconnectedSessionTTL"))
    alive = get_instance().is_active_session if exists() else None
    return JobPool(session_alive=alive, grace_seconds=grace)


def visit() -> Visit:
    """The visit of the session whose script is running."""
    context = get_script_run_ctx()
    return pool().open_visit(context.session_id if context is not None else None)


def bring(visit: Visit, files: Iterable[tuple[str, BinaryIO | Path]]) -> Entry:
    """Put what a visitor chose on the visit's shelf, each file with the name it had.

    Streams are copied in pieces, so that the caller may let go of them; one visit's at a time, so that
    several large ones leave the other visitors a core. Raises CloudChamberError: brought_empty,
    shelf_full, disk_full.
    """
    with _copying():
        return pool().shelf(visit).put(files)


@st.cache_resource(show_spinner=False)
def _copying() -> Lock:
    """Held while an upload is copied."""
    return Lock()
