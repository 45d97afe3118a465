"""The tabs of the Krause page. Each is computed when it is open, and only then."""

from __future__ import annotations

from collections.abc import Callable

import pandas as pd
import streamlit as st

from app.figures.krause_settings import setting_name
from app.views import krause_text
from app.views.krause_adaptation import adaptation
from app.views.krause_cost import cost
from app.views.krause_generation import generation
from app.views.krause_methods import METHODS
from app.views.krause_particles import particles
from app.views.krause_text import Choice
from app.views.krause_vision import vision
from app.widgets import claims, controls, downloads, explain, provenance, states
from app.widgets.figure import format_control
from app.widgets.store import cached_on
from data.records import krause_attention as tables
from data.records import krause_attention_ledger as ledger
from data.records import krause_attention_queries as queries
from data.store import Store
from precompute.studies.krause_attention import STUDY, SUBJECTS


def numbers(store: Store, chosen: Choice) -> None:
    """The numbers behind the figures, with their downloads."""
    options: dict[str, tuple[str, Callable[[], pd.DataFrame]]] = {
        "sinks": (
            "Sinks at the end",
            lambda: cached_on(store, ledger.final_sinks, chosen.subject, chosen.eps),
        ),
        "emergence": ("Emergence", lambda: cached_on(store, queries.emergence, chosen.subject, chosen.eps)),
        "losses": ("Losses", lambda: cached_on(store, queries.losses, chosen.subject)),
        "outcomes": ("Outcomes", lambda: _outcomes(store)),
        "cost": ("Operators", lambda: cached_on(store, ledger.operator_times, "forward+backward")),
        "particles": ("Particles", lambda: cached_on(store, ledger.particle_ends)),
    }
    labels = {slug: name for slug, (name, _) in options.items()}
    table = controls.choice("Table", labels, "table", style="segmented", help="What to show and download.")
    columns = downloads.columns_of(
        tables.SINKS, tables.RESULTS, tables.TRAINING, tables.COST, tables.PARTICLES
    )
    downloads.numbers(options[table][1](), f"krause_{table}", columns, alt=f"{labels[table]}, every run")
    format_control()


def _outcomes(store: Store) -> pd.DataFrame:
    return pd.concat([cached_on(store, ledger.outcomes, slug) for slug in SUBJECTS], ignore_index=True)


def method(store: Store, chosen: Choice) -> None:
    """How this is computed, and where one of the runs on screen comes from."""
    st.header("One of the runs on screen", anchor=False)
    names = {
        str(r.run_id): f"{setting_name(str(r.mechanism), r.window, r.topk)}, seed {r.seed}"
        for r in chosen.runs.itertuples()
    }
    run_id = controls.choice("Run", names, "run", width=420, help="Configuration, seed, device, versions.")
    runs = cached_on(store, _runs)
    row = runs[runs["run_id"] == run_id].iloc[0]
    provenance.provenance_card({str(k): v for k, v in row.items()}, STUDY)
    explain.explain(METHODS)


def _runs(store: Store) -> pd.DataFrame:
    return store.runs(STUDY.slug)


def ledger_tab(store: Store) -> None:
    """The study's claims with their verdicts."""
    claims.claims_table(claims.entries(store, [STUDY]))


NAMES = (
    "Emergence",
    "Vision",
    "Particles",
    "Cost",
    "Generation",
    "In a pretrained model",
    "Windows and widths",
    "Claims",
    "Numbers",
    "How this is computed",
)


@st.fragment(key="krause_views")
def views(store: Store, chosen: Choice) -> None:
    """The tabs; the open one alone is computed."""
    contents: dict[str, Callable[[], None]] = dict(
        zip(
            NAMES,
            (
                lambda: krause_text.emergence(store, chosen),
                lambda: vision(store),
                particles,
                lambda: cost(store),
                lambda: generation(store),
                lambda: adaptation(store),
                lambda: krause_text.grid(store),
                lambda: ledger_tab(store),
                lambda: numbers(store, chosen),
                lambda: method(store, chosen),
            ),
            strict=True,
        )
    )
    for name, tab in zip(NAMES, controls.tabs(NAMES, "view"), strict=True):
        if tab.open:
            with tab, states.guarded():
                contents[name]()
