"""The engine: plan -> run -> shard -> publish.

It knows `concurrent.futures.Executor` and nothing else of where runs compute. Workers write shards
into staging folders; this process alone publishes them, after every run or small batch, so that a
running app shows results as they come. Whatever dies, at any moment, costs at most the runs that
were being computed: the next call clears their folders and computes them again.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, CancelledError, Executor, Future, wait
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import FrameType

import psutil

from data.errors import CloudChamberError
from data.lock import writer_lock
from data.publish import StagedRun, publish, read_staged, stored_rows
from data.schema import TableSpec
from precompute.events import (
    Event,
    Planned,
    Published,
    RunDone,
    RunFailed,
    RunProgress,
    RunRef,
    RunRetried,
    RunStarted,
    Stopping,
    Summary,
)
from precompute.executors import WorkerDied, WorkerPool, cluster_executor
from precompute.log import Log, open_log
from precompute.recorder import CANCEL, PROGRESS, Cancelled
from precompute.study import Config, Profile, Study
from precompute.worker import Work, explained, keep_failure, perform, run_one, started

__all__ = ["Summary", "plan_runs", "run_one", "run_plan", "select_studies"]

_POLL_SECONDS = 0.2
_PUBLISH_SECONDS = 1.0  # at most one publish in this time, and at most a fifth of the time spent in it
_DEATHS = 2  # a run that kills so many workers has failed
_DEATH_REMEDY = "lower --jobs, choose a smaller profile, or use a machine with more memory."
_WORKER_BYTES = 2_000_000_000  # of memory that a worker is expected to need, for the default of --jobs


@dataclass(frozen=True)
class PlannedRun:
    """A run of the plan, before it is computed."""

    study: Study
    config: Config
    ref: RunRef


def select_studies(registry: Mapping[str, Study], names: Sequence[str]) -> list[Study]:
    """The studies called `names`, all of them when there are none; unknown_study lists the valid ones."""
    for name in names:
        if name not in registry:
            raise CloudChamberError(
                "unknown_study", f"There is no study {name!r}.", f"Choose from: {', '.join(registry)}."
            )
    return [registry[name] for name in dict.fromkeys(names)] if names else list(registry.values())


def plan_runs(
    studies: Sequence[Study], profile: Profile, only: str | Sequence[str] | None = None
) -> list[PlannedRun]:
    """Every run of a profile once, in the order of the studies' plans, of the subject(s) `only` if any.

    Raises CloudChamberError("unknown_subject") that lists the valid subjects.
    """
    only = [only] if isinstance(only, str) else only or ()
    subjects = [slug for study in studies for slug in study.subjects]
    for name in only:
        if name not in subjects:
            raise CloudChamberError(
                "unknown_subject",
                f"There is no subject {name!r}.",
                f"Choose from: {', '.join(dict.fromkeys(subjects))}.",
            )
    runs: dict[str, PlannedRun] = {}
    for study in studies:
        for config in study.plan(profile):
            if not only or config.subject in only:
                name = Work.of(study, config, Path()).run_id
                ref = RunRef(name, study.slug, config.subject, _label(config))
                runs.setdefault(name, PlannedRun(study, config, ref))
    return list(runs.values())


def run_plan(
    studies: Sequence[Study],
    profile: Profile,
    *,
    store_path: Path,
    staging: Path,
    jobs: int | None = None,
    only: str | Sequence[str] | None = None,
    force: bool = False,
    scheduler: str | None = None,
    wait: bool = False,
    on_event: Callable[[Event], None] | None = None,
    stop: threading.Event | None = None,
) -> Summary:
    """Compute what the profile of the studies still lacks, and publish it into `store_path`.

    Done runs are skipped unless `force`; failed ones are tried again. `jobs` workers share the
    processor's threads (default: as many as cores and memory allow); `scheduler` sends the runs to a
    Dask cluster instead, which must see `staging` under the same path. SIGINT, SIGTERM or `stop`
    end the call cleanly: `Summary.interrupted` is then True. Without `wait` a second precompute on
    the same store raises store_busy. Also raises unknown_subject, what the store raises, and
    disk_full; what was published before stays. Events also go to `logs/precompute.jsonl` beside the
    store.
    """
    clock = time.monotonic()
    runs = plan_runs(studies, profile, only)
    with writer_lock(store_path, wait=wait), open_log(store_path.parent / "logs", pid=os.getpid()) as log:
        tell = _teller(log, on_event)
        _recover(staging, store_path, studies)
        stored = {} if force else stored_rows(store_path)
        todo = [r for r in runs if r.ref.run_id not in stored or stored[r.ref.run_id].status == "failed"]
        summary = Summary(skipped=len(runs) - len(todo))
        with _stop_on_signals(stop or threading.Event()) as stopping:
            if todo:
                executor, jobs, threads = _executor(jobs, len(todo), scheduler)
                tell(Planned(tuple(r.ref for r in todo), summary.skipped, jobs))
                session = _Session(store_path, staging, profile, threads, tell, stopping, executor)
                summary = replace(session.run(todo), skipped=summary.skipped)
            else:
                tell(Planned((), summary.skipped, 0))
        summary = replace(summary, seconds=time.monotonic() - clock)
        log.info("summary", **counts(summary))
    return summary


@dataclass
class _Session:
    """The runs of one call while they are computed."""

    store_path: Path
    staging: Path
    profile: Profile
    threads: int | None
    on_event: Callable[[Event], None]
    stopping: threading.Event
    executor: Executor
    tables: dict[str, TableSpec] = field(default_factory=dict)
    pending: dict[Future[StagedRun], tuple[PlannedRun, Work]] = field(default_factory=dict)
    deaths: dict[str, int] = field(default_factory=dict)
    seen: dict[str, tuple[int, int, str]] = field(default_factory=dict)
    ready: list[StagedRun] = field(default_factory=list)
    failures: list[tuple[RunRef, str]] = field(default_factory=list)
    done: int = 0
    next_publish: float = 0.0

    def run(self, todo: Sequence[PlannedRun]) -> Summary:
        """Compute `todo`; every way out leaves no worker and no unfinished folder behind."""
        try:
            for planned in todo:
                self.tables.update(planned.study.tables)
                self._submit(planned)
            while self.pending and not self.stopping.is_set():
                finished, _ = wait(self.pending, timeout=_POLL_SECONDS, return_when=FIRST_COMPLETED)
                for future in finished:
                    self._take(future)
                self._watch()
                self._publish()
            interrupted = bool(self.pending)
            if interrupted:
                self.on_event(Stopping())
        finally:
            self._end_workers()
        self._publish(last=True)
        cancelled = len(todo) - self.done - len(self.failures)
        return Summary(
            self.done,
            0,
            len(self.failures),
            cancelled,
            failures=tuple(self.failures),
            interrupted=interrupted,
        )

    def _submit(self, planned: PlannedRun) -> None:
        work = Work.of(
            planned.study, planned.config, self.staging, profile=self.profile.value, threads=self.threads
        )
        self.pending[self.executor.submit(perform, work)] = (planned, work)

    def _take(self, future: Future[StagedRun]) -> None:
        """Deal with a future that is done."""
        planned, work = self.pending.pop(future)
        if self.seen.pop(planned.ref.run_id, None) is None:
            self.on_event(RunStarted(planned.ref))  # it was over before anybody looked
        try:
            staged = future.result()
        except (Cancelled, CancelledError):
            shutil.rmtree(work.folder, ignore_errors=True)
            return
        except CloudChamberError:
            raise  # the disk is full: no run can be kept any more
        except Exception as error:  # noqa: BLE001  (every executor has its own error for a dead worker)
            self._lost(planned, work, error)
            return
        if read_staged(work.folder) is None:
            raise CloudChamberError(
                "staging_unseen",
                "A run ended, but its shards are not here.",
                "Workers of a cluster must see the staging folder under the same path: "
                "set CLOUDCHAMBER_HOME to a shared folder.",
                where=str(work.folder),
            )
        self._finished(planned, staged)

    def _lost(self, planned: PlannedRun, work: Work, error: Exception) -> None:
        """A worker died, or the run could not be handed over: once more, then it has failed."""
        ref = planned.ref
        shutil.rmtree(work.folder, ignore_errors=True)
        died = isinstance(error, (WorkerDied, BrokenExecutor)) or type(error).__name__ == "KilledWorker"
        self.deaths[ref.run_id] = self.deaths.get(ref.run_id, 0) + 1
        if died and self.deaths[ref.run_id] < _DEATHS:
            self.on_event(RunRetried(ref, str(error)))
            self._submit(planned)
            return
        text = f"{str(error).capitalize()}, twice: {_DEATH_REMEDY}" if died else explained(error)
        self._finished(planned, keep_failure(work, text, started(), 0.0))

    def _finished(self, planned: PlannedRun, staged: StagedRun) -> None:
        self.ready.append(staged)
        if staged.row.status == "done":
            self.done += 1
            self.on_event(RunDone(planned.ref, staged.row.seconds))
        else:
            error = staged.row.error or ""
            self.failures.append((planned.ref, error.splitlines()[0] if error else ""))
            self.on_event(RunFailed(planned.ref, self.failures[-1][1], error))

    def _watch(self) -> None:
        """Tell what the workers noted of their progress."""
        for planned, work in self.pending.values():
            try:
                note = json.loads((work.folder / PROGRESS).read_text(encoding="utf-8"))
                now = (int(note["done"]), int(note["total"]), str(note["stage"]))
            except (OSError, ValueError, KeyError):
                continue  # not started yet
            before = self.seen.get(work.run_id)
            if before is None:
                self.on_event(RunStarted(planned.ref))
            if now != before:
                self.seen[work.run_id] = now
                self.on_event(RunProgress(planned.ref, *now))

    def _publish(self, *, last: bool = False) -> None:
        """Publish what is ready, unless that was done a moment ago."""
        if not self.ready or (not last and time.monotonic() < self.next_publish):
            return
        begun = time.monotonic()
        publish(self.store_path, self.ready, self.tables)
        seconds = time.monotonic() - begun
        for staged in self.ready:
            shutil.rmtree(staged.folder, ignore_errors=True)
        names = tuple(staged.row.run_id for staged in self.ready)
        self.ready.clear()
        self.next_publish = time.monotonic() + max(_PUBLISH_SECONDS, 5 * seconds)
        self.on_event(Published(names, seconds))

    def _end_workers(self) -> None:
        """End the workers, and take in the runs that finished meanwhile."""
        left = list(self.pending.items())
        if isinstance(self.executor, WorkerPool):
            if left:
                self.executor.terminate()
            else:
                self.executor.shutdown()
        else:
            for _, (_, work) in left:
                if work.folder.exists():
                    (work.folder / CANCEL).touch()
            for future, _ in left:
                future.cancel()
            wait([future for future, _ in left], timeout=10)
            self.executor.shutdown(cancel_futures=True)
        for _, (planned, work) in left:
            staged = read_staged(work.folder)
            if staged is not None:
                self._finished(planned, staged)
            else:
                shutil.rmtree(work.folder, ignore_errors=True)


def _recover(staging: Path, store_path: Path, studies: Sequence[Study]) -> None:
    """Publish what a killed engine left finished in `staging`, and clear what it left unfinished."""
    try:
        staging.mkdir(parents=True, exist_ok=True)
        folders = [folder for folder in staging.iterdir() if folder.is_dir()]
    except OSError as error:
        raise CloudChamberError(
            "staging_unwritable",
            f"The staging folder cannot be used: {error.strerror or error}.",
            "Set CLOUDCHAMBER_HOME to a folder that can be written.",
            where=str(staging),
        ) from error
    known = {study.slug: study for study in studies}
    for folder in folders:
        staged = read_staged(folder)
        if staged is not None and staged.row.study not in known:
            continue  # of a study that is not asked for now; it is published when that is
        if staged is not None:
            try:
                publish(store_path, [staged], known[staged.row.study].tables)
            except CloudChamberError as error:
                if error.kind != "trace_invalid":
                    raise  # the run is kept; with trace_invalid it can only be computed again
        shutil.rmtree(folder, ignore_errors=True)


def _executor(jobs: int | None, runs: int, scheduler: str | None) -> tuple[Executor, int, int | None]:
    """The executor, how many runs it computes at a time, and torch's threads for each."""
    if scheduler is not None:
        executor, workers = cluster_executor(scheduler)
        return executor, workers, None
    if jobs is not None and jobs < 1:
        raise CloudChamberError("jobs_invalid", f"{jobs} workers cannot compute.", "Give --jobs 1 or more.")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    fitting = max(1, int(psutil.virtual_memory().available // _WORKER_BYTES))
    jobs = min(runs, jobs or min(cores, fitting))
    threads = max(1, cores // jobs)
    return WorkerPool(jobs, threads), jobs, threads


def counts(summary: Summary) -> dict[str, float | bool]:
    """The numbers of a summary, for logs and scripts."""
    values = asdict(summary)
    del values["failures"]
    return values


def _teller(log: Log, on_event: Callable[[Event], None] | None) -> Callable[[Event], None]:
    """Passes events on, and logs all but the steps in between."""

    def tell(event: Event) -> None:
        if not isinstance(event, RunProgress):
            log.info(type(event).__name__, **asdict(event))
        if on_event is not None:
            on_event(event)

    return tell


@contextmanager
def _stop_on_signals(stop: threading.Event) -> Iterator[threading.Event]:
    """Set `stop` on the first SIGINT or SIGTERM; a second SIGINT interrupts at once."""
    if threading.current_thread() is not threading.main_thread():
        yield stop  # signals belong to the main thread; the caller has `stop`
        return

    def note(number: int, frame: FrameType | None) -> None:
        if stop.is_set() and number == signal.SIGINT:
            raise KeyboardInterrupt
        stop.set()

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _label(config: Config) -> str:
    """Subject and the settings that differ from the defaults: "smollm2 text=kjv bos"."""
    words = [config.subject]
    for name, value in config.model_dump(mode="json", exclude_defaults=True).items():
        if name == "subject":
            continue
        text = str(value)
        words.append(name if value is True else f"{name}={text if len(text) <= 24 else text[:23] + '…'}")
    return " ".join(words)
