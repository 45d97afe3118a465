"""Folders of visits: one private folder per visitor, gone with the visit, the app, or its crash.

The layout is `<temp>/cloudchamber-<uid>/<pid>-<random>/<random>`: one root per app process, one
folder per visit. The root holds a lock file that its process keeps locked; the kernel lets go of it
however the process ends, so a root whose lock is free belongs to nobody and is swept at the next
start. (A process id alone would not do: ids are used again.) No name comes from a visitor.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import stat
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from data.errors import CloudChamberError

try:
    import fcntl
except ImportError:  # Windows: no advisory locks of this kind, and no sweeping of old roots
    fcntl = None  # type: ignore[assignment]

_LOCK = "owner.lock"


@dataclass(frozen=True)
class Visit:
    """One visitor's private place. `id` is random and says nothing about the visitor."""

    id: str
    folder: Path = field(repr=False)

    @property
    def staging(self) -> Path:
        """Where a run writes its shards before they are published."""
        return self.folder / "staging"

    @property
    def shelf_path(self) -> Path:
        """What the visitor brought, absent until something was."""
        return self.folder / "shelf"

    @property
    def store_path(self) -> Path:
        """The visit's own trace store, absent until its first run is done."""
        return self.folder / "traces.duckdb"


class VisitRoot:
    """The folder of all visits of this process. `parent` is for tests; by default it is temporary space."""

    def __init__(self, parent: Path | None = None) -> None:
        base = parent if parent is not None else _default_parent()
        try:
            with _exclusive(base / "sweep.lock"):
                sweep(base)
                self.path = Path(tempfile.mkdtemp(prefix=f"{os.getpid()}-", dir=base))
                self._lock = _take(self.path / _LOCK)
        except OSError as error:
            raise CloudChamberError(
                "visits_unwritable",
                f"No folder can be made for visits: {os.strerror(error.errno or 0)}.",
                "Free some space in the temporary folder, or point TMPDIR to a writable one.",
                where=str(base),
            ) from error

    def open(self) -> Visit:
        """A new, empty, private folder (mode 0700)."""
        visit = Visit(secrets.token_hex(8), Path(tempfile.mkdtemp(dir=self.path)))
        visit.staging.mkdir()
        return visit

    def remove(self, visit: Visit) -> None:
        """Wipe a visit's folder. What cannot be removed now goes with the root."""
        shutil.rmtree(visit.folder, ignore_errors=True)

    def close(self) -> None:
        """Wipe every visit and the root itself."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self._lock is not None:
            self._lock.close()
            self._lock = None


def sweep(base: Path) -> list[Path]:
    """Remove the roots in `base` whose owner is gone; returns them."""
    removed = []
    for root in base.iterdir():
        if not root.is_dir() or root.is_symlink():
            continue
        lock = _take(root / _LOCK)
        if lock is None:
            continue  # its owner lives
        lock.close()
        shutil.rmtree(root, ignore_errors=True)
        removed.append(root)
    return removed


def _take(path: Path) -> IO[bytes] | None:
    """The locked file, or None when another process holds it (or locks do not exist here)."""
    handle = path.open("ab")
    try:
        if fcntl is None:
            raise OSError
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        handle.close()
        return None
    return handle


@contextlib.contextmanager
def _exclusive(path: Path) -> Iterator[None]:
    """One process at a time makes or sweeps roots, so that a root is never seen before it is locked."""
    with path.open("ab") as handle:
        if fcntl is not None:
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _default_parent() -> Path:
    """A folder of this user in the temporary space, or a fresh one when somebody else sits on its name."""
    user = os.getuid() if hasattr(os, "getuid") else 0
    base = Path(tempfile.gettempdir()) / f"cloudchamber-{user}"
    base.mkdir(mode=0o700, exist_ok=True)
    status = base.lstat()
    ours = not hasattr(os, "getuid") or status.st_uid == user
    if not stat.S_ISDIR(status.st_mode) or not ours or (ours and status.st_mode & 0o077):
        return Path(tempfile.mkdtemp(prefix=f"cloudchamber-{user}-"))
    return base
