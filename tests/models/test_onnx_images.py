"""Pictures for ONNX graphs: normalisation from its file, sizes, and names of positions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from models.checkpoints.bundle import Bundle, Item, Limits
from models.checkpoints.onnx_graph import Input
from models.checkpoints.onnx_images import GraphImages, Normalisation, candidates, normalisation, positions
from models.checkpoints.refused import Refused


def read(folder: Path, content: Any) -> Normalisation:
    path = folder / "0"
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    found, notices = normalisation(Bundle((Item("preprocessor_config.json", path),)), Limits())
    assert notices == ()
    return found


def test_normalisation_is_read(tmp_path: Path) -> None:
    means, deviations = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
    found = read(tmp_path, {"image_mean": means, "image_std": deviations, "size": {"height": 224}})
    pixels = np.full((3, 1, 1), 255.0, np.float32)
    np.testing.assert_allclose(
        found(pixels)[:, 0, 0], (1 - np.array(means)) / np.array(deviations), rtol=1e-6
    )
    assert read(tmp_path, {"do_normalize": False, "do_rescale": False}) == Normalisation(1.0, (0.0,), (1.0,))
    assert read(tmp_path, {}) == Normalisation()


def test_without_a_file_it_is_assumed_and_said() -> None:
    found, notices = normalisation(Bundle(()), Limits())
    pixels = np.array([0.0, 127.5, 255.0], np.float32).reshape(1, 1, 3)
    np.testing.assert_allclose(found(pixels)[0, 0], [-1, 0, 1])
    assert [n.kind for n in notices] == ["normalisation_assumed"]


@pytest.mark.parametrize(
    "content",
    [
        b"{",
        b"[]",
        b"[" * 100_000,
        {"image_std": [0.0]},
        {"image_mean": [float("nan")]},
        {"image_mean": [1, 2]},
        {"image_mean": "abc"},
        {"image_std": [[1]]},
        {"rescale_factor": 0},
        {"image_mean": []},
    ],
)
def test_a_damaged_file_is_refused(tmp_path: Path, content: Any) -> None:
    with pytest.raises(Refused) as refused:
        read(tmp_path, content)
    assert refused.value.kind == "brought_damaged"


@pytest.mark.parametrize(
    ("length", "height", "width", "first", "last"),
    [
        (196, 224, 224, "0,0", "13,13"),
        (197, 224, 224, "[CLS]", "13,13"),
        (198, 224, 224, "[CLS]", "13,13"),
        (201, 224, 224, "[CLS]", "13,13"),
        (32, 64, 128, "0,0", "3,7"),
        (40, 48, 320, "column 0", "column 39"),
        (123, 224, 224, "0", "122"),
        (1, 224, 224, "0", "0"),
    ],
)
def test_names_of_positions(length: int, height: int, width: int, first: str, last: str) -> None:
    names = positions(length, height, width)
    assert (len(names), names[0], names[-1]) == (length, first, last)


def test_pictures_keep_their_proportions_where_the_width_is_open() -> None:
    images = GraphImages((3, 48, 320), True, 40, Normalisation())
    black = np.zeros((24, 60, 3), np.uint8)
    pixels = images.prepare([black])
    assert pixels.shape == (1, 3, 48, 320)
    assert (pixels[..., :120] == -1).all()  # 60 wide at twice its height
    assert (pixels[..., 120:] == 0).all()  # filled up with grey
    wide = images.prepare([np.zeros((24, 320, 3), np.uint8)])
    assert wide.shape == (1, 3, 48, 640)
    assert len(images.pieces(wide)) == 80
    assert images.prepare([np.zeros((2, 4_000, 3), np.uint8)]).shape[3] == 40 * 48
    fixed = GraphImages((1, 32, 32), False, 17, Normalisation())
    assert fixed.prepare([black]).shape == (1, 1, 32, 32)


def test_sizes_that_are_tried() -> None:
    assert candidates(Input("x", "image", 1, (None, 3, 64, 32))) == ((3, 64, 32),)
    assert candidates(Input("x", "image", 1, (1, 1, 48, None))) == ((1, 48, 320),)
    assert candidates(Input("x", "image", 1, (None, None, None, None)))[:2] == ((3, 224, 224), (3, 48, 320))
