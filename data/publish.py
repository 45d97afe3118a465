"""The trace store, written: whole new generations, built beside the old one and renamed over it.

A publish that dies at any moment leaves the old generation as it was; what it was building is
cleared by the next writer. Readers need no lock, because a file that was renamed over stays whole
for whoever has it open.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from data.artefacts import clear, place
from data.builder import Builder, clear_leftovers
from data.errors import CloudChamberError
from data.lock import writer_lock
from data.runs import RUNS, RunRow
from data.schema import TableSpec
from data.shipped import export_published, import_published
from data.staged import DONE, SHARD_SUFFIX, StagedRun, read_staged
from data.store import attach, check_readable, read_meta, translated

__all__ = [
    "DONE",
    "SHARD_SUFFIX",
    "StagedRun",
    "export_published",
    "import_published",
    "publish",
    "read_staged",
    "remove_runs",
    "stored_rows",
]


def publish(
    path: Path,
    staged: Sequence[StagedRun],
    tables: Mapping[str, TableSpec],
    *,
    wait: bool = False,
) -> int:
    """Add the `staged` runs to the store at `path`, made if absent; returns how many changed it.

    A run replaces the stored run of the same id, except that a failed one never replaces a done
    one; a run that is already there as it is counts as no change. `tables` declares every table the
    runs wrote. A stored table that lacks only nullable columns of its declaration is rebuilt with
    them; any other difference raises CloudChamberError("store_older"). Also raises store_busy,
    store_corrupt, store_newer, store_unwritable, disk_full, trace_invalid; the store then stays as
    it was. Artefacts are copied beside the store before it changes; a publish that dies between
    the two leaves at worst artefacts that no stored run has. Does not remove the staging folders.
    """
    with writer_lock(path, wait=wait):
        clear_leftovers(path)
        news = _news(path, staged)
        if not news:
            return 0
        specs = {name: tables[name].stored_schema for name in tables}
        with Builder(path, specs, drop={s.row.run_id for s in news}) as builder:
            for run in news:
                builder.add_run(run.row)
                for name in tables:
                    for shard in run.shards(name):
                        builder.insert(name, _read_shard(shard, specs[name]))
            for run in news:  # now, so that a published run always has its artefacts
                place(path, run.row.run_id, run.artefacts())
            builder.commit()
        for run in news:  # and only now what an earlier run of the same id had more of
            clear(path, run.row.run_id, [file.name for file in run.artefacts()])
        return len(news)


def remove_runs(path: Path, run_ids: Iterable[str], *, wait: bool = False) -> None:
    """Remove runs, all their rows and artefacts, from the store. Ids that are not there are ignored."""
    ids = set(run_ids)
    with writer_lock(path, wait=wait):
        clear_leftovers(path)
        with Builder(path, {}, drop=ids) as builder:
            builder.commit()
        for name in ids:
            clear(path, name)


def stored_rows(path: Path) -> dict[str, RunRow]:
    """The rows of `runs` by id; empty when there is no store."""
    if not path.exists():
        return {}
    check_readable(path)
    with translated(path), duckdb.connect(":memory:") as connection:
        attach(connection, path, "old", read_only=True)
        read_meta(connection, "old", path)
        columns = ", ".join(RUNS.stored_schema.names)
        rows = connection.sql(f"SELECT {columns} FROM old.runs").to_arrow_table().to_pylist()
    return {row["run_id"]: RunRow(**row) for row in rows}


def _news(path: Path, staged: Sequence[StagedRun]) -> list[StagedRun]:
    """Those of `staged` that change the store: the last of each id, unless it is there or only failed."""
    stored = stored_rows(path)
    latest = {run.row.run_id: run for run in staged}
    news = []
    for name, run in latest.items():
        old = stored.get(name)
        if old == run.row or (old is not None and old.status == "done" and run.row.status == "failed"):
            continue
        news.append(run)
    return news


def _read_shard(shard: Path, schema: pa.Schema) -> pa.Table:
    try:
        return pq.read_table(shard).select(schema.names).cast(schema)
    except (OSError, KeyError, pa.ArrowException) as error:
        raise CloudChamberError(
            "trace_invalid",
            f"A shard of a run does not fit its table: {str(error).splitlines()[0]}.",
            "Delete its folder and run `cloudchamber precompute` again.",
            where=str(shard),
        ) from error
