"""Hugging Face folders: the same numbers however the weights are stored, and never a random model."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import BertConfig, BertModel, LlamaConfig, LlamaForCausalLM

from models.attention.trace import LayerAttention
from models.checkpoints import intake
from models.checkpoints.attention import AttentionModel
from models.checkpoints.bundle import Bundle, Item, Limits
from models.checkpoints.inspection import Inspection
from models.checkpoints.refused import Refused

pytestmark = pytest.mark.models

LAYERS, HEADS, KV_HEADS, WIDTH, VOCABULARY = 2, 4, 2, 32, 64
IDS = torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8]])
Change = Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]


def llama(**settings: Any) -> LlamaForCausalLM:
    torch.manual_seed(0)
    sizes: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "hidden_size": WIDTH,
        "intermediate_size": 48,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "max_position_embeddings": 128,
        "tie_word_embeddings": False,
        "initializer_range": 0.4,  # so that attention is far from even
    }
    return LlamaForCausalLM(LlamaConfig(**{**sizes, **settings})).eval()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("llama")
    llama().save_pretrained(place)
    return place


@pytest.fixture(scope="module")
def expected(folder: Path) -> list[np.ndarray]:
    return importances(opened(bundle(folder)))


def bundle(folder: Path) -> Bundle:
    return Bundle(tuple(Item(p.name, p) for p in sorted(folder.iterdir()) if p.is_file()))


def opened(brought: Bundle) -> AttentionModel:
    return intake.open_model(brought, Limits(), "cpu")


def inspected(brought: Bundle) -> Inspection:
    return intake.inspect(brought, Limits())


def importances(model: AttentionModel) -> list[np.ndarray]:
    found: list[LayerAttention] = []
    model.trace(
        IDS,
        on_attention=found.append,
    )
    return [layer.importance for layer in found]


def stored_as(folder: Path, place: Path, change: Change) -> Bundle:
    """The folder with its tensors changed."""
    place.mkdir(exist_ok=True)
    (place / "config.json").write_bytes((folder / "config.json").read_bytes())
    save_file(change(load_file(folder / "model.safetensors")), place / "model.safetensors")
    return bundle(place)


def same(found: list[np.ndarray], expected: list[np.ndarray], tolerance: float = 1e-6) -> None:
    assert len(found) == len(expected) == LAYERS
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, atol=tolerance)


def refusal(brought: Bundle) -> Refused:
    with pytest.raises(Refused) as error:
        opened(brought)
    assert error.value.remedy.endswith(".") and error.value.where
    return error.value


def test_what_the_folder_says_of_itself(folder: Path) -> None:
    found = inspected(bundle(folder))
    assert found.refusal is None
    assert (found.opener, found.architecture, found.family) == ("huggingface", "LlamaForCausalLM", "llama")
    assert (found.layers, found.heads, found.kv_heads, found.width) == (LAYERS, HEADS, KV_HEADS, WIDTH)
    assert (found.vocabulary, found.max_positions, found.takes) == (VOCABULARY, 128, "text")
    assert found.parameters == sum(p.numel() for p in llama().parameters())
    assert found.bytes == 4 * found.parameters
    assert Inspection.from_json(found.to_json()) == found


def test_attention_is_that_of_the_model_itself(folder: Path, expected: list[np.ndarray]) -> None:
    from models.attention.metrics import importance

    model = llama()
    model.set_attn_implementation("eager")
    with torch.no_grad():
        maps = model(IDS, output_attentions=True).attentions
    same(expected, [importance(m.numpy(), causal=True) for m in maps])
    known = opened(bundle(folder))
    assert (known.layers, known.heads, known.kv_heads, known.vocabulary) == (
        LAYERS,
        HEADS,
        KV_HEADS,
        VOCABULARY,
    )
    assert known.notices == () and known.tokenizer is None and known.dtype == "F32"


def test_shards(folder: Path, tmp_path: Path, expected: list[np.ndarray]) -> None:
    llama().save_pretrained(tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    same(importances(opened(bundle(tmp_path))), expected)
    assert "safetensors shards" in inspected(bundle(tmp_path)).format


@pytest.mark.parametrize(
    "prefix", ["module.", "_orig_mod.", "_orig_mod.module.", "base_model.model.", "state_dict.module."]
)
def test_prefixes_of_wrappers_are_taken_off_and_said(
    folder: Path, tmp_path: Path, expected: list[np.ndarray], prefix: str
) -> None:
    brought = stored_as(folder, tmp_path / "x", lambda s: {prefix + k: v for k, v in s.items()})
    model = opened(brought)
    same(importances(model), expected)
    notices = [n for n in model.notices if n.kind == "prefix_stripped"]
    assert notices and all(n.count == len(load_file(folder / "model.safetensors")) for n in notices)


def test_the_base_model_alone(folder: Path, tmp_path: Path, expected: list[np.ndarray]) -> None:
    """Saved as LlamaModel: no `model.` before the names, and no head."""

    def bare(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {k.removeprefix("model."): v for k, v in state.items() if k != "lm_head.weight"}

    same(importances(opened(stored_as(folder, tmp_path / "x", bare))), expected)


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.bfloat16, 0.05), (torch.float16, 5e-3), (torch.float8_e4m3fn, 0.3)]
)
def test_smaller_types_are_read_as_what_they_hold(
    folder: Path, tmp_path: Path, dtype: torch.dtype, tolerance: float, expected: list[np.ndarray]
) -> None:
    """Exactly the numbers of a model whose weights were rounded to that type and back."""
    small = opened(stored_as(folder, tmp_path / "x", lambda s: {k: v.to(dtype) for k, v in s.items()}))
    rounded = opened(
        stored_as(folder, tmp_path / "y", lambda s: {k: v.to(dtype).float() for k, v in s.items()})
    )
    same(importances(small), importances(rounded), 1e-6)
    same(importances(small), expected, tolerance)


def test_tied_weights(tmp_path: Path) -> None:
    llama(tie_word_embeddings=True).save_pretrained(tmp_path)
    assert "lm_head.weight" not in load_file(tmp_path / "model.safetensors")
    assert opened(bundle(tmp_path)).notices == ()


def test_a_missing_projection_is_refused_by_name(folder: Path, tmp_path: Path) -> None:
    name = "model.layers.1.self_attn.k_proj.weight"
    said = refusal(stored_as(folder, tmp_path / "x", lambda s: {k: v for k, v in s.items() if k != name}))
    assert said.kind == "brought_mismatch" and "layers.1.self_attn.k_proj.weight" in said.where
    assert "1 tensors of the model are not in the file" in said.message


def test_a_small_missing_tensor_is_said(folder: Path, tmp_path: Path) -> None:
    name = "model.norm.weight"
    model = opened(stored_as(folder, tmp_path / "x", lambda s: {k: v for k, v in s.items() if k != name}))
    (notice,) = model.notices
    assert (notice.kind, notice.count) == ("missing_tensors", 1) and "norm.weight" in notice.message


def test_weights_of_another_model_are_refused(folder: Path, tmp_path: Path) -> None:
    said = refusal(stored_as(folder, tmp_path / "x", lambda s: {f"other.{k}": v for k, v in s.items()}))
    assert said.kind == "brought_mismatch" and "100 %" in said.message


def test_left_over_tensors_are_said(folder: Path, tmp_path: Path, expected: list[np.ndarray]) -> None:
    model = opened(stored_as(folder, tmp_path / "x", lambda s: s | {"extra.weight": torch.ones(3)}))
    same(importances(model), expected)
    (notice,) = model.notices
    assert (notice.kind, notice.count) == ("unexpected_tensors", 1) and "extra.weight" in notice.message


def test_another_shape_names_both(folder: Path, tmp_path: Path) -> None:
    name = "model.layers.0.self_attn.q_proj.weight"
    said = refusal(stored_as(folder, tmp_path / "x", lambda s: s | {name: torch.zeros(WIDTH, WIDTH + 1)}))
    assert said.kind == "brought_mismatch" and "q_proj" in said.where
    assert f"({WIDTH}, {WIDTH + 1})" in said.message and f"({WIDTH}, {WIDTH})" in said.message


def test_values_that_are_not_finite_are_counted(folder: Path, tmp_path: Path) -> None:
    def spoil(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        state["model.layers.0.mlp.up_proj.weight"][0, :3] = float("nan")
        state["model.embed_tokens.weight"][1, 1] = float("inf")
        return state

    said = refusal(stored_as(folder, tmp_path / "x", spoil))
    assert said.kind == "brought_not_finite"
    assert "2 tensors" in said.message and "4 in all" in said.message


def test_an_adapter_needs_its_model(folder: Path, tmp_path: Path) -> None:
    adapter = {"base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight": torch.zeros(2, WIDTH)}
    said = refusal(stored_as(folder, tmp_path / "x", lambda _: adapter))
    assert said.kind == "brought_incomplete" and "merge_and_unload" in said.remedy


def test_the_state_of_an_optimiser_is_no_model(folder: Path, tmp_path: Path) -> None:
    state = {f"state.{n}.exp_avg": torch.zeros(2) for n in range(3)}
    said = refusal(stored_as(folder, tmp_path / "x", lambda _: state))
    assert said.kind == "brought_unsupported" and "optimiser" in said.message


def test_weights_without_a_configuration_are_listed_and_asked_for_it(folder: Path) -> None:
    found = inspected(Bundle((Item("model.safetensors", folder / "model.safetensors"),)))
    assert found.refusal is not None and found.refusal["kind"] == "brought_incomplete"
    assert found.refusal["where"] == "config.json"
    assert len(found.tensors) == len(load_file(folder / "model.safetensors"))
    assert found.parameters == sum(p.numel() for p in llama().parameters())


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    llama().save_pretrained(tmp_path, max_shard_size="20KB")
    second = sorted(tmp_path.glob("*.safetensors"))[1]
    second.unlink()
    found = inspected(bundle(tmp_path))
    assert found.refusal is not None
    assert (found.refusal["kind"], found.refusal["where"]) == ("brought_incomplete", second.name)


def test_a_word_piece_vocabulary_becomes_a_tokenizer(tmp_path: Path) -> None:
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    BertModel(BertConfig(vocab_size=10, **sizes)).save_pretrained(tmp_path)  # type: ignore[arg-type]
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "in", "the", "begin", "##ning", "."]
    (tmp_path / "vocab.txt").write_text("\n".join(words))
    found = inspected(bundle(tmp_path))
    assert (found.tokenizer, found.adds_special) == ("word pieces, 10 tokens", True)
    tokenizer = opened(bundle(tmp_path)).tokenizer
    assert tokenizer is not None
    assert tokenizer.encode("In the BEGINNING.").ids == [2, 5, 6, 7, 8, 9, 3]


def test_a_window_is_said_and_respected(tmp_path: Path) -> None:
    from transformers import MistralConfig, MistralModel

    torch.manual_seed(0)
    config = MistralConfig(
        vocab_size=VOCABULARY,
        hidden_size=WIDTH,
        intermediate_size=48,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        sliding_window=4,
    )
    MistralModel(config).save_pretrained(tmp_path)
    assert inspected(bundle(tmp_path)).window == "every layer sees a window of 4 tokens"
    layers: list[LayerAttention] = []
    opened(bundle(tmp_path)).trace(
        IDS,
        on_attention=layers.append,
    )
    for layer in layers:
        assert layer.seen_by[0].tolist() == [min(4, IDS.shape[1] - k) for k in range(IDS.shape[1])]


@pytest.mark.parametrize(
    ("key", "value", "kind"),
    [
        ("num_hidden_layers", 1_000_000, "brought_too_large"),
        ("hidden_size", 1_000_000_000, "brought_too_large"),
        ("num_attention_heads", 0, "brought_damaged"),
        ("num_hidden_layers", "12", "brought_damaged"),
        ("vocab_size", -1, "brought_damaged"),
        ("num_hidden_layers", 2.5, "brought_damaged"),
        ("model_type", "my_own_family", "brought_unsupported"),
        ("model_type", "../../etc", "brought_unsupported"),
        ("model_type", None, "brought_unsupported"),
        ("quantization_config", {"quant_method": "gptq"}, "brought_unsupported"),
        ("is_encoder_decoder", True, "brought_unsupported"),
        ("text_config", {"hidden_size": 4}, "brought_unsupported"),
    ],
)
def test_configurations_that_are_refused_by_key(
    folder: Path, tmp_path: Path, key: str, value: object, kind: str
) -> None:
    brought = stored_as(folder, tmp_path / "x", lambda s: s)
    config = json.loads((folder / "config.json").read_text())
    (tmp_path / "x" / "config.json").write_text(json.dumps({**config, key: value}))
    found = inspected(brought)
    assert found.refusal is not None
    assert (found.refusal["kind"], found.refusal["where"]) == (kind, key)
    assert found.refusal["remedy"] and len(found.tensors) > 0
    assert refusal(brought).kind == kind
