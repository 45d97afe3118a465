"""Live tracing: what a visitor brings is analysed in a child process, into a store of their own.

`JobPool` keeps a queue, one worker by default, and one private folder per visit. A job is a study's
own run on the visitor's text or model: same engine, same tables, same publish, so that pages draw
published and private runs with the same code. Looks at what lies on a visit's shelf (its header, the
values of its tensors) have a second, light worker, so that nobody waits for another's long trace to
see what is in a file. A worker that has read a visitor's file serves nobody else after it.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import logging
import shutil
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app.jobs_model import FINISHED, Failure, Job, JobStatus, State, Task, fit
from app.jobs_process import Limits, WorkerDied, WorkerProcess
from app.jobs_visits import Visit, VisitRoot
from data.errors import CloudChamberError
from data.runs import run_id
from data.shelf import Shelf
from data.store import Store, open_store
from precompute.recorder import CANCEL

if TYPE_CHECKING:
    from precompute.study import Study

MAX_WAITING = 8  # jobs of one visit in the queue at a time
VISIT_BYTES = 2**30  # of traces; one text of 1,024 tokens with all maps of a 135M model takes 180 MB
IDLE_SECONDS = 600.0  # a worker holds a model in memory; it is let go when nobody asks for that long
SHELF_BYTES = 4 * 2**30  # of files that one visit may bring
_TICK = 1.0  # seconds between looks at who is still there


class JobPool:
    """A queue of jobs, the workers that do them, and the visits they belong to. Thread-safe.

    `registry` names the mapping of studies ("module:NAME"), imported here and in the workers.
    `session_alive(session)` says whether a visitor is connected; a visit opened for a session is
    closed `grace_seconds` after that was last so. `intake` overrides limits of what may be brought
    (fields of models.checkpoints.bundle.Limits).
    """

    def __init__(
        self,
        *,
        workers: int = 1,
        limits: Limits | None = None,
        registry: str = "precompute.registry:STUDIES",
        parent: Path | None = None,
        session_alive: Callable[[str], bool] | None = None,
        grace_seconds: float = 120.0,
        intake: Mapping[str, int] | None = None,
    ) -> None:
        self.limits = limits or Limits()
        self._intake = dict(intake or {})
        self._registry = registry
        self._root = VisitRoot(parent)
        self._session_alive = session_alive
        self._grace = grace_seconds
        self._changed = threading.Condition(threading.RLock())
        self._queue: deque[Job] = deque()
        self._jobs: dict[str, Job] = {}
        self._visits: dict[str, Visit] = {}
        self._sessions: dict[str, tuple[Visit, float]] = {}  # session -> its visit, when last seen
        self._stores: dict[str, Store] = {}
        self._processes: set[WorkerProcess] = set()
        self._warm: dict[str, str] = {}
        self._closed = False
        kinds = [*[("run", "inspect", "statistics")] * workers, ("inspect", "statistics")]
        self._threads = [threading.Thread(target=self._work, args=(k,), daemon=True) for k in kinds]
        self._threads.append(threading.Thread(target=self._keep_house, daemon=True))
        for thread in self._threads:
            thread.start()
        atexit.register(self.close)

    # Visits

    def open_visit(self, session: str | None = None) -> Visit:
        """The visit of `session`, made on first call; without a session, one that is closed by hand."""
        with self._changed:
            self._check_open()
            if session is not None and session in self._sessions:
                return self._sessions[session][0]
            visit = self._root.open()
            self._visits[visit.id] = visit
            if session is not None:
                self._sessions[session] = (visit, time.monotonic())
            return visit

    def close_visit(self, visit: Visit) -> None:
        """Stop the visit's jobs, forget them, wipe its folder. Closing twice is fine."""
        with self._changed:
            jobs = [job for job in self._jobs.values() if job.visit.id == visit.id]
            self._visits.pop(visit.id, None)
            self._sessions = {s: seen for s, seen in self._sessions.items() if seen[0].id != visit.id}
            store = self._stores.pop(visit.id, None)
            for job in jobs:
                self.cancel(job.id)
            for process in self._processes:
                if process.owner == visit.id and not any(job.held for job in jobs):
                    process.end()  # it still holds the visitor's model in memory
            # A worker may be between two files: once it has let go, the folder cannot come back.
            self._changed.wait_for(lambda: not any(job.held for job in jobs), timeout=10)
            for job in jobs:
                self._jobs.pop(job.id, None)
        if store is not None:
            store.close()
        self._root.remove(visit)

    def store(self, visit: Visit) -> Store | None:
        """The visit's private traces, or None before its first job is done."""
        with self._changed:
            if visit.id not in self._visits or not visit.store_path.exists():
                return None
            store = self._stores.get(visit.id)
            if store is None:
                store = self._stores[visit.id] = open_store(visit.store_path)
            else:
                store.refresh()
            return store

    def shelf(self, visit: Visit) -> Shelf:
        """What the visit has brought, and where more is put."""
        return Shelf(visit.shelf_path, SHELF_BYTES)

    # Jobs

    def inspect(self, visit: Visit, slug: str) -> str:
        """Queue a look at the header of what lies on the visit's shelf; returns the job's id.

        When it is done, the entry's document "inspection" holds what was found. Raises
        CloudChamberError: brought_gone, visit_closed, pool_closed.
        """
        return self._look(visit, "inspect", slug)

    def statistics(self, visit: Visit, slug: str) -> str:
        """Queue the values of every tensor of what lies on the shelf: the document "statistics"."""
        return self._look(visit, "statistics", slug)

    def _look(self, visit: Visit, task: Task, slug: str) -> str:
        self.shelf(visit).get(slug)
        with self._changed:
            self._check_open()
            if visit.id not in self._visits:
                raise CloudChamberError("visit_closed", "This visit has ended.", "Reload the page.")
            return self._enqueue(Job(f"{visit.id}-{task}-{slug}", slug, visit, "", {}, (), task=task))

    def _enqueue(self, job: Job) -> str:
        """Queue a job, unless the same one waits or runs; a look is always taken anew."""
        known = self._jobs.get(job.id)
        if known is not None and known.state in ("queued", "running"):
            return known.id
        self._jobs[job.id] = job
        self._queue.append(job)
        self._changed.notify_all()
        return job.id

    def submit(self, study_slug: str, config: Mapping[str, Any], visit: Visit) -> str:
        """Queue a run of the study with `config` for this visit; returns the job's id.

        The id is made of the visit and the run's identity, a hash of the content: the same text
        submitted twice is one job, and one that is done is answered from the visit's store at once.
        Raises CloudChamberError: job_invalid (unknown study, settings that do not fit), job_busy
        (too many waiting), job_disk (too many traces), visit_closed, pool_closed.
        """
        study = self._study(study_slug)
        settings, notices = fit(study, config)
        run = run_id(study.slug, study.version, settings)
        with self._changed:
            self._check_open()
            if visit.id not in self._visits:
                raise CloudChamberError("visit_closed", "This visit has ended.", "Reload the page.")
            known = self._jobs.get(f"{visit.id}-{run}")
            if known is not None and known.state not in ("failed", "cancelled"):
                return known.id
            _check_space(visit)
            if sum(job.visit.id == visit.id for job in self._queue) >= MAX_WAITING:
                raise CloudChamberError(
                    "job_busy",
                    f"{MAX_WAITING} of your texts are waiting already.",
                    "Wait for one to finish, or cancel one.",
                )
            return self._enqueue(Job(f"{visit.id}-{run}", run, visit, study.slug, settings, notices))

    def status(self, job_id: str) -> JobStatus:
        """Where a job stands. Raises CloudChamberError("job_unknown") when it is not known (any more)."""
        with self._changed:
            job = self._jobs.get(job_id)
            if job is None:
                raise CloudChamberError("job_unknown", "This trace is not known any more.", "Start it again.")
            return job.status(self._queue.index(job) + 1 if job in self._queue else 0)

    def cancel(self, job_id: str) -> None:
        """Stop a job, waiting or running; the queue goes on. A finished job stays as it is."""
        with self._changed:
            job = self._jobs.get(job_id)
            if job is None or job.state in FINISHED:
                return
            if job in self._queue:
                self._queue.remove(job)
            self._finish(job, "cancelled")
            if job.held:  # asks the run to stop at its next step; one that does not is killed
                with contextlib.suppress(OSError):
                    (job.shards / CANCEL).touch()

    def warm(self, study_slug: str) -> None:
        """Start both workers and import what the study needs, so that the first job does not wait for it."""
        with self._changed:
            self._warm = {"run": study_slug, "look": ""}
            self._changed.notify_all()

    def worker_pids(self) -> list[int]:
        """Process ids of the live workers."""
        with self._changed:
            return [process.pid for process in self._processes if process.alive]

    def close(self) -> None:
        """Stop every job and worker and wipe every visit. The pool cannot be used afterwards."""
        with self._changed:
            if self._closed:
                return
            self._closed = True
            for job_id in list(self._jobs):
                self.cancel(job_id)
            self._changed.notify_all()
        for thread in self._threads:
            thread.join(timeout=10)
        for store in self._stores.values():
            store.close()
        self._root.close()
        atexit.unregister(self.close)

    # The threads

    def _work(self, tasks: tuple[Task, ...]) -> None:
        """One worker slot: take a job of these tasks, see it through, replace the worker when it is gone."""
        worker: WorkerProcess | None = None
        slot = "run" if "run" in tasks else "look"

        def mine() -> Job | None:
            return next((job for job in self._queue if job.task in tasks), None)

        while True:
            with self._changed:
                asked = self._changed.wait_for(
                    lambda: bool(self._closed or mine() or slot in self._warm), timeout=IDLE_SECONDS
                )
                if self._closed:
                    break
                job = mine()
                if job is not None:
                    self._queue.remove(job)
                    job.state, job.stage, job.held = "running", "Starting the worker", True
                warm = self._warm.pop(slot, None)
            if not asked:
                worker = self._discard(worker)
            elif job is not None:
                worker = self._see_through(job, worker)
            elif warm is not None:
                worker = self._ready(worker)
                if worker is not None:
                    with contextlib.suppress(WorkerDied):
                        worker.send({"warm": warm})
        self._discard(worker)

    def _see_through(self, job: Job, worker: WorkerProcess | None) -> WorkerProcess | None:
        """Run `job`; returns the worker if it can take another one."""
        request = {
            "job": job.id,
            "task": job.task,
            "slug": job.run,
            "study": job.study,
            "config": job.config,
            "staging": str(job.visit.staging),
            "store": str(job.visit.store_path),
            "shelf": str(job.visit.shelf_path),
            "limits": self._intake,
        }
        if worker is not None and worker.owner not in (None, job.visit.id):
            worker = self._discard(worker)
        heard = False

        def on_stage(stage: str) -> None:
            nonlocal heard
            heard, job.stage = True, stage

        failure = Failure("job_crashed", "The worker process could not be started.", "Try again later.")
        # One that was idle may have died unseen; then the job never began, and a new one takes it.
        for _ in range(2 if worker is not None else 1):
            worker = self._ready(worker)
            if worker is None or heard or job.state == "cancelled":
                break
            try:
                if job.brought:
                    worker.owner = job.visit.id
                worker.send(request)
                failure = self._outcome(
                    job, worker.answer(job.id, on_stage, lambda: job.state == "cancelled")
                )
                break
            except WorkerDied as death:
                failure = death.failure
                worker = self._discard(worker)
        with self._changed:
            if job.state == "running":
                self._finish(job, "failed" if failure.kind else "done", failure)
            shutil.rmtree(job.shards, ignore_errors=True)
            job.held = False
            self._changed.notify_all()
        return worker

    def _ready(self, worker: WorkerProcess | None) -> WorkerProcess | None:
        """`worker` if it lives, else a new one; None when none can be had."""
        if worker is not None and worker.alive:
            return worker
        self._discard(worker)
        try:
            worker = WorkerProcess(self._registry, self.limits)
        except OSError:
            return None
        with self._changed:
            self._processes.add(worker)
        return worker

    def _outcome(self, job: Job, answer: Mapping[str, Any]) -> Failure:
        """What the worker's answer says; an empty failure when all went well."""
        if answer["ok"]:
            job.notices += tuple(map(str, answer["notices"]))
            return Failure()
        return Failure(*(str(answer.get(key, "")) for key in ("kind", "message", "remedy", "where")))

    def _keep_house(self) -> None:
        """Close the visits of sessions that have been gone for longer than the grace period."""
        while True:
            with self._changed:
                if self._changed.wait_for(lambda: self._closed, timeout=_TICK):
                    return
                now = time.monotonic()
                gone = []
                for session, (visit, seen) in list(self._sessions.items()):
                    if self._session_alive is None or self._session_alive(session):
                        self._sessions[session] = (visit, now)
                    elif now - seen > self._grace:
                        gone.append(visit)
            for visit in gone:
                try:
                    self.close_visit(visit)
                except Exception:  # the other visits still want to be closed
                    logging.getLogger(__name__).exception("a visit could not be closed")

    # Small things

    def _finish(self, job: Job, state: State, failure: Failure | None = None) -> None:
        job.state, job.finished = state, time.monotonic()
        job.failure = failure or Failure()
        self._changed.notify_all()

    def _discard(self, worker: WorkerProcess | None) -> WorkerProcess | None:
        """Kill `worker` and let go of it: returns None, for who held it."""
        if worker is not None:
            worker.kill()
            with self._changed:
                self._processes.discard(worker)
        return None

    def _check_open(self) -> None:
        if self._closed:
            raise CloudChamberError("pool_closed", "The app is shutting down.", "Try again in a moment.")

    def _study(self, slug: str) -> Study:
        module, name = self._registry.split(":")
        studies: Mapping[str, Study] = getattr(importlib.import_module(module), name)
        if slug not in studies:
            remedy = f"Choose one of: {', '.join(studies)}."
            raise CloudChamberError("job_invalid", f"No study is called {slug!r}.", remedy)
        return studies[slug]


def _check_space(visit: Visit) -> None:
    try:
        used = visit.store_path.stat().st_size
    except OSError:
        return
    if used >= VISIT_BYTES:
        raise CloudChamberError(
            "job_disk",
            f"Your traces take {used / 2**30:.1f} GB, which is all that a visit may use.",
            "Reload the page to begin anew, without them.",
        )
