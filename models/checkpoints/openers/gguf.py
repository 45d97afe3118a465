"""A GGUF file, as llama.cpp writes it: metadata, tokenizer and (mostly quantised) tensors in one."""

from __future__ import annotations

import math
import tempfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from models.checkpoints import gguf_header
from models.checkpoints.bundle import Bundle, Item, Limits, Progress
from models.checkpoints.gguf_header import GGUFHeader
from models.checkpoints.inspection import Inspection
from models.checkpoints.refused import Refused, shown
from models.checkpoints.sniff import sniff

if TYPE_CHECKING:
    from models.checkpoints.attention import AttentionModel

SLUG = "gguf"
_FILE = "model.gguf"  # the name that transformers is given


def recognises(bundle: Bundle) -> bool:
    """Any file that begins as GGUF does."""
    return any(sniff(item) == "gguf" for item in bundle.items)


def _only(bundle: Bundle) -> Item:
    found = [item for item in bundle.items if sniff(item) == "gguf"]
    if len(found) > 1:
        raise Refused(
            "brought_unsupported",
            f"{len(found)} GGUF files came at once; a model split in several is not put together here.",
            "Merge them first: llama-gguf-split --merge FIRST OUT.",
            where=shown(found[0].base),
        )
    return found[0]


def inspect(bundle: Bundle, limits: Limits) -> Inspection:
    """What the metadata and the list of tensors say."""
    item = _only(bundle)
    header = gguf_header.read(item, limits)
    family = _family(header, item)
    vocabulary = _length(header, "tokenizer.ggml.tokens")
    types = Counter(t.dtype for t in header.tensors)
    return Inspection(
        format=f"GGUF version {header.version}, mostly {types.most_common(1)[0][0] if types else 'empty'}",
        opener=SLUG,
        study="attention_sinks",
        architecture=shown(header.metadata.get("general.name", family)),
        family=family,
        takes="text",
        layers=_whole(header, family, "block_count"),
        heads=_whole(header, family, "attention.head_count"),
        kv_heads=_whole(header, family, "attention.head_count_kv")
        or _whole(header, family, "attention.head_count"),
        width=_whole(header, family, "embedding_length"),
        vocabulary=vocabulary,
        max_positions=_whole(header, family, "context_length"),
        parameters=sum(math.prod(t.shape) for t in header.tensors),
        bytes=sum(t.bytes for t in header.tensors),
        tokenizer=f"{shown(header.metadata.get('tokenizer.ggml.model', 'unnamed'))}, {vocabulary:,} tokens"
        if vocabulary
        else "",
        adds_special=header.metadata.get("tokenizer.ggml.add_bos_token") is True,
        tensors=header.tensors,
    )


def _family(header: GGUFHeader, item: Item) -> str:
    found = header.metadata.get("general.architecture")
    if not isinstance(found, str) or not found:
        raise Refused(
            "brought_damaged",
            "Its metadata do not say what architecture it is (general.architecture).",
            "Convert the model anew with llama.cpp.",
            where=shown(item.base),
        )
    return shown(found)


def _whole(header: GGUFHeader, family: str, key: str) -> int | None:
    value = header.metadata.get(f"{family}.{key}")
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _length(header: GGUFHeader, key: str) -> int | None:
    value = header.metadata.get(key)
    return len(value) if isinstance(value, list) else value if isinstance(value, int) else None


def open_model(
    bundle: Bundle, limits: Limits, device: str, consent: bool, progress: Progress
) -> AttentionModel:
    """The model, de-quantised to float32 by transformers. Raises Refused."""
    progress(0, 1, "de-quantising the weights")
    item = _only(bundle)
    header = gguf_header.read(item, limits)
    family = _family(header, item)
    count = sum(math.prod(t.shape) for t in header.tensors)
    if count > limits.parameters:
        raise Refused(
            "brought_too_large",
            f"The model has {count:,} parameters; at most {limits.parameters:,} are built here.",
            "Use a machine with more memory, or a smaller model of the family.",
            where=shown(item.base),
        )
    from transformers.modeling_gguf_pytorch_utils import GGUF_SUPPORTED_ARCHITECTURES

    if family not in GGUF_SUPPORTED_ARCHITECTURES:
        raise Refused(
            "brought_unsupported",
            f"transformers cannot de-quantise GGUF models of the family {family}.",
            "Bring the original weights as a Hugging Face folder.",
            where="general.architecture",
        )
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / _FILE).symlink_to(item.path.absolute())
        model, tokenizer = _load(folder, item)
    return _described(model, tokenizer, header, family, device)


def _load(folder: str, item: Item) -> tuple[Any, Any | None]:
    import torch
    from transformers import AutoModel, AutoTokenizer
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    where: dict[str, Any] = {"gguf_file": _FILE, "local_files_only": True}
    try:
        model = AutoModel.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager", **where)
    except MemoryError:
        raise
    except Exception as error:  # whatever a reader trips over in a stranger's file
        raise Refused(
            "brought_damaged",
            f"The file cannot be de-quantised: {shown(error)}.",
            "Convert the model anew with llama.cpp, or bring the original weights.",
            where=shown(item.base),
        ) from error
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, **where).backend_tokenizer
    except (ValueError, KeyError, OSError, AttributeError, TypeError, ImportError):
        tokenizer = None  # bytes or ids are read then, and that is said
    return model, tokenizer


def _described(
    model: Any, tokenizer: Any | None, header: GGUFHeader, family: str, device: str
) -> AttentionModel:
    from models.checkpoints.attention import AttentionModel
    from models.checkpoints.hf_model import check_finite, count_heads
    from models.checkpoints.hf_trace import text_trace

    check_finite(model)
    model = model.to(device).eval()
    layers, heads = count_heads(model)
    look, notices = text_trace(model, layers)
    types = Counter(t.dtype for t in header.tensors)
    return AttentionModel(
        format=f"GGUF version {header.version}",
        architecture=type(model).__name__,
        family=family,
        takes="text",
        layers=layers,
        heads=heads,
        kv_heads=int(getattr(model.config, "num_key_value_heads", None) or heads),
        parameters=sum(p.numel() for p in model.parameters()),
        trace=look,
        vocabulary=int(model.get_input_embeddings().weight.shape[0]),
        max_positions=_whole(header, family, "context_length"),
        tokenizer=tokenizer,
        dtype=types.most_common(1)[0][0] if types else "",
        notices=notices,
    )
