"""The traces that ship with the sources: out of a store into Parquet, and back into a store.

A folder of shipped traces holds `manifest.json`, per table `NAME-000.parquet`, …, and the runs'
artefacts in `artefacts/NAME`: each file of at most 4.5 MB, because the repository refuses files
above 5 MB. Exporting the same runs again gives the same bytes.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from data import artefacts, paths
from data.artefacts import Artefact
from data.builder import Builder, clear_leftovers
from data.errors import CloudChamberError
from data.faults import write_error
from data.lock import writer_lock
from data.paths import ARTEFACTS_NAME
from data.paths import MANIFEST_NAME as MANIFEST
from data.schema import TableSpec
from data.store import SCHEMA_VERSION, check_schema_version, open_store

MAX_FILE_BYTES = 4_500_000
_ZSTD_LEVEL = 15


@dataclass(frozen=True)
class Imported:
    """What an import did: `changed` is False when the store already held these shipped traces."""

    changed: bool
    added: int = 0
    removed: int = 0
    kept_local: int = 0


def import_published(
    published_dir: Path, path: Path, tables: Mapping[str, TableSpec] | None = None, *, wait: bool = False
) -> Imported:
    """Bring the shipped runs into the store at `path`, made if absent.

    Nothing happens, quickly, when the store was already seeded from this manifest, or when the
    folder holds none. Runs computed here stay; a shipped run of the same id is not brought in then.
    Runs of an earlier manifest that this one no longer has are removed. `tables` declares columns
    that the shipped files may lack (nullable ones are filled with nulls). Raises "published_damaged"
    when a file does not match its hash, and what `publish` raises. Artefacts stay where they are,
    `data.artefacts` reads them there.
    """
    manifest_file = published_dir / MANIFEST
    if not manifest_file.exists():
        return Imported(False)
    digest = _sha256(_read(manifest_file))
    tables = tables or {}
    if _is_seeded(path, digest, tables):
        return Imported(False)
    manifest = _parse_manifest(manifest_file)
    with writer_lock(path, wait=wait):
        clear_leftovers(path)
        if _is_seeded(path, digest, tables):  # another process did it while this one waited
            return Imported(False)
        shipped = {name: list(_read_table(published_dir, name, manifest)) for name in manifest["tables"]}
        return _merge(path, digest, shipped, tables)


def add_exported(folder: Path, path: Path, tables: Mapping[str, TableSpec] | None = None) -> Imported:
    """Bring the runs of another exported folder into the store at `path`, beside all that is there.

    They count as local runs, so their artefacts come along. A run that is stored as done stays as it
    is. Raises what `import_published` raises, "published_damaged" also when the folder has no manifest.
    """
    manifest = _parse_manifest(folder / MANIFEST)
    with writer_lock(path):
        clear_leftovers(path)
        parts = {name: list(_read_table(folder, name, manifest)) for name in manifest["tables"]}
        ids = [str(name) for part in parts.get("runs", []) for name in part["run_id"].to_pylist()]
        done: set[str] = set()
        if path.exists():
            with open_store(path) as store:
                runs = store.runs()
            done = {str(name) for name in runs.loc[runs["status"] == "done", "run_id"]}
        fresh = [name for name in ids if name not in done]
        if fresh:
            with Builder(path, _schemas(parts, tables or {}), drop=set(fresh)) as builder:
                _insert(builder, parts, fresh)
                for name in fresh:
                    files = [artefacts.checked(a) for a in artefacts.shipped(folder) if a.run_id == name]
                    artefacts.place(path, name, files)
                builder.commit()
    return Imported(bool(fresh), len(fresh), 0, len(ids) - len(fresh))


def export_published(
    path: Path,
    published_dir: Path,
    run_ids: Sequence[str],
    *,
    max_bytes: int = MAX_FILE_BYTES,
    shipped: Path | None = None,
) -> list[Path]:
    """Write the runs `run_ids` of the store into `published_dir`, replacing what it shipped before.

    `shipped` is where the artefacts of runs lie that were not computed here but came with the
    sources, by default `data.paths.published_dir()`. Returns the files written. Raises
    CloudChamberError("run_unknown") for an id that is not stored or not done, "published_too_big"
    when a single row or an artefact exceeds the size of a file, and "artefact_twice" when two of the
    runs have an artefact of the same name.
    """
    wanted = sorted(set(run_ids))
    with open_store(path) as store:
        stored = store.runs()
        done = set(stored.loc[stored["status"] == "done", "run_id"])
        if unknown := [name for name in wanted if name not in done]:
            raise CloudChamberError(
                "run_unknown",
                f"The store holds no finished run {unknown[0]!r}.",
                "List the runs with `cloudchamber runs`.",
                where=str(path),
            )
        files: dict[str, list[tuple[bytes, int]]] = {}
        for name, schema in store.schemas().items():
            rows = store.arrow(
                f'SELECT * FROM "{name}" WHERE list_contains(?, run_id) ORDER BY run_id, rowid', [wanted]
            )
            if len(rows):
                files[name] = list(_pieces(name, rows.cast(schema), max_bytes))
        imported = set(store.meta.imported)
    came_along = artefacts.shipped(shipped or paths.published_dir()) if imported & set(wanted) else []
    leaving = [a for a in came_along if a.run_id in imported & set(wanted)]
    leaving += [a for name in wanted if name not in imported for a in artefacts.of_run(path.parent, name)]
    return _write_folder(published_dir, wanted, files, _contents(leaving, max_bytes))


def _contents(leaving: Sequence[Artefact], max_bytes: int) -> dict[str, tuple[bytes, str]]:
    """Content and run id of each artefact by name, which all of them share one folder for."""
    found: dict[str, tuple[bytes, str]] = {}
    for artefact in leaving:
        if artefact.name in found:
            raise CloudChamberError(
                "artefact_twice",
                f"The runs {found[artefact.name][1]} and {artefact.run_id} both have an artefact "
                f"{artefact.name!r}.",
                "Name artefacts after what tells their runs apart, such as subject and seed.",
            )
        content = artefacts.checked(artefact).read_bytes()
        if len(content) > max_bytes:
            raise CloudChamberError(
                "published_too_big",
                f"The artefact {artefact.name} takes {len(content) / 1e6:.1f} MB; "
                f"at most {max_bytes / 1e6} MB fit.",
                "Publish a run with a smaller one.",
                where=str(artefact.path),
            )
        found[artefact.name] = content, artefact.run_id
    return dict(sorted(found.items()))


def _is_seeded(path: Path, digest: str, tables: Mapping[str, TableSpec]) -> bool:
    """Whether the store holds these shipped traces and every table that is declared: a newer version of
    this code may declare one more."""
    if not path.exists():
        return False
    with open_store(path) as store:
        return store.meta.manifest == digest and set(tables) <= set(store.schemas())


def _merge(
    path: Path, digest: str, shipped: Mapping[str, list[pa.Table]], tables: Mapping[str, TableSpec]
) -> Imported:
    """Build the generation that holds `shipped` beside the runs computed here."""
    shipped_ids = [str(name) for part in shipped.get("runs", []) for name in part["run_id"].to_pylist()]
    earlier: set[str] = set()
    local: set[str] = set()
    if path.exists():
        with open_store(path) as store:
            earlier = set(store.meta.imported)
            runs = store.runs()
            local = {str(name) for name in runs.loc[runs["status"] == "done", "run_id"]} - earlier
    fresh = [name for name in shipped_ids if name not in local]
    # A failed run of the same id gives way to the shipped one, hence `fresh` in what is dropped.
    with Builder(path, _schemas(shipped, tables), drop=earlier | set(fresh)) as builder:
        _insert(builder, shipped, fresh)
        builder.meta = replace(builder.meta, manifest=digest, imported=tuple(fresh))
        builder.commit()
    return Imported(True, len(fresh), len(earlier - set(fresh)), len(shipped_ids) - len(fresh))


def _schemas(parts: Mapping[str, list[pa.Table]], tables: Mapping[str, TableSpec]) -> dict[str, pa.Schema]:
    """The stored schemas to build: as declared, or as the file has them; `runs` is the builder's own.

    Declared tables that nothing shipped fills are made too: what is asked of them is then no error.
    """
    found = {name: pieces[0].schema for name, pieces in parts.items() if name != "runs"}
    return found | {name: table.stored_schema for name, table in tables.items()}


def _insert(builder: Builder, parts: Mapping[str, list[pa.Table]], run_ids: Sequence[str]) -> None:
    """Write the rows of the runs `run_ids` into the new generation."""
    keep = pa.array(run_ids, pa.string())
    for name, pieces in parts.items():
        for piece in pieces:
            builder.insert(name, piece.filter(pc.is_in(piece["run_id"], value_set=keep)))


def _parse_manifest(file: Path) -> dict[str, Any]:
    try:
        manifest = json.loads(_read(file))
        version = int(manifest["schema_version"])
        for entries in manifest["tables"].values():
            for entry in entries:
                _ = entry["file"], entry["sha256"], entry["rows"]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _damaged(file, f"its manifest cannot be read: {error}") from error
    check_schema_version(version, file)
    return dict(manifest)


def _read_table(folder: Path, name: str, manifest: Mapping[str, Any]) -> Iterator[pa.Table]:
    for entry in manifest["tables"][name]:
        file = folder / Path(entry["file"]).name
        content = _read(file)
        if _sha256(content) != entry["sha256"]:
            raise _damaged(file, "its content does not match its hash in the manifest")
        try:
            rows = pq.read_table(io.BytesIO(content))
            yield rows.cast(_canonical(rows.schema))
        except (OSError, pa.ArrowException) as error:
            raise _damaged(file, str(error).splitlines()[0]) from error


def _canonical(schema: pa.Schema) -> pa.Schema:
    """`schema` with list types as `data.schema` spells them; Parquet renames their child field."""
    return pa.schema(
        [f.with_type(pa.list_(f.type.value_type)) if pa.types.is_list(f.type) else f for f in schema]
    )


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise _damaged(file, error.strerror or str(error)) from error


def _pieces(name: str, rows: pa.Table, max_bytes: int) -> Iterator[tuple[bytes, int]]:
    """`rows` as Parquet files, in order, each small enough; with its number of rows."""
    content = _parquet(rows)
    if len(content) <= max_bytes:
        yield content, len(rows)
        return
    if len(rows) == 1:
        raise CloudChamberError(
            "published_too_big",
            f"One row of {name} takes {len(content) / 1e6:.1f} MB; at most {max_bytes / 1e6} MB fit.",
            "Publish a run with smaller maps.",
        )
    parts = min(len(rows), -(-len(content) // max_bytes))
    step = -(-len(rows) // max(parts, 2))
    for start in range(0, len(rows), step):
        yield from _pieces(name, rows.slice(start, step), max_bytes)


def _parquet(rows: pa.Table) -> bytes:
    sink = io.BytesIO()
    texts = [f.name for f in rows.schema if pa.types.is_string(f.type)]  # blobs are packed already
    # Bytes of the same weight beside each other: a quarter less for floats.
    floats = [path for f in rows.schema if (path := _float_path(f)) is not None]
    pq.write_table(
        rows.combine_chunks(),
        sink,
        compression="zstd",
        compression_level=_ZSTD_LEVEL,
        use_dictionary=texts,  # type: ignore[arg-type]  # the stub knows only bool
        use_byte_stream_split=floats,  # type: ignore[arg-type]
        write_statistics=False,
    )
    return sink.getvalue()


def _float_path(field: pa.Field[Any]) -> str | None:
    """The Parquet path of a column of floats or of lists of them; None for other columns."""
    if pa.types.is_list(field.type) and pa.types.is_floating(field.type.value_type):
        return f"{field.name}.list.element"
    return field.name if pa.types.is_floating(field.type) else None


def _write_folder(
    folder: Path,
    run_ids: Sequence[str],
    files: Mapping[str, list[tuple[bytes, int]]],
    leaving: Mapping[str, tuple[bytes, str]],
) -> list[Path]:
    """Write the files, then the manifest that names them, then delete those no manifest names."""
    tables: dict[str, list[dict[str, Any]]] = {}
    written: list[Path] = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, pieces in files.items():
            for number, (content, rows) in enumerate(pieces):
                file = folder / f"{name}-{number:03d}.parquet"
                _replace(file, content)
                written.append(file)
                entry = {"file": file.name, "rows": rows, "bytes": len(content), "sha256": _sha256(content)}
                tables.setdefault(name, []).append(entry)
        beside = folder / ARTEFACTS_NAME
        if leaving:
            beside.mkdir(exist_ok=True)
        for name, (content, _) in leaving.items():
            _replace(beside / name, content)
            written.append(beside / name)
        manifest = {
            "schema_version": SCHEMA_VERSION,
            "runs": list(run_ids),
            "tables": tables,
            "artefacts": [
                {"name": name, "run_id": run_id, "bytes": len(content), "sha256": _sha256(content)}
                for name, (content, run_id) in leaving.items()
            ],
        }
        _replace(folder / MANIFEST, (json.dumps(manifest, indent=1, sort_keys=True) + "\n").encode())
        for stale in {*folder.glob("*-[0-9][0-9][0-9].parquet"), *beside.glob("*")} - set(written):
            stale.unlink()
        if beside.is_dir() and not leaving:
            beside.rmdir()
    except OSError as error:
        raise write_error(folder, error) from error
    return [*written, folder / MANIFEST]


def _replace(file: Path, content: bytes) -> None:
    temporary = file.with_name(file.name + ".writing")
    temporary.write_bytes(content)
    os.replace(temporary, file)


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _damaged(file: Path, what: str) -> CloudChamberError:
    return CloudChamberError(
        "published_damaged",
        f"The shipped traces are damaged: {what}.",
        "Restore them with `git checkout -- data/published`, or install again.",
        where=str(file),
    )
