"""The SQL over traced attention: pages and claims call these functions. What causes a sink, and what
streaming makes of it, is in attention_sinks_causes_queries.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from data.blobs import decode_map

if TYPE_CHECKING:
    from data.store import Store

_STUDY = "attention_sinks"

# Scalars of attention_heads that are averaged over a run's samples.
HEAD_SCALARS = (
    "first_token_mass",
    "row_entropy_bits",
    "effective_keys",
    "column_gini",
    "top_key_importance",
    "top_key_share",
    "mean_distance",
    "key_norm_ratio",
    "value_norm_ratio",
)

HEADLINE = (
    "layers",
    "heads",
    "parameters",
    "length",
    "samples",
    "sink_rate",
    "first_token_mass",
    "mean_row_entropy_bits",
    "sink_rate_by_layer",
)


def runs_of(store: Store, task: str) -> pd.DataFrame:
    """Done runs of a task with their configuration, a column each."""
    return store.frame(
        """
        SELECT run_id, subject, profile, seed,
               json_extract_string(config, '$.text') AS text,
               json_extract_string(config, '$.content') AS content,
               CAST(json_extract_string(config, '$.bos') AS BOOLEAN) AS bos,
               CAST(json_extract_string(config, '$.length') AS INTEGER) AS length,
               CAST(json_extract_string(config, '$.samples') AS INTEGER) AS samples,
               CAST(json_extract_string(config, '$.maps') AS BOOLEAN) AS has_maps,
               CAST(json_extract_string(config, '$.cache') AS INTEGER) AS cache
        FROM runs
        WHERE study = ? AND status = 'done' AND json_extract_string(config, '$.task') = ?
        ORDER BY subject, length, samples, text, bos, run_id
        """,
        (_STUDY, task),
    )


def trace_runs(store: Store) -> pd.DataFrame:
    """Done runs with task `trace`: run_id, subject, profile, seed, text, content, bos, length, samples, has_maps.

    `length` and `samples` are what was asked for; `tokens` (of the longest sample) and `chunks` (how many
    samples there are) what was there: a text may be shorter.
    """
    asked = runs_of(store, "trace").drop(columns="cache")
    if asked.empty:  # a store without this study has none of its tables
        return asked.assign(tokens=[], chunks=[])
    measured = store.frame(
        """
        SELECT run_id, CAST(max(len(importance)) AS INTEGER) AS tokens,
               CAST(count(DISTINCT sample) AS INTEGER) AS chunks
        FROM attention_heads WHERE layer = 0 AND head = 0 GROUP BY run_id
        """
    )
    return asked.merge(measured, on="run_id", how="inner")


def heads(store: Store, run_id: str) -> pd.DataFrame:
    """One row per (layer, head): the scalars of attention_heads, averaged over samples.

    `first_importance` is the importance of position 0 (mean over samples) and `samples` their number.
    """
    means = ", ".join(f"avg({name}) AS {name}" for name in HEAD_SCALARS)
    return store.frame(
        f"""
        SELECT layer, head, count(*) AS samples, avg(importance[1]) AS first_importance, {means}
        FROM attention_heads WHERE run_id = ? GROUP BY layer, head ORDER BY layer, head
        """,
        (run_id,),
    )


def sink_rates(store: Store, run_id: str, eps: float, position: int = 0) -> pd.DataFrame:
    """Sink_k^eps per head: share of samples whose importance at `position` exceeds `eps`.

    Gu et al. 2025, section 3; their k counts from 1. Columns: layer, head, sink_rate (0..1).
    """
    return store.frame(
        """
        SELECT layer, head, avg(CAST(importance[?] > ? AS DOUBLE)) AS sink_rate
        FROM attention_heads WHERE run_id = ? AND len(importance) > ?
        GROUP BY layer, head ORDER BY layer, head
        """,
        (position + 1, eps, run_id, position),
    )


def importance(store: Store, run_id: str, layer: int, head: int) -> pd.DataFrame:
    """Importance of every key position of one head.

    Columns: position, importance (mean over samples), low and high (10th and 90th percentile over
    samples), samples, token (of the first sample).
    """
    return store.frame(
        """
        WITH points AS (
            SELECT sample, unnest(importance) AS value, generate_subscripts(importance, 1) - 1 AS position
            FROM attention_heads WHERE run_id = ? AND layer = ? AND head = ?
        )
        SELECT p.position, avg(p.value) AS importance, quantile_cont(p.value, 0.1) AS low,
               quantile_cont(p.value, 0.9) AS high, count(*) AS samples, any_value(t.token) AS token
        FROM points p
        LEFT JOIN attention_tokens t ON t.run_id = ? AND t.sample = 0 AND t.position = p.position
        GROUP BY p.position ORDER BY p.position
        """,
        (run_id, layer, head, run_id),
    )


def tokens(store: Store, run_id: str, sample: int = 0) -> pd.DataFrame:
    """The tokens of one sample: position, token_id, token, kind."""
    return store.frame(
        """
        SELECT position, token_id, token, kind FROM attention_tokens
        WHERE run_id = ? AND sample = ? ORDER BY position
        """,
        (run_id, sample),
    )


def attention_map(
    store: Store, run_id: str, layer: int, head: int, sample: int = 0
) -> npt.NDArray[np.float32] | None:
    """The stored map of one head, (queries, keys) float32, or None when the run stored none."""
    found = store.arrow(
        """
        SELECT "rows", cols, codec, weights FROM attention_maps
        WHERE run_id = ? AND layer = ? AND head = ? AND sample = ?
        """,
        (run_id, layer, head, sample),
    ).to_pylist()
    if not found:
        return None
    row = found[0]
    return decode_map(row["weights"], row["rows"], row["cols"], row["codec"])


def attention_thumbnails(
    store: Store, run_id: str, size: int = 48, sample: int = 0
) -> npt.NDArray[np.float32] | None:
    """Every stored map, max-pooled to at most (size, size): (layers, heads, r, c) float32, or None."""
    found = store.arrow(
        """
        SELECT layer, head, "rows", cols, codec, weights FROM attention_maps
        WHERE run_id = ? AND sample = ? ORDER BY layer, head
        """,
        (run_id, sample),
    ).to_pylist()
    if not found:
        return None
    small = [max_pool(decode_map(r["weights"], r["rows"], r["cols"], r["codec"]), size) for r in found]
    thumbs = np.zeros(
        (found[-1]["layer"] + 1, max(r["head"] for r in found) + 1, *small[0].shape), np.float32
    )
    for row, pooled in zip(found, small, strict=True):
        thumbs[row["layer"], row["head"]] = pooled
    return thumbs


def max_pool(matrix: npt.NDArray[np.float32], size: int) -> npt.NDArray[np.float32]:
    """Max-pool a (R, C) matrix to at most (size, size). Maximum, because a mean would hide a sink."""
    for axis in (0, 1):
        n = matrix.shape[axis]
        if n > size:
            edges = np.linspace(0, n, size, endpoint=False).astype(np.intp)
            matrix = np.maximum.reduceat(matrix, edges, axis=axis)
    return matrix


def sinks_by_kind(store: Store, run_id: str, eps: float) -> pd.DataFrame:
    """Which kinds of token become sinks.

    Columns: kind ("first" is position 0, whatever stands there), positions (how many positions of
    that kind the samples hold), sinks (how many (position, layer, head) exceed eps) and rate (sinks
    over positions times heads). A position counts only if at least 8 queries see it.
    """
    return store.frame(
        """
        WITH points AS (
            SELECT sample, layer, head, unnest(importance) AS value,
                   generate_subscripts(importance, 1) - 1 AS position, len(importance) AS size
            FROM attention_heads WHERE run_id = ?
        )
        SELECT CASE WHEN p.position = 0 THEN 'first' ELSE t.kind END AS kind,
               count(DISTINCT (p.sample, p.position)) AS positions,
               count(*) FILTER (WHERE p.value > ?) AS sinks,
               avg(CAST(p.value > ? AS DOUBLE)) AS rate
        FROM points p JOIN attention_tokens t
          ON t.run_id = ? AND t.sample = p.sample AND t.position = p.position
        WHERE p.position = 0 OR p.position <= p.size - 8
        GROUP BY 1 ORDER BY rate DESC, kind
        """,
        (run_id, eps, eps, run_id),
    )


def sinks_by_layer(store: Store, run_id: str, eps: float) -> pd.DataFrame:
    """Sink rate at position 0 by layer: layer, rate (mean over heads and samples), heads.

    `strict_heads` is the share of heads that exceed eps on their mean importance.
    """
    return store.frame(
        """
        WITH head_means AS (
            SELECT layer, head, avg(importance[1]) AS value,
                   avg(CAST(importance[1] > ? AS DOUBLE)) AS rate
            FROM attention_heads WHERE run_id = ? GROUP BY layer, head
        )
        SELECT layer, avg(rate) AS rate, avg(CAST(value > ? AS DOUBLE)) AS strict_heads, count(*) AS heads
        FROM head_means GROUP BY layer ORDER BY layer
        """,
        (eps, run_id, eps),
    )


def sink_rate_by_sample(store: Store, run_id: str, eps: float, position: int = 0) -> pd.DataFrame:
    """Sink rate of each sample, over all layers and heads: sample, rate. For intervals over samples."""
    return store.frame(
        """
        SELECT sample, avg(CAST(importance[?] > ? AS DOUBLE)) AS rate
        FROM attention_heads WHERE run_id = ? GROUP BY sample ORDER BY sample
        """,
        (position + 1, eps, run_id),
    )


def layers(store: Store, run_id: str) -> pd.DataFrame:
    """Hidden-state statistics by layer, averaged over samples; layer -1 is the embedding.

    Columns: layer, max_abs, median_abs, first_token_norm, other_norm and at_first, the share of
    samples whose largest activation is at position 0.
    """
    return store.frame(
        """
        SELECT layer, avg(max_abs) AS max_abs, avg(median_abs) AS median_abs,
               avg(first_token_norm) AS first_token_norm, avg(other_norm) AS other_norm,
               avg(CAST(max_position = 0 AS DOUBLE)) AS at_first, mode(max_dimension) AS dimension
        FROM attention_layers WHERE run_id = ? GROUP BY layer ORDER BY layer
        """,
        (run_id,),
    )


def model_card(store: Store, run_id: str) -> dict[str, Any] | None:
    """What a run looked at: the columns of attention_models; None for a run that says nothing of it."""
    found = store.arrow("SELECT * EXCLUDE (run_id) FROM attention_models WHERE run_id = ?", (run_id,))
    rows: list[dict[str, Any]] = found.to_pylist()
    return rows[0] if rows else None


def windows(store: Store, run_id: str) -> pd.DataFrame:
    """What the queries of each layer see: layer, causal, window (NA: all), first_seen, importance_ceiling."""
    return store.frame(
        """
        SELECT layer, causal, "window", first_seen, importance_ceiling
        FROM attention_windows WHERE run_id = ? ORDER BY layer
        """,
        (run_id,),
    )


def headline(store: Store, run_id: str, eps: float) -> dict[str, Any]:
    """The numbers a run comes down to, as `cloudchamber analyze` prints them.

    `sink_rate` is the share of (sample, layer, head) whose importance of position 0 exceeds `eps`
    (Gu et al. 2025, section 3), over layers that can show it: one whose queries see so little that
    this importance cannot exceed `eps` counts in neither way, and is NaN in `sink_rate_by_layer`.
    `first_token_mass` and `mean_row_entropy_bits` are means over all of them.
    """
    found = store.arrow(
        """
        WITH layers AS (
            SELECT h.layer, avg(CAST(h.importance[1] > ? AS DOUBLE)) AS rate, count(*) AS count,
                   sum(h.first_token_mass) AS mass, sum(h.row_entropy_bits) AS bits,
                   count(DISTINCT h.head) AS heads, count(DISTINCT h.sample) AS samples,
                   coalesce(any_value(w.importance_ceiling) > ?, true) AS can,
                   max(len(h.importance)) AS length
            FROM attention_heads h
            LEFT JOIN attention_windows w ON w.run_id = h.run_id AND w.layer = h.layer
            WHERE h.run_id = ? GROUP BY h.layer
        )
        SELECT count(*) AS layers, max(heads) AS heads, max(length) AS length, max(samples) AS samples,
               sum(rate * count) FILTER (WHERE can) / sum(count) FILTER (WHERE can) AS sink_rate,
               sum(mass) / sum(count) AS first_token_mass, sum(bits) / sum(count) AS mean_row_entropy_bits,
               list(CASE WHEN can THEN rate ELSE 'nan' END ORDER BY layer) AS sink_rate_by_layer
        FROM layers
        """,
        (eps, eps, run_id),
    ).to_pylist()[0]
    parameters = store.arrow(
        "SELECT parameters FROM attention_models WHERE run_id = ?", (run_id,)
    ).to_pylist()
    rate = found["sink_rate"]
    more = {
        "parameters": parameters[0]["parameters"] if parameters else None,
        "sink_rate": float("nan") if rate is None else rate,  # no layer can show one
    }
    return {key: more.get(key, found.get(key)) for key in HEADLINE}
