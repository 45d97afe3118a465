"""Vision: an image, a patch of it, and where that patch looks under two kinds of attention."""

from __future__ import annotations

import numpy as np
import pandas as pd
import streamlit as st

from app.figures import krause_vision as figures
from app.figures.krause_settings import setting_name
from app.theme import current_palette
from app.widgets import controls, states
from app.widgets.figure import draw
from app.widgets.store import cached_on
from data.records import krause_attention_ledger as ledger
from data.records import krause_attention_media_queries as queries
from data.sources.fashion_mnist import CLASSES
from data.store import Store
from models.attention.rollout import rollout
from precompute.studies.krause_attention import VISION

_MIDDLE = 25  # the patch in the middle of 7 x 7, behind the class token


def _clicked() -> None:
    """A click on a patch makes it the query."""
    points = st.session_state["krause_picture"]["selection"]["points"]
    if points and points[0].get("customdata"):
        st.session_state["v_query"] = float(points[0]["customdata"][0])


def vision(store: Store) -> None:
    """Where patches look, and what accuracy costs."""
    runs = cached_on(store, queries.image_runs, VISION)
    softmax = runs[runs["mechanism"] == "softmax"]
    if softmax.empty or len(runs) < 2:
        states.empty_state(
            "The store holds no vision transformers with their maps.",
            "Run `cloudchamber precompute krause_attention --profile full`.",
        )
    else:
        _looks(store, {str(r.mechanism): r for r in runs.itertuples()})
    outcomes = cached_on(store, ledger.outcomes, VISION)
    outcomes = outcomes[~outcomes["data"].str.endswith("-subset")]
    if len(outcomes):
        st.markdown("**Accuracy against cost**, on 10,000 held-out images")
        cost = controls.choice(
            "Cost",
            {slug: c.title for slug, c in figures.COSTS.items()},
            "v_cost",
            style="segmented",
            help="Pairs are counted from the neighbourhood; the time is measured, on the machine in the "
            "run's "
            "provenance.",
        )
        draw(figures.accuracy_cost(outcomes, figures.COSTS[cost], current_palette()), "krause_accuracy")


def _looks(store: Store, runs: dict) -> None:
    palette = current_palette()
    names = {m: setting_name(m, None, None) for m in runs if m != "softmax"}
    first, second, third = st.columns([1, 1.4, 0.8], gap="small")
    pictures = cached_on(store, queries.images, str(runs["softmax"].run_id), "classified")
    with first:
        number = controls.choice(
            "Image",
            {int(r["number"]): CLASSES[int(r["label"])] for r in pictures.to_dict("records")},
            "v_image",
            help="The first test image of each class.",
        )
    with second:
        mechanism = controls.choice(
            "Beside softmax",
            names,
            "v_attention",
            default="krause" if "krause" in names else None,
            help="The attention whose maps are drawn beside those of softmax.",
        )
    found = {
        m: cached_on(store, queries.maps_of, str(runs[m].run_id), number) for m in ("softmax", mechanism)
    }
    maps = {name: weights for name, weights in found.items() if weights is not None}
    if len(maps) < len(found):
        states.empty_state("These runs keep no maps of this image.", "Choose another attention.")
        return
    size = maps["softmax"].shape[-1]
    side = int(np.sqrt(size - 1))
    with third:
        query = int(
            controls.number(
                "Query",
                0,
                size - 1,
                "v_query",
                default=_MIDDLE,
                step=1,
                style="input",
                help="0 is the class token, then the patches row by row. Or click a patch.",
            )
        )
    left, middle, right = st.columns([0.26, 0.37, 0.37], gap="small")
    shown = pictures[pictures["number"] == number].iloc[0]
    with left:
        st.markdown(f"**{CLASSES[int(shown['label'])]}**: click a patch")
        draw(
            figures.picture(shown["pixels"], side, query, CLASSES[int(shown["label"])], palette),
            "krause_picture",
            reading=False,
            on_select=_clicked,
            selection_mode="points",
        )
        answers = [
            f"{setting_name(m, None, None)} answers {CLASSES[int(row['predicted'])]} "
            f"({100 * float(row['probability']):.0f} %)"
            for m in ("softmax", mechanism)
            for row in [_answer(store, str(runs[m].run_id), number)]
        ]
        st.caption("; ".join(answers) + ".")
    top = float(max(m[:, :, query, 1:].max() for m in maps.values())) or 1.0
    for column, name in ((middle, "softmax"), (right, mechanism)):
        with column:
            st.markdown(f"**{setting_name(name, None, None)}**")
            draw(
                figures.tiles(maps[name], query, side, top, palette),
                f"krause_tiles_{column is right}",
                reading=False,
            )
    st.markdown(figures.looks_reading(maps["softmax"], maps[mechanism], names[mechanism], query, side))
    _rollouts(maps, side)


def _answer(store: Store, run_id: str, number: int) -> pd.Series:
    pictures = cached_on(store, queries.images, run_id, "classified")
    return pictures[pictures["number"] == number].iloc[0]


def _rollouts(maps: dict[str, np.ndarray], side: int) -> None:
    palette = current_palette()
    flows = {name: rollout(m) for name, m in maps.items()}
    top = max(float(f[1:].max()) for f in flows.values())
    st.markdown("**What the class token has taken in** after all layers (attention rollout)")
    columns = st.columns([1, 1, 1.4], gap="medium")
    for column, (name, values) in zip(columns, flows.items(), strict=False):
        with column:
            st.caption(setting_name(name, None, None))
            draw(
                figures.flow(values, side, top, name, palette),
                f"krause_flow_{column is columns[0]}",
                reading=False,
            )
    with columns[2]:
        parts = [
            f"under {setting_name(name, None, None)} the strongest patch carries "
            f"**{100 * float(v[1:].max()):.1f} %**"
            for name, v in flows.items()
        ]
        st.markdown(
            "Taken in: "
            + "; ".join(parts)
            + ". Rollout multiplies the mean attention of the layers with the residual "
            "stream; it shows where content can come from, not what was used."
        )
