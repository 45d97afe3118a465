"""The trace store, read: a hardened, read-only view that follows new generations without waiting.

The store is one DuckDB file that is never changed in place: `data.publish` builds its successor
beside it and renames it over. A reader keeps the generation it opened until it asks for a newer one.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa

from data.errors import CloudChamberError
from data.faults import corrupt, first_line, locked, missing, newer, older, unreadable
from data.runs import RUNS
from data.schema import DUCKDB_TYPES

if TYPE_CHECKING:
    import pandas as pd  # DuckDB imports it when a frame is asked for

SCHEMA_VERSION = 1  # of the store's own tables (`meta`, `runs`) and of the codecs

META_DDL = (
    "CREATE TABLE IF NOT EXISTS meta (schema_version INTEGER NOT NULL, generation VARCHAR NOT NULL, "
    "created VARCHAR NOT NULL, manifest VARCHAR, imported VARCHAR)"
)

# The database name under which a generation is attached; statements name tables without it.
_DATABASE = "traces"

# What DuckDB raises when the file itself is at fault.
_FILE_ERRORS = (
    duckdb.IOException,
    duckdb.SerializationException,
    duckdb.InternalException,
    duckdb.FatalException,
)

_Signature = tuple[int, int, int, int]


@dataclass(frozen=True)
class Meta:
    """The store's only row of `meta`.

    `manifest` is the hash of the shipped traces it was seeded from, `imported` the ids of the runs
    that came from there and were not computed again here.
    """

    schema_version: int
    generation: str
    created: str
    manifest: str | None
    imported: tuple[str, ...]


@dataclass
class _Generation:
    """One opened file: its connection, what it said of itself, and how many calls use it now."""

    connection: duckdb.DuckDBPyConnection
    meta: Meta
    signature: _Signature
    users: int = 0
    retired: bool = False


@dataclass
class Store:
    """A read-only view of the trace store; safe to share between threads. Made by `open_store`."""

    path: Path
    _current: _Generation
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _swap: threading.Lock = field(default_factory=threading.Lock)

    @property
    def generation(self) -> str:
        """Id of the content now in view; changes with every publish, so it serves as a cache key."""
        return self._current.meta.generation

    @property
    def meta(self) -> Meta:
        """What the generation now in view says of itself."""
        return self._current.meta

    def refresh(self) -> bool:
        """Swap to the newest generation; True when the content changed. One `os.stat` when it did not.

        Raises what `open_store` raises when the file now there cannot be read; the generation in
        view then stays usable.
        """
        if _signature(self.path) == self._current.signature:
            return False
        with self._swap:
            if _signature(self.path) == self._current.signature:
                return False  # another thread swapped meanwhile
            fresh = _open(self.path)
            with self._lock:
                old, self._current = self._current, fresh
                old.retired = True
                idle = old.users == 0
            if idle:
                old.connection.close()
            return fresh.meta.generation != old.meta.generation

    def frame(self, sql: str, params: Sequence[Any] = ()) -> pd.DataFrame:
        """Rows of a SELECT as a DataFrame. SQL lives in `data` only; values go through `params`.

        Raises CloudChamberError("store_older") when the store lacks a table or column that is asked
        for, and "store_corrupt" when it cannot be read.
        """
        with self._cursor() as cursor:
            return cursor.execute(sql, list(params)).df()

    def arrow(self, sql: str, params: Sequence[Any] = ()) -> pa.Table:
        """Rows of a SELECT as an Arrow table; otherwise like `frame`."""
        with self._cursor() as cursor:
            table: pa.Table = cursor.sql(sql, params=list(params)).to_arrow_table()
            return table

    def runs(self, study: str | None = None) -> pd.DataFrame:
        """All runs, of one study if named, oldest first: the columns of `data.runs.RUNS`."""
        columns = ", ".join(RUNS.stored_schema.names)
        where = "" if study is None else "WHERE study = ?"
        return self.frame(
            f"SELECT {columns} FROM runs {where} ORDER BY started, run_id", () if study is None else (study,)
        )

    def rows(self, table: str, run_id: str) -> pa.Table:
        """All rows of one run in a table of the store, every column."""
        return self.arrow(f'SELECT * FROM "{table}" WHERE run_id = ?', (run_id,))

    def has_table(self, name: str) -> bool:
        """Whether the store holds a table of that name."""
        with self._cursor() as cursor:
            found = cursor.execute(
                "SELECT 1 FROM duckdb_tables() WHERE database_name = ? AND table_name = ?", [_DATABASE, name]
            )
            return found.fetchone() is not None

    def schemas(self) -> dict[str, pa.Schema]:
        """The stored schema of every table that holds runs, `run_id` first, by name."""
        with self._cursor() as cursor:
            return stored_schemas(cursor, _DATABASE, self.path)

    def close(self) -> None:
        """Close the file. Calls that still run in other threads finish first."""
        with self._lock:
            self._current.retired = True
            idle = self._current.users == 0
        if idle:
            self._current.connection.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @contextmanager
    def _cursor(self) -> Iterator[duckdb.DuckDBPyConnection]:
        """A cursor of its own for one call, on a generation that stays open until the call ends."""
        with self._lock:
            generation = self._current
            generation.users += 1
        try:
            with translated(self.path), generation.connection.cursor() as cursor:
                cursor.execute(f"USE {_DATABASE}")
                yield cursor
        finally:
            with self._lock:
                generation.users -= 1
                last = generation.retired and generation.users == 0
            if last:
                generation.connection.close()


def open_store(path: Path) -> Store:
    """Open the store at `path` for reading.

    Raises CloudChamberError: "store_missing", "store_unreadable", "store_locked" (another program
    has it open for writing), "store_corrupt", "store_older" or "store_newer" than this code.
    """
    path = Path(path)
    return Store(path, _open(path))


def _signature(path: Path) -> _Signature:
    try:
        stat = os.stat(path)
    except FileNotFoundError as error:
        raise missing(path) from error
    except OSError as error:
        raise unreadable(path, error) from error
    return stat.st_dev, stat.st_ino, stat.st_mtime_ns, stat.st_size


def _open(path: Path) -> _Generation:
    # The signature is taken before the file is opened: if a publish falls between the two, the next
    # refresh opens the same generation once more, and never misses one.
    signature = _signature(path)
    check_readable(path)
    # A connection of its own per generation: DuckDB's instance cache would hand out the old content
    # for a path whose file was replaced while an earlier connection to that path is still open.
    connection = duckdb.connect(":memory:", config={"temp_directory": ""})
    try:
        with translated(path):
            attach(connection, path, _DATABASE, read_only=True)
            connection.execute("SET enable_external_access = false")
            connection.execute("SET lock_configuration = true")
            meta = read_meta(connection, _DATABASE, path)
    except BaseException:
        connection.close()
        raise
    return _Generation(connection, meta, signature)


def attach(connection: duckdb.DuckDBPyConnection, path: Path, name: str, *, read_only: bool) -> None:
    """ATTACH the DuckDB file at `path` (one of ours, never an upload) under the database `name`."""
    quoted = str(path.absolute()).replace("'", "''")
    connection.execute(f"ATTACH '{quoted}' AS {name}{' (READ_ONLY)' if read_only else ''}")


def check_readable(path: Path) -> None:
    """Raise unless `path` is a file whose first bytes can be read and are DuckDB's."""
    try:
        with path.open("rb") as file:
            head = file.read(12)
    except FileNotFoundError as error:
        raise missing(path) from error
    except OSError as error:
        raise unreadable(path, error) from error
    if head[8:12] != b"DUCK":
        raise corrupt(path, "it is empty" if not head else "it is not a DuckDB file")


def read_meta(connection: duckdb.DuckDBPyConnection, database: str, path: Path) -> Meta:
    """The row of `meta`; raises store_corrupt, store_newer or store_older when it does not fit this code."""
    try:
        rows = connection.sql(f"SELECT * FROM {database}.meta").to_arrow_table().to_pylist()
    except duckdb.CatalogException as error:
        raise corrupt(path, "it has no table `meta`, so it is not a trace store") from error
    if len(rows) != 1 or not isinstance(rows[0].get("schema_version"), int):
        raise corrupt(path, "its table `meta` does not hold exactly one version")
    row = rows[0]
    check_schema_version(row["schema_version"], path)
    imported = row.get("imported") or ""
    return Meta(
        row["schema_version"],
        row["generation"],
        row["created"],
        row.get("manifest"),
        tuple(imported.split(",")) if imported else (),
    )


def stored_schemas(connection: duckdb.DuckDBPyConnection, database: str, path: Path) -> dict[str, pa.Schema]:
    """The stored schema of every table with runs in an attached store, by name."""
    arrow = {duck: kind for kind, duck in DUCKDB_TYPES.items()}
    rows = connection.execute(
        "SELECT table_name, column_name, data_type, is_nullable FROM duckdb_columns() "
        "WHERE database_name = ? AND NOT internal ORDER BY table_name, column_index",
        [database],
    ).fetchall()
    fields: dict[str, list[pa.Field[Any]]] = {}
    for table, column, kind, nullable in rows:
        if table == "meta":
            continue
        if kind not in arrow:
            raise older(path, f"its column {table}.{column} is {kind}")
        fields.setdefault(table, []).append(pa.field(column, arrow[kind], nullable=nullable))
    return {table: pa.schema(columns) for table, columns in fields.items()}


def check_schema_version(version: int, path: Path) -> None:
    """Raise store_newer or store_older unless this code reads stores of that version."""
    if version > SCHEMA_VERSION:
        raise newer(path, f"version {version}, this code reads version {SCHEMA_VERSION}")
    if version < SCHEMA_VERSION:
        raise older(path, f"it has version {version}, this code needs version {SCHEMA_VERSION}")


@contextmanager
def translated(path: Path) -> Iterator[None]:
    """Turn DuckDB's errors about the file at `path` into sentences with a remedy."""
    try:
        yield
    except (duckdb.CatalogException, duckdb.BinderException) as error:
        raise older(path, f"it lacks what is asked for: {first_line(error)}") from error
    except duckdb.Error as error:
        if not is_file_error(error):
            raise
        raise _file_error(path, error) from error


def is_file_error(error: duckdb.Error) -> bool:
    """Whether DuckDB complains about the file itself; a failed checksum comes as a bare Error."""
    return isinstance(error, _FILE_ERRORS) or "Corrupt database" in str(error)


def _file_error(path: Path, error: duckdb.Error) -> CloudChamberError:
    text = str(error)
    if "Could not set lock" in text:
        return locked(path, first_line(error))
    if "WAL" in text:
        return CloudChamberError(
            "store_corrupt",
            "Beside the store lies the write-ahead log of another file, left by a program that was killed.",
            f"Delete {path.name}.wal; the store itself is whole.",
            where=str(path),
        )
    if "newer version" in text or "version number" in text:
        return newer(path, first_line(error))
    if "Permission denied" in text:
        return unreadable(path, error)
    return corrupt(path, first_line(error))
