"""A pretrained model with a Krause branch beside its attention."""

from __future__ import annotations

import streamlit as st

from app.figures import krause_adaptation as figures
from app.theme import current_palette
from app.widgets import states
from app.widgets.figure import draw
from app.widgets.store import cached_on
from data.records import krause_attention_ledger as ledger
from data.records import krause_attention_media_queries as queries
from data.store import Store

LENGTH = 256  # tokens of a chunk in this task


def adaptation(store: Store) -> None:
    """First-token mass by layer, and perplexity, before and after training the branch."""
    runs = cached_on(store, queries.adaptation_runs)
    if runs.empty:
        states.empty_state(
            "The store holds no adapted model.",
            "Run `cloudchamber precompute krause_attention --profile full --only smollm2-krause`.",
        )
        return
    palette = current_palette()
    left, right = st.columns([0.55, 0.45], gap="medium")
    with left:
        st.markdown("**First-token mass**, layer by layer, in SmolLM2 135M")
        frame = cached_on(store, ledger.adapted)
        draw(
            figures.first_token_by_layer(frame, int(runs["window"].iloc[0]), LENGTH, palette),
            "krause_adapted",
        )
    with right:
        st.markdown("**Perplexity** on held-out encyclopaedia prose")
        draw(figures.perplexity_lines(cached_on(store, ledger.adapted_losses), palette), "krause_perplexity")
        st.caption(f"Means over {len(runs)} seeds; low-rank updates, the gate and σ are trained.")
