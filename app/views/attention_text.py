"""A text of the visitor's own for a reference model, traced by a worker process."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from functools import lru_cache

import streamlit as st

from app import jobs
from app.figures.numbers import duration
from app.jobs import JobStatus
from app.views.attention_jobs import follow, show
from app.views.attention_runs import Run
from app.widgets import states
from precompute.studies.attention_sinks import MAX_TOKENS, STUDY
from precompute.study import SubjectSpec

# Session state: the visitor's last job, whether a worker was warmed.
JOB, WARM = "_own_job", "_own_warm"
_LIBRARIES = ("torch", "transformers")


@lru_cache(maxsize=16)
def missing(subject: str) -> tuple[str, ...]:
    """Packages that tracing `subject` needs and that are not installed. Imports nothing."""
    needed = [name for name in _LIBRARIES if importlib.util.find_spec(name) is None]
    for package in STUDY.subjects[subject].packages if subject in STUDY.subjects else ():
        try:
            importlib.metadata.distribution(package)
        except importlib.metadata.PackageNotFoundError:
            needed.append(package)
    return tuple(needed)


def warm() -> None:
    """Whoever opens this means to use it: load the libraries meanwhile. Once a visit."""
    if WARM not in st.session_state:
        st.session_state[WARM] = True
        jobs.pool().warm(STUDY.slug)


def text_area(key: str) -> str:
    """The box for a text. It never goes into the address."""
    content = st.text_area(
        "Your text",
        key=key,
        height=168,
        max_chars=jobs.MAX_CHARACTERS,
        placeholder="Type or paste anything: prose, code, another language.",
        help="Longer texts are cut to what the model can be traced on, and the page says so.",
    )
    return content or ""


def own_text(run: Run) -> None:
    """Model, text and button, and what became of the text that was sent last."""
    models = {slug: spec.title for slug, spec in STUDY.subjects.items()}
    form, notes = st.columns([0.6, 0.4], gap="medium")
    with form:
        subject = st.selectbox(
            "Model that reads it",
            list(models),
            index=list(models).index(run.subject) if run.subject in models else 0,
            format_func=models.__getitem__,
            key="own_model",
            help="The reference models that are installed with Cloud Chamber.",
        )
        st.header("2  What it reads", anchor=False)
        content = text_area("own_content")
        start = st.toggle(
            "Start with special tokens",
            key="own_start",
            help="BOS for a language model, [CLS] and [SEP] for an encoder.",
        )
        st.header("3  Run", anchor=False)
        lacking = missing(subject)
        if st.button(
            "Trace it", type="primary", key="own_go", icon=":material/play_arrow:", disabled=bool(lacking)
        ):
            _submit(subject, content, start)
        if lacking:
            states.notice(_how_to_get(STUDY.subjects[subject], lacking))
    with notes:
        if JOB in st.session_state:
            outcome(st.session_state[JOB], run)


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


def outcome(job: str, run: Run) -> JobStatus | None:
    """Progress while a run is traced, put on screen when done; afterwards what became of it."""
    status = follow(job, lambda done: show(done.run_id))
    if status is not None and status.state == "done":
        here = run.private and run.id == status.run_id
        st.markdown(
            f"Traced in {duration(status.elapsed_s)}. "
            + (f"“{run.title}” is what you see above." if here else "It is among the models and texts above.")
        )
        if not here and st.button("Show it above", key="own_show", icon=":material/arrow_upward:"):
            show(status.run_id)
    return status
