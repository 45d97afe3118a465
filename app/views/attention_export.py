"""The whole run on screen, to take along: its traces as Parquet, and a report as one HTML file."""

from __future__ import annotations

import io
import tempfile
import zipfile
from pathlib import Path

import streamlit as st

from app.report import html
from app.views.attention_runs import Run
from data.shipped import export_published


def export(run: Run, eps: float) -> None:
    """Two buttons; the files are made when one is pressed."""
    st.markdown("**The whole run**")
    with st.container(horizontal=True, gap="small"):
        st.download_button(
            "Traces (Parquet, zip)",
            data=lambda: traces(run),
            file_name=f"attention_{run.id}.zip",
            mime="application/zip",
            key="export_traces",
            icon=":material/download:",
            on_click="ignore",
            help="All tables of this run. Unpacked, `cloudchamber serve --traces DIR` shows them.",
        )
        st.download_button(
            "Report (HTML)",
            data=lambda: html(run.store, run.id, eps).encode(),
            file_name=f"attention_{run.id}.html",
            mime="text/html",
            key="export_report",
            icon=":material/download:",
            on_click="ignore",
            help="Figures, readings, tables and provenance in one file that needs no network.",
        )


def traces(run: Run) -> bytes:
    """The run's tables as a zip of Parquet files and their manifest."""
    sink = io.BytesIO()
    with tempfile.TemporaryDirectory() as folder:
        files = export_published(run.store.path, Path(folder), [run.id])
        with zipfile.ZipFile(sink, "w", zipfile.ZIP_STORED) as archive:
            for path in sorted({*files, *(p for p in Path(folder).rglob("*") if p.is_file())}):
                archive.write(path, path.relative_to(folder).as_posix())
    return sink.getvalue()
