"""Progress for people: a bar and an ETA per run and overall on a terminal, plain lines elsewhere."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

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


class Reporter:
    """Draws the engine's events on `console` (standard error by default). A context manager.

    Call it with every event: `run_plan(..., on_event=reporter)`.
    """

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(stderr=True)
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TaskProgressColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("[dim]{task.fields[stage]}"),
            console=self.console,
            transient=True,
            disable=not self.console.is_terminal,
        )
        self._tasks: dict[str, TaskID] = {}
        self._shares: dict[str, float] = {}  # of the runs under way
        self._overall: TaskID | None = None
        self._total = 0
        self._ended = 0

    def __enter__(self) -> Reporter:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def __call__(self, event: Event) -> None:
        """Draw one event."""
        match event:
            case Planned():
                self._plan(event)
            case RunStarted(run):
                self._begin(run)
            case RunProgress(run, done, total, stage):
                self._advance(run, done, total, stage)
            case RunDone(run, seconds):
                self._end(run, f"[green]done[/]    {self._name(run)}  {duration(seconds)}")
            case RunFailed(run, reason, _):
                self._end(run, f"[red]failed[/]  {self._name(run)}  {escape(reason)}")
            case RunRetried(run, reason):
                self._drop(run)
                self._say(f"[yellow]again[/]   {self._name(run)}  {escape(reason)}")
            case Stopping():
                self._say("Stopping: finished runs are published, the others are dropped.")
            case Published():
                pass  # a run's own line says it already

    def _plan(self, event: Planned) -> None:
        self._total = len(event.todo)
        done = f", {event.skipped} done already" if event.skipped else ""
        workers = f", {event.jobs} at a time" if event.todo else ""
        self._say(f"{self._total} {'run' if self._total == 1 else 'runs'} to compute{workers}{done}.")
        if event.todo:
            self._overall = self._progress.add_task("all runs", total=self._total, stage="")

    def _begin(self, run: RunRef) -> None:
        self._tasks[run.run_id] = self._progress.add_task(self._name(run), total=None, stage="starting")
        if not self.console.is_terminal:
            self._say(f"start   {self._name(run)}")

    def _advance(self, run: RunRef, done: int, total: int, stage: str) -> None:
        if run.run_id not in self._tasks:
            return
        self._progress.update(
            self._tasks[run.run_id], completed=done, total=total or None, stage=escape(stage)
        )
        self._shares[run.run_id] = done / total if total else 0.0
        self._draw_overall()

    def _end(self, run: RunRef, line: str) -> None:
        self._drop(run)
        self._ended += 1
        self._draw_overall()
        self._say(f"[dim]{self._ended:>{len(str(self._total))}}/{self._total}[/] {line}")

    def _drop(self, run: RunRef) -> None:
        self._shares.pop(run.run_id, None)
        if run.run_id in self._tasks:
            self._progress.remove_task(self._tasks.pop(run.run_id))

    def _draw_overall(self) -> None:
        if self._overall is not None:
            self._progress.update(self._overall, completed=self._ended + sum(self._shares.values()))

    def _name(self, run: RunRef) -> str:
        return escape(f"{run.study} {run.label}")

    def _say(self, line: str) -> None:
        self.console.print(line, highlight=False, soft_wrap=True)


def print_summary(summary: Summary, console: Console) -> None:
    """What a call of the engine did: counts and time, then every failure with one line why."""
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column()
    table.add_column(justify="right")
    for name, count in (
        ("done", summary.done),
        ("skipped, done already", summary.skipped),
        ("failed, tried again next time", summary.failed),
        ("cancelled", summary.cancelled),
    ):
        if count or name == "done":
            table.add_row(name, str(count))
    table.add_row("time", duration(summary.seconds))
    console.print(table)
    for run, reason in summary.failures:
        line = f"[red]failed[/] {escape(run.study)} {escape(run.label)} ({run.run_id}): {escape(reason)}"
        console.print(line, highlight=False, soft_wrap=True)


def duration(seconds: float) -> str:
    """A time for people: 0.42 s, 12 s, 3 min 05 s, 1 h 02 min."""
    if seconds < 10:
        return f"{seconds:.2f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
