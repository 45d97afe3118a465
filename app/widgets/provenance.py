"""Where numbers come from: the card of a run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import streamlit as st

from app.figures.numbers import duration
from app.widgets.prose import inert
from precompute.study import Study

_LONG = 80


def provenance_rows(run: Mapping[str, Any], study: Study | None = None) -> list[tuple[str, str]]:
    """What is known of a run as (name, Markdown) pairs. `run` is a row of `runs`."""
    subject = str(run["subject"])
    spec = study.subjects.get(subject) if study else None
    rows = [("Run", f"`{inert(str(run['run_id']), 16)}`")]
    rows.append(("Subject", f"{spec.title} ({spec.licence}; {spec.source})" if spec else inert(subject)))
    rows.append(("Configuration", _pairs(run["config"], drop=("subject", "seed"))))
    rows.append(("Seed", str(run["seed"])))
    rows.append(("Device", f"{inert(str(run['device']))}: {inert(str(run['device_reason']))}"))
    rows.append(("Versions", _pairs(run["versions"])))
    rows.append(("Computed", f"{_when(str(run['started']))}, in {duration(float(run['seconds']))}"))
    rows.append(("Sources", f"`{inert(str(run['source_hash']), 13)}` (study version {run['study_version']})"))
    return rows


def provenance_card(run: Mapping[str, Any], study: Study | None = None) -> None:
    """The card of a run: subject, configuration, seed, device and why, versions, when, how long."""
    with st.container(border=True):
        for name, value in provenance_rows(run, study):
            left, right = st.columns([1, 4], gap="small")
            left.caption(name)
            right.markdown(value)


def _pairs(text: Any, drop: tuple[str, ...] = ()) -> str:
    """A JSON object as "name value" pairs; what cannot be read as one is shown as text."""
    try:
        values = json.loads(text) if isinstance(text, str) else dict(text)
    except (ValueError, TypeError):
        return inert(str(text), 400)
    if not isinstance(values, dict):
        return inert(str(text), 400)
    shown = [(k, v) for k, v in values.items() if k not in drop and v is not None]
    return " · ".join(f"{inert(str(k))} {inert(_plain(v), _LONG)}" for k, v in shown) or "–"


def _plain(value: Any) -> str:
    return ("yes" if value else "no") if isinstance(value, bool) else str(value)


def _when(started: str) -> str:
    try:
        return datetime.fromisoformat(started).strftime("%Y-%m-%d %H:%M UTC")
    except ValueError:
        return inert(started)
