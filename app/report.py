"""A report of one attention run: a single HTML file for people who were not there."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Any

import pandas as pd

from app.figures.attention_depth import importance_by_layer
from app.figures.attention_head import head_view, importance_view
from app.figures.attention_sinks import sink_reading
from app.figures.attention_views import threshold_curve
from app.figures.attention_windows import sight_of, window_reading
from app.figures.base import Figure, duration, quantity, share
from app.figures.inspector import amount, title
from app.report_page import figure, page, pairs, rich, table, text, tiles
from app.theme import DARK, LIGHT, Mode, Palette
from app.views import attention_frames as frames
from data.errors import CloudChamberError
from data.records import attention_sinks_queries as queries
from data.store import Store
from precompute.studies.attention_sinks import STUDY

TOP_HEADS = 20
_CARD = {
    "name": "Name",
    "format": "Format",
    "architecture": "Architecture",
    "family": "Family",
    "layers": "Layers",
    "heads": "Heads per layer",
    "kv_heads": "Key-value heads per layer",
    "parameters": "Parameters",
    "vocabulary": "Vocabulary",
    "max_positions": "Reads at once",
    "dtype": "Stored as",
    "tokenizer": "Tokenizer",
}


def html(store: Store, run_id: str, eps: float) -> str:
    """The report of run `run_id`: card, headline, figures with their readings, tables, notices, provenance.

    Self-contained: it holds the plotting library and asks the network for nothing. Every word that came
    with the model or the text is inert. Raises CloudChamberError("run_unknown").
    """
    record = _record(store, run_id)
    card = queries.model_card(store, run_id)
    name = _name(card, str(record["subject"]))
    heads = frames.heads(store, run_id, eps)
    body = [
        f"<h1>{text(name)}</h1>",
        f'<p class="lead"><strong>{text(STUDY.question)}</strong> {text(STUDY.summary)}</p>',
        _headline(queries.headline(store, run_id, eps), eps),
        f"<section>{_readings(store, run_id, heads, eps)}</section>",
        _figures(store, run_id, heads, eps),
        _top_heads(heads),
        _card(card, record),
        _notices(record),
        _provenance(record),
        _method(eps),
        "<footer>Made by Cloud Chamber. This file asks the network for nothing.</footer>",
    ]
    return page(f"Attention sinks: {name}", "\n".join(part for part in body if part))


def _record(store: Store, run_id: str) -> Mapping[str, Any]:
    runs = store.runs(STUDY.slug)
    found = runs[(runs["run_id"] == run_id) & (runs["status"] == "done")]
    if found.empty:
        raise CloudChamberError(
            "run_unknown",
            "There is no finished run of this study with that id.",
            "List the runs with `cloudchamber runs`.",
            where=run_id,
        )
    return {str(name): value for name, value in found.iloc[0].items()}


def _name(card: Mapping[str, Any] | None, subject: str) -> str:
    spec = STUDY.subjects.get(subject)
    if spec is not None:
        return spec.title
    if card is None:
        return subject
    return title(str(card["architecture"] or ""), str(card["family"] or ""), int(card["parameters"] or 0))


def _headline(found: Mapping[str, Any], eps: float) -> str:
    rate = found["sink_rate"]
    shown = "out of sight" if rate is None or math.isnan(rate) else share(rate)
    return tiles(
        (
            ("sink_rate", shown, f"of heads sink on the first token (ε = {eps:.2f})"),
            ("first_token_mass", share(found["first_token_mass"]), "of attention is on the first token"),
            (
                "mean_row_entropy_bits",
                quantity(found["mean_row_entropy_bits"], "bits"),
                "entropy of a query's attention, mean",
            ),
            ("shape", f"{found['layers']} × {found['heads']}", "layers × heads"),
            *([("parameters", amount(found["parameters"]), "parameters")] if found["parameters"] else []),
            ("text", f"{found['samples']} × {found['length']:,}", "chunks × tokens were read"),
        )
    )


def _readings(store: Store, run_id: str, heads: pd.DataFrame, eps: float) -> str:
    layers = frames.by_layer(store, run_id, eps)
    samples = int(heads["samples"].max())
    length = len(queries.tokens(store, run_id))
    said = [sink_reading(layers, len(heads), samples, eps)]
    said.append(window_reading(queries.windows(store, run_id), eps, length))
    return "".join(f"<p class='lead'>{rich(sentence)}</p>" for sentence in said if sentence)


def _figures(store: Store, run_id: str, heads: pd.DataFrame, eps: float) -> str:
    windows, rates = queries.windows(store, run_id), frames.rates(store, run_id)
    place = frames.default_head(heads)
    parts = (
        (
            "heads",
            "Every head",
            lambda mode, _: frames.heads_figure(store, run_id, "importance", eps, mode),
        ),
        ("depth", "By depth", lambda _, palette: importance_by_layer(heads, windows, eps, palette)),
        (
            "head",
            f"Layer {place[0]}, head {place[1]}",
            lambda _, palette: _head(store, run_id, place, eps, palette),
        ),
        ("threshold", "By threshold", lambda _, palette: threshold_curve(rates, eps, None, palette, windows)),
    )
    return "".join(figure(name, words, _both(draw)) for name, words, draw in parts)


def _both(draw: Callable[[Mode, Palette], Figure]) -> dict[Mode, Figure]:
    return {"light": draw("light", LIGHT), "dark": draw("dark", DARK)}


def _head(store: Store, run_id: str, place: tuple[int, int], eps: float, palette: Palette) -> Figure:
    tokens = queries.tokens(store, run_id)["token"].tolist()
    importance = queries.importance(store, run_id, *place)
    weights = queries.attention_map(store, run_id, *place)
    sight = sight_of(queries.windows(store, run_id), place[0])
    if weights is None:
        return importance_view(tokens, importance, place, eps, palette, sight)
    return head_view(weights, tokens, importance, place, eps, palette, sight=sight)


def _top_heads(heads: pd.DataFrame) -> str:
    best = heads.sort_values("first_importance", ascending=False).head(TOP_HEADS)
    rows = [
        (
            int(row["layer"]),
            int(row["head"]),
            share(row["first_importance"]),
            share(row["first_token_mass"]),
            share(row["sink_rate"]),
            quantity(row["row_entropy_bits"]),
            quantity(row["mean_distance"]),
        )
        for row in best.to_dict("records")
    ]
    names = (
        "layer",
        "head",
        "first-token importance",
        "first-token mass",
        "sink rate",
        "row entropy [bit]",
        "mean distance [tokens]",
    )
    most = f"The {len(rows)} heads with the most attention on the first token"
    return f"<section><h2>Strongest heads</h2>{table(names, rows, most)}</section>"


def _card(card: Mapping[str, Any] | None, record: Mapping[str, Any]) -> str:
    if card is None:
        spec = STUDY.subjects.get(str(record["subject"]))
        said = pairs([("Model", spec.description), ("Licence", spec.licence)]) if spec else ""
    else:
        rows = [
            (name, f"{card[key]:,}" if isinstance(card[key], int) else card[key])
            for key, name in _CARD.items()
            if card.get(key) not in (None, "", 0)
        ]
        said = pairs(rows)
    return f"<section><h2>The model</h2>{said}</section>" if said else ""


def _notices(record: Mapping[str, Any]) -> str:
    try:
        found = json.loads(str(record.get("notices") or "[]"))
    except ValueError:
        found = []
    rows = [f"<li>{text(n['message'])}</li>" for n in found if isinstance(n, dict) and "message" in n]
    if not rows:
        return ""
    return f"<section><h2>What was changed or left out</h2><ul>{''.join(rows)}</ul></section>"


def _provenance(record: Mapping[str, Any]) -> str:
    config = json.loads(str(record["config"]))
    shown = {k: v for k, v in config.items() if k not in ("subject", "content", "seed") and v is not None}
    versions = json.loads(str(record["versions"]))
    rows = [
        ("Run", record["run_id"]),
        ("Subject", record["subject"]),
        ("Settings", " · ".join(f"{k} {v}" for k, v in shown.items())),
        ("Device", f"{record['device']}: {record['device_reason']}"),
        ("Versions", " · ".join(f"{k} {v}" for k, v in versions.items())),
        ("Computed", f"{record['started']}, in {duration(float(record['seconds']))}"),
        ("Sources", f"{str(record['source_hash'])[:12]} (study version {record['study_version']})"),
    ]
    return f"<section><h2>Where the numbers come from</h2>{pairs(rows)}</section>"


def _method(eps: float) -> str:
    papers = "".join(
        f'<li><a href="{text(p.url)}" rel="noreferrer">{text(p.title)}</a>, {text(p.authors)}, '
        f"{text(p.venue)} {p.year}</li>"
        for p in STUDY.papers
    )
    return (
        "<section><h2>How this is computed</h2>"
        "<p class='lead'><strong>Importance of key k</strong>: the mean attention that the queries at or "
        "after k give it; in a model that sees both directions, all queries. "
        "<strong>Sink rate</strong>: the share of chunks, layers and heads whose importance of position 0 "
        f"exceeds ε = {eps:.2f}. Layers whose window keeps position 0 out of sight of so many queries that "
        "its importance cannot exceed ε count in neither way. <strong>First-token mass</strong>: the mean "
        "attention on position 0 over the later queries. <strong>Row entropy</strong>: of a query's "
        "attention, in bits; 0 on one key, log₂ n when even over n keys.</p>"
        "<p class='lead'>Sink rates of texts of different length do not compare: the same ε is stricter "
        f"for a longer one.</p><ul>{papers}</ul></section>"
    )
