"""Statistics of tensors: the values of numpy, whatever the format they are read from."""

from __future__ import annotations

import io
import math
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from models.checkpoints import intake
from models.checkpoints.bundle import Bundle, Item, Limits
from models.checkpoints.inspection import Statistics

onnx = pytest.importorskip("onnx")
pytestmark = pytest.mark.models

RNG = np.random.default_rng(0)
TENSORS = {
    "far": (1e4 + RNG.normal(0, 1e-2, (700, 1_000))).astype(np.float32),  # a small spread on a large mean
    "half": RNG.normal(0, 0.02, (64, 64)).astype(np.float16),
    "holes": np.where(RNG.random((50, 40)) < 0.3, 0, RNG.normal(size=(50, 40))).astype(np.float32),
}
BROKEN = {"broken": np.array([1, np.nan, np.inf, -np.inf, 3, np.nan], np.float32)}


def safetensors(folder: Path, tensors: dict[str, np.ndarray]) -> Path:
    save_file(tensors, folder / "model.safetensors")
    return folder / "model.safetensors"


def pickled(folder: Path, tensors: dict[str, np.ndarray]) -> Path:
    torch.save({name: torch.from_numpy(a) for name, a in tensors.items()}, folder / "model.pt")
    return folder / "model.pt"


def graph(folder: Path, tensors: dict[str, np.ndarray]) -> Path:
    made = onnx.helper.make_graph(
        [onnx.helper.make_node("Identity", ["x"], ["y"])],
        "numbers",
        [onnx.helper.make_tensor_value_info("x", 1, [1])],
        [onnx.helper.make_tensor_value_info("y", 1, [1])],
        [onnx.numpy_helper.from_array(a, name) for name, a in tensors.items()],
    )
    onnx.save(onnx.helper.make_model(made), folder / "model.onnx")
    return folder / "model.onnx"


def gguf(folder: Path, tensors: dict[str, np.ndarray]) -> Path:
    writer = pytest.importorskip("gguf").GGUFWriter(folder / "model.gguf", "llama")
    for name, values in tensors.items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return folder / "model.gguf"


by_format = pytest.mark.parametrize("write", [safetensors, pickled, graph, gguf])
Write = Callable[[Path, dict[str, np.ndarray]], Path]


def statistics(path: Path) -> dict[str, Statistics]:
    found = intake.statistics(Bundle((Item(path.name, path),)), Limits())
    return {one.name: one for one in found}


@by_format
def test_they_are_those_of_numpy(write: Write, tmp_path: Path) -> None:
    found = statistics(write(tmp_path, TENSORS))
    assert found.keys() == TENSORS.keys()
    for name, array in TENSORS.items():
        one, exact = found[name], array.astype(np.float64)
        assert one.mean == pytest.approx(exact.mean(), rel=1e-12, abs=1e-12)
        assert one.std == pytest.approx(exact.std(), rel=1e-9)
        assert (one.minimum, one.maximum) == (exact.min(), exact.max())
        assert (one.zeros, one.nans, one.infinities) == (int((exact == 0).sum()), 0, 0)


@by_format
def test_what_is_no_number_is_counted_and_left_out(write: Write, tmp_path: Path) -> None:
    one = statistics(write(tmp_path, BROKEN))["broken"]
    assert (one.nans, one.infinities) == (2, 2)
    assert (one.mean, one.std, one.minimum, one.maximum) == (2.0, 1.0, 1.0, 3.0)


def test_brain_floats_and_bytes_of_eight_bits(tmp_path: Path) -> None:
    from safetensors.torch import save_file as save_torch

    exact = torch.linspace(-3, 3, 1_001)
    kinds = {"bf16": torch.bfloat16, "fp8": torch.float8_e4m3fn}
    save_torch({name: exact.to(kind) for name, kind in kinds.items()}, tmp_path / "model.safetensors")
    found = statistics(tmp_path / "model.safetensors")
    for name, kind in kinds.items():
        stored = exact.to(kind).double()
        assert found[name].std == pytest.approx(float(stored.std(correction=0)), rel=1e-12)
        assert found[name].maximum == 3.0


def test_blocks_are_looked_at_as_the_numbers_they_stand_for(tmp_path: Path) -> None:
    """Q8_0: 32 whole numbers of one byte and a half-precision scale; written here by hand."""
    library = pytest.importorskip("gguf")
    steps = np.arange(-16, 16, dtype=np.int8)
    block = np.concatenate((np.array([0.5], np.float16).view(np.uint8), steps.view(np.uint8)))
    writer = library.GGUFWriter(tmp_path / "q.gguf", "llama")
    writer.add_tensor("w", np.tile(block, (4, 2)), raw_dtype=library.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    one = statistics(tmp_path / "q.gguf")["w"]
    exact = np.tile(steps.astype(np.float64) / 2, 8)
    assert (one.minimum, one.maximum, one.zeros) == (-8.0, 7.5, 8)
    assert one.mean == pytest.approx(exact.mean(), rel=1e-12)
    assert one.std == pytest.approx(exact.std(), rel=1e-12)


def test_a_view_with_gaps_has_no_values(tmp_path: Path) -> None:
    base = torch.arange(12.0).reshape(3, 4)
    torch.save({"whole": base, "column": base[:, 1]}, tmp_path / "model.pt")
    found = statistics(tmp_path / "model.pt")
    assert found["whole"].mean == 5.5
    assert math.isnan(found["column"].mean)


def test_progress_is_in_bytes_and_can_stop_the_work(tmp_path: Path) -> None:
    bundle = Bundle((Item("m.safetensors", safetensors(tmp_path, TENSORS)),))
    heard: list[tuple[int, int, str]] = []
    intake.statistics(bundle, Limits(), lambda *step: heard.append(step))
    total = sum(a.nbytes for a in TENSORS.values())
    assert heard[-1][:2] == (total, total)
    assert all(a[0] <= b[0] for a, b in pairwise(heard))

    class Stopped(BaseException):
        pass

    def stop(done: int, total: int, stage: str) -> None:
        raise Stopped

    with pytest.raises(Stopped):
        intake.statistics(bundle, Limits(), stop)


def test_numbers_that_end_early_are_refused(tmp_path: Path) -> None:
    path = safetensors(tmp_path, TENSORS)
    buffer = io.BytesIO(path.read_bytes()[:-10])
    path.write_bytes(buffer.getvalue())
    with pytest.raises(Exception, match="ends at byte"):
        statistics(path)
