"""The store as the commands see it: seeded with the shipped traces, then opened for reading."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from data.errors import CloudChamberError

if TYPE_CHECKING:
    from pathlib import Path

    from data.schema import TableSpec
    from data.store import Store
    from precompute.study import Study

# A store that another process is writing, or that may not be written, can still be read.
_READABLE_ALL_THE_SAME = ("store_busy", "store_unwritable")


def seed(path: Path) -> bool:
    """Bring the shipped traces into the store at `path`; True when something was added.

    A store that cannot be written now is left as it is, if there is one.
    """
    from data.paths import published_dir
    from data.shipped import import_published

    try:
        return import_published(published_dir(), path, all_tables()).changed
    except CloudChamberError as error:
        if error.kind in _READABLE_ALL_THE_SAME and path.exists():
            return False
        raise


def ready_store() -> Store:
    """The store, with the shipped traces in it. Raises what `data.store.open_store` raises."""
    from data.paths import store_path
    from data.store import open_store

    path = store_path()
    seed(path)
    return open_store(path)


def quiet_libraries() -> None:
    """Keep the progress bars of libraries out of the workers' output: ours are on screen already."""
    os.environ.setdefault("TQDM_DISABLE", "1")


def all_tables() -> dict[str, TableSpec]:
    """The tables of every registered study, by name."""
    from precompute.registry import STUDIES

    return {name: table for study in STUDIES.values() for name, table in study.tables.items()}


def chosen_studies(names: list[str]) -> list[Study]:
    """The studies called `names`, all when none is named; unknown_study lists the valid ones."""
    from precompute.engine import select_studies
    from precompute.registry import STUDIES

    return select_studies(STUDIES, names)
