"""How many heads a graph's attention has, read off the reshape that splits the queries."""

from __future__ import annotations

from typing import TYPE_CHECKING

from models.checkpoints.onnx_graph import Graph

if TYPE_CHECKING:
    import onnx

_STEPS = 40  # nodes between the product of queries and keys and the reshape
_KEPT = frozenset({"Transpose", "Mul", "Div", "Add", "Cast", "Identity", "Squeeze", "Slice", "Sub", "Gather"})


def heads_of(graph: Graph) -> int | None:
    """The number of query heads if all layers have the same and it is written in the graph, else None."""
    tensors = {t.name: t for t in graph.model.graph.initializer}
    for node in graph.model.graph.node:
        for a in node.attribute:
            if node.op_type == "Constant" and a.name == "value" and node.output:
                tensors[node.output[0]] = a.t
    found = {_of_layer(graph, tensors, f.scores) for f in graph.attention}
    return found.pop() if len(found) == 1 else None


def _of_layer(graph: Graph, tensors: dict[str, onnx.TensorProto], scores: str) -> int | None:
    name = graph.makers[scores].input[0]
    for _ in range(_STEPS):
        maker = graph.makers.get(name)
        if maker is None or not maker.input:
            return None
        if maker.op_type == "Reshape" and len(maker.input) == 2:
            shape = _numbers(graph, tensors, maker.input[1], 0)
            if len(shape) == 5:  # queries, keys and values at once, before or after the heads
                pair = (shape[-3], shape[-2])
                return next((b for a, b in (pair, pair[::-1]) if a == 3 and b != 3), None)
            if len(shape) == 4 and (size := shape[-1]) and size > 0:
                return _split(graph, tensors, maker.input[0], shape[-2], size)
        elif maker.op_type not in _KEPT:
            return None
        name = next((i for i in maker.input if graph.active(i)), "")
    return None


def _split(
    graph: Graph, tensors: dict[str, onnx.TensorProto], name: str, heads: int | None, size: int
) -> int | None:
    """Heads of `size` each; where the reshape leaves their number open, from the projection's width."""
    if heads is not None and heads > 0:
        return heads
    for _ in range(_STEPS):
        maker = graph.makers.get(name)
        if maker is None or maker.op_type not in ("MatMul", "Gemm", "Add", "Identity", "Cast"):
            return None
        for other in maker.input:
            if not graph.active(other) and other in tensors and tensors[other].dims:
                transposed = any(a.name == "transB" and a.i for a in maker.attribute)
                width = int(tensors[other].dims[0 if transposed and maker.op_type == "Gemm" else -1])
                return width // size if width % size == 0 else None
        name = next((i for i in maker.input if graph.active(i)), "")
    return None


def _numbers(graph: Graph, tensors: dict[str, onnx.TensorProto], name: str, depth: int) -> list[int | None]:
    """The entries of a small vector of integers; None for those that depend on the input."""
    from onnx import numpy_helper

    if depth > 6:
        return []
    if name in tensors:
        tensor = tensors[name]
        if tensor.data_type not in (6, 7) or sum(tensor.dims) > 8 or any(d < 0 for d in tensor.dims):
            return []
        try:
            return [int(v) for v in numpy_helper.to_array(tensor).reshape(-1)]
        except (ValueError, TypeError):  # the numbers stand in a field of another type
            return []
    maker = graph.makers.get(name)
    if maker is None:
        return []
    if maker.op_type == "Concat" and len(maker.input) <= 8:
        return [v for i in maker.input for v in _numbers(graph, tensors, i, depth + 1)]
    if maker.op_type == "Unsqueeze":
        return _numbers(graph, tensors, maker.input[0], depth + 1)[:1] or [None]
    return [None]
