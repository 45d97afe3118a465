"""Where a number comes from: versions, sources, device and seed."""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import os
import platform
import random
from collections.abc import Iterable
from functools import lru_cache
from importlib import metadata
from pathlib import Path

from data.errors import CloudChamberError
from data.paths import source_root
from precompute.study import Device

DEVICE_VARIABLE = "CLOUDCHAMBER_DEVICE"

# Libraries that shape numbers. Those that are not installed are left out.
_LIBRARIES = (
    "numpy", "scipy", "pandas", "pyarrow", "duckdb", "torch", "transformers", "tokenizers", "safetensors",
    "gguf", "onnxruntime", "scikit-learn",
)  # fmt: skip


def versions(packages: Iterable[str] = ()) -> dict[str, str]:
    """Versions of Python, the platform, the libraries behind the numbers and `packages`, where installed."""
    found = {"python": platform.python_version(), "platform": platform.platform()}
    for name in (*_LIBRARIES, *packages):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def source_hash(study: str, run: str, root: Path | None = None) -> str:
    """SHA-256 over the sources that the numbers of a study depend on.

    These are the study's declaration and all that its `run` ("precompute.runs.NAME:run") imports,
    directly or not, in functions too, of `models`, `precompute/runs`, `data/sources`, `data/blobs.py`
    and `data/records` without their queries. File names count, comments too: the hash says "the same
    sources", not "the same meaning". Imports are read from the text, nothing is imported; one made
    from a computed name is not seen. Without `root` the answer is found once per process, so that it
    fits the modules that are loaded.
    """
    return _own_source_hash(study, run) if root is None else _hash_sources(study, run, root)


@lru_cache
def _own_source_hash(study: str, run: str) -> str:
    return _hash_sources(study, run, source_root())


def _hash_sources(study: str, run: str, root: Path) -> str:
    digest = hashlib.sha256()
    declaration = root / f"precompute/studies/{study}.py"
    files = _imported_files(run.partition(":")[0], root) | ({declaration} if declaration.is_file() else set())
    for path in sorted(files):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(root).as_posix()}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()


def _imported_files(start: str, root: Path) -> set[Path]:
    """The files of the module `start` and of every module in scope that it imports, directly or not."""
    found: set[Path] = set()
    waiting = {(module, path) for module in _with_parents(start) if (path := _file_of(module, root))}
    while waiting:
        module, path = waiting.pop()
        if path in found or not (module == start or _counts(path.relative_to(root))):
            continue
        found.add(path)
        package = module if path.name == "__init__.py" else module.rpartition(".")[0]
        for name in _imports(path.read_text(encoding="utf-8"), package):
            waiting |= {(part, file) for part in _with_parents(name) if (file := _file_of(part, root))}
    return found


def _counts(path: Path) -> bool:
    """Whether a file, relative to the root, is one that shapes numbers."""
    if path.parts[:2] == ("data", "records"):
        return not path.stem.endswith("_queries")
    return (
        path.parts[0] == "models"
        or path.parts[:2] in (("precompute", "runs"), ("data", "sources"))
        or path.parts == ("data", "blobs.py")
    )


def _imports(source: str, package: str) -> set[str]:
    """Dotted names of all that a module of `package` imports; of `from a import b` also a.b, if it is one."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            parts = package.split(".")
            base = parts[: len(parts) - node.level + 1] if node.level else []
            origin = ".".join([*base, *([node.module] if node.module else [])])
            names |= {origin, *(f"{origin}.{alias.name}" for alias in node.names)}
    return names


def _with_parents(module: str) -> list[str]:
    """a.b.c, and a.b and a, whose `__init__` runs before it."""
    parts = module.split(".")
    return [".".join(parts[:n]) for n in range(1, len(parts) + 1)]


def _file_of(module: str, root: Path) -> Path | None:
    """The file of a module of ours; None for what is not a module here."""
    place = root.joinpath(*module.split("."))
    for file in (place.with_name(place.name + ".py"), place / "__init__.py"):
        if file.is_file():
            return file
    return None


def choose_device(threads: int = 1) -> Device:
    """Where to compute, and why. The one place that decides; imports torch when it is installed.

    CLOUDCHAMBER_DEVICE (cpu, cuda or cuda:N) wins. Raises CloudChamberError("device_unavailable")
    when it asks for what is not there.
    """
    wanted = os.environ.get(DEVICE_VARIABLE, "").strip().lower()
    if wanted and wanted != "cpu" and not wanted.startswith("cuda"):
        raise _unavailable(wanted, "it is neither cpu nor cuda")
    if importlib.util.find_spec("torch") is None:
        if wanted.startswith("cuda"):
            raise _unavailable(wanted, "torch is not installed")
        return Device("cpu", "cpu: torch is not installed", threads)
    if wanted == "cpu":
        return Device("cpu", f"cpu: {DEVICE_VARIABLE} asks for it", threads)

    import torch

    if not torch.cuda.is_available():
        if wanted:
            raise _unavailable(wanted, "no CUDA device is visible")
        return Device("cpu", "cpu: no CUDA device visible", threads)
    if wanted:
        number, count = wanted.removeprefix("cuda").removeprefix(":") or "0", torch.cuda.device_count()
        if not number.isdigit() or int(number) >= count:
            raise _unavailable(wanted, f"the visible CUDA devices are cuda:0 to cuda:{count - 1}")
        reason = f"cuda: {torch.cuda.get_device_name(int(number))}, {DEVICE_VARIABLE} asks for it"
        return Device(wanted, reason, threads)
    return Device("cuda", f"cuda: {torch.cuda.get_device_name()}", threads)


def seed_everything(seed: int) -> None:
    """Seed Python's, NumPy's and torch's generators. The only place that does.

    torch is seeded when it is installed, on every device; its kernels stay as they are, because
    deterministic ones would measure another program than people run.
    """
    import numpy as np

    random.seed(seed)
    np.random.seed(seed % 2**32)  # libraries that draw from the global state
    if importlib.util.find_spec("torch") is not None:
        import torch

        torch.manual_seed(seed)


def use_threads(threads: int) -> None:
    """Let torch use that many threads in this process, if it is installed."""
    if importlib.util.find_spec("torch") is not None:
        import torch

        torch.set_num_threads(max(1, threads))


def _unavailable(wanted: str, why: str) -> CloudChamberError:
    return CloudChamberError(
        "device_unavailable",
        f"{DEVICE_VARIABLE} asks for {wanted!r}, but {why}.",
        f"Unset {DEVICE_VARIABLE} to choose automatically, or set it to cpu.",
        where=DEVICE_VARIABLE,
    )
