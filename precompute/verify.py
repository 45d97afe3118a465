"""Re-running a stored run from its recorded configuration, and comparing every number."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pydantic import ValidationError

from data.blobs import codec_named, decode_map
from data.errors import CloudChamberError
from data.runs import RunRow
from data.schema import Column, TableSpec
from data.staged import StagedRun
from data.store import Store, open_store
from precompute.executors import WorkerDied, WorkerPool
from precompute.provenance import source_hash, versions
from precompute.study import Study
from precompute.worker import Work, perform

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class ColumnCheck:
    """One column: the largest absolute difference, where it is, and whether it is accepted.

    Accepted is the column's tolerance, and for packed maps the precision of the codec on top.
    """

    name: str
    tolerance: float
    max_abs: float
    where: str
    ok: bool


@dataclass(frozen=True)
class TableCheck:
    """One table: rows stored and rows computed again, keys that only one side has, every column."""

    name: str
    rows: int
    rows_again: int
    missing: int = 0
    extra: int = 0
    columns: tuple[ColumnCheck, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether the same keys carry accepted values."""
        return not self.missing and not self.extra and all(c.ok for c in self.columns)


@dataclass(frozen=True)
class RunCheck:
    """One run: its tables, and what has drifted since (library: stored version, version now)."""

    run_id: str
    study: str
    subject: str
    tables: tuple[TableCheck, ...] = ()
    error: str | None = None
    source_changed: bool = False
    versions_changed: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    seconds: float = 0.0
    seconds_stored: float = 0.0

    @property
    def ok(self) -> bool:
        """Whether the run could be computed again and agrees. Drift alone is no disagreement."""
        return self.error is None and all(t.ok for t in self.tables)


def verify(
    store_path: Path,
    run_ids: Sequence[str],
    registry: Mapping[str, Study],
    *,
    threads: int = 1,
    on_check: Callable[[RunCheck], None] | None = None,
) -> list[RunCheck]:
    """Compute the runs `run_ids` of the store again, in a worker, and compare them with what is stored.

    Nothing is published. Raises CloudChamberError("run_unknown") for an id that is not stored as
    done; a run that fails this time, or whose study changed its version, comes back with `error`.
    """
    checks = []
    with (
        open_store(store_path) as store,
        tempfile.TemporaryDirectory(prefix="cloudchamber-verify-") as folder,
    ):
        frame = store.runs()
        stored = {str(r["run_id"]): r for r in frame[frame["status"] == "done"].to_dict("records")}
        for name in run_ids:
            if name not in stored:
                raise CloudChamberError(
                    "run_unknown",
                    f"The store holds no finished run {name!r}.",
                    "List the runs with `cloudchamber runs`.",
                    where=str(store_path),
                )
        pool = WorkerPool(1, threads)
        try:
            for name in run_ids:
                row = RunRow(**{str(k): v for k, v in stored[name].items()} | {"error": None})
                check = _check(store, row, registry, Path(folder), pool, threads)
                checks.append(check)
                if on_check is not None:
                    on_check(check)
        finally:
            pool.terminate()
    return checks


def _check(
    store: Store, row: RunRow, registry: Mapping[str, Study], folder: Path, pool: WorkerPool, threads: int
) -> RunCheck:
    def unable(why: str) -> RunCheck:
        return RunCheck(row.run_id, row.study, row.subject, error=why)

    study = registry.get(row.study)
    if study is None:
        return unable(f"There is no study {row.study!r} any more.")
    try:
        config = study.config.model_validate_json(row.config)
    except ValidationError as error:
        what = error.errors(include_input=False, include_url=False)[0]["msg"]
        return unable(f"Its configuration is not valid any more: {what}.")
    work = Work.of(study, config, folder, profile=row.profile, threads=threads)
    if work.run_id != row.run_id:
        return unable(
            f"Its identity changed: the study has version {study.version} now, not {row.study_version}."
        )
    try:
        again = pool.submit(perform, work).result()
    except WorkerDied as error:
        return unable(f"{str(error).capitalize()}.")
    tables = () if again.row.error else tuple(compare(store, again, study.tables))
    shutil.rmtree(work.folder)
    return RunCheck(
        row.run_id,
        row.study,
        row.subject,
        tables,
        again.row.error,
        source_changed=row.source_hash != source_hash(row.study, study.run),
        versions_changed=changed_versions(row, study),
        seconds=again.row.seconds,
        seconds_stored=row.seconds,
    )


def changed_versions(row: RunRow, study: Study) -> dict[str, tuple[str, str]]:
    """What was installed then and what is now, where they differ: {library: (then, now)}; "" for absent."""
    then: dict[str, str] = json.loads(row.versions)
    subject = study.subjects.get(row.subject)
    now = versions(subject.packages if subject else ())
    names = sorted(then.keys() | now.keys())
    return {n: (then.get(n, ""), now.get(n, "")) for n in names if then.get(n, "") != now.get(n, "")}


def compare(store: Store, again: StagedRun, tables: Mapping[str, TableSpec]) -> Iterator[TableCheck]:
    """Compare a run in the store with the same run in staging, table by table."""
    for name, spec in tables.items():
        old = (
            store.rows(name, again.row.run_id) if store.has_table(name) else spec.stored_schema.empty_table()
        )
        shards = [pq.read_table(shard) for shard in again.shards(name)]
        new = pa.concat_tables(shards) if shards else spec.stored_schema.empty_table()
        if len(old) or len(new):
            yield compare_tables(spec, old, new)


def compare_tables(spec: TableSpec, old: pa.Table, new: pa.Table) -> TableCheck:
    """Compare two tables of `spec` row by row of the same key."""
    places = {key: i for i, key in enumerate(_keys(spec, old))}
    pairs = [(places[key], i) for i, key in enumerate(_keys(spec, new)) if key in places]
    left = old.take(pa.array([a for a, _ in pairs], pa.int64()))
    right = new.take(pa.array([b for _, b in pairs], pa.int64()))
    columns = tuple(
        _compare_column(spec, column, left, right) for column in spec.columns if column.name not in spec.key
    )
    return TableCheck(spec.name, len(old), len(new), len(old) - len(pairs), len(new) - len(pairs), columns)


def _keys(spec: TableSpec, rows: pa.Table) -> list[tuple[Any, ...]]:
    if not spec.key:
        return [()] * len(rows)
    return list(zip(*(rows[name].to_pylist() for name in spec.key), strict=True))


def _compare_column(spec: TableSpec, column: Column, left: pa.Table, right: pa.Table) -> ColumnCheck:
    """The largest difference in a column; `where` is the row furthest beyond (or nearest to) the limit."""
    if column.name not in left.column_names:
        return ColumnCheck(column.name, column.tolerance, np.inf, "the stored table lacks this column", False)
    worst, excess, at = 0.0, -np.inf, -1
    for row, difference, beyond in _differences(column, left, right):
        worst = max(worst, difference)
        if beyond > excess:
            excess, at = beyond, row
    where = ", ".join(f"{name} {right[name][at].as_py()}" for name in spec.key) if worst > 0 else ""
    return ColumnCheck(column.name, column.tolerance, worst, where, excess <= 0)


def _differences(column: Column, left: pa.Table, right: pa.Table) -> Iterator[tuple[int, float, float]]:
    """Per row that differs most: (row, largest absolute difference, largest excess over what is accepted)."""
    a, b = left[column.name], right[column.name]
    if pa.types.is_floating(column.type) or pa.types.is_integer(column.type):
        difference = _gap(_numbers(a), _numbers(b))
        if len(difference):
            row = int(np.argmax(difference))
            yield row, float(difference[row]), float(difference[row] - column.tolerance)
    elif pa.types.is_list(column.type):
        yield from _list_differences(column, a, b)
    elif {"rows", "cols", "codec"} <= set(left.column_names) and pa.types.is_binary(column.type):
        for row in range(len(left)):
            yield row, *_map_difference(column, left.slice(row, 1), right.slice(row, 1))
    else:
        for row, (x, y) in enumerate(zip(a.to_pylist(), b.to_pylist(), strict=True)):
            if x != y:
                yield row, np.inf, np.inf


def _list_differences(column: Column, a: Any, b: Any) -> Iterator[tuple[int, float, float]]:
    for row, (x, y) in enumerate(zip(a.to_pylist(), b.to_pylist(), strict=True)):
        if (x is None) != (y is None) or (x is not None and len(x) != len(y)):
            yield row, np.inf, np.inf
        elif x:
            worst = float(_gap(np.asarray(x, np.float64), np.asarray(y, np.float64)).max())
            yield row, worst, worst - column.tolerance


def _map_difference(column: Column, left: pa.Table, right: pa.Table) -> tuple[float, float]:
    """Largest difference of two packed maps, and the largest beyond tolerance and both codecs' precision."""
    (rows, cols), other = ([int(t[n][0].as_py()) for n in ("rows", "cols")] for t in (left, right))
    if [rows, cols] != other:
        return np.inf, np.inf
    maps: list[Array] = []
    allowed: Array = np.full((rows, cols), column.tolerance)
    for table in (left, right):
        codec = table["codec"][0].as_py()
        weights = decode_map(table[column.name][0].as_py(), rows, cols, codec).astype(np.float64)
        maps.append(weights)
        allowed += codec_named(codec).relative * weights + codec_named(codec).absolute
    gap = _gap(*maps)
    return float(gap.max()), float((gap - allowed).max())


def _numbers(values: Any) -> Array:
    return np.asarray(pc.fill_null(pc.cast(values, pa.float64()), float("nan")).to_numpy())


def _gap(a: Array, b: Array) -> Array:
    """|a - b|; 0 where both are NaN or the same infinity, infinite where only one is."""
    with np.errstate(invalid="ignore"):
        gap = np.abs(a - b)
    gap = np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0.0, gap)
    return np.where(np.isnan(gap), np.inf, gap)
