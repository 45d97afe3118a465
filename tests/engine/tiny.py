"""A study small enough to be killed a hundred times. Its runs do what their configuration says."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa

from data.errors import CloudChamberError
from data.schema import Column, TableSpec
from precompute.study import Config, Device, Profile, Recorder, Study, SubjectSpec

NUMBERS = TableSpec(
    "tiny_numbers",
    "Random numbers that only depend on the seed.",
    (
        Column("block", pa.int32(), "index", "Block of rows"),
        Column("item", pa.int32(), "index", "Row in the block"),
        Column("value", pa.float64(), "", "A uniform random number", tolerance=1e-12),
        Column("series", pa.list_(pa.float32()), "", "Four more"),
    ),
    key=("block", "item"),
)
WORDS = TableSpec(
    "tiny_words",
    "One word per run.",
    (Column("word", pa.string(), "", "What the run was asked to say"),),
    key=("word",),
)
BLOCK = 50

# Workers start a second sooner where torch "is not installed", which the light install is about anyway.
if os.environ.get("TINY_WITHOUT_TORCH"):
    sys.modules["torch"] = None  # type: ignore[assignment]


class TinyConfig(Config):
    """`act` happens after half of the blocks."""

    index: int = 0
    blocks: int = 4
    pause: float = 0.0  # seconds per block
    act: Literal[
        "none", "raise", "raise_once", "die", "die_once", "memory", "torch_memory", "refuse", "double", "hang"
    ] = "none"  # fmt: skip
    flag: str = ""  # a file that remembers that the act happened


def run(config: TinyConfig, recorder: Recorder, device: Device) -> None:
    """Write `blocks` blocks of seeded numbers."""
    generator = np.random.default_rng(np.random.randint(2**31))
    for block in range(config.blocks):
        recorder.progress(block, config.blocks, "drawing")
        if block == config.blocks // 2:
            _act(config)
        recorder.write(
            "tiny_numbers",
            pa.table(
                {
                    "block": pa.array([0 if config.act == "double" else block] * BLOCK, pa.int32()),
                    "item": pa.array(range(BLOCK), pa.int32()),
                    "value": generator.random(BLOCK),
                    "series": pa.array(list(generator.random((BLOCK, 4))), pa.list_(pa.float32())),
                }
            ),
        )
        time.sleep(config.pause)
    recorder.write("tiny_words", pa.table({"word": [f"{config.subject} {config.index} on {device.name}"]}))
    recorder.progress(config.blocks, config.blocks, "drawing")


class OutOfMemoryError(RuntimeError):
    """Looks like torch's."""


def _act(config: TinyConfig) -> None:
    if config.act.endswith("_once"):
        flag = Path(config.flag)
        if flag.exists():
            return
        flag.touch()
    match config.act.removesuffix("_once"):
        case "raise":
            raise ValueError("half way there")
        case "die":
            os.kill(os.getpid(), signal.SIGKILL)
        case "memory":
            raise MemoryError
        case "torch_memory":
            raise OutOfMemoryError("CUDA out of memory. Tried to allocate 3.00 GiB.")
        case "refuse":
            raise CloudChamberError("tiny_refused", "The tiny study refuses.", "Ask nicely.")
        case "hang":
            time.sleep(600)


def study(*configs: TinyConfig, version: int = 1, tables: tuple[TableSpec, ...] = (NUMBERS, WORDS)) -> Study:
    """The tiny study with that plan."""
    subjects = {
        slug: SubjectSpec(slug, slug.upper(), "trained", "A toy.", "made here", "none")
        for slug in ("ant", "bee")
    }
    return Study(
        "tiny", "Tiny", "Does it hold?", "A toy.", (), version, {t.name: t for t in tables}, subjects,
        TinyConfig, lambda profile: configs if profile is Profile.smoke else (), "tests.engine.tiny:run",
    )  # fmt: skip


def plan(count: int, **settings: object) -> list[TinyConfig]:
    """`count` runs that differ in their index and seed."""
    return [
        TinyConfig.model_validate({"subject": ("ant", "bee")[i % 2], "seed": i, "index": i, **settings})
        for i in range(count)
    ]
