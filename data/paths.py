"""Where things lie. Every function here is only a default: all callers accept explicit paths."""

from __future__ import annotations

import os
from pathlib import Path

from data.errors import CloudChamberError

HOME_VARIABLE = "CLOUDCHAMBER_HOME"
STORE_NAME = "traces.duckdb"
ARTEFACTS_NAME = "artefacts"  # the folder beside the store, and beside the manifest of what ships
MANIFEST_NAME = "manifest.json"


def source_root() -> Path:
    """The folder that holds `models`, `precompute`, `data` and `app`."""
    return Path(__file__).resolve().parent.parent


def home() -> Path:
    """The folder of local state: $CLOUDCHAMBER_HOME, else `.cloudchamber` beside the sources.

    Created on demand. Raises CloudChamberError("home_unwritable") when it cannot be.
    """
    given = os.environ.get(HOME_VARIABLE, "").strip()
    folder = Path(given).expanduser().absolute() if given else source_root() / ".cloudchamber"
    return _created(folder)


def store_path() -> Path:
    """The trace store."""
    return home() / STORE_NAME


def artefacts_dir() -> Path:
    """Where the artefacts of published runs lie, a folder for each run. Made by publishing."""
    return home() / ARTEFACTS_NAME


def staging_dir() -> Path:
    """Where runs write their shards until they are published. Created on demand."""
    return _created(home() / "staging")


def cache_dir() -> Path:
    """Things that can be made again, such as de-quantised weights. Created on demand."""
    return _created(home() / "cache")


def published_dir() -> Path:
    """The traces of the reference runs that ship with the sources."""
    return Path(__file__).resolve().parent / "published"


def _created(folder: Path) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CloudChamberError(
            "home_unwritable",
            f"The folder for local state cannot be created: {error.strerror or error}.",
            f"Set {HOME_VARIABLE} to a folder that can be written.",
            where=str(folder),
        ) from error
    return folder
