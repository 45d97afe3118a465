"""A run that waits to be published: a folder of shards with a marker. Light: every worker imports it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from data.paths import ARTEFACTS_NAME
from data.runs import RunRow

DONE = "DONE"  # the marker that ends a staged run; it holds the run's row
SHARD_SUFFIX = ".parquet"


@dataclass(frozen=True)
class StagedRun:
    """A finished run (done or failed) that waits in its folder to be published."""

    folder: Path
    row: RunRow

    def shards(self, table: str) -> list[Path]:
        """The shards of `table`, in the order they were written. A failed run publishes none."""
        return sorted(self.folder.glob(f"{table}-*{SHARD_SUFFIX}")) if self.row.status == "done" else []

    def artefacts(self) -> list[Path]:
        """The files the run leaves beside its rows, by name. A failed run publishes none."""
        folder = self.folder / ARTEFACTS_NAME
        return sorted(folder.iterdir()) if self.row.status == "done" and folder.is_dir() else []


def read_staged(folder: Path) -> StagedRun | None:
    """The finished run in `folder`; None when the run did not get to its end."""
    try:
        return StagedRun(folder, RunRow.from_json((folder / DONE).read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return None


def fsync(path: Path) -> None:
    """Flush a file or folder to the disk, so that a power cut after a rename cannot undo it."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
