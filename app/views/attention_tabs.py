"""The tabs of the attention page. Each is computed when it is open, and only then."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pandas as pd
import streamlit as st

from app.figures import (
    attention_causes,
    attention_depth,
    attention_head,
    attention_overview,
    attention_sinks,
    attention_views,
    attention_windows,
)
from app.figures.attention_metrics import Metric, scale_top
from app.theme import current_palette
from app.views import attention_explorer
from app.views.attention_bring import bring
from app.views.attention_export import export
from app.views.attention_methods import METHODS
from app.views.attention_runs import Run
from app.widgets import claims, controls, downloads, explain, provenance, states
from app.widgets.figure import draw, format_control
from app.widgets.store import cached_on
from data.records import attention_sinks as tables
from data.records import attention_sinks_causes_queries as causes
from data.records import attention_sinks_queries as queries
from data.store import Store
from precompute.studies.attention_sinks import STUDY

Runs = Mapping[str, list[Run]]


def sinks(run: Run, eps: float) -> None:
    """Where sinks live: by kind of token, by head, by threshold, and in the hidden states."""
    palette, heads, windows = current_palette(), run.heads(eps), run.windows()
    left, right = st.columns(2, gap="medium")
    with left:
        st.markdown("**By kind of token**")
        kinds = run.read(queries.sinks_by_kind, run.id, eps)
        draw(attention_views.kinds_bars(kinds, eps, palette, windows), "sinks_kinds")
        st.markdown("**By threshold**")
        curve = attention_views.threshold_curve(run.rates(), eps, run.even(), palette, windows)
        draw(curve, "sinks_threshold")
    with right:
        st.markdown("**By place in the layer**")
        if heads["sink_rate"].notna().any():
            draw(attention_views.heads_bars(heads, palette), "sinks_heads")
        else:
            states.empty_state(
                "No layer can show a sink at this ε.", "Choose a smaller ε, or a shorter text."
            )
        if attention_windows.lowered(windows):
            st.markdown("**By depth: what each layer can see**")
            draw(attention_depth.importance_by_layer(heads, windows, eps, palette), "sinks_ceilings")
        st.markdown("**By depth: hidden states after each layer**")
        states_by_layer = run.read(queries.layers, run.id)
        if len(states_by_layer):
            dry = attention_sinks.dry_blocks(run.by_layer(eps), inner=False)
            draw(attention_views.norms_by_layer(states_by_layer, dry, palette), "sinks_norms")
        else:
            states.empty_state(
                "Hidden states are not known for this format.",
                "A Hugging Face folder of the same model shows them.",
            )


def what_if(store: Store, run: Run, eps: float) -> None:
    """The first token removed or replaced: where the sink goes."""
    found = _of_subject(cached_on(store, causes.intervention_runs), run, "intervention")
    if found is None:
        return
    chosen = _pick(found, "On the text", "whatif", run)
    palette = current_palette()
    left, right = st.columns([0.55, 0.45], gap="medium")
    with left:
        st.markdown("**Where the sink is**, by what stands first")
        table = cached_on(store, causes.interventions, chosen, eps)
        draw(attention_causes.whatif_dots(table, eps, palette), "whatif_dots")
    with right:
        st.markdown("**Layer by layer**")
        draw(
            attention_causes.whatif_layers(cached_on(store, causes.interventions_by_layer, chosen), palette),
            "whatif_layers",
        )


def streaming(store: Store, run: Run) -> None:
    """Perplexity along a stream when the cache forgets the first tokens."""
    found = _of_subject(cached_on(store, causes.stream_runs), run, "stream")
    if found is None:
        return
    longest = found.sort_values(["length", "samples"], ascending=False)
    chosen = _pick(longest, "On the text", "stream", run)
    draw(
        attention_causes.streaming_curves(cached_on(store, causes.streaming, chosen), current_palette()),
        "streaming",
    )


def _of_subject(frame: pd.DataFrame, run: Run, what: str) -> pd.DataFrame | None:
    mine = frame[frame["subject"] == run.subject]
    if mine.empty and run.brought:
        states.empty_state(
            f"The {what} is measured for the reference models only, not for {run.model}.",
            "Choose SmolLM2 above to see it.",
        )
        return None
    if mine.empty:
        states.empty_state(
            f"There is no {what} run of {run.model}.",
            "Choose SmolLM2 above, or run `cloudchamber precompute attention_sinks --profile laptop`.",
        )
        return None
    return mine


def _pick(frame: pd.DataFrame, label: str, key: str, run: Run) -> str:
    """One run of a frame of runs, named by its text and size; on the page's own text to begin with."""
    names = {
        str(row.run_id): f"{Run.name_of(str(row.text))}, {row.samples} × {row.length:,} tokens"
        for row in frame.itertuples()
    }
    same = frame[frame["text"] == run.text]
    default = str(same["run_id"].iloc[0]) if len(same) else next(iter(names))
    return controls.choice(
        label, names, key, default=default, width=420, help="Measured once, on these texts."
    )


def compare(runs: Runs, run: Run, metric: Metric, eps: float) -> None:
    """This run beside another one, on the same scale, with the same head of both."""
    models = {subject: found[0].model for subject, found in runs.items()}
    alone = len(runs[run.subject]) == 1  # then another model is what it compares with
    beside = next((s for s in runs if s != run.subject), run.subject) if alone else run.subject
    first, second = st.columns(2, gap="medium")
    with first:
        subject = controls.choice(
            "Beside it, model", models, "with_model", default=beside, help="The second model."
        )
    others = {other.id: other.title for other in runs[subject]}
    other_default = next((i for i in others if i != run.id), run.id)
    with second:
        chosen = controls.choice(
            "and text", others, "with_text", default=other_default, help="The second text."
        )
    other = next(found for found in runs[subject] if found.id == chosen)
    frames = run.heads(eps), other.heads(eps)
    top = scale_top(metric, *frames)
    names = (f"{run.model}, {run.title}", f"{other.model}, {other.title}")
    st.markdown(attention_overview.compare_reading(*frames, names, eps))
    palette, place = current_palette(), attention_explorer.place()
    for side, column, each, frame in zip(
        ("this", "other"), st.columns(2, gap="medium"), (run, other), frames, strict=True
    ):
        with column:
            st.markdown(f"**{each.model}**  \n{each.title}")
            inside = place if place is not None and attention_sinks.holds(frame, place) else None
            figure = attention_sinks.heads_map(
                frame, each.by_layer(eps), metric, eps, palette, top, each.windows()
            )
            framed = attention_sinks.cell_frame(frame, inside) if inside else None
            attention_explorer.draw_cells(figure, f"compare_{side}", framed, clicks=False)
            _compare_head(each, inside, eps, side)


def _compare_head(run: Run, place: tuple[int, int] | None, eps: float, side: str) -> None:
    if place is None:
        st.caption("This model has no such head.")
        return
    weights = run.weights(*place)
    tokens, importance = run.tokens(), run.importance(*place)
    palette, sight = current_palette(), run.sight(place[0])
    if weights is None:
        figure = attention_head.importance_view(tokens, importance, place, eps, palette, sight)
    else:
        figure = attention_head.head_view(
            weights, tokens, importance, place, eps, palette, height=560, sight=sight
        )
    draw(figure, f"compare_{side}_head")


def overview(run: Run, eps: float) -> None:
    """Every head's map as a stamp; a click chooses it above."""
    stamps = run.stamps()
    if stamps is None:
        states.empty_state(
            "This run keeps no maps.", "Choose a text with at most 512 tokens and fewer chunks."
        )
        return
    figure = attention_overview.overview(stamps, run.heads(eps), current_palette())
    place = attention_explorer.place()
    frame = attention_overview.stamp_frame(stamps, place) if place else None
    attention_explorer.draw_cells(figure, "stamps", frame)
    st.markdown(figure.reading)


def numbers(run: Run, eps: float) -> None:
    """The numbers behind the figures, with their downloads, and the format that figures are saved in."""
    layer, head = attention_explorer.place() or (0, 0)
    options: dict[str, tuple[str, Callable[[], pd.DataFrame]]] = {
        "heads": ("All heads", lambda: run.heads(eps)),
        "layers": ("Layers: hidden states", lambda: run.read(queries.layers, run.id)),
        "importance": (f"Importance, layer {layer} head {head}", lambda: run.importance(layer, head)),
        "tokens": ("Tokens", lambda: run.read(queries.tokens, run.id)),
        "kinds": ("Sinks by kind of token", lambda: run.read(queries.sinks_by_kind, run.id, eps)),
    }
    labels = {slug: name for slug, (name, _) in options.items()}
    table = controls.choice("Table", labels, "table", style="segmented", help="What to show and download.")
    columns = downloads.columns_of(tables.HEADS, tables.LAYERS, tables.TOKENS)
    downloads.numbers(
        options[table][1](), f"attention_{table}_{run.id}", columns, alt=f"{labels[table]} of {run.title}"
    )
    export(run, eps)
    format_control()


def method(store: Store, run: Run) -> None:
    """How this is computed, and where the run on screen comes from."""
    st.header("The run on screen", anchor=False)
    provenance.provenance_card(run.record(), STUDY)
    explain.explain(METHODS)


def ledger(store: Store) -> None:
    """The study's claims with their verdicts."""
    claims.claims_table(claims.entries(store, [STUDY]))


NAMES = (
    "Where sinks live",
    "What if",
    "Streaming",
    "Compare",
    "All heads",
    "Claims",
    "Numbers",
    "How this is computed",
    "Bring your own",
)


@st.fragment(key=attention_explorer.VIEWS)
def views(store: Store, runs: Runs, run: Run, metric: Metric, eps: float) -> None:
    """The tabs; the open one alone is computed, and a change inside one runs nothing but this."""
    contents: dict[str, Callable[[], None]] = dict(
        zip(
            NAMES,
            (
                lambda: sinks(run, eps),
                lambda: what_if(store, run, eps),
                lambda: streaming(store, run),
                lambda: compare(runs, run, metric, eps),
                lambda: overview(run, eps),
                lambda: ledger(store),
                lambda: numbers(run, eps),
                lambda: method(store, run),
                lambda: bring(run),
            ),
            strict=True,
        )
    )
    for name, tab in zip(NAMES, controls.tabs(NAMES, attention_explorer.TABS), strict=True):
        if tab.open:
            with tab, states.guarded():
                contents[name]()
