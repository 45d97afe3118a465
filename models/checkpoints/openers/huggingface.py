"""A Hugging Face folder: config.json, a tokenizer, safetensors (or, after consent, PyTorch's own file)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from models.checkpoints import hf_config, safetensors_header, tokenizer_files
from models.checkpoints.bundle import Bundle, Item, Limits, Progress
from models.checkpoints.inspection import Inspection, Notice
from models.checkpoints.onnx_file import looks_like_onnx
from models.checkpoints.refused import Refused, shown

if TYPE_CHECKING:
    from models.checkpoints.attention import AttentionModel

SLUG = "huggingface"
_CONSENT = (
    "These weights are a pickle, PyTorch's own format, which can hold code. It is opened only with your "
    "consent, by a loader that builds tensors and nothing else."
)
_EXPORT = "Better: model.save_pretrained(folder, safe_serialization=True) writes safetensors."


def recognises(bundle: Bundle) -> bool:
    """A config.json that names a model_type, as transformers writes it, unless it came with ONNX alone."""
    if any(looks_like_onnx(i.path) for i in bundle.items) and not bundle.ending(".safetensors", ".bin"):
        return False  # Optimum puts config.json beside model.onnx
    item = bundle.named(hf_config.NAME)
    if item is None or item.size > Limits().config_bytes:
        return item is not None
    try:
        return "model_type" in safetensors_header.read_json(item, Limits().config_bytes) or not _is_timm(item)
    except Refused:
        return True  # a damaged config.json is ours to refuse


def _is_timm(item: Item) -> bool:
    return "architecture" in safetensors_header.read_json(item, Limits().config_bytes)


def _pickles(bundle: Bundle) -> list[Item]:
    from models.checkpoints.archive import is_torch_zip

    return [item for item in bundle.items if is_torch_zip(item)]


def inspect(bundle: Bundle, limits: Limits) -> Inspection:
    """What config.json, the tokenizer and the tensors' headers say."""
    config = hf_config.read(bundle, limits)
    tokenizer, said = tokenizer_files.load(bundle, limits) if config.takes == "text" else (None, ())
    found = safetensors_header.locate(bundle, limits)
    pickled = [] if found else _pickles(bundle)
    if not found and not pickled:
        raise Refused(
            "brought_incomplete",
            "config.json came without weights.",
            "Bring model.safetensors too, or all shards and their index.",
            where="model.safetensors",
        )
    tensors = tuple(tensor for _, tensor in found.values())
    if pickled:
        from models.checkpoints.torch_zip import listing

        tensors = listing(pickled[0], limits)
    shards = len({str(item.path) for item, _ in found.values()})
    refusal = None
    if pickled:
        refusal = {
            "kind": "brought_pickle",
            "message": _CONSENT,
            "remedy": _EXPORT,
            "where": shown(pickled[0].base),
        }
    return Inspection(
        format=_format(shards, bool(pickled)),
        opener=SLUG,
        study="attention_sinks",
        architecture=config.architecture,
        family=config.model_type,
        takes=config.takes,
        layers=config.layers,
        heads=config.heads,
        kv_heads=config.kv_heads,
        width=config.width,
        vocabulary=config.vocabulary,
        max_positions=config.max_positions,
        parameters=sum(math.prod(t.shape) for t in tensors),
        bytes=sum(t.bytes for t in tensors),
        tokenizer=tokenizer_files.describe(tokenizer),
        adds_special=tokenizer_files.adds_special(tokenizer),
        image=config.image,
        length=_patches(config),
        window=config.window,
        tensors=tensors,
        notices=(*config.notices, *said, *tokenizer_files.unfit(tokenizer, config.vocabulary)),
        refusal=refusal,
        consent=bool(pickled),
    )


def _format(shards: int, pickled: bool) -> str:
    if pickled:
        return "Hugging Face folder, PyTorch pickle"
    return (
        f"Hugging Face folder, {shards} safetensors shards"
        if shards > 1
        else "Hugging Face folder, safetensors"
    )


def _patches(config: hf_config.HFConfig) -> int | None:
    """Length of the sequence that a picture becomes, its class token included."""
    size = config.settings.get("patch_size")
    if not config.image or not isinstance(size, int) or size < 1:
        return None
    return (config.image[1] // size) * (config.image[2] // size) + 1


def open_model(
    bundle: Bundle, limits: Limits, device: str, consent: bool, progress: Progress
) -> AttentionModel:
    """The model with its weights. Raises Refused."""
    progress(0, 1, "reading the weights")
    config = hf_config.read(bundle, limits)
    located = safetensors_header.locate(bundle, limits)
    state = None
    pickled = [] if located else _pickles(bundle)
    extra: tuple[Notice, ...] = ()
    if pickled:
        if not consent:
            raise Refused("brought_pickle", _CONSENT, _EXPORT, where=shown(pickled[0].base))
        from models.checkpoints.torch_zip import load_state_dict

        state, extra = load_state_dict(pickled[0], limits)
    from models.checkpoints.hf_model import open_hf

    shards = len({str(item.path) for item, _ in located.values()})
    return open_hf(config, bundle, located, state, limits, device, _format(shards, bool(pickled)), extra)
