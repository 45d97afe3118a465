"""The table of runs, and what identifies one."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

import pyarrow as pa

from data.errors import CloudChamberError
from data.schema import Column, TableSpec

RUNS = TableSpec(
    "runs",
    "One subject measured under one configuration and seed, with where its numbers come from.",
    (
        Column("study", pa.string(), "", "Slug of the study"),
        Column("study_version", pa.int32(), "", "Version of the study; raised when results change meaning"),
        Column("subject", pa.string(), "", "Slug of what was looked at"),
        Column("config", pa.string(), "JSON", "The configuration, as the study's config class reads it"),
        Column(
            "profile", pa.string(), "", "How much work was asked for: smoke, laptop or full; live if brought"
        ),
        Column("seed", pa.int64(), "", "Seed of every random generator"),
        Column("device", pa.string(), "", "Where it was computed: cpu or cuda"),
        Column("device_reason", pa.string(), "", "Why there"),
        Column("versions", pa.string(), "JSON", "Versions of Python and the libraries behind the numbers"),
        Column("source_hash", pa.string(), "sha256", "Hash of the sources the numbers depend on"),
        Column("started", pa.string(), "ISO 8601, UTC", "When the run began"),
        Column("seconds", pa.float64(), "s", "How long it took"),
        Column("status", pa.string(), "", "done or failed"),
        Column("error", pa.string(), "", "What went wrong and the traceback; null when done", nullable=True),
        Column(
            "notices",
            pa.string(),
            "JSON",
            "Silent repairs, as a list of {kind, message, count}; [] if there were none",
        ),
    ),
    key=(),
)


@dataclass(frozen=True)
class RunRow:
    """One row of `runs`; the field names are its columns."""

    run_id: str
    study: str
    study_version: int
    subject: str
    config: str
    profile: str
    seed: int
    device: str
    device_reason: str
    versions: str
    source_hash: str
    started: str
    seconds: float
    status: Literal["done", "failed"]
    error: str | None = None
    notices: str = "[]"

    def to_json(self) -> str:
        """The row as one JSON object."""
        return json.dumps(asdict(self), indent=1)

    @classmethod
    def from_json(cls, text: str) -> RunRow:
        """The row that `to_json` wrote. ValueError when it is not one."""
        values = json.loads(text)
        if not isinstance(values, dict) or set(values) != {f.name for f in fields(cls)}:
            raise ValueError("not a run row")
        return cls(**values)

    def table(self) -> pa.Table:
        """The row as an Arrow table with the stored schema of `runs`."""
        return pa.Table.from_pylist([asdict(self)], schema=RUNS.stored_schema)


def canonical_json(value: Mapping[str, Any]) -> str:
    """`value` as JSON that only depends on its content: sorted keys, no spaces, ASCII."""
    try:
        return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise CloudChamberError(
            "config_invalid",
            f"A configuration cannot be written as JSON: {error}.",
            "Use only text, whole numbers, finite numbers, true/false, lists and objects in it.",
        ) from error


def run_id(study: str, version: int, config: Mapping[str, Any]) -> str:
    """Identity of a run: 16 hex digits of the SHA-256 of study, version and configuration.

    `config` holds subject and seed too. The source's hash is deliberately left out: it is provenance.
    """
    text = canonical_json({"study": study, "version": version, "config": dict(config)})
    return hashlib.sha256(text.encode("ascii")).hexdigest()[:16]
