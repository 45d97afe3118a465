"""A small real store with known numbers, published as any other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from data.publish import StagedRun, publish
from data.records.attention_sinks import HEADS, LAYERS, TABLES, TOKENS
from data.runs import RunRow, run_id
from data.schema import TableSpec

LAYER_COUNT, HEAD_COUNT, LENGTH, SAMPLES = 30, 9, 64, 20
SINKLESS_LAYERS = (0, 1, 10, 11)  # 26 of 30 layers sink: 86.7 % of heads
FIRST_IMPORTANCE = 0.6  # of a sinking head; the others have 0.05
SUBJECT = "smollm2-135m-instruct"
CONFIG: dict[str, Any] = {
    "subject": SUBJECT,
    "seed": 0,
    "task": "trace",
    "text": "kjv",
    "content": None,
    "bos": False,
    "length": LENGTH,
    "samples": SAMPLES,
    "maps": False,
    "codec": "f16",
    "cache": None,
}


def first_importance(layer: int, head: int) -> float:
    """Importance of the first token in the small store: higher heads sink a little less."""
    return 0.05 if layer in SINKLESS_LAYERS else FIRST_IMPORTANCE - 0.02 * head + 0.008 * layer


def run_row(text: str = "kjv", *, status: str = "done", error: str | None = None) -> RunRow:
    """The provenance of the small run."""
    config = CONFIG | {"text": text}
    return RunRow(
        run_id=run_id("attention_sinks", 1, config),
        study="attention_sinks",
        study_version=1,
        subject=SUBJECT,
        config=json.dumps(config),
        profile="smoke",
        seed=0,
        device="cpu",
        device_reason="no CUDA device is visible",
        versions=json.dumps({"python": "3.11.2", "torch": "2.13.0"}),
        source_hash="ab" * 32,
        started="2026-01-02T03:04:05+00:00",
        seconds=83.0,
        status=status,  # type: ignore[arg-type]
        error=error,
    )


def _heads() -> list[dict[str, Any]]:
    rows = []
    for sample, layer, head in np.ndindex(SAMPLES, LAYER_COUNT, HEAD_COUNT):
        first = first_importance(layer, head)
        rest = np.full(LENGTH - 1, (1 - first) / LENGTH)
        rows.append(
            {
                "sample": sample,
                "layer": layer,
                "head": head,
                "importance": [first, *rest],
                "first_token_mass": first,
                "row_entropy_bits": 3.0,
                "effective_keys": 8.0,
                "column_gini": 0.8,
                "top_key": 0,
                "top_key_importance": first,
                "top_key_share": first,
                "mean_distance": 12.0,
                "distance_mass": [1.0],
                "key_norm_ratio": 0.5,
                "value_norm_ratio": 0.25,
            }
        )
    return rows


def _layers() -> list[dict[str, Any]]:
    return [
        {
            "sample": sample,
            "layer": layer,
            "max_abs": 400.0,
            "max_position": 0,
            "max_dimension": 7,
            "median_abs": 0.2,
            "first_token_norm": 500.0,
            "other_norm": 10.0,
        }
        for sample, layer in np.ndindex(SAMPLES, LAYER_COUNT)
    ]


def _tokens() -> list[dict[str, Any]]:
    return [
        {"sample": sample, "position": i, "token_id": i, "token": f" w{i}", "kind": "word"}
        for sample, i in np.ndindex(SAMPLES, LENGTH)
    ]


def stage(folder: Path, row: RunRow, tables: dict[TableSpec, list[dict[str, Any]]]) -> StagedRun:
    """Write a run's shards as a recorder does."""
    folder.mkdir(parents=True, exist_ok=True)
    for spec, rows in tables.items():
        table = pa.Table.from_pylist(rows, schema=spec.arrow_schema)
        table = table.add_column(0, spec.stored_schema.field("run_id"), pa.array([row.run_id] * len(table)))
        pq.write_table(table, folder / f"{spec.name}-000.parquet")
    return StagedRun(folder, row)


def publish_small(path: Path, text: str = "kjv") -> RunRow:
    """Publish the small run, of a text, into the store at `path`."""
    row = run_row(text)
    tables = {HEADS: _heads(), LAYERS: _layers(), TOKENS: _tokens()}
    publish(path, [stage(path.parent / f"staged-{text}", row, tables)], TABLES)
    return row
