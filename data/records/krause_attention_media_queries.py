"""What the page of the Krause study draws of images, completions and texts."""

from __future__ import annotations

import numpy as np
import pandas as pd

from data.blobs import decode_map
from data.records.krause_attention_ledger import RUNS
from data.store import Store


def image_runs(store: Store, subject: str) -> pd.DataFrame:
    """Runs of `subject` that keep images, with their setting, on the full data set."""
    return store.frame(
        f"""
        SELECT * FROM {RUNS} WHERE subject = ? AND run_id IN (SELECT run_id FROM krause_images)
          AND NOT ends_with(data, '-subset') ORDER BY mechanism, seed
        """,
        (subject,),
    )


def images(store: Store, run_id: str, role: str) -> pd.DataFrame:
    """Images of a run in one role: number, label, predicted, probability, given_rows, pixels (uint8 array)."""
    frame = store.frame(
        "SELECT number, label, predicted, probability, given_rows, height, width, pixels FROM krause_images "
        "WHERE run_id = ? AND role = ? ORDER BY number",
        (run_id, role),
    )
    pictures = [
        np.frombuffer(bytes(row["pixels"]), np.uint8).reshape(int(row["height"]), int(row["width"]))
        for row in frame.to_dict("records")
    ]
    frame["pixels"] = pd.Series(pictures, index=frame.index, dtype=object)
    return frame.drop(columns=["height", "width"])


def maps_of(store: Store, run_id: str, sample: int) -> np.ndarray | None:
    """Every map of one image: (layers, heads, N, N) float32; None where none is kept."""
    frame = store.frame(
        "SELECT layer, head, rows, cols, codec, weights FROM krause_maps "
        "WHERE run_id = ? AND sample = ? ORDER BY layer, head",
        (run_id, sample),
    )
    if frame.empty:
        return None
    decoded = [
        decode_map(bytes(row["weights"]), int(row["rows"]), int(row["cols"]), str(row["codec"]))
        for row in frame.to_dict("records")
    ]
    layers = int(frame["layer"].max()) + 1
    return np.stack(decoded).reshape(layers, -1, *decoded[0].shape)


def written(store: Store, subject: str) -> pd.DataFrame:
    """Text that networks of `subject` wrote on: the setting, seed, number, prompt, completion."""
    return store.frame(
        f"SELECT * FROM {RUNS} JOIN krause_texts USING (run_id) WHERE subject = ? ORDER BY number, mechanism",
        (subject,),
    )


def adaptation_runs(store: Store) -> pd.DataFrame:
    """Adapted models: run_id, seed, window and topk of their Krause branch."""
    return store.frame(
        """
        SELECT run_id, seed, CAST(json_extract_string(config, '$.window') AS INTEGER) AS "window",
               CAST(json_extract_string(config, '$.topk') AS INTEGER) AS topk
        FROM runs WHERE study = 'krause_attention' AND status = 'done'
          AND json_extract_string(config, '$.task') = 'adapt' ORDER BY seed
        """
    )
