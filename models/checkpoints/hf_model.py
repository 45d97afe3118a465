"""Building a transformers model from a checked configuration and checked weights, ready to be traced."""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from transformers import AutoConfig, AutoModel
from transformers.utils import logging as transformers_logging

from models.checkpoints.attention import AttentionModel
from models.checkpoints.bundle import Bundle, Item, Limits
from models.checkpoints.hf_config import HFConfig
from models.checkpoints.hf_trace import text_trace
from models.checkpoints.inspection import Notice, Tensor
from models.checkpoints.refused import Refused, shown

if TYPE_CHECKING:
    from transformers import PreTrainedModel

MISSING_SHARE = 0.01  # of the parameters; with more of them random, what is drawn is not the model
_LISTED = 5
# Prefixes that wrappers put before every name, and that nothing in a model is called.
_WRAPPERS = re.compile(
    r"^(?:module|_orig_mod|_fsdp_wrapped_module|_forward_module|base_model\.model|net|ema)\."
)
_NESTED = re.compile(r"^(?:state_dict|model_state_dict)\.")
_ADAPTER = re.compile(r"\.lora_[AB]\.|lora_embedding|\.adapter_")
_OPTIMISER = re.compile(r"(?:^|\.)(?:exp_avg|exp_avg_sq|momentum_buffer)(?:\.|$)")
# Attention does not need these; a checkpoint may lack them or have more of them.
_HEADS = re.compile(
    r"pooler|lm_head|score|classifier|cls\.|qa_outputs|predictions|embed_out|mlm|position_ids"
)
_QUERY_KEY = re.compile(r"(?:q_proj|k_proj|query|key|qkv|c_attn|Wqkv|in_proj|q_lin|k_lin)")


def build(
    config: HFConfig,
    located: Mapping[str, tuple[Item, Tensor]],
    state: Mapping[str, torch.Tensor] | None,
    limits: Limits,
    device: str,
) -> tuple[PreTrainedModel, tuple[Notice, ...]]:
    """The base model with float32 weights in eval mode, and what was repaired.

    Weights come from safetensors files (`located`) or, after consent, from `state`. Raises Refused when
    they do not belong to the configuration, are not finite, or more than 1 % of the model would stay
    random.
    """
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    transformers_logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    names = list(state if state is not None else located)
    _check_names(names)
    settings = _settings(config)
    _check_size(settings, limits)
    mapping, notices = _renamed(names)
    model, info = _load(settings, located, state, mapping)
    notices += _check_loading(model, info)
    check_finite(model)
    return model.to(device).eval(), tuple(notices)


def _settings(config: HFConfig) -> Any:
    try:
        return AutoConfig.for_model(config.model_type, **config.settings)
    except Exception as error:  # a configuration class may trip over anything in a stranger's values
        raise Refused(
            "brought_damaged",
            f"config.json does not make a configuration of {shown(config.model_type)}: {shown(error)}.",
            "Bring the config.json that was saved with the weights.",
            where="config.json",
        ) from error


def _check_size(settings: Any, limits: Limits) -> None:
    """Count parameters without allocating any."""
    try:
        with torch.device("meta"):
            empty = AutoModel.from_config(settings, attn_implementation="eager")  # type: ignore[no-untyped-call]
    except MemoryError:
        raise
    except Exception as error:
        raise Refused(
            "brought_unsupported",
            f"transformers cannot build this configuration: {shown(error)}.",
            "Check that config.json belongs to the weights; a family that needs other libraries can come "
            "as ONNX.",
            where="config.json",
        ) from error
    count = sum(p.numel() for p in empty.parameters())
    if count > limits.parameters:
        raise Refused(
            "brought_too_large",
            f"config.json describes {count:,} parameters; at most {limits.parameters:,} are built here.",
            "Use a machine with more memory, or a smaller model of the family.",
            where="config.json",
        )


def _check_names(names: list[str]) -> None:
    if any(map(_ADAPTER.search, names)) and not any(_QUERY_KEY.search(n) and "lora" not in n for n in names):
        raise Refused(
            "brought_incomplete",
            "These are the weights of an adapter (LoRA), without the model that it adapts.",
            "Merge it first: model.merge_and_unload().save_pretrained(folder).",
            where=shown(next(n for n in names if _ADAPTER.search(n))),
        )
    if names and all(map(_OPTIMISER.search, names)):
        raise Refused(
            "brought_unsupported",
            "This is the state of an optimiser, not of a model.",
            "Save the model itself: model.save_pretrained(folder).",
            where=shown(names[0]),
        )


def _renamed(names: list[str]) -> tuple[dict[str, str], list[Notice]]:
    """Patterns of prefixes to strip, and notices with how many names they concern."""
    stripped: Counter[str] = Counter()
    for name in names:
        rest = name
        while match := (_WRAPPERS.match(rest) or _NESTED.match(rest)):
            stripped[match.group()] += 1
            rest = rest[match.end() :]
    # A prefix that only some names have belongs to the model ("net." may be a module's own name).
    whole = {prefix: n for prefix, n in stripped.items() if n == len(names)}
    notices = [
        Notice("prefix_stripped", f"The prefix {prefix!r} was taken off {n:,} tensor names.", n)
        for prefix, n in whole.items()
    ]
    return dict.fromkeys(whole, ""), notices


def _strip(name: str, prefixes: Mapping[str, str]) -> str:
    changed = True
    while changed:
        changed = False
        for prefix in prefixes:
            if name.startswith(prefix):
                name, changed = name[len(prefix) :], True
    return name


def _load(
    settings: Any,
    located: Mapping[str, tuple[Item, Tensor]],
    state: Mapping[str, torch.Tensor] | None,
    prefixes: Mapping[str, str],
) -> tuple[Any, dict[str, Any]]:
    options: dict[str, Any] = {
        "config": settings,
        "dtype": torch.float32,
        "attn_implementation": "eager",
        "output_loading_info": True,
        "ignore_mismatched_sizes": True,  # they are looked at, and named, below
    }
    try:
        if state is not None or prefixes:
            model, info = _from_state(options, read_tensors(located) if state is None else state, prefixes)
            return model, info
        with tempfile.TemporaryDirectory() as folder:
            _lay_out(Path(folder), located)
            model, info = AutoModel.from_pretrained(
                folder, local_files_only=True, use_safetensors=True, trust_remote_code=False, **options
            )
            return model, info
    except (MemoryError, Refused):
        raise
    except Exception as error:  # what a loader trips over in a stranger's file
        raise Refused(
            "brought_mismatch",
            f"The weights cannot be loaded into {shown(settings.model_type)}: {shown(error)}.",
            "Bring the config.json that was saved with these weights.",
            where="config.json",
        ) from error


def _from_state(
    options: dict[str, Any], state: Mapping[str, torch.Tensor], prefixes: Mapping[str, str]
) -> Any:
    renamed = {_strip(name, prefixes): tensor for name, tensor in state.items()}
    mapping: Any = AutoModel._model_mapping
    model_class = mapping[type(options["config"])]
    model_class = model_class[0] if isinstance(model_class, (list, tuple)) else model_class
    return model_class.from_pretrained(None, state_dict=renamed, **options)


def read_tensors(located: Mapping[str, tuple[Item, Tensor]]) -> dict[str, torch.Tensor]:
    from safetensors import safe_open

    found = {}
    for item in {id(i): i for i, _ in located.values()}.values():
        with safe_open(item.path, "pt") as file:
            found.update({name: file.get_tensor(name) for name in file.keys()})  # noqa: SIM118 (no mapping)
    return found


def _lay_out(folder: Path, located: Mapping[str, tuple[Item, Tensor]]) -> None:
    """The weights as transformers expects a folder, under names of ours."""
    items = list({str(i.path): i for i, _ in located.values()}.values())
    numbers = {
        str(item.path): f"model-{n:05}-of-{len(items):05}.safetensors" for n, item in enumerate(items, 1)
    }
    for item in items:
        (folder / numbers[str(item.path)]).symlink_to(item.path.absolute())
    if len(items) == 1:
        (folder / numbers[str(items[0].path)]).rename(folder / "model.safetensors")
        return
    mapped = {name: numbers[str(item.path)] for name, (item, _) in located.items()}
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {}, "weight_map": mapped}), encoding="utf-8"
    )


def _check_loading(model: Any, info: Mapping[str, Any]) -> list[Notice]:
    """Refuse what would leave the model partly random; say what was left over."""
    for name, *shapes in sorted(info.get("mismatched_keys", ()), key=str):
        stored, wanted = (tuple(shapes[0]), tuple(shapes[1])) if len(shapes) > 1 else ((), ())
        if not _HEADS.search(name):
            raise Refused(
                "brought_mismatch",
                f"Tensor {shown(name)} has shape {stored}, but config.json describes {wanted}.",
                "Bring the config.json that was saved with these weights.",
                where=shown(name),
            )
    sizes = {name: p.numel() for name, p in model.named_parameters()}
    missing = [n for n in info.get("missing_keys", ()) if n in sizes and not _HEADS.search(n)]
    lost, total = sum(sizes[n] for n in missing), max(sum(sizes.values()), 1)
    vital = next((n for n in sorted(missing) if _QUERY_KEY.search(n)), None)
    if vital is not None or lost > MISSING_SHARE * total:
        first = vital or sorted(missing)[0]
        raise Refused(
            "brought_mismatch",
            f"{len(missing)} tensors of the model are not in the file, {100 * lost / total:.0f} % of its "
            "parameters: they would be random numbers.",
            "Bring all shards, and the config.json that was saved with these weights.",
            where=shown(first),
        )
    notices = []
    if missing:
        notices.append(
            Notice("missing_tensors", f"Not in the file, so left at random: {_some(missing)}.", len(missing))
        )
    unexpected = [n for n in info.get("unexpected_keys", ()) if not _HEADS.search(n)]
    if unexpected:
        notices.append(
            Notice(
                "unexpected_tensors",
                f"In the file, but not in the model: {_some(unexpected)}.",
                len(unexpected),
            )
        )
    return notices


def _some(names: list[str]) -> str:
    first = ", ".join(map(shown, sorted(names)[:_LISTED]))
    return first + (f" and {len(names) - _LISTED} more" if len(names) > _LISTED else "")


def check_finite(model: Any) -> None:
    # A sum is finite only if all its terms are, and takes a third of the time; it may overflow on its own.
    doubtful = [(n, p) for n, p in model.named_parameters() if not torch.isfinite(p.sum())]
    bad = {n: int((~torch.isfinite(p)).sum()) for n, p in doubtful if not torch.isfinite(p).all()}
    if bad:
        first, count = next(iter(bad.items()))
        raise Refused(
            "brought_not_finite",
            f"{len(bad)} tensors hold NaN or infinite values, {sum(bad.values()):,} in all; {shown(first)} "
            f"alone {count:,}.",
            "Every number after them would be NaN. Bring a checkpoint from before the training diverged.",
            where=shown(first),
        )


def open_hf(
    config: HFConfig,
    bundle: Bundle,
    located: Mapping[str, tuple[Item, Tensor]],
    state: Mapping[str, torch.Tensor] | None,
    limits: Limits,
    device: str,
    format: str,
    said: tuple[Notice, ...] = (),
) -> AttentionModel:
    """The model of a Hugging Face folder as the study looks at it."""
    from models.checkpoints import tokenizer_files

    model: Any
    model, notices = build(config, located, state, limits, device)
    layers, heads = count_heads(model)
    tokenizer: Any | None = None
    images: Any | None = None
    if config.takes == "image":
        from models.checkpoints.hf_images import image_input, image_trace

        patches, more = image_input(config.settings, bundle, model)
        images, look, more = image_trace(model, patches, layers, more)
    else:
        tokenizer, about = tokenizer_files.load(bundle, limits)
        look, more = text_trace(model, layers)
        more = (*about, *more)
    rows: Any = model.get_input_embeddings() if config.takes == "text" else None
    types = Counter(t.dtype for _, t in located.values()) or Counter(
        str(t.dtype) for t in (state or {}).values()
    )
    return AttentionModel(
        format=format,
        architecture=config.architecture,
        family=config.model_type,
        takes=config.takes,
        layers=layers,
        heads=heads,
        kv_heads=int(getattr(model.config, "num_key_value_heads", None) or heads),
        parameters=sum(p.numel() for p in model.parameters()),
        trace=look,
        vocabulary=int(rows.weight.shape[0]) if rows is not None and hasattr(rows, "weight") else None,
        max_positions=config.max_positions,
        tokenizer=tokenizer,
        images=images,
        dtype=types.most_common(1)[0][0] if types else "",
        notices=(*said, *config.notices, *notices, *more),
    )


def count_heads(model: Any) -> tuple[int, int]:
    """Layers and heads. Raises Refused for a model that has neither: a state-space model, a convnet."""
    layers, heads = (
        getattr(model.config, name, None) for name in ("num_hidden_layers", "num_attention_heads")
    )
    if not isinstance(layers, int) or not isinstance(heads, int):
        raise Refused(
            "brought_unsupported",
            f"{type(model).__name__} has no attention heads.",
            "Only models that compute attention can be looked at here.",
            where=type(model).__name__,
        )
    return layers, heads
