"""One worker process as the app sees it: start, ask, wait with a deadline, kill, say why it died.

Not `multiprocessing` (nor a pool on top of it), for three reasons: a spawned child would import the
page that Streamlit has put in place of `__main__`; a pool that holds its queue lock in the child
stalls when the child is killed; and answers would arrive as pickles from a process that reads
strangers' bytes. Here they arrive as bounded lines of JSON.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

from app.jobs_model import Failure

MAX_LINE = 64 * 1024  # bytes of one answer; a longer one means the worker is no longer itself
GRACE = 0.7  # seconds that a cancelled job has to stop by itself, which keeps the worker and its model
_POLL = 0.05  # seconds between looks at the clock
_ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Limits:
    """What one job may use. The worker sets the first three on itself, where the platform has them.

    `rss_bytes` is watched from outside: address space is a poor measure of memory once files are
    mapped, so `memory_bytes` is only the far fence.
    """

    memory_bytes: int = 24 * 2**30
    cpu_seconds: float = 600.0
    file_bytes: int = 2 * 2**30
    rss_bytes: int = 6 * 2**30
    wall_seconds: float = 300.0


class WorkerDied(Exception):
    """The worker is gone, and `failure` says why."""

    def __init__(self, kind: str, message: str, remedy: str) -> None:
        super().__init__(message)
        self.failure = Failure(kind, message, remedy)


class WorkerProcess:
    """A child that serves one request at a time; start one with `WorkerProcess(registry, limits)`.

    It must be made by a thread that outlives it: on Linux the kernel kills the child when the
    thread that made it ends.
    """

    def __init__(self, registry: str, limits: Limits) -> None:
        self.limits = limits
        self.owner: str | None = None  # the visit whose files it has read; nobody else's from then on
        self._buffer = b""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "app.jobs_worker", registry, json.dumps(asdict(limits))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=_ROOT,
            env={**os.environ, **_environment()},
            start_new_session=True,  # Ctrl-C in the terminal is the app's to handle
        )
        assert self._process.stdout is not None
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._process.stdout, selectors.EVENT_READ)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def send(self, request: dict[str, Any]) -> None:
        """Hand over a request. Raises WorkerDied when nobody is there to take it."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        except OSError as error:
            raise self._obituary() from error

    def answer(
        self, job: str, on_stage: Callable[[str], None], cancelled: Callable[[], bool]
    ) -> dict[str, Any]:
        """Wait for the final answer to `job`, telling stages on the way.

        Raises WorkerDied when the process ends first, or is killed here: when it takes longer or more
        memory than allowed, or has not stopped by itself GRACE seconds after `cancelled()` became true.
        """
        started = time.monotonic()
        asked: float | None = None
        while True:
            for line in self._lines():
                reply = json.loads(line)
                if reply.get("job") != job:
                    continue
                if "ok" in reply:
                    return dict(reply)
                on_stage(str(reply.get("stage", "")))
            now = time.monotonic()
            if asked is None and cancelled():
                asked = now
            if asked is not None and now - asked > GRACE:
                self.kill()
                raise WorkerDied("job_cancelled", "The trace was cancelled.", "Start it again.")
            self._check_limits(now - started)

    def kill(self) -> None:
        """End it now, with whatever it may have started; returns when it is gone."""
        self.end()
        self._process.wait()
        self._selector.close()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):  # unsent bytes of a dead pipe
                    pipe.close()

    def end(self) -> None:
        """Tell it to go, from any thread; the one that made it cleans up."""
        if self.alive:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def _lines(self) -> list[bytes]:
        """Whole lines that have arrived within the next tick."""
        assert self._process.stdout is not None
        handle = self._process.stdout.fileno()
        if not self._selector.select(_POLL):
            return []
        chunk = os.read(handle, MAX_LINE)
        if not chunk:
            raise self._obituary()
        *lines, self._buffer = (self._buffer + chunk).split(b"\n")
        if len(self._buffer) > MAX_LINE:
            self.kill()
            raise WorkerDied("job_error", "The worker answered nonsense.", "Try again.")
        return lines

    def _check_limits(self, elapsed: float) -> None:
        if elapsed > self.limits.wall_seconds:
            self.kill()
            raise WorkerDied(
                "job_timeout",
                f"The trace took longer than {self.limits.wall_seconds:.0f} s and was stopped.",
                "Shorten the text, or choose a smaller model.",
            )
        if _rss(self.pid) > self.limits.rss_bytes:
            self.kill()
            raise _memory()

    def _obituary(self) -> WorkerDied:
        """Why the process ended, read off its exit status."""
        try:
            code = self._process.wait(timeout=2)
        except subprocess.TimeoutExpired:
            self.kill()
            code = 0
        if code == -getattr(signal, "SIGXCPU", 24):
            return WorkerDied(
                "job_timeout",
                f"The trace used over {self.limits.cpu_seconds:.0f} s of processor time and was stopped.",
                "Shorten the text, or choose a smaller model.",
            )
        if code == -signal.SIGKILL:  # not by us: the kernel's answer to memory running out
            return _memory()
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        return WorkerDied(
            "job_crashed",
            f"The process that traced the text crashed ({how}); nothing published was touched.",
            "Try again; if it happens twice, try another text or model.",
        )


def _environment() -> dict[str, str]:
    """No network for model libraries, and a core left for the pages.

    On a busy machine idle threads that spin cost more than they bring: a short text took 10 s with
    two of them on two busy cores and 1.3 s with one. So they sleep while they wait.
    """
    threads = str(max(1, (os.cpu_count() or 2) - 1))
    return {
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "OMP_WAIT_POLICY": "PASSIVE",
        "OMP_NUM_THREADS": threads,
        "MKL_NUM_THREADS": threads,
        "OPENBLAS_NUM_THREADS": threads,
        "TOKENIZERS_PARALLELISM": "false",
    }


def _memory() -> WorkerDied:
    return WorkerDied(
        "job_memory",
        "The trace needs more memory than there is for a visit, and was stopped.",
        "Shorten the text, or choose a smaller model.",
    )


def _rss(pid: int) -> int:
    """Resident bytes of a process; 0 when it is gone."""
    try:
        return int(psutil.Process(pid).memory_info().rss)
    except psutil.Error:
        return 0
