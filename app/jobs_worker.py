"""The child process that traces what visitors bring: `python -m app.jobs_worker REGISTRY`.

It reads one JSON object per line from standard input and answers one per line on standard output.
JSON, not pickle: this process reads bytes of strangers, and what it says must not be able to run
code in the app. It ends when its input ends, so it never outlives the app.

Requests: {"job", "task": "run", "study", "config", "staging", "store", "shelf", "limits"} runs and
publishes; {"job", "task": "inspect" or "statistics", "slug", "staging", "shelf", "limits"} looks at
something on the shelf and leaves what it finds beside it; {"warm": STUDY} only imports, for looks where
STUDY is empty. Answers: {"job", "stage"} while it gets ready, then {"job", "ok": true, "notices"} or
{"job", "ok": false, "kind", "message", "remedy", "where"}.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import importlib
import json
import os
import queue
import signal
import sys
import threading
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from data.errors import CloudChamberError

_MAX_NOTICES = 50  # an answer is one bounded line; the run's row keeps all of them
_LOOKS = "models.checkpoints.intake"  # what reading a header needs; no torch


def main(arguments: list[str]) -> None:
    """Serve requests until standard input ends."""
    registry, limits = arguments[0], json.loads(arguments[1])
    answers = _private_stdout()
    _limit_process(limits)
    requests: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(sys.stdin.buffer, requests), daemon=True).start()
    module, name = registry.split(":")
    while True:
        request = requests.get()
        studies: Mapping[str, Any] = getattr(importlib.import_module(module), name)
        if "warm" in request:
            with contextlib.suppress(Exception):  # the job itself will say what is wrong
                _load(studies[request["warm"]].run if request["warm"] else _LOOKS)
            continue
        _limit_job(limits)
        answer = _serve(request, studies, answers)
        _say(answers, {"job": request["job"], **answer})


def _serve(request: dict[str, Any], studies: Mapping[str, Any], answers: IO[bytes]) -> dict[str, Any]:
    """Run one request; the answer is a sentence and a remedy when it fails."""
    try:
        from data.shelf import use_shelf

        _say(answers, {"job": request["job"], "stage": "Loading libraries"})
        with use_shelf(Path(request["shelf"]), request["limits"]):
            if request["task"] == "run":
                return {"ok": True, "notices": _run(studies[request["study"]], request)}
            _look(request)
            return {"ok": True, "notices": []}
    except CloudChamberError as error:
        said = {"kind": error.kind, "message": error.message, "remedy": error.remedy, "where": error.where}
        return {"ok": False, **said}
    except Exception as error:  # noqa: BLE001  (said in a sentence; what is our defect is logged)
        return {"ok": False, **_explain(error)}


def _run(study: Any, request: dict[str, Any]) -> list[str]:
    """The study's own run by the engine's own hand, published by the store's own code; its notices."""
    from data.publish import publish
    from precompute.recorder import Cancelled
    from precompute.worker import run_one

    config = study.config.model_validate(request["config"])
    _load(study.run_of(config))
    try:
        staged = run_one(study, config, Path(request["staging"]))
    except Cancelled:
        raise _cancelled() from None
    publish(Path(request["store"]), [staged], study.tables)
    return [str(notice["message"]) for notice in json.loads(staged.row.notices)][:_MAX_NOTICES]


def _look(request: dict[str, Any]) -> None:
    """Inspect what is on the shelf, or compute the values of its tensors; the answer lies beside it."""
    from precompute.recorder import Cancelled, ShardRecorder
    from precompute.runs import brought

    slug = str(request["slug"])
    recorder = ShardRecorder(slug, {}, Path(request["staging"]) / slug)
    try:
        if request["task"] == "inspect":
            brought.inspect(slug, recorder.progress)
        else:
            brought.statistics(slug, recorder.progress)
    except Cancelled:
        raise _cancelled() from None


def _cancelled() -> CloudChamberError:
    return CloudChamberError("job_cancelled", "This was cancelled.", "Start it again.")


def _explain(error: Exception) -> dict[str, str]:
    from data.faults import is_full
    from precompute.worker import is_out_of_memory

    if is_out_of_memory(error):
        return {
            "kind": "job_memory",
            "message": "The trace needs more memory than a visit may use.",
            "remedy": "Shorten the text, or choose a smaller model.",
        }
    if isinstance(error, ModuleNotFoundError) and error.name:
        return {
            "kind": "library_missing",
            "message": f"The library {error.name.partition('.')[0]!r} is not installed here.",
            "remedy": "Run `make setup` to install everything.",
        }
    if isinstance(error, OSError) and (is_full(error) or error.errno == errno.EFBIG):
        return {
            "kind": "job_disk",
            "message": "The trace does not fit on the disk space that a visit may use.",
            "remedy": "Shorten the text, or come back later.",
        }
    # Frames and type only: the message of an exception may quote the visitor's text.
    sys.stderr.write("".join(traceback.format_tb(error.__traceback__)) + type(error).__name__ + "\n")
    sys.stderr.flush()
    return {
        "kind": "job_error",
        "message": f"The trace stopped on an internal error ({type(error).__name__}).",
        "remedy": "Try another text or model; the server's log holds the details.",
    }


def _load(target: str) -> None:
    importlib.import_module("precompute.worker")
    importlib.import_module("data.publish")
    importlib.import_module(target.split(":")[0])


def _listen(stream: IO[bytes], requests: queue.SimpleQueue[dict[str, Any]]) -> None:
    """Hand over requests; end the process at once when the app is gone, whatever it is doing."""
    for line in stream:
        requests.put(json.loads(line))
    os._exit(0)


def _say(answers: IO[bytes], answer: dict[str, Any]) -> None:
    try:
        answers.write(json.dumps(answer).encode() + b"\n")
        answers.flush()
    except OSError:
        os._exit(0)  # nobody listens any more


def _private_stdout() -> IO[bytes]:
    """The answers' own handle; whatever a library prints goes to standard error instead."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    return answers


def _limit_process(limits: Mapping[str, float]) -> None:
    """Limits that hold for the whole life of the process, where the platform has them."""
    if sys.platform == "linux":  # PR_SET_PDEATHSIG: even code that holds the interpreter ends with the app
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    os.nice(5)  # the pages come first
    with contextlib.suppress(OSError):  # Linux: when memory runs out, this one goes, not the app
        Path("/proc/self/oom_score_adj").write_text("1000")
    _set_limit("RLIMIT_CORE", 0)  # a core file would hold the visitor's text
    _set_limit("RLIMIT_FSIZE", int(limits["file_bytes"]))
    if not Path("/dev/nvidiactl").exists():  # CUDA reserves address space by the hundred gigabytes
        _set_limit("RLIMIT_AS", int(limits["memory_bytes"]))


def _limit_job(limits: Mapping[str, float]) -> None:
    """CPU seconds count over the life of a process, so each job gets its share on top of those used."""
    used = sum(os.times()[:2])
    _set_limit("RLIMIT_CPU", int(used + limits["cpu_seconds"]) + 1, soft_only=True)


def _set_limit(name: str, value: int, *, soft_only: bool = False) -> None:
    try:
        import resource
    except ImportError:
        return
    which = getattr(resource, name, None)
    if which is None:
        return
    hard = resource.getrlimit(which)[1]
    if hard != resource.RLIM_INFINITY:
        value = min(value, hard)
    with contextlib.suppress(OSError, ValueError):  # macOS refuses some; the wall clock still holds
        resource.setrlimit(which, (value, hard if soft_only else value))


if __name__ == "__main__":
    main(sys.argv[1:])
