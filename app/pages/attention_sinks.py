"""Attention sinks: which heads give which token their spare attention. Layout only."""

from __future__ import annotations

import streamlit as st

from app.figures.attention_metrics import METRICS
from app.views import attention_runs, attention_tabs
from app.views.attention_explorer import explorer
from app.views.attention_jobs import SHOW
from app.views.attention_runs import YOURS, Run
from app.widgets import controls, prose, states
from app.widgets.prose import GLOSSARY
from app.widgets.share import share_popover
from app.widgets.store import current_store
from data.shelf import is_brought
from precompute.studies.attention_sinks import SMOLLM2, STUDY

EPS = 0.3  # of the reference, with 64 tokens
PRIVATE = "What you brought stays in this visit: anywhere else the link opens without it."
_GONE = "_model_gone"  # session state: the link's model was of another visit


def show_finished(runs: list[Run]) -> None:
    """A visitor's text that has just been traced becomes the model and the text on screen."""
    wanted = st.session_state.pop(SHOW, None)
    for run in runs:
        if run.id == wanted and run.private:
            st.session_state["model"], st.session_state["text"] = run.subject, run.slug
            st.session_state.pop(_GONE, None)


def linked_model(names: dict[str, str]) -> None:
    """A link may name a brought model by its slug; one of an earlier visit is gone, which is said."""
    asked = st.query_params.get("model", "")
    if asked in names:
        st.query_params["model"] = names[asked]
        st.session_state["model"] = asked
    elif asked not in names.values() and (is_brought(asked) or asked.startswith(YOURS)):
        st.session_state[_GONE] = True
    if st.session_state.get(_GONE):
        states.notice(
            "The link is of a model that somebody brought: it is kept for one visit. Bring it again."
        )


def control_row(models: dict[str, list[Run]]) -> tuple[Run, str, float]:
    """Model, text, metric, threshold: few, in a row, each in the link."""
    names = {subject: runs[0].model for subject, runs in models.items()}
    linked_model(names)
    model, text, metric, threshold = st.columns([1.3, 2.1, 1.35, 0.95], gap="small")
    with model:
        subject = controls.choice(
            "Model",
            names,
            "model",
            default=SMOLLM2,
            help="The pretrained model that was traced. Other models have other texts.",
        )
    texts = {run.slug: run for run in models[subject]}
    with text:
        slug = controls.choice(
            "Text",
            {key: run.title for key, run in texts.items()},
            "text",
            help="What the model read: consecutive chunks of a text, with or without the tokens that a "
            "tokenizer puts around it. The map at the right is of the first chunk, everything else is the "
            "mean over chunks.",
        )
    with metric:
        chosen = controls.choice(
            "Metric",
            {key: m.title for key, m in METRICS.items()},
            "metric",
            help="Colours the map of heads.\n\n"
            + "\n".join(f"- **{m.title}**: {m.meaning}" for m in METRICS.values()),
        )
    with threshold:
        eps = controls.number(
            "Sink threshold ε",
            0.05,
            0.95,
            "eps",
            default=EPS,
            step=0.05,
            format="%.2f",
            help=f"{GLOSSARY['epsilon']} Moving it recounts the stored importances; nothing is run again.",
        )
    return texts[slug], chosen, eps


def page() -> None:
    head, link = st.columns([6, 1])
    with head:
        papers = ", ".join(prose.cite_short(paper) for paper in STUDY.papers)
        prose.page_head(STUDY.title, STUDY.question, f"{STUDY.summary} {papers}.")
    store = current_store()
    runs = attention_runs.runs_of(store)
    failed = attention_runs.failures_of(store)
    if not runs:
        for run_id, error in failed[:3]:
            states.failed_run_state(run_id, error)
        if not failed:
            states.empty_state(
                "The store holds no attention traces yet.",
                "Run `cloudchamber precompute attention_sinks --profile laptop`.",
            )
        st.stop()
    states.failed_runs_notice([run_id for run_id, _ in failed])
    models = attention_runs.by_model(runs)
    show_finished(runs)
    run, metric, eps = control_row(models)
    with link:
        share_popover(PRIVATE if run.private else "")
    explorer(run, METRICS[metric], eps)
    attention_tabs.views(store, models, run, METRICS[metric], eps)


page()
