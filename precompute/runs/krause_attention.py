"""The work of the Krause study: which task a run is, and the tasks that need no training."""

from __future__ import annotations

import time
from collections.abc import Callable

from data.records.krause_attention import COST, PARTICLES
from models.attention import particles
from models.attention.cost import measure
from precompute.runs.krause_adaptation import run_adaptation
from precompute.runs.krause_measuring import table
from precompute.runs.krause_pixels import run_pixels
from precompute.runs.krause_text import run_text
from precompute.runs.krause_vision import run_vision
from precompute.studies.krause_attention import KrauseConfig
from precompute.study import Device, Recorder

_STARTS = 10  # random starts of the particles; seed 0 of the opinions is the equispaced one
_REPETITIONS = 5
_SHORTEST = 256
_LONGEST_DENSE = 4_096  # a dense score matrix of 8 heads takes 0.5 GB there, and four times that beyond


def run(config: KrauseConfig, recorder: Recorder, device: Device) -> None:
    """One run of the study; see KrauseConfig for what it does."""
    tasks: dict[str, Callable[[KrauseConfig, Recorder, Device], None]] = {
        "text": run_text,
        "vision": run_vision,
        "pixels": run_pixels,
        "adapt": run_adaptation,
        "cost": _cost,
        "particles": _particles,
    }
    tasks[config.task](config, recorder, device)


def _cost(config: KrauseConfig, recorder: Recorder, device: Device) -> None:
    """Time and memory of one operator at doubling lengths, up to the configuration's `steps`."""
    assert config.path is not None and config.steps is not None and config.window is not None
    longest = min(config.steps, _LONGEST_DENSE) if config.path == "dense" else config.steps
    lengths = [_SHORTEST << i for i in range((longest // _SHORTEST).bit_length())]
    jobs = [(length, way) for length in lengths for way in ("forward", "forward+backward")]
    for number, (length, way) in enumerate(jobs):
        recorder.progress(number, len(jobs), f"timing {length:,} tokens")
        measured = measure(
            config.path,
            length,
            window=config.window,
            topk=config.topk,
            direction=way,
            repetitions=_REPETITIONS,
            clock=time.perf_counter,
            device=device.name,
        )
        rows = [
            {
                "path": config.path,
                "topk": config.topk or 0,
                "length": length,
                "direction": way,
                "repetition": repetition,
                "seconds": seconds,
                "peak_bytes": peak,
            }
            for repetition, (seconds, peak) in enumerate(measured)
        ]
        recorder.write(COST.name, table(COST, rows))


def _particles(config: KrauseConfig, recorder: Recorder, _: Device) -> None:
    """Clusters over time from several starts."""
    assert config.rule is not None and config.parameter is not None and config.steps is not None
    for start in range(_STARTS):
        recorder.progress(start, _STARTS, "moving particles")
        rows = [
            {"rule": config.rule, "parameter": config.parameter, "start": start, **row}
            for row in particles.measure(config.rule, config.parameter, start, config.steps)
        ]
        recorder.write(PARTICLES.name, table(PARTICLES, rows))
