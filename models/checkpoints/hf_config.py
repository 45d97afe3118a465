"""config.json of a Hugging Face folder, read without transformers: what it says, whether it can be built."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from models.checkpoints.bundle import Bundle, Limits
from models.checkpoints.inspection import Notice, Takes
from models.checkpoints.refused import Refused, shown
from models.checkpoints.safetensors_header import read_json

NAME = "config.json"
# What families call the same number, the most common name first.
LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads", "encoder_attention_heads")
KV_HEADS = ("num_key_value_heads", "num_kv_heads", "multi_query_group_num")
WIDTH = ("hidden_size", "n_embd", "d_model", "dim", "model_dim", "embed_dim")
POSITIONS = ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "seq_length")
VOCABULARY = ("vocab_size",)
# Largest values that a model of today has, with room; a number beyond is a mistake or an attack.
_MOST: Mapping[str, int] = {
    **dict.fromkeys(LAYERS, 512),
    **dict.fromkeys(("num_encoder_layers", "encoder_layers", "decoder_layers", "num_hidden_groups"), 512),
    **dict.fromkeys((*HEADS, *KV_HEADS), 1_024),
    **dict.fromkeys((*WIDTH, "head_dim", "embedding_size", "word_embed_proj_dim"), 65_536),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "n_inner", "d_ff", "moe_intermediate_size"), 1_048_576),
    **dict.fromkeys(("num_local_experts", "num_experts", "n_routed_experts"), 1_024),
    **dict.fromkeys(("type_vocab_size", "num_channels", "patch_size"), 4_096),
    **dict.fromkeys(POSITIONS, 100_000_000),
    "vocab_size": 4_000_000,
    "image_size": 16_384,
}
# Keys that have nothing to do with attention and can make a configuration huge or run code.
_DROPPED = (
    *(
        "auto_map",
        "id2label",
        "label2id",
        "num_labels",
        "problem_type",
        "finetuning_task",
        "custom_pipelines",
    ),
    *("torch_dtype", "dtype", "_name_or_path", "transformers_version", "quantization_config", "prefix"),
    *("task_specific_params", "trust_remote_code", "attn_implementation", "_attn_implementation"),
    *("output_attentions", "output_hidden_states", "return_dict", "use_cache", "torchscript"),
)
# Position embeddings that begin after the padding id: two of them never stand for a place.
_OFFSET = ("roberta", "xlm-roberta", "camembert", "xlm-roberta-xl", "data2vec-text", "roberta-prelayernorm")
_OFFSET_ROWS = 2


@dataclass(frozen=True)
class HFConfig:
    """A checked configuration. `settings` are safe to build from; None where it says nothing."""

    model_type: str
    architecture: str
    settings: Mapping[str, Any]
    takes: Takes
    layers: int | None
    heads: int | None
    kv_heads: int | None
    width: int | None
    vocabulary: int | None
    max_positions: int | None
    image: tuple[int, ...]
    window: str
    notices: tuple[Notice, ...]


def read(bundle: Bundle, limits: Limits) -> HFConfig:
    """The configuration of a bundle. Raises Refused for one that cannot be built here, naming the key."""
    item = bundle.named(NAME)
    if item is None:
        raise Refused(
            "brought_incomplete",
            "config.json did not come along, and without it nobody knows what model the weights are of.",
            "Bring the whole folder as one zip: model.save_pretrained(folder), "
            "tokenizer.save_pretrained(folder).",
            where=NAME,
        )
    raw = read_json(item, limits.config_bytes)
    check_sizes(raw)
    model_type = raw.get("model_type")
    if not isinstance(model_type, str) or not model_type:
        raise _refuse("brought_unsupported", "has no model_type, so its family is not known", "model_type")
    if not known(model_type):
        why = (
            "it needs the remote code of its authors"
            if "auto_map" in raw
            else "transformers does not know it"
        )
        raise Refused(
            "brought_unsupported",
            f"The family {shown(model_type)} cannot be opened: {why}.",
            "Foreign code is never run here. Export the model to ONNX, or bring its maps as .npy.",
            where="model_type",
        )
    _check_kind(raw, model_type)
    notices = []
    if "auto_map" in raw:
        notices.append(Notice("remote_code_ignored", "The authors' own code (auto_map) is ignored.", 1))
    takes: Takes = "image" if _is_vision(raw) else "text"
    heads = number(raw, HEADS)
    positions = number(raw, POSITIONS)
    if positions is not None and model_type in _OFFSET:
        positions -= _OFFSET_ROWS
    architectures = raw.get("architectures")
    first = architectures[0] if isinstance(architectures, list) and architectures else ""
    return HFConfig(
        model_type=model_type,
        architecture=shown(first) if first else model_type,
        settings={k: v for k, v in raw.items() if k not in _DROPPED and k != "model_type"},
        takes=takes,
        layers=number(raw, LAYERS),
        heads=heads,
        kv_heads=number(raw, KV_HEADS) or heads,
        width=number(raw, WIDTH),
        vocabulary=number(raw, VOCABULARY) if takes == "text" else None,
        max_positions=positions if takes == "text" else None,
        image=_image(raw) if takes == "image" else (),
        window=window_sentence(raw),
        notices=tuple(notices),
    )


def check_sizes(raw: Mapping[str, Any], path: str = "") -> None:
    """Refuse a number that no model has, before anything is built from it; names the key."""
    for key, value in raw.items():
        place = f"{path}{key}"
        if isinstance(value, dict) and not path.count("."):
            check_sizes(value, f"{place}.")
        most = _MOST.get(key)
        if most is None or value is None:
            continue
        values = value if isinstance(value, list) else [value]
        for one in values:
            if isinstance(one, bool) or not isinstance(one, int):
                raise _refuse("brought_damaged", f"says {shown(one)}, which is no whole number", place)
            if one < 0 or (one == 0 and key in (*LAYERS, *HEADS, *WIDTH)):
                raise _refuse("brought_damaged", f"says {one}, and a model has at least one", place)
            if one > most:
                raise _refuse("brought_too_large", f"says {one:,}; at most {most:,} are built here", place)


def number(raw: Mapping[str, Any], names: tuple[str, ...]) -> int | None:
    """The first of the names that the configuration has, as a whole number."""
    for name in names:
        value = raw.get(name)
        if isinstance(value, int) and not isinstance(value, bool):
            return value
    return None


@cache
def known(model_type: str) -> bool:
    """Whether the installed transformers has this family. Looks for its folder and imports nothing."""
    found = importlib.util.find_spec("transformers")
    if found is None or not found.submodule_search_locations:
        raise ModuleNotFoundError("No module named 'transformers'", name="transformers")
    name = model_type.replace("-", "_").lower()
    if not name.isidentifier():
        return False
    models = Path(next(iter(found.submodule_search_locations))) / "models"
    for folder in (
        name,
        *(name.removesuffix(s) for s in ("_text", "_vision_model", "_vision", "_text_model")),
    ):
        if (models / folder).is_dir():
            return True
    # A family within another's folder names its type there (data2vec-text, qwen2_5_omni_text, …).
    return any((models / name.split("_")[0]).glob(f"configuration_*{name.split('_')[0]}*.py"))


def _check_kind(raw: Mapping[str, Any], model_type: str) -> None:
    if raw.get("is_encoder_decoder") is True:
        raise Refused(
            "brought_unsupported",
            f"{shown(model_type)} is an encoder with a decoder; decoders or encoders alone are traced here.",
            "Save its encoder: model.get_encoder().save_pretrained(folder), or export it to ONNX.",
            where="is_encoder_decoder",
        )
    if any(isinstance(raw.get(key), dict) for key in ("text_config", "vision_config", "audio_config")):
        raise Refused(
            "brought_unsupported",
            f"{shown(model_type)} joins several models; one of them at a time can be traced.",
            "Save the part you mean: model.language_model.save_pretrained(folder), or model.vision_model.",
            where="text_config",
        )
    quantised = raw.get("quantization_config")
    if isinstance(quantised, dict):
        method = shown(quantised.get("quant_method", "an unnamed method"))
        raise Refused(
            "brought_unsupported",
            f"The weights are quantised with {method}, which needs its own kernels.",
            "Bring the weights before quantisation (float32, float16 or bfloat16), or a GGUF file.",
            where="quantization_config",
        )


def _is_vision(raw: Mapping[str, Any]) -> bool:
    # Not by vocab_size: BEiT has one, of the visual words it was trained to guess.
    return "patch_size" in raw and "image_size" in raw and not any(name in raw for name in POSITIONS)


def _image(raw: Mapping[str, Any]) -> tuple[int, ...]:
    """(channels, height, width)."""
    size = raw.get("image_size", 224)
    height, width = size[:2] if isinstance(size, list) and len(size) > 1 else (size, size)
    channels = raw.get("num_channels", 3)
    return (int(channels), int(height), int(width))


def window_sentence(raw: Mapping[str, Any]) -> str:
    """Which layers see a window only, in words; empty when the configuration knows of none."""
    size = raw.get("sliding_window") or raw.get("local_attention") or raw.get("window_size")
    kinds = raw.get("layer_types") or raw.get("attention_layers")
    if isinstance(kinds, list) and kinds:
        local = sum(
            "sliding" in str(kind) or "local" in str(kind) or "chunked" in str(kind) for kind in kinds
        )
        return (
            f"{local} of {len(kinds)} layers see a window of {size:,} tokens"
            if local and _whole(size)
            else ""
        )
    if not _whole(size) or raw.get("use_sliding_window") is False:
        return ""
    every = raw.get("global_attn_every_n_layers") or raw.get("sliding_window_pattern")
    layers = number(raw, LAYERS)
    if isinstance(every, int) and _whole(every) and layers:
        whole = -(-layers // every)
        return f"{layers - whole} of {layers} layers see a window of {size:,} tokens"
    return f"every layer sees a window of {size:,} tokens"


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _refuse(kind: Any, what: str, key: str) -> Refused:
    return Refused(
        kind,
        f"The key {shown(key)} of config.json {what}.",
        "Bring the config.json that was saved with the weights.",
        where=shown(key),
    )
