"""Krause attention gathered, dense, and torch's fused attention: time and memory against length.

`python -m tests.benchmarks.krause_scaling --json`. W = 128, 8 heads of d = 64, one sequence of 256 to
8,192 tokens, float32, forward and forward + backward. All operators of one length are timed in turn,
in several rounds, in one process with the same threads; the best round counts, because noise only
ever adds. The peer is `F.scaled_dot_product_attention(is_causal=True)`, which never stores its scores
and does half of the square; "dense" is our own reference with every score, up to 4,096 tokens. The
slope is the least-squares line through log seconds (or bytes) against log tokens from 1,024 on: below,
the cost of calling an operator hides the slope and would flatter it. Peak bytes are those that torch
allocates through its operators, inputs left out; on a GPU, those of its allocator.

Where there is a GPU, the same on it up to 65,536 tokens, beside the time it takes to read the inputs
and write the output once at the measured speed of a copy.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

THREADS, ROUNDS = 2, 5
WINDOW, D, HEADS, TOPK = 128, 64, 8, 96
LENGTHS = (256, 512, 1_024, 2_048, 4_096, 8_192)
GPU_LENGTHS = (*LENGTHS, 16_384, 32_768, 65_536)
LONGEST_DENSE, SLOPE_FROM = 4_096, 1_024
DIRECTIONS = ("forward", "forward+backward")
# name: path and kept keys; the last three are what the goals do not speak about
OPERATORS: dict[str, tuple[str, int | None]] = {
    "gathered": ("gathered", None),
    f"gathered top-{TOPK}": ("gathered", TOPK),
    "sdpa": ("sdpa", None),
    "gathered top-16": ("gathered", 16),
    "dense": ("dense", None),
    "linear": ("linear", None),
}
SLOPE_GOAL = 1.15
AHEAD_FROM = {"gathered": 4_096, f"gathered top-{TOPK}": 8_192}

Curve = dict[int, tuple[float, int]]  # tokens: best seconds, peak bytes


def curves(device: str, lengths: Sequence[int]) -> dict[str, dict[str, Curve]]:
    """Curves by direction and operator."""
    found: dict[str, dict[str, Curve]] = {way: {name: {} for name in OPERATORS} for way in DIRECTIONS}
    for way in DIRECTIONS:
        for length in lengths:
            for _ in range(ROUNDS):
                for name, (path, topk) in OPERATORS.items():
                    if path == "dense" and length > LONGEST_DENSE:
                        continue
                    seconds, peak = _once(path, topk, length, way, device)
                    best = min(seconds, found[way][name].get(length, (math.inf, 0))[0])
                    found[way][name][length] = best, peak
    return found


def _once(path: Any, topk: int | None, length: int, way: str, device: str) -> tuple[float, int]:
    from models.attention.cost import measure as cost

    return cost(
        path,
        length,
        window=WINDOW,
        d=D,
        heads=HEADS,
        topk=topk,
        direction=way,
        repetitions=1,
        clock=time.perf_counter,
        device=device,
    )[0]


def slope(lengths: Sequence[int], values: Sequence[float]) -> float:
    """Least-squares slope of log values against log lengths, from `SLOPE_FROM` on."""
    points = [
        (math.log(n), math.log(v)) for n, v in zip(lengths, values, strict=True) if n >= SLOPE_FROM
    ]  # fmt: skip
    x, y = (sum(column) / len(points) for column in zip(*points, strict=True))
    return sum((a - x) * (b - y) for a, b in points) / sum((a - x) ** 2 for a, _ in points)


def slopes(found: dict[str, dict[str, Curve]], pick: Callable[[tuple[float, int]], float]) -> dict[str, Any]:
    """Slopes by operator, one for each of `DIRECTIONS`."""
    return {
        name: [round(slope(list(found[way][name]), [pick(p) for p in found[way][name].values()]), 2)
               for way in DIRECTIONS]
        for name in OPERATORS
    }  # fmt: skip


def verdict(found: dict[str, dict[str, Curve]]) -> dict[str, Any]:
    """Ours, the peer's, their ratio and whether the goals hold, on one device."""
    times, memory = slopes(found, lambda p: p[0]), slopes(found, lambda p: p[1])
    longest = max(found["forward"]["sdpa"])
    ratio = {
        f"{name}, {way}, N = {length:,}": round(
            found[way][name][length][0] / found[way]["sdpa"][length][0], 3
        )
        for name, start in AHEAD_FROM.items()
        for way in DIRECTIONS
        for length in LENGTHS
        if length >= start
    }
    ours = list(AHEAD_FROM)
    steepest = {
        "time": max(max(times[name]) for name in ours),
        "memory": max(max(memory[name]) for name in ours),
    }

    def milliseconds(name: str) -> list[float]:
        return [round(found[way][name][longest][0] * 1e3, 2) for way in DIRECTIONS]

    return {
        "ours": {"slope of time": steepest["time"], "slope of memory": steepest["memory"],
                 **{f"ms, {name}, N = {longest:,}": milliseconds(name) for name in ours}},
        "peer": {"name": "scaled_dot_product_attention(is_causal=True)", "slope of time": max(times["sdpa"]),
                 f"ms, N = {longest:,}": milliseconds("sdpa"), "slope of dense time": max(times["dense"])},
        "ratio": ratio,
        "holds": max(steepest.values()) <= SLOPE_GOAL and max(ratio.values()) < 1,
        "slopes": {"time": times, "memory": memory},
        "seconds and bytes": {way: {n: {str(k): v for k, v in c.items()} for n, c in by.items()}
                              for way, by in found.items()},
    }  # fmt: skip


def floor_ms(length: int) -> float:
    """Milliseconds to move queries, keys, values and outputs once, at the measured speed of a copy."""
    import torch

    source = torch.empty(256_000_000, dtype=torch.uint8, device="cuda")
    target, best = torch.empty_like(source), math.inf
    for _ in range(10):
        torch.cuda.synchronize()
        start = time.perf_counter()
        target.copy_(source)
        torch.cuda.synchronize()
        best = min(best, time.perf_counter() - start)
    return 4 * HEADS * length * D * 4 / (2 * source.nbytes / best) * 1e3


def measure() -> dict[str, Any]:
    """Krause attention: time and memory against length, beside torch's fused attention."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # before torch is loaded
    import torch

    torch.set_num_threads(THREADS)
    result = {
        "what": f"Krause attention, W = {WINDOW}, {HEADS} heads of {D}, N = {LENGTHS[0]} to {LENGTHS[-1]:,}",
        "goal": f"slopes <= {SLOPE_GOAL}; ahead of the peer from {AHEAD_FROM['gathered']:,} on, "
        f"with top-{TOPK} from {AHEAD_FROM[f'gathered top-{TOPK}']:,}",
        **verdict(curves("cpu", LENGTHS)),
        "environment": {"torch_threads": str(THREADS), "OMP_WAIT_POLICY": os.environ["OMP_WAIT_POLICY"]},
    }
    if torch.cuda.is_available():
        gpu = verdict(curves("cuda", GPU_LENGTHS))
        longest = GPU_LENGTHS[-1]
        result["gpu"] = {**gpu, f"floor, ms, N = {longest:,}": round(floor_ms(longest), 3)}
        result["environment"]["gpu"] = torch.cuda.get_device_name()
    return result


if __name__ == "__main__":
    from tests.benchmarks.harness import main

    raise SystemExit(main("krause_scaling", measure))
