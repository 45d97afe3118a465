"""Memory that is counted, and operators that are timed, where the answer is known."""

from __future__ import annotations

import itertools

import pytest
import torch

from models.attention.cost import LiveMemory, measure


def test_live_memory_counts_what_is_alive_and_no_inputs() -> None:
    x = torch.ones(1_000)  # 4,000 bytes, there before
    with LiveMemory() as memory:
        a = x + 1
        b = a * 2
        assert memory.now == 8_000
        del a
        assert memory.now == 4_000
        c = b.view(10, 100)  # no new storage
        assert memory.now == 4_000 and memory.peak == 8_000
        del b, c
    assert memory.now == 0


def test_every_repetition_is_timed_with_the_given_clock() -> None:
    ticks = itertools.count()
    found = measure(
        "sdpa", 16, clock=lambda: float(next(ticks)), direction="forward", repetitions=3, d=4, heads=2
    )
    assert [seconds for seconds, _ in found] == [1.0, 1.0, 1.0]


def test_memory_grows_linearly_when_gathered_and_quadratically_when_dense() -> None:
    def peak(path: str, length: int) -> int:
        return measure(
            path, length, clock=lambda: 0.0, direction="forward+backward", repetitions=1, window=32, topk=8,
            d=16, heads=2,
        )[0][1]  # type: ignore[arg-type]  # fmt: skip

    assert peak("gathered", 1024) / peak("gathered", 512) == pytest.approx(2, rel=0.05)
    assert peak("dense", 1024) / peak("dense", 512) == pytest.approx(4, rel=0.15)
    assert peak("gathered", 2048) < peak("dense", 2048) / 10
    assert peak("linear", 1024) / peak("linear", 512) == pytest.approx(2, rel=0.05)
