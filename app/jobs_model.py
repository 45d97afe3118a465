"""What a job is and how it looks to a page; the checks a visitor's input passes before it is queued."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import ValidationError

from app.jobs_visits import Visit
from data.errors import CloudChamberError
from data.shelf import is_brought

if TYPE_CHECKING:
    from precompute.study import Study

MAX_CHARACTERS = 200_000  # of one text; far more than the tokens that are traced
State = Literal["queued", "running", "done", "failed", "cancelled"]
Task = Literal["run", "inspect", "statistics"]  # a study's run; two looks at something on the shelf
FINISHED: tuple[State, ...] = ("done", "failed", "cancelled")


@dataclass(frozen=True)
class JobStatus:
    """A job as a page shows it. Progress counts `done` of `total` within `stage` (0 of 0: not known).

    `message` and `remedy` are sentences for people, empty unless it failed, and `kind` is their
    machine-readable word and `where` the file, column or tensor they are about; `notices` say what was
    done to the input. `queue_position` is 0 for a running job, 1 for the next. `run_id` is the run to
    look for in the visit's store; of a look at something on the shelf it is the slug there.
    """

    state: State
    run_id: str
    done: int = 0
    total: int = 0
    stage: str = ""
    elapsed_s: float = 0.0
    message: str = ""
    remedy: str = ""
    kind: str = ""
    queue_position: int = 0
    notices: tuple[str, ...] = ()
    where: str = ""
    task: Task = "run"

    @property
    def finished(self) -> bool:
        """Nothing more will happen to it."""
        return self.state in FINISHED


@dataclass(frozen=True)
class Failure:
    """Why a job failed: a machine-readable word, a sentence, what to do, and what it is about."""

    kind: str = ""
    message: str = ""
    remedy: str = ""
    where: str = ""


@dataclass(eq=False)
class Job:
    """A job as the pool keeps it; guarded by the pool's lock."""

    id: str
    run: str
    visit: Visit
    study: str
    config: dict[str, Any]
    notices: tuple[str, ...]
    state: State = "queued"
    stage: str = "Waiting"
    submitted: float = field(default_factory=time.monotonic)
    finished: float | None = None
    failure: Failure = field(default_factory=Failure)
    task: Task = "run"
    held: bool = False  # a worker has it, and may still write into the visit's folder

    @property
    def brought(self) -> bool:
        """Whether it reads bytes that the visitor brought, not only text."""
        return self.task != "run" or is_brought(str(self.config.get("subject", "")))

    @property
    def shards(self) -> Path:
        """The run's own folder in the visit's staging."""
        return self.visit.staging / self.run

    def status(self, position: int) -> JobStatus:
        """What a page shows of it."""
        end = self.finished if self.finished is not None else time.monotonic()
        done, total, stage = 0, 0, self.stage
        if self.state == "running":
            done, total, stage = _progress(self.shards / "progress.json", stage)
        return JobStatus(
            self.state,
            self.run,
            done,
            total,
            stage,
            end - self.submitted,
            self.failure.message,
            self.failure.remedy,
            self.failure.kind,
            position,
            self.notices,
            self.failure.where,
            self.task,
        )


def fit(study: Study, config: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """A visitor's configuration as the study will get it, and notices about what was changed.

    Raises CloudChamberError("job_invalid") with the field that does not fit; never quotes its value.
    """
    settings = dict(config)
    notices: tuple[str, ...] = ()
    if isinstance(settings.get("content"), str):
        settings["content"], notices = clean_text(settings["content"])
    try:
        return study.config.model_validate(settings).model_dump(mode="json"), notices
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise CloudChamberError(
            "job_invalid",
            f"This cannot be traced: {first['msg'].removeprefix('Value error, ')}.",
            "Change the settings and try again.",
            where=place,
        ) from None


def clean_text(text: str) -> tuple[str, tuple[str, ...]]:
    """`text` as something every layer below can hold, and one notice per kind of repair, with a count.

    Halves of surrogate pairs are no characters and become U+FFFD; what is longer than
    MAX_CHARACTERS is cut.
    """
    notices = []
    if len(text) > MAX_CHARACTERS:
        notices.append(f"The text has {len(text):,} characters; only the first {MAX_CHARACTERS:,} were read.")
        text = text[:MAX_CHARACTERS]
    joined = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    if broken := joined.count("\ufffd") - text.count("\ufffd"):
        noun = "character was" if broken == 1 else "characters were"
        notices.append(f"{broken:,} broken {noun} replaced by \ufffd.")
    return joined, tuple(notices)


def _progress(path: Path, stage: str) -> tuple[int, int, str]:
    """Progress as the recorder last wrote it (atomically), or `stage` with no numbers before that."""
    try:
        seen = json.loads(path.read_text(encoding="utf-8"))
        return int(seen["done"]), int(seen["total"]), str(seen["stage"])
    except (OSError, ValueError, KeyError, TypeError):
        return 0, 0, stage
