"""What the engine tells whoever listens, while it works and at the end."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class RunRef:
    """A run as people see it: `label` is its subject and the settings that differ from the defaults."""

    run_id: str
    study: str
    subject: str
    label: str


@dataclass(frozen=True)
class Planned:
    """The plan is known: `todo` runs will be computed, `skipped` are done already."""

    todo: tuple[RunRef, ...]
    skipped: int
    jobs: int


@dataclass(frozen=True)
class RunStarted:
    """A worker began the run."""

    run: RunRef


@dataclass(frozen=True)
class RunProgress:
    """How far a run is: `done` of `total` steps (0 of 0: unknown), and what it does now."""

    run: RunRef
    done: int
    total: int
    stage: str


@dataclass(frozen=True)
class RunDone:
    """The run ended well after `seconds`."""

    run: RunRef
    seconds: float


@dataclass(frozen=True)
class RunFailed:
    """The run failed; `reason` is one line, `error` all that is stored."""

    run: RunRef
    reason: str
    error: str


@dataclass(frozen=True)
class RunRetried:
    """The run's worker died; the run is tried once more on a fresh one."""

    run: RunRef
    reason: str


@dataclass(frozen=True)
class Published:
    """The store has a new generation with these runs."""

    run_ids: tuple[str, ...]
    seconds: float


@dataclass(frozen=True)
class Stopping:
    """The engine was asked to stop: workers end, what is finished is published."""


Event = Planned | RunStarted | RunProgress | RunDone | RunFailed | RunRetried | Published | Stopping


@dataclass(frozen=True)
class Summary:
    """What a call of the engine did. `failures` are the runs that failed, each with one line why."""

    done: int = 0
    skipped: int = 0
    failed: int = 0
    cancelled: int = 0
    seconds: float = 0.0
    failures: tuple[tuple[RunRef, str], ...] = ()
    interrupted: bool = False
