"""What is in a 500 MB safetensors file: our listing beside the library's own, from the file's start.

`python -m tests.benchmarks.inspector --json`. 240 tensors, as in a model of 125 M parameters, and 5,000,
as in a mixture of experts. The file lies in the page cache: it has just been transferred.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from models.checkpoints import intake
from models.checkpoints.bundle import Bundle, Item, Limits
from tests.benchmarks.harness import main, summary

BYTES = 503_000_000
COUNTS = (240, 5_000)
REPEATS = 7
GOAL_S = 0.5


def make(path: Path, tensors: int, total: int = BYTES) -> None:
    """A valid file of `total` bytes in `tensors` float32 tensors; its data is a hole in the file system."""
    width = 256
    rows = total // tensors // (4 * width)
    size = rows * width * 4
    header = {
        f"model.layers.{n // 8}.part_{n % 8}.weight": {
            "dtype": "F32",
            "shape": [rows, width],
            "data_offsets": [n * size, (n + 1) * size],
        }
        for n in range(tensors)
    }
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + tensors * size)


def timed(call: Callable[[], int], expected: int) -> list[float]:
    """Seconds of every call but the first, which imports."""
    seconds = []
    for _ in range(REPEATS + 1):
        started = time.perf_counter()
        found = call()
        seconds.append(time.perf_counter() - started)
        if found != expected:
            raise RuntimeError(f"{found} tensors instead of {expected}")
    return seconds[1:]


def measure() -> dict[str, Any]:
    """Names, shapes, types and sizes of all tensors, by us and by safetensors.safe_open."""
    from safetensors import safe_open

    ours, peer = {}, {}
    with tempfile.TemporaryDirectory() as folder:
        for count in COUNTS:
            path = Path(folder) / f"{count}.bin"
            make(path, count)
            bundle = Bundle((Item("model.safetensors", path),))

            def library(path: Path = path) -> int:
                with safe_open(path, "np") as file:
                    slices = [file.get_slice(name) for name in file.keys()]  # noqa: SIM118 (no mapping)
                    return len([(s.get_shape(), s.get_dtype()) for s in slices])

            def us(bundle: Bundle = bundle) -> int:
                return len(intake.inspect(bundle, Limits()).tensors)

            ours[count] = summary(timed(us, count), 5)
            peer[count] = summary(timed(library, count), 5)
    worst = max(found["p95"] for found in ours.values())
    return {
        "what": "listing a 500 MB safetensors file after its transfer (s), by number of tensors",
        "ours": ours,
        "peer": {"safetensors.safe_open": peer},
        "ratio": round(ours[COUNTS[0]]["p50"] / peer[COUNTS[0]]["p50"], 2),
        "goal": f"<= {GOAL_S} s",
        "holds": worst <= GOAL_S,
    }


if __name__ == "__main__":
    raise SystemExit(main("inspector", measure))
