"""What every benchmark prints, and where it was measured."""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import statistics
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

PACKAGES = ("streamlit", "plotly", "duckdb", "numpy", "pyarrow", "torch", "transformers")


def environment(**more: str) -> dict[str, Any]:
    """Processor, cores, system and the versions that shape the numbers."""
    return {
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
        **{name: _version(name) for name in PACKAGES},
        **more,
    }


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest measured value that at least `share` of the values do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * share - 1e-9) - 1)]


def summary(values: Sequence[float], digits: int = 3) -> dict[str, float]:
    """Median, 95th percentile and worst of the measured values."""
    return {
        "p50": round(statistics.median(values), digits),
        "p95": round(percentile(values, 0.95), digits),
        "max": round(max(values), digits),
        "n": len(values),
    }


def main(name: str, measure: Callable[[], dict[str, Any]]) -> int:
    """The command line of a benchmark module: runs `measure` and prints its object.

    `measure` returns what, ours, peer or floor, ratio, goal, holds (and what else is worth
    keeping); `benchmark` and `environment` are added.
    """
    parser = argparse.ArgumentParser(prog=f"python -m tests.benchmarks.{name}", description=measure.__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON object, for scripts")
    arguments = parser.parse_args()
    result = {"benchmark": name, **measure()}
    result["environment"] = {**environment(), **result.get("environment", {})}
    if arguments.json:
        print(json.dumps(result))
    else:
        print(json.dumps(result, indent=1))
    return 0


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _cpu() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
