"""`cloudchamber analyze`: the page's "Bring your own" for scripts: same intake, same worker, same numbers."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from data.errors import CloudChamberError

if TYPE_CHECKING:
    from app.jobs_model import JobStatus
    from app.jobs_pool import JobPool
    from app.jobs_visits import Visit
    from data.shelf import Entry
    from models.checkpoints.inspection import Inspection

_POLL = 0.05  # seconds between looks at a job
_MAX_FILES = 2_000


def analyze(
    paths: Annotated[
        list[Path], typer.Argument(metavar="PATH…", help="A file, several files, or a folder with a model.")
    ],
    study: Annotated[
        str | None, typer.Option(help="The study; may be left out when the content decides.")
    ] = None,
    text: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="What the model reads: a text file, pictures (a file or folder), or a bundled name: kjv, "
            "prose, code, reactions, random, repeated; clothes, line.",
        ),
    ] = None,
    length: Annotated[int, typer.Option(help="Tokens in a chunk, special ones included.")] = 64,
    samples: Annotated[int, typer.Option(help="Consecutive chunks, or pictures.")] = 20,
    eps: Annotated[float, typer.Option(help="Importance above which the first token is a sink.")] = 0.3,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Write traces (Parquet) and report.html here; `serve --traces DIR`."
        ),
    ] = None,
    allow_pickle: Annotated[
        bool,
        typer.Option(
            "--allow-pickle", help="Open .pt, .pth and .bin by restricted unpickling, in the worker."
        ),
    ] = False,
    limit: Annotated[float, typer.Option(metavar="MINUTES", help="Stop after that many minutes.")] = 60.0,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object on standard output, nothing else there.")
    ] = False,
) -> None:
    """Analyse a model, or stored attention maps, of your own.

    PATH is a Hugging Face folder (also as zip or tar), several of its files, a GGUF, an ONNX graph, or
    .npy/.npz maps. Nothing in it is executed; it is read by a worker process with limits.
    """
    started = time.monotonic()
    files = _files(paths)
    folder = _out_folder(out)
    with _terminated(), _pool(limit) as pool:
        visit = pool.open_visit()
        entry = pool.shelf(visit).put(files)
        entry.write("name", _name(paths))
        if allow_pickle:
            entry.write("consent", "true")
        inspection = _inspect(pool, visit, entry)
        chosen = _study(study, inspection)
        settings, config = _attention(pool, visit, entry, inspection, text, length, samples)
        _tell(f"{inspection.format}; study {chosen}{'' if study else ' (decided by the content)'}")
        run = _wait(pool, pool.submit(chosen, config, visit)).run_id
        store = pool.store(visit)
        assert store is not None  # a job that is done has published
        from data.records.attention_sinks_queries import headline

        found = headline(store, run, eps)
        notices = _notices(store, run, found, eps)
        if folder is not None:
            _write(folder, visit, store, run, eps)
        result = {
            "study": chosen,
            "subject": entry.slug,
            "headline": found,
            "notices": notices,
            "settings": {**settings, "eps": eps},
            "traces": str(folder) if folder is not None else None,
            "seconds": round(time.monotonic() - started, 2),
        }
    _print(result, inspection, as_json)


def _files(paths: list[Path]) -> list[tuple[str, Path]]:
    """Every file that was named, with folders opened: (name, path)."""
    found: list[tuple[str, Path]] = []
    for path in paths:
        if path.is_dir():
            inside = sorted(p for p in path.rglob("*") if p.is_file() and not _hidden(p.relative_to(path)))
            found += [(p.relative_to(path).as_posix(), p) for p in inside[: _MAX_FILES + 1]]
        elif path.is_file():
            found.append((path.name, path))
        else:
            raise CloudChamberError(
                "path_missing", "There is no such file or folder.", "Check the path.", where=str(path)
            )
    if not found:
        raise CloudChamberError(
            "brought_empty", "The folder holds no file.", "Name the folder with config.json.", str(paths[0])
        )
    if len(found) > _MAX_FILES:
        raise CloudChamberError(
            "shelf_full",
            f"There are more than {_MAX_FILES:,} files in it.",
            "Name the model's own folder.",
            where=str(paths[0]),
        )
    return found


def _hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)


def _name(paths: list[Path]) -> str:
    """What the model is called in figures: the file's or folder's own name."""
    from models.checkpoints.refused import shown

    named = paths[0].resolve() if len(paths) == 1 else paths[0].resolve().parent
    return shown(named.name)


def _out_folder(out: Path | None) -> Path | None:
    """The folder to write to: new, empty, or one that an analysis wrote before."""
    from data.paths import MANIFEST_NAME

    if out is None:
        return None
    folder = out.expanduser().absolute()
    if folder.is_file() or (
        folder.is_dir() and any(folder.iterdir()) and not (folder / MANIFEST_NAME).is_file()
    ):
        raise CloudChamberError(
            "out_taken",
            "There is something else already.",
            "Name a new folder, or one that `analyze --out` has written.",
            where=str(folder),
        )
    return folder


@contextmanager
def _terminated() -> Iterator[None]:
    """SIGTERM, which schedulers send, ends the command as Ctrl-C does: the worker stops, files go."""

    def stop(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _pool(minutes: float) -> Iterator[JobPool]:
    """A pool for this command alone. Nothing is copied here, so the limits are those of the machine."""
    import psutil

    from app.jobs_pool import JobPool
    from app.jobs_process import Limits

    memory = int(psutil.virtual_memory().total * 0.9)
    seconds = max(1.0, 60 * minutes)
    limits = Limits(
        memory_bytes=2**44,
        cpu_seconds=seconds * 64,
        file_bytes=2**40,
        rss_bytes=memory,
        wall_seconds=seconds,
    )
    pool = JobPool(limits=limits, intake={"file_bytes": 2**40, "total_bytes": 2**40})
    try:
        pool.warm("attention_sinks")
        yield pool
    finally:
        pool.close()


def _wait(pool: JobPool, job: str) -> JobStatus:
    """Until the job is done, its stages told on standard error. Raises what it failed with."""
    told = ""
    while True:
        status = pool.status(job)
        if status.finished:
            break
        if status.stage not in (told, "", "Waiting"):
            told = status.stage
            _tell(f"{told} …")
        time.sleep(_POLL)
    if status.state == "failed":
        raise CloudChamberError(status.kind or "job_error", status.message, status.remedy, status.where)
    return status


def _tell(sentence: str) -> None:
    from app.commands.output import errors

    errors().print(sentence, style="dim", markup=False, soft_wrap=True)


def _inspect(pool: JobPool, visit: Visit, entry: Entry) -> Inspection:
    from models.checkpoints.inspection import Inspection

    _wait(pool, pool.inspect(visit, entry.slug))
    found = Inspection.from_json(entry.read("inspection") or "")
    if found.refusal is not None:
        said = found.refusal
        raise CloudChamberError(said["kind"], said["message"], said["remedy"], said.get("where", ""))
    return found


def _study(asked: str | None, inspection: Inspection) -> str:
    """The study that analyses it: the one asked for, if it is the content's."""
    from precompute.registry import STUDIES

    takers = [slug for slug, study in STUDIES.items() if study.brought]
    if asked is not None and asked not in takers:
        raise CloudChamberError(
            "unknown_study",
            f"No study {asked!r} analyses what users bring.",
            f"Choose one of: {', '.join(takers)}.",
            where="--study",
        )
    if asked is not None and asked != inspection.study:
        raise CloudChamberError(
            "brought_unsupported",
            f"This is something for the study {inspection.study}, not for {asked}: {inspection.format}.",
            f"Leave out --study, or use --study {inspection.study}.",
            where="--study",
        )
    return inspection.study


def _attention(
    pool: JobPool,
    visit: Visit,
    entry: Entry,
    inspection: Inspection,
    text: str | None,
    length: int,
    samples: int,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The settings to report, and the configuration of the attention study."""
    from precompute.studies.attention_sinks import map_settings

    config: dict[str, Any] = {"subject": entry.slug, "samples": samples}
    if inspection.takes == "nothing":
        length, samples = inspection.length or length, inspection.samples or samples
        config |= {"text": "given", "length": length, "samples": samples}
        said = "none: maps were brought"
    elif inspection.takes == "image":
        length = inspection.length or length
        config |= _pictures(pool, visit, text) | {"length": length}
        said = text or config["text"]
    else:
        config |= _text(text) | {"length": length, "bos": inspection.adds_special}
        said = text or config["text"]
    config |= map_settings(inspection.layers or 1, inspection.heads or 1, length)
    settings = {
        "text": said,
        "length": length,
        "samples": samples,
        "special_tokens": config.get("bos", False),
    }
    return settings, config


def _text(text: str | None) -> dict[str, Any]:
    from data.sources.texts import TEXTS

    bundled = (*TEXTS, "reactions", "random", "repeated")
    if text is None or text in bundled:
        return {"text": text or bundled[0]}
    path = Path(text)
    if not path.is_file():
        raise CloudChamberError(
            "path_missing",
            f"There is no text file of that name, and no bundled text either ({', '.join(bundled)}).",
            "Check the path.",
            where=text,
        )
    from app.jobs_model import MAX_CHARACTERS

    with path.open("rb") as stream:
        raw = stream.read(4 * MAX_CHARACTERS + 4)  # a character takes at most four bytes
    return {"text": "free", "content": raw.decode("utf-8", errors="replace").removeprefix("\ufeff")}


def _pictures(pool: JobPool, visit: Visit, text: str | None) -> dict[str, Any]:
    from data.sources.pictures import PICTURES

    if text is None or text in PICTURES:
        return {"text": text or next(iter(PICTURES))}
    entry = pool.shelf(visit).put(_files([Path(text)]))
    return {"text": "images", "content": entry.slug}


def _notices(store: Any, run: str, headline: dict[str, Any], eps: float) -> list[dict[str, Any]]:
    """What was repaired or cannot be seen: the run's own notices, and layers without sight."""
    import json
    import math

    row = store.runs()
    found = list(json.loads(row.loc[row["run_id"] == run, "notices"].iloc[0]))
    blind = sum(math.isnan(rate) for rate in headline["sink_rate_by_layer"])
    if blind:
        found.append(
            {
                "kind": "first_token_out_of_sight",
                "message": f"{blind} of {headline['layers']} layers see so short a window that the first "
                f"token's importance cannot exceed {eps:g}; the sink rate leaves them out.",
                "count": blind,
            }
        )
    return found


def _write(folder: Path, visit: Visit, store: Any, run: str, eps: float) -> None:
    """Traces as Parquet, which `serve --traces` shows, and a report that needs nothing else."""
    from app.report import html
    from data.shipped import export_published

    _tell("writing traces and report …")
    export_published(visit.store_path, folder, [run])
    (folder / "report.html").write_text(html(store, run, eps), encoding="utf-8")


def _print(result: dict[str, Any], inspection: Inspection, as_json: bool) -> None:
    from app.commands.output import console, number, print_json, print_table

    if as_json:
        print_json(result)
        return
    out = console()
    out.print(f"{inspection.format}: {inspection.architecture}", style="bold", markup=False)
    rows = []
    for key, value in result["headline"].items():
        shown = " ".join(number(v, 2) for v in value) if isinstance(value, list) else number(value)
        rows.append((key, shown))
    print_table(("number", "value"), rows)
    for notice in result["notices"]:
        out.print(f"note: {notice['message']}", markup=False, soft_wrap=True)
    if result["traces"]:
        out.print(f"Traces and report.html: {result['traces']}", markup=False, soft_wrap=True)
        out.print(
            f"`cloudchamber serve --traces {result['traces']}` shows them.", markup=False, soft_wrap=True
        )
    sys.stdout.flush()
