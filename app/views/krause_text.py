"""Sinks side by side, their emergence, and the grid of windows: the views of networks of sequences."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd
import streamlit as st

from app.figures import krause_emergence, krause_grid, krause_text
from app.figures.krause_settings import ORDER, of_setting, settings
from app.figures.krause_text import METRICS, SinkMetric
from app.theme import current_palette
from app.widgets import controls, states
from app.widgets.figure import draw
from app.widgets.store import cached_on
from data.records import krause_attention_ledger as ledger
from data.records import krause_attention_queries as queries
from data.store import Store
from models.attention.mechanisms import MECHANISMS
from precompute.studies.krause_attention import BACK_COPY, KJV, KJV_SETTINGS, SUBJECTS

EPS = 0.3  # of the reference (Gu et al. 2025)
UNITS = {BACK_COPY: "bits per character", KJV: "bits per byte"}


@dataclass(frozen=True)
class Choice:
    """What the controls above the main figure say."""

    subject: str
    metric: SinkMetric
    eps: float
    runs: pd.DataFrame

    @property
    def length(self) -> int:
        """Tokens of a sequence."""
        return int(self.runs["length"].iloc[0])


def subjects(store: Store) -> dict[str, pd.DataFrame]:
    """Networks of sequences that have finished runs, with these runs."""
    if not store.has_table("krause_maps"):  # a store in which the study has never run
        return {}
    found = {slug: cached_on(store, queries.text_runs, slug) for slug in (BACK_COPY, KJV)}
    return {slug: runs for slug, runs in found.items() if len(runs)}


def control_row(found: dict[str, pd.DataFrame]) -> Choice:
    """Network, metric and threshold."""
    left, middle, right = st.columns([1.6, 1.2, 1.2], gap="small")
    with left:
        subject = controls.choice(
            "Network",
            {slug: SUBJECTS[slug].title for slug in found},
            "network",
            help="\n\n".join(f"**{SUBJECTS[s].title}**: {SUBJECTS[s].description}" for s in found),
        )
    with middle:
        metric = METRICS[
            controls.choice(
                "Metric",
                {slug: m.title for slug, m in METRICS.items()},
                "metric",
                help="\n".join(f"- **{m.title}**: {m.meaning}" for m in METRICS.values()),
            )
        ]
    eps = EPS
    with right:
        if metric.slug == "sink_rate":
            eps = controls.number(
                "Sink threshold ε",
                0.05,
                0.95,
                "eps",
                default=EPS,
                step=0.05,
                format="%.2f",
                help="Importance of the first token above which a head counts as sinking. Recounted from the "
                "stored importances.",
            )
    return Choice(subject, metric, eps, found[subject])


def main_settings(frame: pd.DataFrame, subject: str) -> pd.DataFrame:
    """Runs of the comparison alone: the grid of windows has its own view."""
    if subject != KJV:
        return frame
    rows = [row for setting in KJV_SETTINGS for row in of_setting(frame, setting).index]
    kept = frame.loc[sorted(rows)]
    return kept[kept["sigma"] == "head"]


@st.fragment(key="krause_main")
def side_by_side(store: Store, chosen: Choice) -> None:
    """Left: the metric by attention, with ceilings. Right: the maps of one text under each."""
    palette = current_palette()
    ends = main_settings(cached_on(store, ledger.final_sinks, chosen.subject, chosen.eps), chosen.subject)
    left, right = st.columns([0.52, 0.48], gap="medium")
    with left:
        st.markdown(f"**{chosen.metric.title}** under each attention, a dot a seed")
        figure = krause_text.sinks_dots(ends, chosen.metric, chosen.length, chosen.eps, palette)
        draw(figure, "krause_sinks", reading=False)
        st.caption("Dots are seeds, the large one their mean with its 95 % interval (Student's t).")
        with st.expander("What each attention is"):
            st.markdown("\n".join(f"- **{MECHANISMS[m].short}**: {MECHANISMS[m].meaning}" for m in ORDER))
    with right:
        _maps(store, chosen)
    st.markdown(figure.reading)


def _maps(store: Store, chosen: Choice) -> None:
    runs = main_settings(chosen.runs, chosen.subject)
    runs = runs[runs["has_maps"] & (runs["seed"] == runs["seed"].min())]
    if runs.empty:
        states.empty_state(
            "No run of this network keeps its maps.", "Run `cloudchamber precompute --profile full`."
        )
        return
    layers, heads = int(runs["layers"].max()), int(runs["heads"].max())
    place = (0, 0)
    st.markdown("**The same text** under each, one head")
    if layers * heads > 1:
        with st.container(horizontal=True, gap="small"):
            layer = controls.number(
                "Layer",
                0,
                layers - 1,
                "layer",
                default=layers - 1,
                step=1,
                style="input",
                width=120,
                help="Transformer block, from 0 at the input.",
            )
            head = controls.number(
                "Head",
                0,
                heads - 1,
                "head",
                default=0,
                step=1,
                style="input",
                width=120,
                help="Head within the layer, from 0.",
            )
            place = (int(layer), int(head))
    maps = []
    for setting in settings(runs):
        run_id = str(of_setting(runs, setting)["run_id"].iloc[0])
        weights = queries.attention_map(store, run_id, *place)
        if weights is not None:
            maps.append((setting, weights))
    tokens = cached_on(store, queries.tokens, str(runs["run_id"].iloc[0]))
    draw(krause_text.maps_grid(maps, tokens, place, current_palette()), "krause_maps", reading=False)


def emergence(store: Store, chosen: Choice) -> None:
    """The metric over the steps of training, the loss below."""
    sinks = main_settings(cached_on(store, queries.emergence, chosen.subject, chosen.eps), chosen.subject)
    losses = main_settings(cached_on(store, queries.losses, chosen.subject), chosen.subject)
    draw(
        krause_emergence.emergence(sinks, losses, chosen.metric, UNITS[chosen.subject], current_palette()),
        "krause_emergence",
    )
    st.markdown("**Which queries look at the first token**")
    profiles = cached_on(store, queries.first_by_query, chosen.subject)
    kept = settings(main_settings(chosen.runs, chosen.subject))
    rows = [row for s in kept for row in of_setting(profiles, s).index]
    draw(krause_emergence.by_query(profiles.loc[sorted(rows)], current_palette()), "krause_by_query")


def grid(store: Store) -> None:
    """Window, kept keys and sigma of the byte language model."""
    outcomes = cached_on(store, ledger.outcomes, KJV)
    sinks = cached_on(store, ledger.final_sinks, KJV, EPS)
    krause = outcomes[outcomes["mechanism"] == "krause"]
    if krause.empty:
        states.empty_state(
            "The store holds no byte language models.",
            "Run `cloudchamber precompute krause_attention --profile full`.",
        )
        return
    softmax = outcomes[outcomes["mechanism"] == "softmax"]
    merged = krause.merge(sinks[["run_id", "first_mass", "oldest_mass"]], on="run_id", how="left")
    reference = float(softmax.loc[softmax["seed"] == 0, "loss_nats"].mean()) if len(softmax) else None
    draw(krause_grid.window_grid(merged, reference, current_palette()), "krause_grid")
