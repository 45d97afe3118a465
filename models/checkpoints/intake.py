"""The door: from files as they were brought to an inspection, and to an opened model."""

from __future__ import annotations

import importlib
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from models.checkpoints import safetensors_header
from models.checkpoints.bundle import Bundle, Item, Limits, Progress, no_progress
from models.checkpoints.inspection import Inspection, Statistics
from models.checkpoints.refused import Refused, shown
from models.checkpoints.registry import OPENERS
from models.checkpoints.sniff import Format, sniff

if TYPE_CHECKING:
    from models.checkpoints.attention import AttentionModel

_ARCHIVES = ("zip", "tar", "gzip")
_WANTED = "Bring a Hugging Face folder as zip, a GGUF, an ONNX graph, or attention maps as .npy or .npz."
_EXPORT = (
    "Convert it: load it where it was trained, then model.save_pretrained(folder, safe_serialization=True)."
)
# What is understood but not taken, in the words of a refusal: (kind, what it is, what to do).
_NOT_TAKEN: dict[str, tuple[Any, str, str]] = {
    "empty": ("brought_empty", "The file is empty", "Transfer it again."),
    "pointer": (
        "brought_pointer",
        "This is a Git LFS pointer of a few lines, not the file that it stands for",
        "Run `git lfs pull` in the repository, then bring the file.",
    ),
    "page": (
        "brought_pointer",
        "This is a web page, most likely an error or login page that was saved in place of the file",
        "Download the file again.",
    ),
    "compressed": (
        "brought_unsupported",
        "This is an archive of a kind that is not opened here",
        "Pack the folder as zip or tar.gz.",
    ),
    "pickle": (
        "brought_pickle",
        "This is a pickle, which runs code when it is opened; pickles of this kind are never opened here",
        _EXPORT,
    ),
    "hdf5": ("brought_unsupported", "This is an HDF5 file, as Keras writes it", "Export the model to ONNX."),
    "tflite": ("brought_unsupported", "This is a TensorFlow Lite model", "Export the model to ONNX."),
    "image": (
        "brought_unsupported",
        "This is a picture, not a model",
        "Choose it as what the model looks at.",
    ),
    "parquet": ("brought_unsupported", "This is a Parquet table; no study here takes one", _WANTED),
    "json": ("brought_unsupported", "This is JSON and no model", _WANTED),
    "text": ("brought_unsupported", "This is text or a table of text, and no model", _WANTED),
    "unknown": ("brought_unknown", "This is no file that is known here", _WANTED),
}


def unpack(items: Sequence[Item], folder: Path, limits: Limits, progress: Progress = no_progress) -> Bundle:
    """The files, archives replaced by their members, which are written into `folder` under numbers.

    Raises Refused for what is too large, unsafe or damaged.
    """
    found: list[Item] = []
    with _tame():
        for item in items:
            if item.size > limits.file_bytes:
                raise Refused(
                    "brought_too_large",
                    f"The file has {item.size >> 20:,} MB; at most {limits.file_bytes >> 20:,} are taken.",
                    "Use `cloudchamber analyze PATH` where the file is; it has no such limit.",
                    where=shown(item.base),
                )
            found += _members(item, folder, limits, progress)
    return Bundle(tuple(found))


def _members(item: Item, folder: Path, limits: Limits, progress: Progress) -> list[Item]:
    kind = sniff(item)
    if kind not in _ARCHIVES:
        return [item]
    from models.checkpoints import archive

    if kind == "zip" and (archive.is_torch_zip(item) or archive.is_npz(item)):
        return [item]
    return archive.unpack(item, kind, folder, limits, progress)


def inspect(bundle: Bundle, limits: Limits) -> Inspection:
    """What it is, from headers alone: the first opener that recognises it says.

    Where none does, or it refuses, what can be said all the same stands beside the reason.
    """
    files = tuple((item.name, item.size) for item in bundle.items)
    with _tame():
        try:
            found = _inspect(bundle, limits)
        except Refused as refused:
            found = _refused(bundle, limits, refused)
    return _with_files(found, files)


def _inspect(bundle: Bundle, limits: Limits) -> Inspection:
    """By an opener, or as a bundle that none takes. Raises Refused."""
    _check_parts(bundle)
    for opener in OPENERS.values():
        module = importlib.import_module(opener.module)
        if module.recognises(bundle):
            found: Inspection = module.inspect(bundle, limits)
            return found
    raise _unrecognised(bundle, limits)


def _check_parts(bundle: Bundle) -> None:
    """Pointers and error pages in place of weights, whatever the rest may be."""
    if not bundle.items:
        raise Refused("brought_empty", "The archive holds no file.", "Pack the model's folder again.")
    for item in bundle.items:
        kind = sniff(item)
        weights = item.base.lower().endswith(
            (".safetensors", ".bin", ".gguf", ".onnx", ".pt", ".pth", ".npy", ".npz")
        )
        if kind == "pointer" or (kind in ("empty", "page") and (weights or len(bundle.items) == 1)):
            raise _not_taken(item, kind)


def _unrecognised(bundle: Bundle, limits: Limits) -> Refused:
    """Why no opener takes it, by its largest file, which is what was meant. Raises what its header breaks."""
    largest = max(bundle.items, key=lambda item: item.size)
    kind = sniff(largest)
    if kind == "safetensors":
        safetensors_header.locate(bundle, limits)
        return Refused(
            "brought_incomplete",
            "These are weights without their config.json, so nobody knows what model they are of.",
            "Bring config.json and tokenizer.json too, all at once or as one zip.",
            where="config.json",
        )
    if kind == "zip":
        from models.checkpoints import archive

        if archive.is_torch_zip(largest):
            from models.checkpoints import torch_zip

            torch_zip.listing(largest, limits)  # settings or an optimizer's state ask for no config.json
            return Refused(
                "brought_incomplete",
                "This is a PyTorch pickle without a config.json, so nobody knows what model it is of.",
                f"Bring config.json too. {_EXPORT}",
                where=shown(largest.base),
            )
        return Refused(
            "brought_unsupported",
            "These are arrays, but no attention maps; no study here takes them.",
            "Maps have the shape (layers, heads, T, T) or (samples, layers, heads, T, T).",
            where=shown(largest.base),
        )
    return _not_taken(largest, kind)


def _not_taken(item: Item, kind: Format) -> Refused:
    word, what, remedy = _NOT_TAKEN.get(kind, _NOT_TAKEN["unknown"])
    return Refused(word, f"{what}.", remedy, where=shown(item.base))


def _refused(bundle: Bundle, limits: Limits, refused: Refused) -> Inspection:
    """The reason, and the tensors where their header is whole."""
    try:
        tensors = safetensors_header.tensors(bundle, limits)
    except Refused:
        tensors = ()
    return Inspection(
        format="Safetensors without a configuration" if tensors else "Not opened",
        parameters=sum(math.prod(t.shape) for t in tensors),
        bytes=sum(t.bytes for t in tensors),
        tensors=tensors,
        refusal={
            "kind": refused.kind,
            "message": refused.message,
            "remedy": refused.remedy,
            "where": refused.where,
        },
    )


def _with_files(found: Inspection, files: tuple[tuple[str, int], ...]) -> Inspection:
    from dataclasses import replace

    return replace(found, files=files)


def statistics(bundle: Bundle, limits: Limits, progress: Progress = no_progress) -> list[Statistics]:
    """Values of every tensor of the bundle, streamed. Raises Refused."""
    from models.checkpoints import tensor_statistics

    with _tame():
        return tensor_statistics.of_bundle(bundle, limits, progress)


def open_model(
    bundle: Bundle, limits: Limits, device: str, consent: bool = False, progress: Progress = no_progress
) -> AttentionModel:
    """The model, ready to be traced, by the opener that recognises it. Raises Refused."""
    with _tame():
        _check_parts(bundle)
        for opener in OPENERS.values():
            module = importlib.import_module(opener.module)
            if module.recognises(bundle):
                model: AttentionModel = module.open_model(bundle, limits, device, consent, progress)
                return model
        raise _unrecognised(bundle, limits)


@contextmanager
def _tame() -> Iterator[None]:
    """The one place where whatever a library raises on a stranger's bytes becomes a refusal.

    Memory, missing libraries and full disks are not the file's fault and go on.
    """
    try:
        yield
    except (Refused, MemoryError, ImportError, OSError):
        raise
    except Exception as error:
        raise Refused(
            "brought_damaged",
            f"The file breaks the rules of its format ({type(error).__name__}: {shown(error)}).",
            f"Save or transfer it again. {_WANTED}",
        ) from error
