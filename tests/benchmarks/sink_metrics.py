"""All sink metrics of SmolLM2 at T = 1024, beside the plain eager forward pass: time and peak memory.

`python -m tests.benchmarks.sink_metrics --json`. Both sides run the 30 blocks without the
language-model head (the tracer needs no logits, so a peer with the head would flatter it), in turn,
in one process with the same threads. Memory is the peak of the resident set during one pass over
its size before it, weights loaded and touched, in a fresh process each. `output_attentions` is what
one would do without the tracer; its figures include no reduction of the maps it holds.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

THREADS, LENGTH, ROUNDS = 2, 1_024, 5
TIME_GOAL, MEMORY_GOAL = 1.3, 1.2
SIDES = ("trace", "eager", "eager_with_head", "output_attentions")


def _setup() -> tuple[dict[str, Callable[[int], object]], Any]:
    """The four sides as functions of the number of tokens."""
    import torch

    from data import paths
    from models.attention.trace import collect
    from precompute.runs.subjects import load

    torch.set_num_threads(THREADS)
    subject = load("smollm2-135m-instruct", paths.cache_dir())
    model: Any = subject.model
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, subject.tokenizer.vocabulary, (1, LENGTH), generator=generator)

    def forward(run: Any, tokens: int, **extra: Any) -> object:
        with torch.inference_mode():
            return run(ids[:, :tokens], use_cache=False, **extra)

    return {
        "trace": lambda tokens: collect(model, ids[:, :tokens]),
        "eager": lambda tokens: forward(model.base_model, tokens),
        "eager_with_head": lambda tokens: forward(model, tokens),
        "output_attentions": lambda tokens: forward(model.base_model, tokens, output_attentions=True),
    }, torch


def times() -> dict[str, float]:
    """Best seconds of each side in several rounds, measured in turn (noise only ever adds)."""
    sides, _ = _setup()
    taken: dict[str, list[float]] = {name: [] for name in sides}
    for round_number in range(ROUNDS + 1):
        for name, side in sides.items():
            start = time.perf_counter()
            side(LENGTH)
            if round_number:  # the first is a warm-up
                taken[name].append(time.perf_counter() - start)
    return {name: round(min(values), 3) for name, values in taken.items()}


def memory(side: str) -> float:
    """Peak resident megabytes of one pass of `side` beyond what is resident before it."""
    sides, _ = _setup()
    sides[side](8)  # touches all weights
    Path("/proc/self/clear_refs").write_text("5")  # restarts the kernel's high-water mark
    before = _status("VmRSS")
    sides[side](LENGTH)
    return round((_status("VmHWM") - before) / 1024, 1)


def _status(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1])
    raise RuntimeError(f"/proc/self/status has no {field}")


def measure() -> dict[str, Any]:
    """Sink metrics of a 135M-parameter language model against its plain forward pass."""
    seconds = _fresh("times()")
    megabytes = {side: _fresh(f"memory({side!r})") for side in SIDES}
    ratio = {
        "time": round(seconds["trace"] / seconds["eager"], 3),
        "memory": round(megabytes["trace"] / megabytes["eager"], 3),
    }
    return {
        "what": f"all sink metrics of SmolLM2-135M, T = {LENGTH}",
        "ours": {"seconds": seconds["trace"], "MB": megabytes["trace"]},
        "peer": {
            "name": "plain eager forward pass, no head",
            "seconds": seconds["eager"],
            "MB": megabytes["eager"],
        },
        "ratio": ratio,
        "goal": {"time": TIME_GOAL, "memory": MEMORY_GOAL},
        "holds": ratio["time"] <= TIME_GOAL and ratio["memory"] <= MEMORY_GOAL,
        "eager_with_head": {"seconds": seconds["eager_with_head"], "MB": megabytes["eager_with_head"]},
        "output_attentions": {"seconds": seconds["output_attentions"], "MB": megabytes["output_attentions"]},
        "environment": {"torch_threads": str(THREADS), "OMP_WAIT_POLICY": "PASSIVE"},
    }


def _fresh(call: str) -> Any:
    """The value of `call` of this module, computed in a fresh process."""
    code = f"import json; from tests.benchmarks import sink_metrics as m; print(json.dumps(m.{call}))"
    # Threads that sleep while they wait: spinning ones take the cores from whatever else runs here.
    environment = {**os.environ, "OMP_WAIT_POLICY": "PASSIVE"}
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, env=environment
    )
    return json.loads(done.stdout.splitlines()[-1])


if __name__ == "__main__":
    from tests.benchmarks.harness import main

    raise SystemExit(main("sink_metrics", measure))
