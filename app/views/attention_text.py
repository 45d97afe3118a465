"""Your own text: typed or pasted, traced by a worker process, drawn by the same code as every run."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from functools import lru_cache

import streamlit as st

from app import jobs
from app.figures.numbers import duration
from app.views.attention_runs import Run
from app.widgets import states
from app.widgets.prose import inert, sentence
from data.errors import CloudChamberError
from precompute.studies.attention_sinks import MAX_TOKENS, STUDY
from precompute.study import SubjectSpec

# Session state: the visitor's last job, a finished run to put on screen, whether a worker was warmed.
JOB, SHOW, WARM = "_own_job", "_own_show", "_own_warm"
_LIBRARIES = ("torch", "transformers")


@lru_cache(maxsize=16)
def missing(subject: str) -> tuple[str, ...]:
    """Packages that tracing `subject` needs and that are not installed. Imports nothing."""
    needed = [name for name in _LIBRARIES if importlib.util.find_spec(name) is None]
    for package in STUDY.subjects[subject].packages:
        try:
            importlib.metadata.distribution(package)
        except importlib.metadata.PackageNotFoundError:
            needed.append(package)
    return tuple(needed)


def own_text(run: Run) -> None:
    """The form, and what became of the text that was sent last."""
    st.markdown(
        "The model reads your text here, on this machine; nobody else sees it, and it is gone when you "
        f"leave. Up to {MAX_TOKENS:,} tokens are traced.",
        width=720,
    )
    models = {slug: spec.title for slug, spec in STUDY.subjects.items()}
    form, notes = st.columns([0.6, 0.4], gap="medium")
    with form:
        # A visitor's text never goes into the address, so neither do the controls that belong to it.
        subject = st.selectbox(
            "Model that reads it",
            list(models),
            index=list(models).index(run.subject) if run.subject in models else 0,
            format_func=models.__getitem__,
            key="own_model",
            help="The same models as above.",
        )
        content = st.text_area(
            "Your text",
            key="own_content",
            height=168,
            max_chars=jobs.MAX_CHARACTERS,
            placeholder="Type or paste anything: prose, code, another language.",
            help="Longer texts are cut to what the model can be traced on, and the page says so.",
        )
        with st.container(horizontal=True, vertical_alignment="center"):
            start = st.toggle(
                "Start with special tokens",
                key="own_start",
                help="BOS for a language model, [CLS] and [SEP] for an encoder.",
            )
            lacking = missing(subject)
            if st.button(
                "Trace it", type="primary", key="own_go", icon=":material/play_arrow:", disabled=bool(lacking)
            ):
                _submit(subject, content or "", start)
        if lacking:
            states.notice(_how_to_get(STUDY.subjects[subject], lacking))
        elif WARM not in st.session_state:
            st.session_state[WARM] = True
            jobs.pool().warm(STUDY.slug)  # whoever opens this means to use it: load the libraries meanwhile
    with notes:
        if JOB in st.session_state:
            _outcome(st.session_state[JOB], run)


def _how_to_get(spec: SubjectSpec, lacking: tuple[str, ...]) -> str:
    return (
        f"{spec.title} is not installed here ({', '.join(lacking)}). `make setup` installs it; the "
        "published traces above need no model."
    )


def _submit(subject: str, content: str, start: bool) -> None:
    if not content.strip():
        st.session_state.pop(JOB, None)
        states.notice("There is no text to trace yet. Type or paste some.")
        return
    config = {
        "subject": subject,
        "text": "free",
        "content": content,
        "bos": start,
        "length": MAX_TOKENS,
        "samples": 1,
    }
    with states.guarded():
        st.session_state[JOB] = jobs.pool().submit(STUDY.slug, config, jobs.visit())


def _outcome(job: str, run: Run) -> None:
    """Progress while it runs; afterwards what was done to the text, or why it failed."""
    try:
        status = jobs.pool().status(job)
    except CloudChamberError as error:
        states.error_state(error)
        return
    if not status.finished:
        _progress(job)
        return
    for text in status.notices:
        states.notice(sentence(text))
    if status.state == "done":
        here = run.private and run.id == status.run_id
        st.markdown(
            f"Traced in {duration(status.elapsed_s)}. "
            + (f"“{run.title}” is what you see above." if here else "It is among the texts above.")
        )
        if not here and st.button("Show it above", key="own_show", icon=":material/arrow_upward:"):
            _show(status.run_id)
    elif status.state == "failed":
        states.error_state(CloudChamberError(status.kind or "job_error", status.message, status.remedy))
    else:
        st.markdown("Cancelled. Nothing was kept.")


def _show(run_id: str) -> None:
    st.session_state[SHOW] = run_id
    st.rerun()


@st.fragment(run_every=0.5)
def _progress(job: str) -> None:
    """Stage, elapsed time and Cancel, twice a second; the whole page once it is done."""
    status = jobs.pool().status(job)
    if status.finished:
        if status.state == "done":
            _show(status.run_id)
        st.rerun()
    known = status.total > 0
    part = status.done / status.total if known else 0.0
    stage = inert(status.stage or "Waiting")
    if status.state == "queued" and status.queue_position > 1:
        stage = f"Waiting, {status.queue_position - 1} before it"
    steps = f", {status.done} of {status.total}" if known else ""
    st.progress(min(max(part, 0.0), 1.0), text=f"{stage}{steps}")
    with st.container(horizontal=True, vertical_alignment="center"):
        st.caption(f"{duration(status.elapsed_s)} so far")
        st.button(
            "Cancel", key="own_cancel", icon=":material/close:", on_click=jobs.pool().cancel, args=(job,)
        )
