"""Particles, computed on the spot: softmax against bounded confidence from the same start."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from app.figures import krause_particles as figures
from app.theme import current_palette
from app.widgets import controls
from app.widgets.figure import draw
from models.attention.particles import (
    Rule,
    Trajectory,
    hegselmann_krause,
    simulate,
    start_circle,
    start_sphere,
)

_SPACES = {"circle": "Circle", "sphere": "Sphere", "opinions": "Opinions (1-D)"}
_RULES = {"radius": "within a radius", "topk": "the nearest k"}


@st.cache_data(show_spinner=False, max_entries=64)
def _paths(
    space: str, n: int, seed: int, steps: int, rules: tuple[tuple[str, float, float], ...]
) -> list[Trajectory]:
    start = start_circle(n, seed) if space == "circle" else start_sphere(n, seed)
    found = {rule: simulate(start, Rule(*rule), steps) for rule in dict.fromkeys(rules)}  # type: ignore[arg-type]
    return [found[rule] for rule in rules]


@st.cache_data(show_spinner=False, max_entries=64)
def _opinions(n: int, seed: int, eps: float) -> Trajectory:
    return hegselmann_krause(np.sort(np.random.default_rng(seed).uniform(0, 1, n)), eps)


@st.fragment(key="krause_particles")
def particles() -> None:
    """Controls that matter for the chosen space, then its figures."""
    space = controls.choice(
        "Space",
        _SPACES,
        "p_space",
        style="segmented",
        help="Unit vectors on a circle or sphere, as after a layer norm, or opinions on a line.",
    )
    if space == "opinions":
        _hegselmann_krause()
    else:
        _sphere(space)


def _common(columns: Sequence[DeltaGenerator]) -> tuple[int, int]:
    with columns[0]:
        n = controls.number("Particles", 20, 400, "p_n", default=200, step=10, help="How many there are.")
    with columns[1]:
        seed = controls.number(
            "Start", 0, 99, "p_seed", default=0, step=1, help="Seed of the starting places."
        )
    return int(n), int(seed)


def _hegselmann_krause() -> None:
    columns = st.columns(3, gap="small")
    n, seed = _common(columns)
    with columns[2]:
        eps = controls.number(
            "Confidence ε",
            0.02,
            0.6,
            "p_eps",
            default=0.15,
            step=0.01,
            format="%.2f",
            help="Opinions further away than this are not listened to.",
        )
    draw(figures.opinions(_opinions(n, seed, eps), eps, current_palette()), "krause_opinions")
    st.caption("Hegselmann and Krause 2002: everybody moves to the mean of those within ε.")


def _sphere(space: str) -> None:
    first = st.columns(4, gap="small")
    n, seed = _common(first)
    with first[2]:
        steps = int(
            controls.number("Steps", 10, 1_000, "p_steps", default=300, step=10, help="Layers of attention.")
        )
    with first[3]:
        beta = controls.number(
            "β of softmax",
            0.5,
            12.0,
            "p_beta",
            default=1.0,
            step=0.5,
            format="%.1f",
            help="Inverse temperature of softmax; 1/σ² of the kernels in the negative control.",
        )
    rule, limit, sigma = _bounded()
    rules = (
        ("softmax", beta, 0.0),
        (rule, 1 / sigma**2, limit),
        ("rbf", beta, 0.0),
        (rule, beta, limit),
    )
    softmax, krause, kernel, truncated = _paths(space, n, seed, steps, rules)
    palette = current_palette()
    what = f"radius {limit:g}" if rule == "radius" else f"k {limit:.0f}"
    names = (f"softmax, β = {beta:g}", f"Krause, {what}")
    draw(figures.animation(softmax, krause, names, palette), "krause_particles")
    left, right = st.columns(2, gap="medium")
    with left:
        st.markdown("**Clusters and consensus over time**")
        draw(figures.over_time(softmax, krause, names, palette), "krause_over_time")
    with right:
        st.markdown("**Negative control**: softmax against the full Gaussian kernel")
        figure = figures.negative_control(softmax, kernel, beta, palette, truncated, what)
        draw(figure, "krause_control")


def _bounded() -> tuple[str, float, float]:
    """Whom Krause trusts: the rule, its radius or number of neighbours, and the width of its weights."""
    columns = st.columns([2, 1, 1], gap="small")
    with columns[0]:
        rule = controls.choice(
            "Krause looks",
            _RULES,
            "p_rule",
            style="segmented",
            help="Which particles it trusts: all within a radius, or a fixed number of the nearest.",
        )
    with columns[1]:
        if rule == "radius":
            limit = controls.number(
                "Radius",
                0.1,
                2.0,
                "p_radius",
                default=0.5,
                step=0.05,
                format="%.2f",
                help="Distance between unit vectors; 2 is across the sphere and trusts everyone.",
            )
        else:
            limit = float(
                controls.number(
                    "k", 1, 200, "p_k", default=10, step=1, help="Nearest particles, itself among them."
                )
            )
    with columns[2]:
        sigma = controls.number(
            "σ",
            0.2,
            3.0,
            "p_sigma",
            default=1.0,
            step=0.1,
            format="%.1f",
            help="Width of the Gaussian weights within the neighbourhood.",
        )
    return rule, limit, sigma
