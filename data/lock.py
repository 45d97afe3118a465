"""One writer at a time: a lock that the kernel drops when its holder dies, however it dies."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from filelock import FileLock, Timeout

from data.errors import CloudChamberError
from data.faults import write_error

LOCK_NAME = "precompute.lock"

# Lock files this process holds, by path: (owning thread, depth). Publishing inside a precompute
# takes the lock again on the same thread, which must pass; another thread is another writer.
_held: dict[Path, tuple[int, int]] = {}
_guard = threading.Lock()


@dataclass(frozen=True)
class Holder:
    """Who holds the lock, as far as the note beside it says."""

    pid: int
    started: str


@contextmanager
def writer_lock(store: Path, *, wait: bool = False) -> Iterator[None]:
    """Hold the right to write the store at `store` (and what is staged for it) for the block.

    Reentrant on one thread. Without `wait` a second writer is refused with
    CloudChamberError("store_busy") that names the holder; with it, waits for its turn. Raises
    CloudChamberError("store_unwritable") when the folder cannot be written.
    """
    path = lock_path(store)
    if _reenter(path):
        try:
            yield
        finally:
            _leave(path)
        return
    lock = FileLock(path, timeout=-1 if wait else 0, thread_local=False)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()  # FileLock takes a folder that refuses the file for a lock that is held
        lock.acquire()
    except Timeout as error:
        raise _busy(path) from error
    except OSError as error:
        raise write_error(path.parent, error) from error
    try:
        with _guard:
            _held[path] = (threading.get_ident(), 1)
        _write_note(path)
        yield
    finally:
        with _guard:
            _held.pop(path, None)
        with suppress(OSError):  # the note is a courtesy; the lock itself is what counts
            _note(path).unlink()
        lock.release()


def lock_path(store: Path) -> Path:
    """The lock file that guards the store at `store`."""
    return Path(store).absolute().parent / LOCK_NAME


def holder(store: Path) -> Holder | None:
    """Who noted that they hold the lock of this store; None when nobody did. For messages only."""
    return _read_note(lock_path(store))


def _reenter(path: Path) -> bool:
    with _guard:
        owner, depth = _held.get(path, (0, 0))
        if depth and owner == threading.get_ident():
            _held[path] = (owner, depth + 1)
            return True
        return False


def _leave(path: Path) -> None:
    with _guard:
        owner, depth = _held[path]
        _held[path] = (owner, depth - 1)


def _note(path: Path) -> Path:
    return path.with_suffix(".holder.json")


def _write_note(path: Path) -> None:
    note = {"pid": os.getpid(), "started": datetime.now(UTC).isoformat(timespec="seconds")}
    temporary = path.with_suffix(f".holder.{os.getpid()}")
    with suppress(OSError):  # on a full disk only the name in a refusal is missing
        temporary.write_text(json.dumps(note), encoding="utf-8")
        os.replace(temporary, _note(path))
    temporary.unlink(missing_ok=True)


def _read_note(path: Path) -> Holder | None:
    try:
        note = json.loads(_note(path).read_text(encoding="utf-8"))
        return Holder(int(note["pid"]), str(note["started"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _busy(path: Path) -> CloudChamberError:
    who = _read_note(path)
    name = f"process {who.pid}, since {who.started}" if who else "another process"
    return CloudChamberError(
        "store_busy",
        f"Another precompute is writing this trace store ({name}).",
        "Let it finish, stop it with Ctrl-C, or wait for it (`--wait`).",
        where=str(path),
    )
