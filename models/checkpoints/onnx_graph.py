"""What an ONNX graph computes: its attention, found by structure and not by name, and its inputs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Literal

from models.checkpoints.refused import Refused, shown

if TYPE_CHECKING:
    import onnx

# What may stand between the product of queries and keys and its softmax: scale, mask, soft cap, shape.
_SCORES = frozenset({
    "Add", "Sub", "Mul", "Div", "Where", "Reshape", "Transpose", "Cast", "Squeeze", "Unsqueeze",
    "Identity", "Clip", "Tanh", "Max", "Min", "Slice", "Expand", "Sum", "Flatten", "Dropout", "Neg",
})  # fmt: skip
# And between the softmax and the product with the values: dropout, NaN guards, head masks, shape.
_WEIGHTS = frozenset({
    "Cast", "Dropout", "Reshape", "Transpose", "Identity", "Where", "Mul", "Squeeze", "Unsqueeze",
    "Slice", "Expand", "Flatten",
})  # fmt: skip
_PRODUCTS = frozenset({"MatMul", "Einsum", "FusedMatMul", "Gemm"})
_THROUGH = frozenset({"Cast", "Identity", "Reshape", "Unsqueeze", "Squeeze", "Clip", "Flatten"})
_WALKED = _SCORES | _WEIGHTS | _PRODUCTS | _THROUGH | {"Softmax"}
# Nodes that keep their attention to themselves.
FUSED = frozenset({
    "Attention", "MultiHeadAttention", "GroupQueryAttention", "DecoderMaskedMultiHeadAttention",
    "QAttention", "PackedAttention", "PackedMultiHeadAttention", "SparseAttention", "PagedAttention",
    "LinearAttention", "DecoderMaskedSelfAttention", "LongformerAttention", "DecoderAttention",
})  # fmt: skip
_DOMAINS = frozenset(
    {"", "ai.onnx", "ai.onnx.ml", "ai.onnx.training", "com.microsoft", "com.microsoft.nchwc"}
)
_STEPS = 60  # nodes looked at from one softmax in one direction
_NAMES = 20  # of a long list that stand in a message

Role = Literal["ids", "mask", "segments", "positions", "image", "cache", "flag"]


@dataclass(frozen=True)
class Found:
    """A softmax between the product of queries and keys and the product with the values."""

    tensor: str  # its output: the weights
    node: str  # its name, for messages
    scores: str  # the product of queries and keys


@dataclass(frozen=True)
class Input:
    """What the graph wants to be fed. `shape` holds None for an axis that may have any length."""

    name: str
    role: Role | None
    code: int  # TensorProto.DataType
    shape: tuple[int | None, ...]


@dataclass
class Graph:
    """A model's graph, in an order in which it can be computed. Raises Refused where there is none."""

    model: onnx.ModelProto
    _active: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        graph = self.model.graph
        _check_names(self.model)
        _check_ends(self.model)
        self.constants = {t.name for t in graph.initializer} | {
            t.values.name for t in graph.sparse_initializer
        }
        self.makers: dict[str, onnx.NodeProto] = {}
        for node in graph.node:
            for name in filter(None, node.output):
                if name in self.makers:
                    raise _damaged(f"Two nodes make the tensor {shown(name)!r}.")
                self.makers[name] = node
        self.users: dict[str, list[onnx.NodeProto]] = defaultdict(list)
        for node in graph.node:
            for name in set(node.input):
                self.users[name].append(node)
        self.nodes = self._ordered()
        self._active = {i.name for i in graph.input if i.name not in self.constants}
        for node in self.nodes:
            shapes_only = node.op_type in ("Shape", "Size")
            if not shapes_only and any(name in self._active for name in node.input):
                self._active.update(filter(None, node.output))

    def _ordered(self) -> list[onnx.NodeProto]:
        """The nodes, each after those whose outputs it needs; ties as in the file."""
        nodes = list(self.model.graph.node)
        place = {id(node): i for i, node in enumerate(nodes)}
        waits = [len({id(self.makers[i]) for i in n.input if i in self.makers}) for n in nodes]
        ready = [i for i, count in enumerate(waits) if not count]
        done: list[int] = []
        while ready:
            at = ready.pop()
            done.append(at)
            after = {place[id(u)] for name in nodes[at].output if name for u in self.users.get(name, ())}
            for user in after:
                waits[user] -= 1
                if not waits[user]:
                    ready.append(user)
        if len(done) != len(nodes):
            stuck = next(n for n, count in zip(nodes, waits, strict=True) if count)
            raise _damaged(f"The graph runs in a circle through {shown(stuck.name or stuck.op_type)!r}.")
        # The file's order is kept where it is one; the search above only proves that one exists.
        made: set[str] = set()
        for node in nodes:
            if any(name in self.makers and name not in made for name in node.input):
                return [nodes[i] for i in done]
            made.update(node.output)
        return nodes

    def active(self, name: str) -> bool:
        """Whether the tensor depends on what is fed in (a shape alone is no such dependence)."""
        return name in self._active

    @cached_property
    def attention(self) -> tuple[Found, ...]:
        """The attention of every layer, first to last."""
        found = []
        for node in self.nodes:
            if node.op_type == "Softmax" and node.domain in ("", "ai.onnx") and node.input and node.output:
                axis = next((a.i for a in node.attribute if a.name == "axis"), -1)
                scores = self._product_before(node.input[0]) if axis in (-1, 2, 3, 4) else None
                if scores is not None and self._product_after(node.output[0]):
                    found.append(Found(node.output[0], node.name or node.output[0], scores))
        return tuple(found)

    def _product_before(self, name: str) -> str | None:
        """The product of two activations that the scores `name` are made of."""
        waiting, seen = [name], {name}
        while waiting and len(seen) < _STEPS:
            maker = self.makers.get(waiting.pop(0))
            if maker is None:
                continue
            if maker.op_type in _PRODUCTS:
                if self._of_activations(maker):
                    return str(maker.output[0])
            elif maker.op_type in _SCORES:
                more = [i for i in maker.input if self.active(i) and i not in seen]
                waiting += more
                seen.update(more)
        return None

    def _product_after(self, name: str) -> bool:
        """Whether the weights `name` are multiplied with another activation."""
        waiting, seen = [name], {name}
        while waiting and len(seen) < _STEPS:
            for user in self.users.get(waiting.pop(0), ()):
                if user.op_type in _PRODUCTS:
                    if self._of_activations(user):
                        return True
                elif user.op_type in _WEIGHTS:
                    more = [o for o in user.output if o and o not in seen]
                    waiting += more
                    seen.update(more)
        return False

    def _of_activations(self, node: onnx.NodeProto) -> bool:
        return len(node.input) >= 2 and all(self.active(i) for i in node.input[:2])

    @cached_property
    def fused(self) -> tuple[str, ...]:
        """Names of nodes that compute attention as one."""
        return tuple(n.name or n.op_type for n in self.nodes if n.op_type in FUSED)

    @cached_property
    def hidden(self) -> int:
        """How many Softmax nodes lie in branches, loops and functions, where nothing can be exposed."""
        count = sum(_softmaxes(n, 0) for n in self.nodes)
        for node in (n for f in self.model.functions for n in f.node):
            count += int(node.op_type == "Softmax")
        return count

    @cached_property
    def foreign(self) -> tuple[str, ...]:
        """Operators of domains that the runtime does not have."""
        local = {(f.domain, f.name) for f in self.model.functions}
        return tuple(
            sorted(
                {
                    f"{n.domain}::{n.op_type}"
                    for n in self.nodes
                    if n.domain not in _DOMAINS and (n.domain, n.op_type) not in local
                }
            )
        )

    @cached_property
    def inputs(self) -> tuple[Input, ...]:
        """What has to be fed, with its role where one is found."""
        given = [i for i in self.model.graph.input if i.name not in self.constants]
        return tuple(self._input(i) for i in given)

    def _input(self, value: onnx.ValueInfoProto) -> Input:
        kind = value.type.tensor_type
        shape = tuple(
            int(d.dim_value) if d.HasField("dim_value") and d.dim_value > 0 else None for d in kind.shape.dim
        )
        return Input(value.name, _role(value.name.lower(), kind.elem_type, shape), kind.elem_type, shape)

    @cached_property
    def tables(self) -> dict[str, tuple[int, int]]:
        """Rows and columns of every initialiser or constant that is looked up by rows, by input or "".

        The key is the graph input whose values choose the rows; "" where none does, as with the
        positions that a model counts itself.
        """
        sizes = {t.name: tuple(t.dims) for t in self.model.graph.initializer}
        for node in self.model.graph.node:
            if node.op_type == "Constant":
                for a in node.attribute:
                    if a.name == "value":
                        sizes[node.output[0]] = tuple(a.t.dims)
        found: dict[str, tuple[int, int]] = {}
        names = {i.name for i in self.inputs}
        for node in self.nodes:
            if node.op_type != "Gather" or len(node.input) < 2:
                continue
            size = sizes.get(self._origin(node.input[0]), ())
            chosen = self._origin(node.input[1])
            if len(size) == 2 and size[1] > 1:
                key = chosen if chosen in names else ""
                found[key] = max(found.get(key, (0, 0)), (int(size[0]), int(size[1])))
        return found

    def _origin(self, name: str) -> str:
        for _ in range(_STEPS):
            maker = self.makers.get(name)
            if maker is None or maker.op_type not in _THROUGH or not maker.input:
                return name
            name = maker.input[0]
        return name


def _check_names(model: onnx.ModelProto) -> None:
    """Protobuf hands out text that is no UTF-8 as bytes, which nothing here and no runtime takes."""
    graph = model.graph
    names = [graph.name, model.producer_name, model.producer_version]
    names += [o.domain for o in model.opset_import]
    names += [v.name for values in (graph.input, graph.output, graph.initializer) for v in values]
    for node in graph.node:
        names += [node.name, node.op_type, node.domain, *node.input, *node.output]
    for name in names:
        if not isinstance(name, str):
            raise _damaged(f"A name in the graph is no text: {shown(name)}.")


def _check_ends(model: onnx.ModelProto) -> None:
    """What is read of a node below needs an output, and an input where its operator takes one."""
    for node in model.graph.node:
        if not node.output or (node.op_type in _WALKED and not node.input):
            raise _damaged(f"Node {shown(node.name or node.op_type)!r} has no input or no output.")


def _softmaxes(node: onnx.NodeProto, depth: int) -> int:
    """How many lie in the graphs of a node's attributes."""
    graphs = [g for a in node.attribute for g in ([a.g] if a.HasField("g") else []) + list(a.graphs)]
    if depth > 12:
        return 0
    count = 0
    for inner in (n for g in graphs for n in g.node):
        count += int(inner.op_type == "Softmax") + _softmaxes(inner, depth + 1)
    return count


def _role(name: str, code: int, shape: Sequence[int | None]) -> Role | None:
    """What an input is for, by its type, its axes, and last by its name."""
    whole, real = code in (6, 7), code in (1, 10, 16)
    if "past" in name and len(shape) >= 3 and real:
        return "cache"
    if code == 9 and len(shape) <= 1 and "cache" in name:
        return "flag"
    if len(shape) == 4 and real:
        return "image" if shape[1] in (1, 3, None) and "mask" not in name else None
    if len(shape) != 2:
        return None
    if "mask" in name and (whole or real or code == 9):
        return "mask"
    if not whole:
        return None
    if "position" in name:
        return "positions"
    return "segments" if "type" in name or "segment" in name else "ids"


def listed(names: Iterable[str]) -> str:
    """Some names for a message."""
    every = [shown(n) for n in names]
    return ", ".join(every[:_NAMES]) + (f" and {len(every) - _NAMES} more" if len(every) > _NAMES else "")


def _damaged(message: str) -> Refused:
    return Refused(
        "brought_damaged",
        message,
        "Check it with onnx.checker.check_model(model), and export it again.",
    )
