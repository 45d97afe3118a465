"""Where a run writes: shards in a staging folder, and a marker that makes them count."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from data.artefacts import check_name
from data.errors import CloudChamberError
from data.paths import ARTEFACTS_NAME
from data.runs import RunRow
from data.schema import TableSpec
from data.staged import DONE, SHARD_SUFFIX, StagedRun, fsync

PROGRESS = "progress.json"
CANCEL = "CANCEL"  # its presence asks the run to stop

_SHARD_BYTES = 16 << 20  # rows wait in memory until a shard is this large
_PROGRESS_SECONDS = 0.1


class Cancelled(BaseException):
    """The run was asked to stop. A BaseException, so that no study takes it for an error of its own."""


class ShardRecorder:
    """Implements `precompute.study.Recorder` for the run `run_id` in `folder` (made if absent).

    Rows are validated against their table as they come. `on_progress` is called beside the
    progress file; `cancelled` is asked at every progress report, as is the marker file CANCEL.
    """

    def __init__(
        self,
        run_id: str,
        tables: Mapping[str, TableSpec],
        folder: Path,
        *,
        on_progress: Callable[[int, int, str], None] | None = None,
        cancelled: Callable[[], bool] | None = None,
    ) -> None:
        self.run_id = run_id
        self.folder = folder
        self._tables = tables
        self.notices: list[dict[str, str | int]] = []
        self._waiting: dict[str, list[pa.Table]] = {}
        self._waiting_bytes: dict[str, int] = {}  # kept beside, or every write would count all rows again
        self._shards: dict[str, int] = {}
        self._on_progress = on_progress
        self._cancelled = cancelled
        self._written: tuple[float, str] = (0.0, "")
        folder.mkdir(parents=True, exist_ok=True)

    def write(self, table: str, rows: pa.Table) -> None:
        """Append `rows` to one of the study's tables.

        Raises CloudChamberError("trace_invalid") when the table is not declared or rows do not fit it.
        """
        if table not in self._tables:
            raise CloudChamberError(
                "trace_invalid",
                f"The study declares no table {table!r}.",
                f"Write to one of: {', '.join(self._tables)}.",
            )
        valid = self._tables[table].validate(rows)
        stamped = valid.add_column(
            0, self._tables[table].stored_schema.field(0), pa.repeat(pa.scalar(self.run_id), len(valid))
        )
        self._waiting.setdefault(table, []).append(stamped)
        self._waiting_bytes[table] = self._waiting_bytes.get(table, 0) + stamped.nbytes
        if self._waiting_bytes[table] >= _SHARD_BYTES:
            self._flush(table)

    def artefact(self, name: str, content: bytes) -> None:
        """Keep `content` as the run's artefact `name`; a second one of that name takes its place.

        Raises CloudChamberError("artefact_name") when no file may be called so.
        """
        folder = self.folder / ARTEFACTS_NAME
        file = folder / check_name(name)
        folder.mkdir(exist_ok=True)
        write_atomically(file, content, durable=True)

    def progress(self, done: int, total: int, stage: str) -> None:
        """Report progress; raises Cancelled if the run was asked to stop."""
        if (self._cancelled is not None and self._cancelled()) or (self.folder / CANCEL).exists():
            raise Cancelled
        now = time.monotonic()
        then, last = self._written
        if now - then < _PROGRESS_SECONDS and stage == last and done < total:
            return
        self._written = (now, stage)
        write_atomically(self.folder / PROGRESS, json.dumps({"done": done, "total": total, "stage": stage}))
        if self._on_progress is not None:
            self._on_progress(done, total, stage)

    def notice(self, kind: str, message: str, count: int) -> None:
        """Keep a silent repair for the run's row, in the words of the page."""
        self.notices.append({"kind": kind, "message": message, "count": count})

    def finish(self, row: RunRow) -> StagedRun:
        """Write what waits, then the marker. A done run must have no two rows of the same key."""
        if row.status == "done":
            for table in list(self._waiting):
                self._flush(table)
            for table in self._shards:
                self._check_key(table)
        write_atomically(self.folder / DONE, row.to_json(), durable=True)
        return StagedRun(self.folder, row)

    def _flush(self, table: str) -> None:
        rows = pa.concat_tables(self._waiting.pop(table, []))
        self._waiting_bytes.pop(table, None)
        number = self._shards.get(table, 0)
        shard = self.folder / f"{table}-{number:03d}{SHARD_SUFFIX}"
        pq.write_table(rows, shard, compression="zstd", write_statistics=False)
        fsync(shard)
        self._shards[table] = number + 1

    def _check_key(self, table: str) -> None:
        key = list(self._tables[table].key)
        if not key:
            return
        shards = sorted(self.folder.glob(f"{table}-*{SHARD_SUFFIX}"))
        keys = pa.concat_tables([pq.read_table(shard, columns=key) for shard in shards])
        distinct = keys.group_by(key).aggregate([]).num_rows
        if distinct != keys.num_rows:
            raise CloudChamberError(
                "trace_invalid",
                f"{keys.num_rows - distinct} rows repeat the key ({', '.join(key)}) of another row.",
                "Write each row once, or declare the column that tells them apart.",
                where=table,
            )


def write_atomically(path: Path, content: str | bytes, *, durable: bool = False) -> None:
    """Write a small file so that a reader sees the old content or the new, never a part."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    with temporary.open("wb") as file:
        file.write(content.encode() if isinstance(content, str) else content)
        if durable:
            file.flush()
            os.fsync(file.fileno())
    os.replace(temporary, path)
    if durable:
        fsync(path.parent)
