"""Where a number comes from: versions, sources, device and seed."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import platform
import random
from collections.abc import Iterable
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


def source_hash(study: str, root: Path | None = None) -> str:
    """SHA-256 over the sources that the numbers of a study depend on.

    These are `models`, `precompute/runs`, `data/sources`, the study's declaration and its records.
    File names count, comments too: the hash says "the same sources", not "the same meaning".
    """
    root = root or source_root()
    patterns = (
        "models/**/*.py",
        "precompute/runs/**/*.py",
        "data/sources/**/*.py",
        f"precompute/studies/{study}.py",
        f"data/records/{study}*.py",
    )
    digest = hashlib.sha256()
    for path in sorted({path for pattern in patterns for path in root.glob(pattern)}):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(root).as_posix()}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()


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
