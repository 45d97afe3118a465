"""Run every benchmark of this folder and write RESULTS.md: `python -m tests.benchmarks.run_all [NAME…]`.

A benchmark is a module that prints one JSON object when run as `python -m tests.benchmarks.NAME
--json`; modules whose name starts with "_" are their helpers. They run one after the other, each in
a process of its own, so that none warms another's caches. With names, only those run, and the
other rows are kept.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent
ROOT = FOLDER.parents[1]
RESULTS = FOLDER / "RESULTS.md"
RAW = FOLDER / "results.json"
NOT_BENCHMARKS = {"run_all", "harness", "bare_app", "bare_chart", "conftest"}
TIMEOUT_S = 1_800


def benchmarks() -> list[str]:
    """Names of the benchmark modules."""
    names = (path.stem for path in FOLDER.glob("*.py"))
    return sorted(n for n in names if n not in NOT_BENCHMARKS and not n.startswith(("_", "test_")))


def run(name: str) -> dict[str, Any]:
    """The object a benchmark printed, with how long it took; `error` says why there is none."""
    command = [sys.executable, "-m", f"tests.benchmarks.{name}", "--json"]
    started = time.monotonic()
    try:
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
        result = last_object(done.stdout)
        if result is None:
            lines = done.stderr.strip().splitlines() or ["nothing was printed"]
            result = {"error": f"exit code {done.returncode}: {lines[-1]}"}
    except subprocess.TimeoutExpired:
        result = {"error": f"no result within {TIMEOUT_S} s"}
    return {
        **result,
        "benchmark": name,
        "seconds": round(time.monotonic() - started, 1),
        "measured": datetime.now(UTC).strftime("%Y-%m-%d"),
    }


def last_object(text: str) -> dict[str, Any] | None:
    """The last JSON object that stands in `text`, on one line or on many."""
    decoder, last = json.JSONDecoder(), None
    for start in (i for i, c in enumerate(text) if c == "{" and (i == 0 or text[i - 1] == "\n")):
        try:
            found, _ = decoder.raw_decode(text[start:])
        except ValueError:
            continue
        if isinstance(found, dict):
            last = found
    return last


def table(results: list[dict[str, Any]]) -> str:
    """RESULTS.md."""
    rows = [
        "# Benchmarks",
        "",
        "Written by `make bench`. Every row is one command, measured beside its peer or floor in one run.",
        "",
        "| what | ours | peer or floor | ratio | goal | holds | command |",
        "|---|---|---|---|---|---|---|",
    ]
    for r in results:
        command = f"`python -m tests.benchmarks.{r['benchmark']} --json` ({r['seconds']} s, {r['measured']})"
        if "error" in r:
            rows.append(f"| {r['benchmark']} | {cell(r['error'])} | | | | **no result** | {command} |")
            continue
        other = r.get("peer", r.get("floor"))
        holds = "yes" if r.get("holds") else "**no**"
        cells = [r.get("what", r["benchmark"]), r.get("ours"), other, r.get("ratio"), r.get("goal")]
        rows.append(f"| {' | '.join(map(cell, cells))} | {holds} | {command} |")
    rows += ["", "## Where", ""]
    places: dict[str, list[str]] = {}
    for r in results:
        if "environment" in r:
            places.setdefault(cell(r["environment"]), []).append(r["benchmark"])
    rows += [f"- {', '.join(names)}: {place}" for place, names in places.items()]
    return "\n".join(rows) + "\n"


def cell(value: Any) -> str:
    """A value as a table cell: numbers plain, mappings as `key value`, nothing that breaks the table."""
    if value is None:
        return ""
    if isinstance(value, dict):
        return ", ".join(f"{k} {cell(v)}" for k, v in value.items())
    if isinstance(value, list):
        return ", ".join(map(cell, value))
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(value).replace("|", "\\|").replace("\n", " ")


def main(names: list[str]) -> int:
    """Run the benchmarks, or only those named; 1 when one gave no result or missed its goal."""
    known = benchmarks()
    if unknown := [name for name in names if name not in known]:
        print(f"No benchmark is called {unknown[0]!r}. Choose from: {', '.join(known)}.", file=sys.stderr)
        return 2
    kept = json.loads(RAW.read_text()) if names and RAW.exists() else {}
    results = {name: result for name, result in kept.items() if name in known}
    for name in names or known:
        print(f"{name} …", flush=True)
        results[name] = run(name)
        RAW.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n")
        RESULTS.write_text(table([results[n] for n in sorted(results)]), encoding="utf-8")
        verdict = "holds" if results[name].get("holds") else "DOES NOT HOLD"
        print(f"  {verdict}: {cell(results[name].get('ours', results[name].get('error')))}")
    print(f"Written to {RESULTS.relative_to(ROOT)}")
    return 0 if all(r.get("holds") for r in results.values()) else 1


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
