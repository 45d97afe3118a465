"""The contract in the middle: what a study is, what it writes, what it claims."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Literal, Protocol

import pyarrow as pa
from pydantic import BaseModel, ConfigDict

from data.schema import TableSpec
from data.shelf import is_brought

if TYPE_CHECKING:
    from data.store import Store


class Profile(StrEnum):
    """How much work: smoke takes seconds, laptop minutes on 2 cores, full up to 90 minutes there."""

    smoke = "smoke"
    laptop = "laptop"
    full = "full"


class Config(BaseModel):
    """What one run does. Frozen, because it is hashed into the run's identity."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    subject: str
    seed: int = 0


@dataclass(frozen=True)
class Paper:
    """A paper a study stands on."""

    key: str  # short and stable, "gu2024"
    title: str
    authors: str
    venue: str
    year: int
    url: str


@dataclass(frozen=True)
class SubjectSpec:
    """Something a study looks at.

    `packages` are the distributions that must be installed to load it, `licence` is that of the
    weights, `source` says where they come from in words.
    """

    slug: str
    title: str
    kind: Literal["pretrained", "trained", "computed", "brought"]
    description: str
    source: str
    licence: str
    packages: tuple[str, ...] = ()


class Verdict(StrEnum):
    """What the traces say of a claim."""

    reproduced = "reproduced"
    not_reproduced = "not reproduced"
    by_construction = "true by construction"
    untestable = "not testable at this scale"


@dataclass(frozen=True)
class ClaimResult:
    """A claim, measured: our value in `unit`, its interval if there are repetitions, the verdict.

    `detail` is one sentence with the numbers the verdict rests on. `runs` are the ids it was
    measured from.
    """

    verdict: Verdict
    value: float | None
    unit: str
    detail: str
    interval: tuple[float, float] | None = None
    runs: tuple[str, ...] = ()


@dataclass(frozen=True)
class Claim:
    """One checkable statement of a paper. `reported` is the paper's own figure, in words."""

    slug: str
    text: str
    paper: str  # key of a Paper of the study
    reported: str
    criterion: str  # what must hold for "reproduced", decided before measuring
    measure: Callable[[Store], ClaimResult]


@dataclass(frozen=True)
class Device:
    """Where a run computes, and why there. `name` is what torch takes: "cuda", "cpu"."""

    name: str
    reason: str
    threads: int = 1


class Recorder(Protocol):
    """Where a run writes. Nothing is visible to readers until the run is done and published."""

    def write(self, table: str, rows: pa.Table) -> None:
        """Append `rows` to one of the study's tables; validated here, `run_id` is added."""

    def artefact(self, name: str, content: bytes) -> None:
        """Leave a small file, such as a checkpoint, beside the rows; `data.artefacts.find` finds it."""

    def progress(self, done: int, total: int, stage: str) -> None:
        """Report progress. Raises Cancelled if the run was asked to stop."""

    def notice(self, kind: str, message: str, count: int) -> None:
        """Say a silent repair (text cut, rows dropped, prefix stripped); kept in the run's row."""


@dataclass(frozen=True)
class Study:
    """One question with its method, traces and page."""

    slug: str
    title: str
    question: str
    summary: str
    papers: tuple[Paper, ...]
    version: int  # raised when results change meaning; part of a run's identity
    tables: Mapping[str, TableSpec]
    subjects: Mapping[str, SubjectSpec]
    config: type[Config]  # what `plan` yields, and what stored runs are parsed with
    plan: Callable[[Profile], Sequence[Config]]
    run: str  # "precompute.runs.NAME:run", called as run(config, recorder, device)
    claims: tuple[Claim, ...] = field(default=())
    brought: str = ""  # the same for a subject that a user brought; empty if the study takes none

    def run_of(self, config: Config) -> str:
        """What runs `config`: `brought` for a subject from a shelf (data.shelf), `run` for all others."""
        return self.brought if self.brought and is_brought(config.subject) else self.run
