"""One definition of a table: it serves the writer, DuckDB's DDL, the reader, tooltips and docs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

from data.errors import CloudChamberError

# The Arrow types a trace may use, with the DuckDB type that stores each of them.
DUCKDB_TYPES: Mapping[pa.DataType, str] = {
    pa.string(): "VARCHAR",
    pa.bool_(): "BOOLEAN",
    pa.int32(): "INTEGER",
    pa.int64(): "BIGINT",
    pa.float32(): "FLOAT",
    pa.float64(): "DOUBLE",
    pa.binary(): "BLOB",
    pa.list_(pa.float32()): "FLOAT[]",
    pa.list_(pa.int32()): "INTEGER[]",
}


@dataclass(frozen=True)
class Column:
    """One column: its Arrow type, its unit ("" for none) and one line of meaning.

    `tolerance` is the absolute difference that `cloudchamber verify` accepts between two devices.
    """

    name: str
    type: pa.DataType
    unit: str
    meaning: str
    nullable: bool = False
    tolerance: float = 1e-4


@dataclass(frozen=True)
class TableSpec:
    """A typed table of traces. Every row carries `run_id`, added by the recorder."""

    name: str
    meaning: str
    columns: tuple[Column, ...]
    key: tuple[str, ...]  # columns that, with run_id, identify a row

    def __post_init__(self) -> None:
        names = [c.name for c in self.columns]
        if len(set(names)) != len(names):
            raise ValueError(f"table {self.name}: duplicate column")
        if missing := set(self.key) - set(names):
            raise ValueError(f"table {self.name}: key columns {sorted(missing)} do not exist")
        for column in self.columns:
            if column.type not in DUCKDB_TYPES:
                raise ValueError(f"{self.name}.{column.name}: no DuckDB type for {column.type}")

    @property
    def arrow_schema(self) -> pa.Schema:
        """The schema a study writes, without `run_id`."""
        return pa.schema([pa.field(c.name, c.type, nullable=c.nullable) for c in self.columns])

    @property
    def stored_schema(self) -> pa.Schema:
        """The schema at rest: `run_id` first, then the study's columns."""
        return self.arrow_schema.insert(0, pa.field("run_id", pa.string(), nullable=False))

    @property
    def ddl(self) -> str:
        """The `CREATE TABLE IF NOT EXISTS` statement for DuckDB."""
        columns = ["run_id VARCHAR NOT NULL"]
        for c in self.columns:
            columns.append(f'"{c.name}" {DUCKDB_TYPES[c.type]}{"" if c.nullable else " NOT NULL"}')
        return f'CREATE TABLE IF NOT EXISTS "{self.name}" ({", ".join(columns)})'

    def column(self, name: str) -> Column:
        """The column called `name`; KeyError if there is none."""
        for c in self.columns:
            if c.name == name:
                return c
        raise KeyError(f"{self.name} has no column {name!r}")

    def validate(self, table: pa.Table) -> pa.Table:
        """Return `table` cast to this schema, in its column order.

        Raises CloudChamberError("trace_invalid") that names the column when one is missing,
        unknown, of a type that cannot be cast safely, or null where that is not allowed.
        """
        names = set(table.column_names)
        wanted = {c.name for c in self.columns}
        for kind, extra in (("is missing", wanted - names), ("is not declared", names - wanted)):
            if extra:
                raise self._invalid(f"column {sorted(extra)[0]!r} {kind}")
        for c in self.columns:
            if not c.nullable and table[c.name].null_count:
                raise self._invalid(f"column {c.name!r} holds {table[c.name].null_count} nulls")
        try:
            return table.select([c.name for c in self.columns]).cast(self.arrow_schema)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
            raise self._invalid(str(error)) from error

    def _invalid(self, what: str) -> CloudChamberError:
        return CloudChamberError(
            "trace_invalid",
            f"A trace does not fit its table: {what}.",
            "Write what the table declares, or change the declaration and raise the study's version.",
            where=self.name,
        )
