"""Where runs compute: processes of this machine, or a Dask cluster. Both are `Executor`s.

Only the standard library is imported here: a worker process imports this module before it knows
how many threads the numeric libraries may start.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.process import BaseProcess
from typing import Any, ParamSpec, TypeVar

from data.errors import CloudChamberError

P = ParamSpec("P")
T = TypeVar("T")

_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")
_PR_SET_PDEATHSIG = 1


class WorkerDied(Exception):
    """The process that ran a task is gone. `exitcode` is negative for a signal, None if unknown."""

    def __init__(self, exitcode: int | None) -> None:
        super().__init__(exitcode)
        self.exitcode = exitcode

    def __str__(self) -> str:
        if self.exitcode is None:
            return "the worker died"
        if self.exitcode < 0:
            probably = ", probably out of memory" if self.exitcode == -signal.SIGKILL else ""
            return f"the worker died (signal {-self.exitcode}){probably}"
        return f"the worker died (exit code {self.exitcode})"


class WorkerPool(Executor):
    """Processes, spawned on demand, each of which may die without harm to the others.

    A `ProcessPoolExecutor` breaks as a whole when one of its processes dies, and does not say whose
    task killed it. So every slot is a pool of one: its death is a WorkerDied of the task it ran, and
    the next task of that slot gets a fresh process. No worker outlives this process, however it ends.
    """

    def __init__(self, jobs: int, threads: int) -> None:
        self._threads = threads
        self._slots: dict[int, _Slot] = {}  # by the id of the thread that feeds it
        self._guard = threading.Lock()
        self._stopped = False
        self._feeders = ThreadPoolExecutor(jobs, thread_name_prefix="feeder")
        # Children are started by one thread that lives as long as the pool: Linux kills a child with
        # PDEATHSIG when the *thread* that started it ends.
        self._spawner = ThreadPoolExecutor(1, thread_name_prefix="spawner")

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Run `fn` in a worker; the future raises WorkerDied if its process dies meanwhile."""
        return self._feeders.submit(self._call, fn, args, kwargs)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Let running tasks end (queued ones too, unless cancelled), then end the processes."""
        self._feeders.shutdown(wait, cancel_futures=cancel_futures)
        if wait:
            with self._guard:
                self._stopped = True
                slots = list(self._slots.values())
            for slot in slots:
                slot.executor.shutdown(wait=True)
            self._spawner.shutdown(wait=True)

    def terminate(self) -> None:
        """End all processes now; what they ran is lost."""
        with self._guard:
            self._stopped = True
            slots = list(self._slots.values())
        for slot in slots:
            slot.process.kill()
        self._feeders.shutdown(wait=True, cancel_futures=True)
        for slot in slots:
            slot.executor.shutdown(wait=True, cancel_futures=True)
        self._spawner.shutdown(wait=True)

    def _call(self, fn: Callable[..., T], args: tuple[Any, ...], kwargs: dict[str, Any]) -> T:
        slot = self._slot()
        try:
            return slot.executor.submit(fn, *args, **kwargs).result()
        except BrokenProcessPool as error:
            with self._guard:
                self._slots.pop(threading.get_ident(), None)
            raise WorkerDied(slot.exitcode()) from error

    def _slot(self) -> _Slot:
        me = threading.get_ident()
        slot = self._slots.get(me)
        if slot is None:
            try:
                slot = self._spawner.submit(_Slot, self._threads).result()
            except BrokenProcessPool as error:
                raise WorkerDied(None) from error
            with self._guard:
                self._slots[me] = slot
                if self._stopped:  # `terminate` did not see it
                    slot.process.kill()
        return slot


class _Slot:
    """A pool of one process, started at once, so that its process is known by the time it may die."""

    def __init__(self, threads: int) -> None:
        context = multiprocessing.get_context("spawn")
        self.executor = ProcessPoolExecutor(
            1, mp_context=context, initializer=start_worker, initargs=(threads,)
        )
        # Ctrl-C reaches every process of the terminal; the parent alone decides what it means. A
        # blocked signal is inherited, so not even a worker that is just starting sees it. Blocked
        # only now: the constructor above starts the resource tracker, which resets the mask.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        pid = self.executor.submit(os.getpid).result()
        self.process: BaseProcess = next(p for p in multiprocessing.active_children() if p.pid == pid)

    def exitcode(self) -> int | None:
        """The exit code of the dead process. Two threads may reap it; the other one notes the code."""
        deadline = time.monotonic() + 5
        while (code := self.process.exitcode) is None and time.monotonic() < deadline:
            time.sleep(0.01)
        return code


def start_worker(threads: int) -> None:
    """First thing in a worker: few threads, deaf to Ctrl-C, and gone when its parent is."""
    for variable in _THREAD_VARIABLES:
        os.environ[variable] = str(threads)
    # Threads that wait must sleep: spinning ones starve whatever else runs on the machine's cores.
    os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    if parent is None:
        raise RuntimeError("start_worker is for worker processes")
    threading.Thread(target=_follow, args=(parent,), daemon=True).start()
    if sys.platform == "linux":  # ends even a worker that never lets another thread run
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _follow(parent: BaseProcess) -> None:
    parent.join()
    os._exit(1)


def cluster_executor(address: str) -> tuple[Executor, int]:
    """An executor on the Dask cluster whose scheduler is at `address`, and its number of workers.

    Raises CloudChamberError: "scheduler_missing" (no distributed), "scheduler_unreachable",
    "scheduler_workers" (none, or workers that run several tasks in one process).
    """
    try:
        from distributed import Client
    except ImportError as error:
        raise CloudChamberError(
            "scheduler_missing",
            "Spreading runs over a cluster needs the package distributed.",
            "Install it: `.venv/bin/pip install -e '.[cluster]'`.",
        ) from error
    try:
        client: Any = Client(address, timeout=10, set_as_default=False)  # type: ignore[no-untyped-call]
    except (OSError, ValueError) as error:
        raise CloudChamberError(
            "scheduler_unreachable",
            f"The Dask scheduler cannot be reached: {str(error).splitlines()[0]}.",
            "Check that it runs and that the address is like tcp://HOST:8786.",
            where=address,
        ) from error
    workers = client.scheduler_info(n_workers=-1)["workers"].values()
    crowded = [w for w in workers if w["nthreads"] > 1]
    if not workers or crowded:
        client.close()
        raise CloudChamberError(
            "scheduler_workers",
            "Workers of the cluster run several tasks in one process, which would share random generators."
            if crowded
            else "The cluster has no workers.",
            "Start them with `dask worker ADDRESS --nworkers N --nthreads 1`.",
            where=address,
        )
    return _ClusterExecutor(client), len(workers)


class _ClusterExecutor(Executor):
    """Dask's own executor, which also closes its client."""

    def __init__(self, client: Any) -> None:
        self._client = client
        # Not pure: two calls with equal arguments are two calls, as for any executor.
        self._executor: Executor = client.get_executor(pure=False)

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        return self._executor.submit(fn, *args, **kwargs)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self._executor.shutdown(wait and not cancel_futures)  # Dask's takes no second argument
        self._client.close()
