"""The shelf: where what was brought waits to be looked at. One per visit or command, gone with it.

Every entry is a folder named after a hash of its contents, never after a visitor's words: the files
lie in it under numbers, and what they were called is kept as text beside them. A command line refers
to the files where they are instead of copying them.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import secrets
import shutil
from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from data.errors import CloudChamberError
from data.faults import write_error

PREFIX = "brought-"
_SLUG = re.compile(PREFIX + "[0-9a-f]{16}")
_CHUNK = 2**20
_FILES = "files.json"
MAX_FILES = 2_000
MAX_DOCUMENT = 64 * 2**20  # bytes of a document that the worker has written


def is_brought(subject: str) -> bool:
    """Whether a subject's slug names something on a shelf."""
    return _SLUG.fullmatch(subject) is not None


@dataclass(frozen=True)
class Entry:
    """What was brought together. `folder` is ours; its files are read with `files`."""

    slug: str
    folder: Path

    def files(self) -> list[tuple[str, Path]]:
        """The visitor's name of every file, and where its bytes lie."""
        found = json.loads((self.folder / _FILES).read_text(encoding="utf-8"))
        return [(str(name), self.folder / place) for name, place in found]  # an absolute place stays absolute

    @property
    def bytes(self) -> int:
        """Size of all files together."""
        return sum(path.stat().st_size for _, path in self.files())

    def write(self, name: str, text: str) -> None:
        """Keep a document (an inspection, statistics) beside the files; readers never see half of it."""
        partial = self.folder / f".{name}-{secrets.token_hex(4)}"
        partial.write_text(text, encoding="utf-8")
        partial.replace(self.folder / f"{name}.json")

    def read(self, name: str) -> str | None:
        """A document, or None when it is not there. Longer than MAX_DOCUMENT counts as not there."""
        path = self.folder / f"{name}.json"
        try:
            return path.read_text(encoding="utf-8") if path.stat().st_size <= MAX_DOCUMENT else None
        except OSError:
            return None


class Shelf:
    """The entries under `root`, at most `max_bytes` of copied files in all."""

    def __init__(self, root: Path, max_bytes: int = 4 * 2**30) -> None:
        self.root, self.max_bytes = root, max_bytes

    def put(self, files: Iterable[tuple[str, BinaryIO | Path]]) -> Entry:
        """Take files, each with the name it had. A stream is copied, a path is only referred to.

        The same contents again are the same entry. Raises CloudChamberError: "brought_empty" without
        any file, "shelf_full" above `max_bytes` or MAX_FILES, "disk_full" when the system has no room.
        """
        self.root.mkdir(parents=True, exist_ok=True)
        made = self.root / f".{secrets.token_hex(8)}"
        made.mkdir(mode=0o700)
        try:
            return self._put(files, made)
        except OSError as error:
            raise write_error(self.root, error) from error
        finally:
            shutil.rmtree(made, ignore_errors=True)

    def _put(self, files: Iterable[tuple[str, BinaryIO | Path]], made: Path) -> Entry:
        room = self.max_bytes - self.used()
        named: list[tuple[str, str]] = []
        hashes: list[str] = []
        for number, (name, source) in enumerate(files):
            if number >= MAX_FILES:
                raise _full(f"More than {MAX_FILES:,} files were brought at once.")
            digest = hashlib.sha256()
            if isinstance(source, Path):
                place = str(source.absolute())
                with source.open("rb") as stream:
                    digest = hashlib.file_digest(stream, "sha256")
            else:
                place = f"{number:04}"
                with (made / place).open("wb") as copy:
                    while chunk := source.read(_CHUNK):
                        room -= len(chunk)
                        if room < 0:
                            raise _full(
                                f"A visit may bring {self.max_bytes / 2**30:.0f} GB, and this is more."
                            )
                        digest.update(chunk)
                        copy.write(chunk)
            named.append((name, place))
            hashes.append(digest.hexdigest())
        if not named:
            raise CloudChamberError("brought_empty", "No file was brought.", "Choose one or several files.")
        whole = hashlib.sha256("".join(sorted(hashes)).encode()).hexdigest()[:16]
        entry = Entry(PREFIX + whole, self.root / (PREFIX + whole))
        (made / _FILES).write_text(json.dumps(named), encoding="utf-8")
        if entry.folder.exists():
            if sorted(name for name, _ in entry.files()) == sorted(name for name, _ in named):
                return entry
            shutil.rmtree(entry.folder)  # the same contents under other names: names tell what a file is for
        made.rename(entry.folder)
        return entry

    def get(self, slug: str) -> Entry:
        """The entry of that slug. Raises CloudChamberError("brought_gone") when it is not here."""
        entry = Entry(slug, self.root / slug)
        if not is_brought(slug) or not (entry.folder / _FILES).is_file():
            raise CloudChamberError(
                "brought_gone",
                "This model is not here any more: what is brought is kept for one visit only.",
                "Bring it again.",
                where=slug if is_brought(slug) else "",
            )
        return entry

    def entries(self) -> list[Entry]:
        """All entries, by slug."""
        if not self.root.is_dir():
            return []
        return [Entry(p.name, p) for p in sorted(self.root.iterdir()) if is_brought(p.name)]

    def remove(self, slug: str) -> None:
        """Take an entry off the shelf; nothing happens when it is not there."""
        if is_brought(slug):
            shutil.rmtree(self.root / slug, ignore_errors=True)

    def used(self) -> int:
        """Bytes of the files under `root`."""
        total = 0
        for folder, _, names in os.walk(self.root):
            for name in names:
                with contextlib.suppress(OSError):  # gone between the listing and now
                    total += os.lstat(os.path.join(folder, name)).st_size
        return total


def _full(message: str) -> CloudChamberError:
    return CloudChamberError(
        "shelf_full", message, "Use `cloudchamber analyze PATH` where the file is: it copies nothing."
    )


@dataclass(frozen=True)
class InUse:
    """The shelf that the run at work reads from, and the limits of intake as plain numbers."""

    shelf: Shelf
    limits: dict[str, Any]


_IN_USE: ContextVar[InUse | None] = ContextVar("shelf", default=None)


@contextlib.contextmanager
def use_shelf(root: Path, limits: dict[str, Any] | None = None) -> Iterator[None]:
    """Inside, `in_use()` is the shelf at `root`."""
    token = _IN_USE.set(InUse(Shelf(root), limits or {}))
    try:
        yield
    finally:
        _IN_USE.reset(token)


def in_use() -> InUse:
    """The shelf of the work at hand. Raises CloudChamberError("brought_gone") when there is none."""
    found = _IN_USE.get()
    if found is None:
        raise CloudChamberError(
            "brought_gone",
            "This run is of something that was brought, and is not here.",
            "Bring it again, or use `cloudchamber analyze`.",
        )
    return found
