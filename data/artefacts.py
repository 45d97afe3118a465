"""Artefacts: small files that a run leaves beside its rows, such as the checkpoint of what it trained.

Those of runs computed here lie in `artefacts/RUN_ID/NAME` beside the store, those that ship with the
sources in `artefacts/NAME` beside the manifest that names them. Both are read where they lie.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data.errors import CloudChamberError
from data.faults import write_error
from data.paths import ARTEFACTS_NAME, MANIFEST_NAME, artefacts_dir, published_dir
from data.staged import fsync

MAX_NAME = 80
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]*")


@dataclass(frozen=True)
class Artefact:
    """A file `name` of the run `run_id` at `path`; `sha256` is what its manifest says, None if local."""

    name: str
    run_id: str
    path: Path
    sha256: str | None = None


def find(name: str, *, published: Path | None = None, home: Path | None = None) -> Path:
    """The newest artefact called `name`: of the runs computed here, else of those that ship.

    `published` is the folder of shipped traces, `home` that of local state. Raises
    CloudChamberError("artefact_unknown") that lists the known names, and "published_damaged" when a
    shipped file does not match its hash.
    """
    known = listing(published=published, home=home)
    for artefact in known:
        if artefact.name == name:
            return checked(artefact)
    names = ", ".join(dict.fromkeys(artefact.name for artefact in known)) or "none yet"
    raise CloudChamberError(
        "artefact_unknown",
        f"There is no artefact {name!r}; known are: {names}.",
        "Choose one of these, or compute the run that leaves it with `cloudchamber precompute`.",
    )


def listing(*, published: Path | None = None, home: Path | None = None) -> list[Artefact]:
    """Every artefact, by name; of one name the local ones first, the newest of them at the front."""
    local = artefacts_dir() if home is None else home / ARTEFACTS_NAME
    found = [a for folder in _folders(local) for a in of_run(local.parent, folder.name)]
    found.sort(key=lambda a: (-a.path.stat().st_mtime_ns, a.run_id))
    found += shipped(published or published_dir())
    return sorted(found, key=lambda a: a.name)  # stable: keeps that order among equals


def of_run(store_folder: Path, run_id: str) -> list[Artefact]:
    """The artefacts of a run that was computed here, by name."""
    folder = store_folder / ARTEFACTS_NAME / run_id
    if not folder.is_dir():
        return []
    files = sorted(file for file in folder.iterdir() if _NAME.fullmatch(file.name))
    return [Artefact(file.name, run_id, file) for file in files]


def shipped(published: Path) -> list[Artefact]:
    """The artefacts that the manifest of `published` names; none when there is no manifest."""
    file = published / MANIFEST_NAME
    try:
        entries: list[dict[str, Any]] = json.loads(file.read_bytes()).get("artefacts", [])
        return [
            Artefact(
                check_name(e["name"]),
                str(e["run_id"]),
                published / ARTEFACTS_NAME / e["name"],
                str(e["sha256"]),
            )
            for e in entries
        ]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, KeyError, TypeError, AttributeError, CloudChamberError) as error:
        raise _damaged(file, f"its manifest cannot be read: {error}") from error


def checked(artefact: Artefact) -> Path:
    """The path of an artefact whose content is what its manifest says; else "published_damaged"."""
    if artefact.sha256 is not None:
        try:
            content = artefact.path.read_bytes()
        except OSError as error:
            raise _damaged(artefact.path, error.strerror or str(error)) from error
        if hashlib.sha256(content).hexdigest() != artefact.sha256:
            raise _damaged(artefact.path, "its content does not match its hash in the manifest")
    return artefact.path


def check_name(name: str) -> str:
    """`name`, if a file may be called so on every system; else CloudChamberError("artefact_name")."""
    if not isinstance(name, str) or len(name) > MAX_NAME or not _NAME.fullmatch(name):
        raise CloudChamberError(
            "artefact_name",
            f"{str(name)[: MAX_NAME + 1]!r} cannot be the name of an artefact.",
            f"Use at most {MAX_NAME} of a-z, 0-9, dot, underscore and hyphen, with a letter or digit first.",
        )
    return name


def place(store: Path, run_id: str, files: Sequence[Path]) -> None:
    """Copy `files` to where the artefacts of `run_id` lie beside the store; each whole or not at all.

    Copied, not moved: a publish that dies can be done again from the same folder. Only for the
    holder of the writer lock. Raises disk_full and store_unwritable.
    """
    if not files:
        return
    folder = store.absolute().parent / ARTEFACTS_NAME / run_id
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for file in files:
            writing = folder / f".{file.name}.writing"  # begins with a dot: never taken for an artefact
            writing.write_bytes(file.read_bytes())
            fsync(writing)
            os.replace(writing, folder / file.name)
        for written in (folder, folder.parent, folder.parent.parent):
            fsync(written)
    except OSError as error:
        raise write_error(folder, error) from error


def clear(store: Path, run_id: str, keep: Iterable[str] = ()) -> None:
    """Delete what lies with the artefacts of `run_id` beside the store, but those called `keep`."""
    folder = store.absolute().parent / ARTEFACTS_NAME / run_id
    if not folder.is_dir():
        return
    kept = set(keep)
    with suppress(OSError):  # another account's file: it stays, the store does not depend on it
        for file in folder.iterdir():
            if file.name not in kept:
                file.unlink()
        if not kept:
            folder.rmdir()


def _folders(local: Path) -> list[Path]:
    return sorted(folder for folder in local.iterdir() if folder.is_dir()) if local.is_dir() else []


def _damaged(file: Path, what: str) -> CloudChamberError:
    return CloudChamberError(
        "published_damaged",
        f"The shipped traces are damaged: {what}.",
        "Restore them with `git checkout -- data/published`, or install again.",
        where=str(file),
    )
