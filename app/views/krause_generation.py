"""Generation: images completed, bits per dimension, speed, and text written on."""

from __future__ import annotations

import streamlit as st

from app.figures import krause_generation as figures
from app.figures.krause_settings import ORDER, of_setting, setting_name, settings
from app.theme import current_palette
from app.widgets import states
from app.widgets.figure import draw
from app.widgets.prose import inert
from app.widgets.store import cached_on
from data.records import krause_attention_ledger as ledger
from data.records import krause_attention_media_queries as queries
from data.store import Store
from precompute.studies.krause_attention import KJV, PIXELS


def generation(store: Store) -> None:
    """Pixel transformers, then the byte language model."""
    palette = current_palette()
    runs = cached_on(store, queries.image_runs, PIXELS)
    if runs.empty:
        states.empty_state(
            "The store holds no pixel transformers.",
            "Run `cloudchamber precompute krause_attention --profile full`.",
        )
    else:
        by_name = {str(r.mechanism): str(r.run_id) for r in runs.itertuples()}
        by_name = {m: by_name[m] for m in ORDER if m in by_name}
        left, right = st.columns([0.56, 0.44], gap="medium")
        with left:
            st.markdown("**Lower halves written on**, pixel by pixel")
            truth = cached_on(store, queries.images, next(iter(by_name.values())), "truth")
            written = {m: cached_on(store, queries.images, run, "completion") for m, run in by_name.items()}
            draw(figures.completions(truth, written, palette), "krause_completions")
        with right:
            st.markdown("**Bits per dimension**")
            draw(figures.bits_dots(cached_on(store, ledger.outcomes, PIXELS), palette), "krause_bits")
            times = cached_on(store, ledger.generation, PIXELS)
            if len(times):
                st.markdown("**Speed and memory**")
                draw(figures.speed_bars(times, palette), "krause_speed")
    _texts(store)


def _texts(store: Store) -> None:
    texts = cached_on(store, queries.written, KJV)
    if texts.empty:
        return
    st.markdown("**Text written on** by the byte language models, temperature 0.8")
    shown = [s for s in settings(texts) if s[0] in ("softmax", "krause", "window_topk", "linear")]
    for column, setting in zip(st.columns(len(shown), gap="medium"), shown, strict=True):
        with column:
            st.caption(setting_name(*setting, short=True))
            for row in of_setting(texts, setting).itertuples():
                # Bold ends before the space, or Markdown takes its stars for text.
                written = inert(" ".join(str(row.completion).split()), 220)
                st.markdown(f"**{inert(str(row.prompt).strip())}** {written}")
