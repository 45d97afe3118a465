"""Structured logging: one JSON object per line in a file, and nothing on the terminal unless asked."""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO

import structlog

from data.errors import CloudChamberError

LOG_NAME = "precompute.jsonl"


def open_log(folder: Path, name: str = LOG_NAME, *, verbose: bool = False, **context: Any) -> Log:
    """A log that appends to `folder`/`name`; with `verbose` it also prints to standard error.

    `context` is bound to every line. Raises CloudChamberError("log_unwritable") when the file
    cannot be opened.
    """
    path = folder / name
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = path.open("a", encoding="utf-8", buffering=1)
    except OSError as error:
        raise CloudChamberError(
            "log_unwritable",
            f"The log cannot be written: {error.strerror or error}.",
            "Set CLOUDCHAMBER_HOME to a folder that can be written.",
            where=str(path),
        ) from error
    return Log(file, context, verbose)


class Log:
    """Writes events with their fields; a context manager that closes the file."""

    def __init__(self, file: TextIO, context: dict[str, Any], verbose: bool) -> None:
        shared: list[structlog.typing.Processor] = [
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.add_log_level,
        ]
        self._file = file
        self._json = structlog.wrap_logger(
            structlog.PrintLogger(file),
            processors=[*shared, structlog.processors.JSONRenderer(default=str)],
            wrapper_class=structlog.make_filtering_bound_logger("DEBUG"),
        ).bind(**context)
        self._human = (
            structlog.wrap_logger(
                structlog.PrintLogger(sys.stderr),
                processors=[*shared, structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())],
                wrapper_class=structlog.make_filtering_bound_logger("DEBUG"),
            )
            if verbose
            else None
        )

    def info(self, event: str, **fields: Any) -> None:
        """Something happened."""
        self._write("info", event, fields)

    def warning(self, event: str, **fields: Any) -> None:
        """Something happened that somebody should look at."""
        self._write("warning", event, fields)

    def _write(self, level: str, event: str, fields: dict[str, Any]) -> None:
        with suppress(OSError):  # a full disk is reported by what matters, not by its log
            getattr(self._json, level)(event, **fields)
        if self._human is not None:
            getattr(self._human, level)(event, **fields)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> Log:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
