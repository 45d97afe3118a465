"""Building the next generation of the store beside the present one, and renaming it over."""

from __future__ import annotations

import fcntl
import os
import uuid
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from data.errors import CloudChamberError
from data.faults import corrupt, locked, older, write_error
from data.runs import RUNS, RunRow
from data.schema import DUCKDB_TYPES
from data.staged import fsync
from data.store import (
    META_DDL,
    SCHEMA_VERSION,
    Meta,
    attach,
    check_readable,
    read_meta,
    stored_schemas,
    translated,
)


def ddl(name: str, schema: pa.Schema) -> str:
    """CREATE TABLE for a stored schema (`run_id` first). Blobs are packed already, see `data.blobs`."""
    columns = []
    for field in schema:
        null = "" if field.nullable else " NOT NULL"
        packed = " USING COMPRESSION uncompressed" if pa.types.is_binary(field.type) else ""
        columns.append(f'"{field.name}" {DUCKDB_TYPES[field.type]}{null}{packed}')
    return f'CREATE TABLE "{name}" ({", ".join(columns)})'


class Builder:
    """The next generation of a store, while it is built beside the present one.

    Used by the holder of the writer lock as a context manager; without `commit` nothing changes.
    `schemas` are the stored schemas of tables that will be written, `drop` the ids of runs whose
    rows do not go along.

    Every table is written anew, sorted by run id: a query for one run then reads the few row groups
    whose range of ids holds it (on 10 million rows a tenth of the time of a scan), dropped runs
    leave no holes, and a table may change its columns. Both sides are sorted, so this is a merge.
    """

    def __init__(self, path: Path, schemas: Mapping[str, pa.Schema], *, drop: Iterable[str] = ()) -> None:
        self.path = path.absolute()
        self.building = self.path.with_name(f"{self.path.name}.{os.getpid()}-{uuid.uuid4().hex[:8]}.building")
        self.schemas = {"runs": RUNS.stored_schema, **schemas}
        self.drop = sorted(drop)
        self.meta = Meta(SCHEMA_VERSION, "", "", None, ())
        self._stored: dict[str, pa.Schema] = {}
        self._new: dict[str, dict[str, list[pa.Table]]] = {}  # by table, then run
        self._connection: duckdb.DuckDBPyConnection | None = None

    @property
    def connection(self) -> duckdb.DuckDBPyConnection:
        """The connection to the new file; valid inside the block and before `commit`."""
        if self._connection is None:
            raise RuntimeError("the builder is not open")
        return self._connection

    def __enter__(self) -> Builder:
        try:
            self._guarded(self._start)
        except BaseException:
            self.__exit__()  # Python does not call it when entering fails
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        for leftover in (self.building, self.building.with_name(self.building.name + ".wal")):
            leftover.unlink(missing_ok=True)

    def add_run(self, row: RunRow) -> None:
        """Add a row of `runs`; the run then counts as computed here, not as shipped."""
        self.meta = replace(self.meta, imported=tuple(i for i in self.meta.imported if i != row.run_id))
        self.insert("runs", row.table())

    def insert(self, name: str, rows: pa.Table) -> None:
        """Add `rows`, which have the stored schema of table `name`; kept in memory until `commit`."""
        runs = self._new.setdefault(name, {})
        ids = pc.unique(rows["run_id"]).to_pylist()
        for run_id in map(str, ids):
            part = rows if len(ids) == 1 else rows.filter(pc.equal(rows["run_id"], pa.scalar(run_id)))
            runs.setdefault(run_id, []).append(part)

    def commit(self) -> str:
        """Make the new generation the store; returns its id."""
        generation = uuid.uuid4().hex
        self._guarded(lambda: self._finish(generation))
        return generation

    def _start(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._connection = duckdb.connect(":memory:", config={"temp_directory": ""})
        if self.path.exists():
            self._attach_old()
        attach(self._connection, self.building, "building", read_only=False)
        self._connection.execute("USE building")
        wanted = {name: self._merged(name, self._stored.get(name), s) for name, s in self.schemas.items()}
        self.schemas = {**self._stored, **wanted}
        for name, schema in self.schemas.items():
            self._connection.execute(ddl(name, schema))

    def _attach_old(self) -> None:
        check_readable(self.path)
        with translated(self.path):
            attach(self.connection, self.path, "old", read_only=True)
            self.meta = read_meta(self.connection, "old", self.path)
            self._stored = stored_schemas(self.connection, "old", self.path)
        if "runs" not in self._stored:
            raise corrupt(self.path, "it has no table `runs`")
        self.meta = replace(self.meta, imported=tuple(i for i in self.meta.imported if i not in self.drop))

    def _merged(self, name: str, stored: pa.Schema | None, wanted: pa.Schema) -> pa.Schema:
        """The schema to build: `wanted`, if every stored row fits it; else raises store_older."""
        if stored is None or stored == wanted:
            return wanted
        have = {f.name: f for f in stored}
        want = {f.name: f for f in wanted}
        if lost := sorted(set(have) - set(want)):
            raise older(self.path, f"its table {name} has the column {lost[0]!r}, which is not used any more")
        for field in wanted:
            there = have.get(field.name)
            if there is None and not field.nullable:
                raise older(self.path, f"its table {name} lacks the column {field.name!r}")
            if there is not None and there.type != field.type:
                raise older(self.path, f"its column {name}.{field.name} is {there.type}, not {field.type}")
            if there is not None and there.nullable and not field.nullable:
                raise older(self.path, f"its column {name}.{field.name} may be null")
        return wanted

    def _merge(self, name: str) -> None:
        """Write table `name`: the kept rows and the new ones, in the order of their run ids."""
        below = ""  # the ids up to here are written; every id is greater than the empty text
        for run_id, parts in sorted(self._new.get(name, {}).items()):
            self._keep(name, below, run_id)
            for part in parts:
                self.connection.register("rows_to_insert", part)
                self.connection.execute(f'INSERT INTO "{name}" BY NAME SELECT * FROM rows_to_insert')
                self.connection.unregister("rows_to_insert")
            below = run_id
        self._keep(name, below, None)

    def _keep(self, name: str, above: str, below: str | None) -> None:
        """Copy the rows of the runs between two ids from the old generation."""
        if name not in self._stored:
            return
        end = "" if below is None else "AND run_id < ?"
        rows = f'SELECT * FROM old."{name}" WHERE run_id > ? {end} AND NOT list_contains(?, run_id)'
        values = [above, *([] if below is None else [below]), self.drop]
        self.connection.execute(f'INSERT INTO "{name}" BY NAME {rows}', values)

    def _finish(self, generation: str) -> None:
        connection = self.connection
        connection.execute("BEGIN")
        for name in self.schemas:
            self._merge(name)
        connection.execute(META_DDL)
        connection.execute(
            "INSERT INTO meta VALUES (?, ?, ?, ?, ?)",
            [
                SCHEMA_VERSION,
                generation,
                datetime.now(UTC).isoformat(timespec="milliseconds"),
                self.meta.manifest,
                ",".join(self.meta.imported) or None,
            ],
        )
        connection.execute("COMMIT")
        connection.execute("CHECKPOINT building")
        connection.execute("USE memory")
        connection.execute("DETACH building")
        connection.close()
        self._connection = None
        if self.building.with_name(self.building.name + ".wal").exists():
            raise RuntimeError("DuckDB left a write-ahead log after its checkpoint")
        fsync(self.building)
        # A log beside the store can only be another program's, and belongs to the file that goes away.
        self.path.with_name(self.path.name + ".wal").unlink(missing_ok=True)
        os.replace(self.building, self.path)
        fsync(self.path.parent)

    def _guarded(self, work: Callable[[], None]) -> None:
        """Do a step of the building; a full disk or a refused write becomes a sentence."""
        try:
            work()
        except (OSError, duckdb.Error) as error:
            if isinstance(error, duckdb.ConstraintException):
                raise CloudChamberError(
                    "trace_invalid",
                    f"A trace does not fit its table: {str(error).splitlines()[0]}.",
                    "Delete the run's staging folder and run `cloudchamber precompute` again.",
                    where=str(self.path),
                ) from error
            reading = f'"{self.path}"' in str(error) or "Corrupt database" in str(error)
            if isinstance(error, duckdb.Error) and reading:
                raise corrupt(self.path, str(error).splitlines()[0]) from error  # reading the old one failed
            raise write_error(self.path.parent, error) from error


def clear_leftovers(path: Path) -> None:
    """Delete what dead builders and dead other programs left beside the store.

    Only for the holder of its writer lock. A write-ahead log there is never ours: a published file
    is checkpointed. It may be that of the DuckDB shell; if that still runs, raises store_locked.
    """
    for leftover in path.parent.glob(f"{path.name}.*.building*"):
        with suppress(OSError):  # another account's file, or gone already; it is never opened
            leftover.unlink()
    log = path.with_name(path.name + ".wal")
    if log.exists() and path.exists():
        with path.open("rb") as file:
            try:
                fcntl.lockf(file, fcntl.LOCK_SH | fcntl.LOCK_NB)  # DuckDB's writer holds the other kind
            except OSError as error:
                raise locked(path, "it is being changed") from error
    log.unlink(missing_ok=True)
