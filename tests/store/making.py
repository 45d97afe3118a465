"""Stores and staged runs for the tests, made by the store's own code from known numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from data.publish import DONE, StagedRun, publish, read_staged
from data.runs import RunRow, run_id
from data.schema import Column, TableSpec

ITEMS = TableSpec(
    "items",
    "One row per item.",
    (
        Column("item", pa.int32(), "index", "Which one"),
        Column("value", pa.float32(), "", "A number"),
        Column("wide", pa.float64(), "", "A number that needs all its bits"),
        Column("name", pa.string(), "", "A word", nullable=True),
        Column("flag", pa.bool_(), "", "Even or not"),
        Column("series", pa.list_(pa.float32()), "", "As many numbers as the item says"),
        Column("blob", pa.binary(), "", "Bytes"),
    ),
    key=("item",),
)
TABLES: Mapping[str, TableSpec] = {"items": ITEMS}


def row(number: int, **changes: Any) -> RunRow:
    """The row of run `number`."""
    name = run_id("toy", 1, {"number": number})
    made = RunRow(
        name, "toy", 1, "ant", f'{{"number":{number}}}', "smoke", number, "cpu", "cpu: why not", "{}", "hash",
        f"2026-01-01T00:00:{number % 60:02d}.000+00:00", 1.5, "done",
    )  # fmt: skip
    return replace(made, **changes)


def items(number: int, count: int = 20, spec: TableSpec = ITEMS) -> pa.Table:
    """The rows of run `number`: awkward values, determined by the number."""
    rng = np.random.default_rng(number)
    values = {
        "run_id": [row(number).run_id] * count,
        "item": pa.array(range(count), pa.int32()),
        "value": rng.standard_normal(count).astype(np.float32),
        "wide": [float(v) if i else float("nan") for i, v in enumerate(rng.standard_normal(count))],
        "name": [None if i % 5 == 1 else f"wörd ‮ {i} \x00 <b>" for i in range(count)],
        "flag": [i % 2 == 0 for i in range(count)],
        "series": [rng.standard_normal(i % 4).astype(np.float32).tolist() for i in range(count)],
        "blob": [rng.bytes(40 + i) for i in range(count)],
        "extra": [None] * count,
    }
    schema = spec.stored_schema
    return pa.table({name: values[name] for name in schema.names}, schema=schema)


def stage(folder: Path, number: int, count: int = 20, spec: TableSpec = ITEMS, **changes: Any) -> StagedRun:
    """Run `number`, staged under `folder` in two shards, as a worker leaves it."""
    made = row(number, **changes)
    home = folder / made.run_id
    home.mkdir(parents=True, exist_ok=True)
    rows = items(number, count, spec)
    pq.write_table(rows.slice(0, count // 2), home / "items-000.parquet")
    pq.write_table(rows.slice(count // 2), home / "items-001.parquet")
    (home / DONE).write_text(made.to_json(), encoding="utf-8")
    staged = read_staged(home)
    assert staged is not None
    return staged


def make_store(folder: Path, numbers: range | list[int], count: int = 20) -> Path:
    """A store with these runs."""
    path = folder / "traces.duckdb"
    publish(path, [stage(folder / "staging", n, count) for n in numbers], TABLES)
    return path


def file_version(path: Path) -> tuple[int, int, int]:
    """What changes when the file is replaced or written, and not when it is only read: a whole
    `os.stat_result` would hold the time of the last access too."""
    stat = path.stat()
    return stat.st_ino, stat.st_size, stat.st_mtime_ns
