"""What the page of the Krause study draws of networks of sequences: sinks, their emergence, losses, maps."""

from __future__ import annotations

import numpy as np
import pandas as pd

from data.blobs import decode_map
from data.records.krause_attention_ledger import RUNS, SETTING
from data.store import Store


def text_runs(store: Store, subject: str) -> pd.DataFrame:
    """Finished trainings of `subject` on text, with their setting: run_id, subject, seed, mechanism,
    window, topk, sigma, data, length, layers, heads, has_maps."""
    return store.frame(
        f"""
        SELECT {SETTING},
               CAST(json_extract_string(config, '$.recipe.network.context') AS INTEGER) AS length,
               CAST(json_extract_string(config, '$.recipe.network.layers') AS INTEGER) AS layers,
               CAST(json_extract_string(config, '$.recipe.network.heads') AS INTEGER) AS heads,
               run_id IN (SELECT run_id FROM krause_maps) AS has_maps
        FROM runs WHERE study = 'krause_attention' AND status = 'done' AND subject = ?
          AND json_extract_string(config, '$.task') = 'text'
        ORDER BY mechanism, "window", topk, seed
        """,
        (subject,),
    )


def emergence(store: Store, subject: str, eps: float) -> pd.DataFrame:
    """Sink metrics of every run and step, mean over layers and heads.

    Columns: the setting, step, first_mass, early_first_mass, oldest_mass, null_mass, key_norm_ratio
    and sink_rate (share of heads and chunks whose importance of key 0 exceeds `eps`).
    """
    return store.frame(
        f"""
        SELECT {SETTING}, step, avg(first_mass) AS first_mass, avg(early_first_mass) AS early_first_mass,
               avg(oldest_mass) AS oldest_mass, avg(null_mass) AS null_mass,
               avg(key_norm_ratio) AS key_norm_ratio,
               avg(len(list_filter(first_importance, lambda x: x > ?)) / len(first_importance)) AS sink_rate
        FROM krause_sinks JOIN runs USING (run_id)
        WHERE subject = ? AND status = 'done' GROUP BY ALL ORDER BY mechanism, "window", topk, seed, step
        """,
        (eps, subject),
    )


def losses(store: Store, subject: str) -> pd.DataFrame:
    """Held-out loss by step, and the floor where it is known: the setting, step, split, bits."""
    return store.frame(
        f"""
        SELECT {SETTING}, step, split, loss_nats / ln(2) AS bits
        FROM krause_training JOIN runs USING (run_id)
        WHERE subject = ? AND status = 'done' AND split IN ('validation', 'floor')
        ORDER BY mechanism, "window", topk, seed, step
        """,
        (subject,),
    )


def first_by_query(store: Store, subject: str) -> pd.DataFrame:
    """Attention on key 0 by query position, mean over layers, heads and seeds: mechanism, window, topk,
    query, mass."""
    return store.frame(
        f"""
        SELECT mechanism, "window", topk, query - 1 AS query, avg(first_by_query[query]) AS mass
        FROM {RUNS} JOIN krause_profiles USING (run_id),
             generate_series(1, len(first_by_query)) AS positions(query)
        WHERE subject = ? GROUP BY ALL ORDER BY mechanism, "window", topk, query
        """,
        (subject,),
    )


def attention_map(store: Store, run_id: str, layer: int, head: int, sample: int = 0) -> np.ndarray | None:
    """One head's map (rows, cols) as float32; None where none is kept."""
    found = store.frame(
        "SELECT rows, cols, codec, weights FROM krause_maps "
        "WHERE run_id = ? AND layer = ? AND head = ? AND sample = ?",
        (run_id, layer, head, sample),
    )
    if found.empty:
        return None
    row = found.iloc[0]
    return decode_map(bytes(row["weights"]), int(row["rows"]), int(row["cols"]), str(row["codec"]))


def tokens(store: Store, run_id: str, sample: int = 0) -> list[str]:
    """The characters of a kept map, in order."""
    frame = store.frame(
        "SELECT token FROM krause_tokens WHERE run_id = ? AND sample = ? ORDER BY position",
        (run_id, sample),
    )
    return [str(token) for token in frame["token"]]
