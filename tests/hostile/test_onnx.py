"""Hostile and broken ONNX files: only Refused leaves the opener, and nothing outside the bundle is read."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from models.attention.trace import LayerAttention
from models.checkpoints.bundle import Bundle, Item, Limits
from models.checkpoints.inspection import Inspection
from models.checkpoints.onnx_file import looks_like_onnx
from models.checkpoints.openers import onnx as opener
from models.checkpoints.refused import Refused
from tests.models import onnx_graphs as graphs

TINY = graphs.attention(1).SerializeToString()
GRAPH, NODE, TENSOR = 7, 1, 5  # field numbers


def refused(found: Bundle, limits: Limits | None = None) -> Refused:
    with pytest.raises(Refused) as error:
        opener.inspect(found, limits or Limits())
    assert error.value.remedy
    assert error.value.where
    return error.value


def external(**entries: str) -> onnx.ModelProto:
    """A graph whose embedding lies in another file, as `entries` say."""
    proto = graphs.attention(1)
    tensor = proto.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in entries.items():
        tensor.external_data.add(key=key, value=value)
    return proto


SIZE = 4 * graphs.VOCABULARY * graphs.WIDTH


@pytest.mark.parametrize(
    "location",
    [
        "../secret",
        "/etc/passwd",
        "..",
        ".",
        "a/../../secret",
        "..\\secret",
        "C:secret",
        "sub/data",
        "\0",
        "./../secret",
        "",
    ],
)
def test_external_data_outside_is_not_followed(tmp_path: Path, location: str) -> None:
    (tmp_path / "secret").write_bytes(bytes(SIZE))
    inside = tmp_path / "in"
    inside.mkdir()
    found = graphs.bundle(inside, external(location=location, length=str(SIZE)), ("data", bytes(SIZE)))
    error = refused(found)
    assert error.kind == "brought_unsafe"
    assert "embedding" in error.where


def test_a_file_beside_the_model_that_was_not_brought_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "weights.data").write_bytes(bytes(SIZE))
    found = graphs.bundle(tmp_path, external(location="weights.data"))
    assert refused(found).kind == "brought_incomplete"


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(bytes(SIZE))
    found = graphs.bundle(tmp_path, external(location="weights.data"))
    link = tmp_path / "0001"
    link.symlink_to(tmp_path / "secret")
    assert refused(Bundle((*found.items, Item("weights.data", link)))).kind == "brought_unsafe"


@pytest.mark.parametrize(
    ("entries", "kind"),
    [
        ({"offset": str(SIZE)}, "brought_truncated"),
        ({"offset": "1"}, "brought_truncated"),
        ({"length": str(SIZE + 1)}, "brought_damaged"),
        ({"length": "1"}, "brought_damaged"),
        ({"length": str(10**18)}, "brought_damaged"),
        ({"offset": "-1"}, "brought_damaged"),
        ({"offset": "9" * 500}, "brought_damaged"),
        ({"offset": "1e3"}, "brought_damaged"),
        ({"__class__": "x"}, "brought_unsafe"),
        ({"basepath": "/"}, "brought_unsafe"),
    ],
)
def test_places_in_external_data(tmp_path: Path, entries: dict[str, str], kind: str) -> None:
    proto = external(location="weights.data", **entries)
    found = graphs.bundle(tmp_path, proto, ("weights.data", bytes(SIZE)))
    assert refused(found).kind == kind


def test_one_external_file_may_be_named_by_many_tensors_and_the_model_runs(tmp_path: Path) -> None:
    """A hard link is a plain file: what counts is that it came along under its name."""
    weights = np.zeros((graphs.VOCABULARY, graphs.WIDTH), np.float32).tobytes()
    found = graphs.bundle(tmp_path, external(location="w"), ("w", weights))
    os.link(tmp_path / "0001", tmp_path / "twin")
    model = opener.open_model(found, Limits(), "cpu")
    assert model.layers == 1


@pytest.mark.parametrize("dims", [[10**12], [2**40, 2**40], [2**62, 2**62, 2**62], [10**6] * 8])
def test_enormous_shapes_have_no_data(tmp_path: Path, dims: list[int]) -> None:
    for proto in (graphs.attention(1), external(location="w")):
        del proto.graph.initializer[0].dims[:]
        proto.graph.initializer[0].dims.extend(dims)
        error = refused(graphs.bundle(tmp_path, proto, ("w", bytes(SIZE))))
        assert error.kind in ("brought_damaged", "brought_truncated")
        assert len(error.message) < 400


def test_negative_sizes_and_unknown_types(tmp_path: Path) -> None:
    proto = graphs.attention(1)
    proto.graph.initializer[0].dims[0] = -1
    assert refused(graphs.bundle(tmp_path, proto)).kind == "brought_damaged"
    proto = graphs.attention(1)
    proto.graph.initializer[0].data_type = 99
    assert refused(graphs.bundle(tmp_path, proto)).kind == "brought_damaged"


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 0.999])
def test_truncated_files(tmp_path: Path, share: float) -> None:
    found = graphs.bundle(tmp_path, TINY[: int(len(TINY) * share)])
    assert opener.recognises(found)
    assert refused(found).kind == "brought_truncated"


@pytest.mark.parametrize(
    "content", [b"", b"\x08", b"\x08\x08", b"hello, this is text", b"\x80\x04.", bytes(1000), TINY[1:]]
)
def test_other_files_are_not_taken_for_onnx(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x"
    path.write_bytes(content)
    assert not looks_like_onnx(path)


def field(number: int, content: bytes) -> bytes:
    size, out = len(content), bytearray([number << 3 | 2])
    while size > 0x7F:
        out.append(size & 0x7F | 0x80)
        size >>= 7
    return bytes(out) + bytes([size]) + content


HEAD = b"\x08\x08" + field(8, b"\x10\x11")  # IR version 8, opset 17


@pytest.mark.parametrize(
    ("graph", "kind"),
    [
        (field(NODE, b"") * 1_000_001, "brought_too_large"),  # grows two hundredfold when parsed
        (field(TENSOR, b"") * 250_000, "brought_too_large"),
        (field(2, b"x" * (33 * 2**20)), "brought_too_large"),
        (field(TENSOR, b"\x0a\xc8\x01" + b"\x01" * 200), "brought_damaged"),  # 200 axes
        (b"\x0b", "brought_damaged"),  # a group, which ONNX has none of
        (b"\x08" + b"\xff" * 12, "brought_damaged"),  # a number of 84 bits
        (field(NODE, b"\x2a\xff"), "brought_truncated"),
    ],
)
def test_protobuf_bombs(tmp_path: Path, graph: bytes, kind: str) -> None:
    found = graphs.bundle(tmp_path, HEAD + field(GRAPH, graph))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert refused(found).kind == kind
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # KB


def test_graphs_in_graphs(tmp_path: Path) -> None:
    graph = b""
    for _ in range(500):
        graph = field(NODE, field(5, field(6, graph)))
    assert refused(graphs.bundle(tmp_path, HEAD + field(GRAPH, graph))).kind == "brought_unsafe"


def test_a_graph_that_runs_in_a_circle(tmp_path: Path) -> None:
    proto = graphs.attention(1)
    proto.graph.node.append(helper.make_node("Add", ["b", "b"], ["a"], name="first"))
    proto.graph.node.append(helper.make_node("Neg", ["a"], ["b"], name="second"))
    error = refused(graphs.bundle(tmp_path, proto))
    assert error.kind == "brought_damaged"
    assert "circle" in error.message
    itself = graphs.attention(1)
    itself.graph.node.append(helper.make_node("Neg", ["a"], ["a"]))
    assert "circle" in refused(graphs.bundle(tmp_path, itself)).message


def test_a_tensor_made_twice(tmp_path: Path) -> None:
    proto = graphs.attention(1)
    proto.graph.node.append(proto.graph.node[0])
    assert "Two nodes" in refused(graphs.bundle(tmp_path, proto)).message


def test_string_tensors_are_listed_nowhere_and_string_inputs_not_fed(tmp_path: Path) -> None:
    proto = graphs.attention(1)
    proto.graph.initializer.append(numpy_helper.from_array(np.array(["a", "b"], dtype=object), "words"))
    card = opener.inspect(graphs.bundle(tmp_path, proto), Limits())
    assert "words" not in {t.name for t in card.tensors}
    proto.graph.input.append(helper.make_tensor_value_info("text", TensorProto.STRING, [1]))
    card = opener.inspect(graphs.bundle(tmp_path, proto), Limits())
    assert card.refusal is not None
    assert "text" in card.refusal["where"]


def test_names_are_shown_harmlessly(tmp_path: Path) -> None:
    proto = graphs.attention(1)
    proto.graph.name = "<script>\n\u202e" + "x" * 5_000
    proto.producer_name = "y" * 100_000
    card = opener.inspect(graphs.bundle(tmp_path, proto), Limits())
    for text in (card.architecture, card.facts["Producer"]):
        assert len(text) <= 80
        assert text.isprintable()
    assert Inspection.from_json(card.to_json()) == card


def _opset(p: onnx.ModelProto) -> None:
    del p.opset_import[:]


def _axes(p: onnx.ModelProto) -> None:
    p.graph.input[0].type.tensor_type.shape.dim[1].dim_value = 10**12


def _no_type(p: onnx.ModelProto) -> None:
    p.graph.input[0].ClearField("type")


def _lost(p: onnx.ModelProto) -> None:
    p.graph.node[0].input[0] = "nothing makes this"


def _operator(p: onnx.ModelProto) -> None:
    p.graph.node[-1].op_type = "NoSuchOperator"


def _arity(p: onnx.ModelProto) -> None:
    next(n for n in p.graph.node if n.op_type == "Softmax").input.append("input_ids")


def _perm(p: onnx.ModelProto) -> None:
    next(n for n in p.graph.node if n.op_type == "Transpose").attribute[0].ints[:] = [9, 9, 9, 9]


def _huge(p: onnx.ModelProto) -> None:
    """A constant of 4 TB is asked of the runtime."""
    size = numpy_helper.from_array(np.array([10**12]), "size")
    p.graph.initializer.append(size)
    p.graph.node.append(helper.make_node("ConstantOfShape", ["size"], ["huge"]))
    p.graph.node.append(helper.make_node("ReduceSum", ["huge"], ["sum"], keepdims=0))
    p.graph.output.append(helper.make_tensor_value_info("sum", 1, []))


@pytest.mark.parametrize("break_", [_opset, _axes, _no_type, _lost, _operator, _arity, _perm, _huge])
def test_what_the_runtime_would_not_run_is_refused(
    tmp_path: Path, break_: Callable[[onnx.ModelProto], None]
) -> None:
    proto = graphs.attention(1)
    break_(proto)
    found = graphs.bundle(tmp_path, proto)
    opener.inspect(found, Limits())
    with pytest.raises(Refused) as error:
        opener.open_model(found, Limits(), "cpu")
    assert str(tmp_path) not in str(error.value)


def test_two_models_at_once(tmp_path: Path) -> None:
    found = graphs.bundle(tmp_path, TINY, ("other.onnx", TINY))
    assert "other.onnx" in refused(found).where


FUZZ = settings(max_examples=500, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def _inspected(folder: Path, content: bytes) -> None:
    """Nothing but Refused leaves; what is not refused can travel as JSON."""
    found = graphs.bundle(folder, content)
    if not opener.recognises(found):
        return
    try:
        card = opener.inspect(found, Limits())
    except Refused:
        return
    assert Inspection.from_json(card.to_json()) == card


@FUZZ
@given(st.lists(st.tuples(st.integers(0, len(TINY) - 1), st.integers(0, 255)), min_size=1, max_size=20))
def test_fuzz_changed_bytes(tmp_path: Path, changes: list[tuple[int, int]]) -> None:
    content = bytearray(TINY)
    for at, value in changes:
        content[at] = value
    _inspected(tmp_path, bytes(content))


@FUZZ
@given(st.integers(0, len(TINY)), st.integers(0, len(TINY)), st.binary(max_size=40))
def test_fuzz_cuts_and_insertions(tmp_path: Path, start: int, stop: int, new: bytes) -> None:
    _inspected(tmp_path, TINY[: min(start, stop)] + new + TINY[max(start, stop) :])


@FUZZ
@given(st.binary(max_size=400))
def test_fuzz_graphs_of_random_bytes(tmp_path: Path, content: bytes) -> None:
    _inspected(tmp_path, HEAD + field(GRAPH, content))


@settings(FUZZ, max_examples=150, derandomize=True)
@given(st.lists(st.tuples(st.integers(0, len(TINY) - 1), st.integers(0, 255)), min_size=1, max_size=3))
def test_fuzz_opened_and_run(tmp_path: Path, changes: list[tuple[int, int]]) -> None:
    """The same examples every time: what the runtime itself survives is not ours to find out in a test."""
    content = bytearray(TINY)
    for at, value in changes:
        content[at] = value
    found = graphs.bundle(tmp_path, bytes(content))
    if not opener.recognises(found):
        return
    layers: list[LayerAttention] = []
    try:
        model = opener.open_model(found, Limits(), "cpu")
        model.trace(
            torch.arange(9)[None],
            on_attention=layers.append,
        )
    except Refused:
        return
    assert all(np.isfinite(layer.importance).all() for layer in layers)
    assert len(layers) == model.layers
