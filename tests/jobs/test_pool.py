"""The pool of live tracing: real child processes that succeed, fail, hang and are killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from app.jobs import JobPool, JobStatus
from app.jobs_model import MAX_CHARACTERS, clean_text
from app.jobs_pool import VISIT_BYTES
from app.jobs_process import Limits
from app.jobs_visits import Visit, VisitRoot, sweep
from data.errors import CloudChamberError

REGISTRY = "tests.jobs.studies:STUDIES"
LIMITS = Limits(
    memory_bytes=6 * 2**30, cpu_seconds=2.0, file_bytes=2**24 + 2**23, rss_bytes=600 * 2**20, wall_seconds=30
)


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JobPool]:
    pool = JobPool(registry=REGISTRY, limits=LIMITS, parent=tmp_path_factory.mktemp("visits"))
    yield pool
    pool.close()


@pytest.fixture
def visit(pool: JobPool) -> Iterator[Visit]:
    visit = pool.open_visit()
    yield visit
    pool.close_visit(visit)


def submit(pool: JobPool, visit: Visit, content: str = "abc", **settings: object) -> str:
    return pool.submit("letters", {"subject": "paper", "content": content, **settings}, visit)


def until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


def wait(pool: JobPool, job: str, seconds: float = 30.0) -> JobStatus:
    until(lambda: pool.status(job).finished, seconds)
    return pool.status(job)


def letters(pool: JobPool, visit: Visit, run: str) -> str:
    store = pool.store(visit)
    assert store is not None
    rows = store.frame("SELECT letter FROM letters WHERE run_id = ? ORDER BY position", (run,))
    return "".join(rows["letter"])


def test_a_job_runs_the_study_and_lands_in_the_private_store(pool: JobPool, visit: Visit) -> None:
    assert pool.store(visit) is None
    status = wait(pool, submit(pool, visit, "tracks"))
    assert (status.state, status.message, status.queue_position) == ("done", "", 0)
    assert letters(pool, visit, status.run_id) == "tracks"
    store = pool.store(visit)
    assert store is not None
    assert store.runs("letters")["status"].tolist() == ["done"]
    assert list(visit.staging.iterdir()) == []  # shards do not stay behind


def test_the_same_text_is_one_job_and_is_answered_at_once(pool: JobPool, visit: Visit) -> None:
    first = submit(pool, visit, "same", seconds=0.05)
    assert submit(pool, visit, "same", seconds=0.05) == first
    done = wait(pool, first)
    store = pool.store(visit)
    assert store is not None
    generation = store.generation
    assert submit(pool, visit, "same", seconds=0.05) == first
    assert pool.status(first) == done  # nothing ran again
    assert pool.store(visit).generation == generation  # type: ignore[union-attr]


def test_visits_do_not_see_each_other(pool: JobPool, visit: Visit) -> None:
    other = pool.open_visit()
    mine, theirs = submit(pool, visit, "mine"), submit(pool, other, "mine")
    assert mine != theirs  # the same text, but nobody can ask whether somebody else traced it
    run = wait(pool, mine).run_id
    assert wait(pool, theirs).run_id == run
    secret = wait(pool, submit(pool, other, "secret")).run_id
    assert letters(pool, visit, run) == "mine"
    assert letters(pool, visit, secret) == ""
    assert visit.folder.stat().st_mode & 0o077 == 0
    pool.close_visit(other)
    assert not other.folder.exists()
    with pytest.raises(CloudChamberError, match="not known"):
        pool.status(theirs)


def test_progress_and_queue_are_visible(pool: JobPool, visit: Visit) -> None:
    slow = submit(pool, visit, "abcdefghij", seconds=0.15)
    second, third = submit(pool, visit, "second"), submit(pool, visit, "third")
    until(lambda: pool.status(slow).state == "running")
    assert pool.status(slow).stage != ""
    assert [pool.status(j).queue_position for j in (slow, second, third)] == [0, 1, 2]
    until(lambda: pool.status(slow).done >= 3)
    seen = pool.status(slow)
    assert (seen.total, seen.stage) == (10, "Writing letters")
    assert 0 < seen.elapsed_s < 30
    assert wait(pool, third).state == "done"
    assert pool.status(second).state == "done"


def test_cancel_stops_a_running_job_and_keeps_the_worker(pool: JobPool, visit: Visit) -> None:
    slow, second = submit(pool, visit, "x" * 600, seconds=0.1), submit(pool, visit, "next")
    until(lambda: pool.status(slow).done > 0)
    workers = pool.worker_pids()
    pool.cancel(slow)
    assert pool.status(slow).state == "cancelled"
    assert letters(pool, visit, wait(pool, second).run_id) == "next"
    assert pool.worker_pids() == workers  # it holds a model in memory, which takes seconds to load
    assert letters(pool, visit, pool.status(slow).run_id) == ""


def test_cancel_kills_a_worker_that_does_not_stop_by_itself(pool: JobPool, visit: Visit) -> None:
    stuck, second = submit(pool, visit, fault="hang"), submit(pool, visit, "next")
    until(lambda: pool.status(stuck).stage == "starting")
    (worker,) = pool.worker_pids()
    pool.cancel(stuck)
    until(lambda: not psutil.pid_exists(worker), 2.0)
    assert letters(pool, visit, wait(pool, second).run_id) == "next"
    assert pool.status(stuck).state == "cancelled"


def test_cancel_of_a_waiting_job_leaves_the_running_one_alone(pool: JobPool, visit: Visit) -> None:
    first, waiting = submit(pool, visit, "abcde", seconds=0.1), submit(pool, visit, "waiting")
    pool.cancel(waiting)
    assert pool.status(waiting).state == "cancelled"
    assert wait(pool, first).state == "done"
    assert wait(pool, submit(pool, visit, "waiting")).state == "done"  # and may be asked for again


def test_the_worker_stays_warm_between_jobs(pool: JobPool, visit: Visit) -> None:
    runs = [wait(pool, submit(pool, visit, text)).run_id for text in ("one", "two")]
    store = pool.store(visit)
    assert store is not None
    workers = store.frame("SELECT DISTINCT worker FROM letters WHERE run_id IN (?, ?)", runs)
    assert workers["worker"].tolist() == pool.worker_pids()


@pytest.mark.parametrize(
    ("fault", "kind", "says"),
    [
        ("error", "job_error", "ValueError"),
        ("kind", "package_missing", "not installed"),
        ("segv", "job_crashed", "SIGSEGV"),
        ("kill", "job_memory", "memory"),
        ("exit", "job_crashed", "exit code 3"),
        ("spin", "job_timeout", "processor time"),
        ("memory", "job_memory", "memory"),
        ("rss", "job_memory", "memory"),
        ("file", "job_disk", "disk"),
    ],
)
def test_every_way_to_fail_is_a_sentence_with_a_remedy(
    pool: JobPool, visit: Visit, fault: str, kind: str, says: str
) -> None:
    status = wait(pool, submit(pool, visit, fault=fault))
    assert (status.state, status.kind) == ("failed", kind)
    assert says in status.message
    assert status.remedy.endswith(".")
    shown = status.message + status.remedy + status.stage
    assert not any(leak in shown for leak in ("Traceback", "/root", "secret", str(visit.folder), ".py"))
    assert wait(pool, submit(pool, visit, "after")).state == "done"


def test_a_job_that_takes_too_long_is_stopped(tmp_path: Path) -> None:
    pool = JobPool(registry=REGISTRY, limits=Limits(wall_seconds=1.0), parent=tmp_path)
    try:
        status = wait(pool, submit(pool, pool.open_visit(), "x" * 600, seconds=0.1))
        assert (status.state, status.kind) == ("failed", "job_timeout")
        assert "1 s" in status.message
    finally:
        pool.close()


def test_what_a_library_prints_is_not_taken_for_an_answer(pool: JobPool, visit: Visit) -> None:
    status = wait(pool, submit(pool, visit, "print", fault="print"))
    assert (status.state, letters(pool, visit, status.run_id)) == ("done", "print")


def test_input_that_does_not_fit_is_refused_before_anything_runs(pool: JobPool, visit: Visit) -> None:
    with pytest.raises(CloudChamberError, match="Choose one of: letters"):
        pool.submit("../letters", {"subject": "paper"}, visit)
    with pytest.raises(CloudChamberError) as refused:
        pool.submit("letters", {"subject": "paper", "fault": "<script>alert(1)</script>"}, visit)
    assert refused.value.kind == "job_invalid"
    assert "script" not in str(refused.value)
    other = pool.open_visit()
    pool.close_visit(other)
    with pytest.raises(CloudChamberError, match="visit has ended"):
        submit(pool, other)


def test_one_visit_cannot_fill_the_queue(pool: JobPool, visit: Visit) -> None:
    jobs = [submit(pool, visit, "x" * 50, seconds=0.1)]
    until(lambda: pool.status(jobs[0]).state == "running")
    jobs += [submit(pool, visit, f"text {n}") for n in range(8)]
    with pytest.raises(CloudChamberError, match="waiting already"):
        submit(pool, visit, "one more")


def test_a_visit_has_so_much_space(pool: JobPool, visit: Visit) -> None:
    wait(pool, submit(pool, visit, "small"))
    with visit.store_path.open("r+b") as store:
        store.truncate(VISIT_BYTES + 1)  # sparse: it takes no space on the disk
    with pytest.raises(CloudChamberError, match="all that a visit may use"):
        submit(pool, visit, "more")
    assert submit(pool, visit, "small") != ""  # what is there stays


def test_text_is_repaired_aloud() -> None:
    assert clean_text("plain \u05e9\u05dc\u05d5\u05dd \U0001f600 \x00\n") == (
        "plain \u05e9\u05dc\u05d5\u05dd \U0001f600 \x00\n",
        (),
    )
    text, notices = clean_text("a\ud800b\udc00")
    assert text == "a\ufffdb\ufffd"
    assert notices == ("2 broken characters were replaced by \ufffd.",)
    text, notices = clean_text("ab" * MAX_CHARACTERS)
    assert len(text) == MAX_CHARACTERS
    assert "400,000" in notices[0]
    assert "200,000" in notices[0]


def test_a_visit_ends_after_its_session(tmp_path: Path) -> None:
    alive = {"one", "two"}
    pool = JobPool(registry=REGISTRY, parent=tmp_path, session_alive=alive.__contains__, grace_seconds=1.5)
    try:
        one, two = pool.open_visit("one"), pool.open_visit("two")
        assert pool.open_visit("one") == one
        job = submit(pool, one, "x" * 600, seconds=0.1)
        until(lambda: pool.status(job).done > 0)
        alive.discard("one")
        until(lambda: not one.folder.exists(), 1.5 + 10)
        assert two.folder.exists()
        assert pool.open_visit("one") != one  # a later session of that name starts from nothing
    finally:
        pool.close()
    assert list(tmp_path.glob("*/")) == []


APP = """
import sys, time
from pathlib import Path
from app.jobs import JobPool
if __name__ == "__main__":
    pool = JobPool(registry="tests.jobs.studies:STUDIES", parent=Path(sys.argv[1]))
    visit = pool.open_visit()
    job = pool.submit("letters", {"subject": "paper", "content": "x" * 600, "seconds": 0.1}, visit)
    while pool.status(job).done == 0:
        time.sleep(0.05)
    print(pool.worker_pids()[0], flush=True)
    time.sleep(600)
"""


def test_a_crash_of_the_app_leaves_no_process_and_the_next_start_no_file(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(APP))
    visits = tmp_path / "visits"
    visits.mkdir()
    root = Path(__file__).resolve().parents[2]
    app = subprocess.Popen(
        [sys.executable, str(script), str(visits)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(root)},
    )
    assert app.stdout is not None
    worker = int(app.stdout.readline())
    assert psutil.pid_exists(worker)
    (folder,) = visits.glob("*/")
    assert sweep(visits) == []  # its owner lives, so nobody takes it away
    app.send_signal(signal.SIGKILL)
    app.wait()
    app.stdout.close()
    until(lambda: not psutil.pid_exists(worker), 5.0)
    assert folder.exists()
    fresh = VisitRoot(visits)
    assert not folder.exists()
    fresh.close()
    assert list(visits.glob("*/")) == []


def test_a_worker_that_dies_while_idle_is_replaced(pool: JobPool, visit: Visit) -> None:
    assert wait(pool, submit(pool, visit, "before")).state == "done"
    (worker,) = pool.worker_pids()
    os.kill(worker, signal.SIGKILL)
    assert wait(pool, submit(pool, visit, "behind")).state == "done"


def test_a_script_in_place_of_main_is_not_run_by_the_worker(tmp_path: Path) -> None:
    """Streamlit puts the page that runs in place of `__main__`; a spawned worker must not import it."""
    marker = tmp_path / "marker"
    script = tmp_path / "page.py"
    script.write_text(
        f"import os, sys, time\nopen({str(marker)!r}, 'a').write('ran')\n"
        "from pathlib import Path\nfrom app.jobs import JobPool\n"
        f"pool = JobPool(registry='tests.jobs.studies:STUDIES', parent=Path({str(tmp_path)!r}))\n"
        "job = pool.submit('letters', {'subject': 'paper', 'content': 'abc'}, pool.open_visit())\n"
        "while not pool.status(job).finished:\n    time.sleep(0.02)\n"
        "assert pool.status(job).state == 'done', pool.status(job)\npool.close()\n"
    )
    root = Path(__file__).resolve().parents[2]
    subprocess.run(
        [sys.executable, str(script)], check=True, timeout=60, env={**os.environ, "PYTHONPATH": str(root)}
    )
    assert marker.read_text() == "ran"
