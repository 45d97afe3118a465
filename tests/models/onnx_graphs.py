"""Small ONNX graphs, built node by node, for tests of what is found in them and what is refused."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from models.checkpoints.bundle import Bundle, Item

WIDTH, HEADS, VOCABULARY = 8, 2, 40


def attention(
    layers: int = 2,
    *,
    masked: bool = True,
    flat: bool = False,
    fused: bool = False,
    causal: bool = False,
    batch: Any = "batch",
    length: Any = "sequence",
    opset: int = 17,
    seed: int = 0,
) -> onnx.ModelProto:
    """A transformer of attention alone: ids to hidden states.

    `flat` computes heads as (N·H, T, T), as OPT does; `fused` has one com.microsoft node a layer.
    """
    make, weights, rng = _Nodes(), [], np.random.default_rng(seed)

    def weight(name: str, *shape: int) -> str:
        weights.append(numpy_helper.from_array(rng.normal(size=shape).astype(np.float32), name))
        return name

    hidden = make("Gather", weight("embedding", VOCABULARY, WIDTH), "input_ids")
    for layer in range(layers):
        if fused:
            hidden = make(
                "Attention",
                hidden,
                weight(f"qkv{layer}", WIDTH, 3 * WIDTH),
                weight(f"bias{layer}", 3 * WIDTH),
                domain="com.microsoft",
                num_heads=HEADS,
            )
            continue
        query, key, value = (
            _split(make, make("MatMul", hidden, weight(f"{what}{layer}", WIDTH, WIDTH)), flat, what == "k")
            for what in "qkv"
        )
        scores = make("Div", make("MatMul", query, key), make.constant(np.float32(2.0)))
        if masked:
            floats = make("Cast", "attention_mask", to=TensorProto.FLOAT)
            hide = make(
                "Mul", make("Sub", make.constant(np.float32(1)), floats), make.constant(np.float32(-1e9))
            )
            axes = make.constant(np.array([1] if flat else [1, 2], dtype=np.int64))
            scores = make("Add", scores, make("Unsqueeze", hide, axes))
        if causal:
            size = make("Shape", scores, start=-2)
            later = make("Trilu", make("ConstantOfShape", size, value=_one()), make.constant(np.int64(1)))
            scores = make("Add", scores, make("Mul", later, make.constant(np.float32(-1e9))))
        mixed = make("MatMul", make("Softmax", scores, axis=-1, name=f"attention {layer}"), value)
        if flat:
            shape = make(
                "Concat", make.constant(np.array([-1, HEADS])), make("Shape", mixed, start=1), axis=0
            )
            back = make("Reshape", mixed, shape)
        else:
            back = mixed
        joined = make("Transpose", back, perm=[0, 2, 1, 3])
        hidden = make("Add", hidden, make("Reshape", joined, make.constant(np.array([0, 0, WIDTH]))))
    inputs = [helper.make_tensor_value_info("input_ids", TensorProto.INT64, [batch, length])]
    if masked and not fused:
        inputs.append(helper.make_tensor_value_info("attention_mask", TensorProto.INT64, [batch, length]))
    output = helper.make_tensor_value_info(hidden, TensorProto.FLOAT, [batch, length, WIDTH])
    graph = helper.make_graph(make.nodes, "tiny", inputs, [output], weights)
    domains = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=domains, ir_version=8)


class _Nodes:
    """Nodes in the order in which they were asked for; a call gives the name of the output."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []

    def __call__(self, kind: str, *inputs: str, **attributes: Any) -> str:
        output = f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [output], **attributes))
        return output

    def constant(self, value: Any) -> str:
        return self("Constant", value=numpy_helper.from_array(np.asarray(value)))


def _one() -> onnx.TensorProto:
    return numpy_helper.from_array(np.ones(1, dtype=np.float32))


def _split(make: _Nodes, hidden: str, flat: bool, transposed: bool) -> str:
    """`(N, T, D)` to heads `(N, H, T, d)`, or `(N·H, T, d)`; keys with their last axes swapped."""
    parts = make("Reshape", hidden, make.constant(np.array([0, 0, HEADS, WIDTH // HEADS])))
    heads = make("Transpose", parts, perm=[0, 2, 3, 1] if transposed else [0, 2, 1, 3])
    if not flat:
        return heads
    shape = make("Concat", make.constant(np.array([-1])), make("Shape", heads, start=2), axis=0)
    return make("Reshape", heads, shape)


def bundle(folder: Path, content: bytes | onnx.ModelProto, *others: tuple[str, bytes]) -> Bundle:
    """Files under numbers, as the intake leaves them."""
    first = content if isinstance(content, bytes) else content.SerializeToString()
    items: Sequence[tuple[str, bytes]] = (("model.onnx", first), *others)
    found = []
    for number, (name, data) in enumerate(items):
        path = folder / f"{number:04d}"
        path.write_bytes(data)
        found.append(Item(name, path))
    return Bundle(tuple(found))


def by_hand(model: onnx.ModelProto, ids: np.ndarray, *, causal: bool = False) -> np.ndarray:
    """The attention `(N, L, H, T, T)` of `attention(...)`, in NumPy."""
    weights = {t.name: numpy_helper.to_array(t).astype(np.float64) for t in model.graph.initializer}
    hidden, found = weights["embedding"][ids], []
    n, t = ids.shape
    for layer in range(sum(name.startswith("q") for name in weights)):
        q, k, v = (
            (hidden @ weights[f"{what}{layer}"]).reshape(n, t, HEADS, -1).swapaxes(1, 2) for what in "qkv"
        )
        scores = q @ k.swapaxes(2, 3) / 2.0
        if causal:
            scores = np.where(np.tril(np.ones((t, t), dtype=bool)), scores, -np.inf)
        maps = np.exp(scores - scores.max(-1, keepdims=True))
        maps /= maps.sum(-1, keepdims=True)
        found.append(maps)
        hidden = hidden + (maps @ v).swapaxes(1, 2).reshape(n, t, WIDTH)
    return np.stack(found, axis=1)
