"""ONNX graphs: attention is found by structure, and what the runtime hands out is what it computes."""

from __future__ import annotations

import sys
from pathlib import Path
from subprocess import run
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.capi import onnxruntime_pybind11_state as runtime_state

from models.attention.from_maps import reduce_map
from models.attention.trace import LayerAttention
from models.checkpoints import intake, onnx_run
from models.checkpoints.attention import AttentionModel
from models.checkpoints.bundle import Bundle, Limits
from models.checkpoints.onnx_file import walk
from models.checkpoints.onnx_graph import Graph
from models.checkpoints.openers import onnx as opener
from models.checkpoints.refused import Refused
from tests.models import onnx_graphs as graphs

IDS = torch.randint(0, graphs.VOCABULARY, (3, 11), generator=torch.Generator().manual_seed(2))


def traced(
    model: AttentionModel, inputs: torch.Tensor, samples: tuple[int, ...] = (0,)
) -> tuple[list[LayerAttention], dict[tuple[int, int, int], np.ndarray]]:
    layers: list[LayerAttention] = []
    drawn: dict[tuple[int, int, int], np.ndarray] = {}
    steps: list[tuple[int, int]] = []

    def never(_: Any) -> None:
        raise AssertionError("a graph's hidden states are not known")

    model.trace(
        inputs,
        on_attention=layers.append,
        on_states=never,
        on_map=lambda layer, sample, head, m: drawn.__setitem__((layer, sample, head), m),
        map_samples=samples,
        progress=lambda *at: steps.append(at),
    )
    assert steps == [(i + 1, model.layers) for i in range(model.layers)]
    assert [x.layer for x in layers] == list(range(model.layers))
    return layers, drawn


def check(found: Bundle, proto: onnx.ModelProto, *, causal: bool = False, ids: torch.Tensor = IDS) -> None:
    card = opener.inspect(found, Limits())
    assert card.refusal is None
    model = opener.open_model(found, Limits(), "cpu")
    assert (model.takes, model.layers, model.heads) == ("text", 2, graphs.HEADS)
    assert (card.vocabulary, model.vocabulary) == (graphs.VOCABULARY, graphs.VOCABULARY)
    expected = graphs.by_hand(proto, ids.numpy(), causal=causal)
    layers, drawn = traced(model, ids, (0, 2))
    assert sorted(drawn) == [(x, n, h) for x in range(2) for n in (0, 2) for h in range(graphs.HEADS)]
    for (layer, sample, head), weights in drawn.items():
        np.testing.assert_allclose(weights, expected[sample, layer, head], atol=1e-5)
    for layer_ in layers:
        want = reduce_map(layer_.layer, expected[:, layer_.layer], causal=causal)
        for name in ("importance", "seen_by", "first_token_mass", "row_entropy_bits", "distance_mass"):
            np.testing.assert_allclose(getattr(layer_, name), getattr(want, name), atol=1e-5, err_msg=name)


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_attention_is_what_the_graph_computes(tmp_path: Path, flat: bool, causal: bool, masked: bool) -> None:
    proto = graphs.attention(flat=flat, causal=causal, masked=masked and not flat)
    check(graphs.bundle(tmp_path, proto), proto, causal=causal)


def test_a_fixed_batch_is_filled(tmp_path: Path) -> None:
    proto = graphs.attention(batch=3)
    check(graphs.bundle(tmp_path, proto), proto)


def test_a_fixed_length_is_said_and_kept(tmp_path: Path) -> None:
    proto = graphs.attention(length=11)
    found = graphs.bundle(tmp_path, proto)
    check(found, proto)
    assert opener.inspect(found, Limits()).length == 11
    model = opener.open_model(found, Limits(), "cpu")
    assert model.length == 11
    with pytest.raises(Refused, match="exactly 11 tokens, not 5"):
        traced(model, IDS[:, :5])


def test_many_passes_give_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    proto = graphs.attention()
    monkeypatch.setattr(onnx_run, "_MAP_BYTES", 1)
    monkeypatch.setattr(onnx_run, "_IN_MEMORY", 1)
    check(graphs.bundle(tmp_path, proto), proto)


def test_external_data_comes_from_its_own_file(tmp_path: Path) -> None:
    """The weights lie beside the graph, behind each other, under a name that is not the file's path."""
    proto = graphs.attention()
    outside, data = onnx.ModelProto(), b""
    outside.CopyFrom(proto)
    for tensor in outside.graph.initializer:
        raw = tensor.raw_data
        tensor.ClearField("raw_data")
        tensor.data_location = TensorProto.EXTERNAL
        for key, value in (("location", "w.data"), ("offset", len(data)), ("length", len(raw))):
            tensor.external_data.add(key=key, value=str(value))
        data += raw
    check(graphs.bundle(tmp_path, outside, ("folder/w.data", data)), proto)
    with pytest.raises(Refused) as refused:
        opener.inspect(graphs.bundle(tmp_path, outside), Limits())
    assert refused.value.kind == "brought_incomplete"
    assert "w.data" in refused.value.message


def test_a_graph_that_is_not_in_order_is_run_in_order(tmp_path: Path) -> None:
    proto = graphs.attention()
    nodes = list(proto.graph.node)
    del proto.graph.node[:]
    proto.graph.node.extend(nodes[::-1])
    names = [f.node for f in Graph(proto).attention]
    assert names == ["attention 0", "attention 1"]


def test_the_softmax_of_a_classifier_is_no_attention() -> None:
    """Its scores are a product with a weight, and nothing is mixed with it."""
    proto = graphs.attention(1)
    proto.graph.initializer.append(numpy_helper.from_array(np.ones((8, 5), np.float32), "head"))
    last = proto.graph.output[0].name
    proto.graph.node.append(helper.make_node("MatMul", [last, "head"], ["logits"]))
    proto.graph.node.append(helper.make_node("Softmax", ["logits"], ["classes"]))
    # A router: its softmax is used, but not to mix values by position.
    proto.graph.node.append(helper.make_node("MatMul", ["classes", "experts"], ["routed"]))
    proto.graph.initializer.append(numpy_helper.from_array(np.ones((5, 8), np.float32), "experts"))
    assert [f.node for f in Graph(proto).attention] == ["attention 0"]


def test_the_card_says_what_is_there(tmp_path: Path) -> None:
    card = opener.inspect(graphs.bundle(tmp_path, graphs.attention()), Limits())
    assert card.format == "ONNX, opset 17"
    assert (card.layers, card.heads, card.width, card.takes) == (2, graphs.HEADS, graphs.WIDTH, "text")
    numbers = graphs.VOCABULARY * graphs.WIDTH + 2 * 3 * graphs.WIDTH**2
    assert (card.parameters, card.bytes) == (numbers, 4 * numbers)
    by_name = {t.name: t for t in card.tensors}
    assert by_name["embedding"].shape == (graphs.VOCABULARY, graphs.WIDTH)
    assert {t.dtype for t in card.tensors} == {"F32"}
    assert card.facts["IR version"] == "8"
    assert "attention_mask (mask)" in card.facts["Inputs"]


def test_an_optimum_folder_is_an_onnx_model(tmp_path: Path) -> None:
    """It has the config.json of the model that it was made from, without that model's weights."""
    proto = graphs.attention()
    found = graphs.bundle(tmp_path, proto, ("config.json", b'{"model_type": "bert"}'))
    assert intake.inspect(found, Limits()).opener == "onnx"
    check(found, proto)


def test_the_walk_finds_where_the_data_lies(tmp_path: Path) -> None:
    proto = graphs.attention()
    found = graphs.bundle(tmp_path, proto)
    content = found.items[0].path.read_bytes()
    stored = {t.name: t for t in walk(found.items[0], found, Limits()).tensors}
    for tensor in proto.graph.initializer:
        at = stored[tensor.name]
        assert at.offset is not None
        assert content[at.offset : at.offset + at.bytes] == tensor.raw_data


def test_the_limits_said_are_the_runtime_s() -> None:
    """One more is refused by the installed runtime, what is said to be the most is not."""

    def opens(ir: int, opset: int) -> bool:
        x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [1]) for n in "xy")
        graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "g", [x], [y])
        imports = [helper.make_opsetid("", opset)]
        content = helper.make_model(graph, ir_version=ir, opset_imports=imports).SerializeToString()
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        try:
            onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
        except runtime_state.Fail:
            return False
        return True

    assert opens(opener.MAX_IR, opener.MAX_OPSET)
    assert not opens(opener.MAX_IR + 1, 17)
    assert not opens(8, opener.MAX_OPSET + 1)


def _refusal(tmp_path: Path, proto: onnx.ModelProto) -> dict[str, str]:
    found = graphs.bundle(tmp_path, proto)
    card = opener.inspect(found, Limits())
    assert card.refusal is not None
    with pytest.raises(Refused) as refused:
        opener.open_model(found, Limits(), "cpu")
    assert refused.value.message == card.refusal["message"]
    return dict(card.refusal)


def test_newer_than_the_runtime_is_said_with_both_numbers(tmp_path: Path) -> None:
    proto = graphs.attention()
    proto.ir_version = opener.MAX_IR + 1
    said = _refusal(tmp_path, proto)
    assert str(opener.MAX_IR + 1) in said["message"]
    assert str(opener.MAX_IR) in said["message"]
    assert "opset_version=21" in said["remedy"]
    proto = graphs.attention(opset=opener.MAX_OPSET + 1)
    assert str(opener.MAX_OPSET) in _refusal(tmp_path, proto)["message"]


def test_fused_attention_is_said(tmp_path: Path) -> None:
    said = _refusal(tmp_path, graphs.attention(fused=True))
    assert "2 fused nodes" in said["message"]
    assert "attn_implementation='eager'" in said["remedy"]


def test_operators_of_others_are_named(tmp_path: Path) -> None:
    proto = graphs.attention()
    proto.graph.node[0].domain = "my.lab"
    said = _refusal(tmp_path, proto)
    assert said["where"] == "my.lab::Gather"


def test_no_attention_is_said(tmp_path: Path) -> None:
    proto = graphs.attention(0)
    assert "No Softmax" in _refusal(tmp_path, proto)["message"]


def test_inputs_that_cannot_be_filled_are_named(tmp_path: Path) -> None:
    proto = graphs.attention()
    proto.graph.input.append(helper.make_tensor_value_info("encoder_hidden_states", 1, ["n", "t", 8]))
    said = _refusal(tmp_path, proto)
    assert "encoder_hidden_states" in said["where"]


def test_attention_in_a_branch_is_said(tmp_path: Path) -> None:
    proto = graphs.attention(0)
    body = helper.make_graph(
        [helper.make_node("Softmax", [proto.graph.output[0].name], ["inner"])],
        "body",
        [],
        [helper.make_tensor_value_info("inner", 1, None)],
    )
    proto.graph.initializer.append(numpy_helper.from_array(np.array(True), "yes"))
    proto.graph.node.append(helper.make_node("If", ["yes"], ["out"], then_branch=body, else_branch=body))
    assert "2 Softmax nodes lie in branches" in _refusal(tmp_path, proto)["message"]


def test_an_empty_cache_is_fed(tmp_path: Path) -> None:
    """Past keys and values of no length change nothing."""
    proto = graphs.attention(1)
    node = next(n for n in proto.graph.node if n.op_type == "Softmax")
    probabilities = node.output[0]
    user = next(n for n in proto.graph.node if n.op_type == "MatMul" and probabilities in n.input)
    values = user.input[1]
    user.input[1] = "all values"
    at = list(proto.graph.node).index(user)
    join = helper.make_node("Concat", ["past_key_values.0.value", values], ["all values"], axis=2)
    proto.graph.node.insert(at, join)
    proto.graph.input.append(
        helper.make_tensor_value_info("past_key_values.0.value", 1, ["batch", graphs.HEADS, "past", 4])
    )
    found = graphs.bundle(tmp_path, proto)
    model = opener.open_model(found, Limits(), "cpu")
    assert [n.kind for n in model.notices] == ["cache_empty"]
    _, drawn = traced(model, IDS)
    expected = graphs.by_hand(proto, IDS.numpy())
    np.testing.assert_allclose(drawn[0, 0, 1], expected[0, 0, 1], atol=1e-5)


def test_segments_and_positions_are_filled(tmp_path: Path) -> None:
    """Token types are 0 and positions count from 0: the graph adds a row of each table."""
    proto = graphs.attention(1)
    rng = np.random.default_rng(4)
    tables = {"token_type_ids": rng.normal(size=(2, 8)), "position_ids": rng.normal(size=(32, 8))}
    first = proto.graph.node[0]
    embedded, first.output[0] = first.output[0], "words"
    at, before = 1, "words"
    for name, table in tables.items():
        proto.graph.initializer.append(numpy_helper.from_array(table.astype(np.float32), f"rows {name}"))
        proto.graph.input.append(
            helper.make_tensor_value_info(name, TensorProto.INT32, ["batch", "sequence"])
        )
        proto.graph.node.insert(at, helper.make_node("Gather", [f"rows {name}", name], [f"of {name}"]))
        after = embedded if name == "position_ids" else "both"
        proto.graph.node.insert(at + 1, helper.make_node("Add", [before, f"of {name}"], [after]))
        at, before = at + 2, after
    found = graphs.bundle(tmp_path, proto)
    card = opener.inspect(found, Limits())
    assert (card.vocabulary, card.max_positions) == (graphs.VOCABULARY, 32)
    _, drawn = traced(opener.open_model(found, Limits(), "cpu"), IDS)
    weights = {t.name: numpy_helper.to_array(t).astype(np.float64) for t in proto.graph.initializer}
    hidden = weights["embedding"][IDS[0]] + tables["token_type_ids"][0] + tables["position_ids"][:11]
    q, k = ((hidden @ weights[f"{w}0"]).reshape(11, graphs.HEADS, -1).swapaxes(0, 1) for w in "qk")
    scores = np.exp(q @ k.swapaxes(1, 2) / 2.0)
    expected = scores / scores.sum(-1, keepdims=True)
    np.testing.assert_allclose(drawn[0, 0, 1], expected[1], atol=1e-5)


def test_a_text_that_is_too_long_for_the_graph_is_refused(tmp_path: Path) -> None:
    proto = graphs.attention(1)
    model = opener.open_model(graphs.bundle(tmp_path, proto), Limits(), "cpu")
    with pytest.raises(Refused) as refused:
        traced(model, IDS + graphs.VOCABULARY)
    assert "cannot be run" in refused.value.message
    assert str(tmp_path) not in str(refused.value)


def test_the_card_needs_no_framework(tmp_path: Path) -> None:
    found = graphs.bundle(tmp_path, graphs.attention())
    code = (
        "import sys; from pathlib import Path; from models.checkpoints.bundle import Bundle, Item, Limits; "
        "from models.checkpoints.openers import maps, onnx; "
        f"found = Bundle((Item('m', Path({str(found.items[0].path)!r})),)); "
        "assert not maps.recognises(found) and onnx.inspect(found, Limits()).layers == 2; "
        "print([m for m in ('torch', 'transformers', 'onnxruntime') if m in sys.modules])"
    )
    done = run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_weights_that_are_not_finite_are_named(tmp_path: Path) -> None:
    proto = graphs.attention(2)
    for tensor in proto.graph.initializer:
        if tensor.name in ("q1", "v0"):
            values = numpy_helper.to_array(tensor).copy()
            values[3, 2] = np.inf if tensor.name == "q1" else np.nan
            tensor.raw_data = values.tobytes()
    model = opener.open_model(graphs.bundle(tmp_path, proto), Limits(), "cpu")
    with pytest.raises(Refused) as refused:
        traced(model, IDS)
    assert refused.value.kind == "brought_not_finite"
    assert "2 tensors" in refused.value.message
    assert refused.value.where == "v0, q1"


def test_bfloat16_on_the_cpu_is_said(tmp_path: Path) -> None:
    proto = graphs.attention(1, masked=False)
    for tensor in proto.graph.initializer:
        values = numpy_helper.to_array(tensor)
        upper = (values.view(np.uint32) >> 16).astype(np.uint16)
        tensor.data_type, tensor.raw_data = TensorProto.BFLOAT16, upper.tobytes()
    for node in proto.graph.node:
        for a in node.attribute:
            if a.name == "value" and a.t.data_type == TensorProto.FLOAT:
                a.t.data_type, a.t.raw_data = TensorProto.BFLOAT16, b"\x00\x40"
    proto.graph.output[0].type.tensor_type.elem_type = TensorProto.BFLOAT16
    with pytest.raises(Refused) as refused:
        opener.open_model(graphs.bundle(tmp_path, proto), Limits(), "cpu")
    assert refused.value.kind == "brought_unsupported"
    assert "bfloat16" in refused.value.message
    assert "float32" in refused.value.remedy
