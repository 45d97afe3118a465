"""What can be wrong with the store's file and its folder, each as a sentence with its remedy."""

from __future__ import annotations

import errno
from pathlib import Path

from data.errors import CloudChamberError

# What a full disk, a used-up quota or a file size limit looks like, from the system and from DuckDB.
_FULL_ERRNOS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_FULL_WORDS = ("no space left", "quota", "file too large", "could not write", "out of disk", "enough space")


def first_line(error: BaseException) -> str:
    """The first line of an error's text, without its full stop."""
    return str(error).strip().splitlines()[0].rstrip(".")


def missing(path: Path) -> CloudChamberError:
    """The error for a store that is not there."""
    return CloudChamberError(
        "store_missing",
        "There is no trace store yet.",
        "Run `cloudchamber precompute`, or `make demo` to open the published traces.",
        where=str(path),
    )


def unreadable(path: Path, error: BaseException) -> CloudChamberError:
    """The error for a store that the system refuses to read."""
    return CloudChamberError(
        "store_unreadable",
        f"The trace store cannot be read: {getattr(error, 'strerror', None) or first_line(error)}.",
        "Give this account the right to read it, or set CLOUDCHAMBER_HOME to another folder.",
        where=str(path),
    )


def locked(path: Path, what: str) -> CloudChamberError:
    """The error for a store that another program than ours has open for writing."""
    return CloudChamberError(
        "store_locked",
        f"Another program has the store open for writing: {what}.",
        "Close it there (the DuckDB shell, for example); Cloud Chamber itself never holds it.",
        where=str(path),
    )


def corrupt(path: Path, what: str) -> CloudChamberError:
    """The error for a damaged store."""
    return CloudChamberError(
        "store_corrupt",
        f"The trace store is damaged: {what}.",
        "Move it away or delete it; `make demo` restores the published traces, "
        "`cloudchamber precompute` computes your own again.",
        where=str(path),
    )


def older(path: Path, what: str) -> CloudChamberError:
    """The error for a store written by an older version of this code."""
    return CloudChamberError(
        "store_older",
        f"The trace store is older than this code: {what}.",
        "Delete it (or move it away) and run `cloudchamber precompute` to rebuild it.",
        where=str(path),
    )


def newer(path: Path, what: str) -> CloudChamberError:
    """The error for a store written by a newer version of this code."""
    return CloudChamberError(
        "store_newer",
        f"The trace store was written by a newer version: {what}.",
        "Update Cloud Chamber, or set CLOUDCHAMBER_HOME to another folder.",
        where=str(path),
    )


def unwritable(folder: Path, error: BaseException) -> CloudChamberError:
    """The error for a folder in which nothing can be written."""
    return CloudChamberError(
        "store_unwritable",
        f"Nothing can be written beside the trace store: {getattr(error, 'strerror', None) or error}.",
        "Set CLOUDCHAMBER_HOME to a folder that can be written; what is published stays as it is.",
        where=str(folder),
    )


def is_full(error: BaseException) -> bool:
    """Whether an error says that a disk, a quota or a file size limit is used up."""
    text = str(error).lower()
    return getattr(error, "errno", None) in _FULL_ERRNOS or any(words in text for words in _FULL_WORDS)


def write_error(folder: Path, error: BaseException) -> CloudChamberError:
    """The sentence for a write that failed: disk full, or a folder that refuses it."""
    if is_full(error):
        return CloudChamberError(
            "disk_full",
            f"The disk is full: {getattr(error, 'strerror', None) or str(error).splitlines()[0]}.",
            "Free some space (the cache folder can always be deleted) and run it again; "
            "what is published stays as it is.",
            where=str(folder),
        )
    return unwritable(folder, error)
