"""Where the numbers of every tensor lie in the files, whatever the format: for what streams them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from models.checkpoints import gguf_header, safetensors_header
from models.checkpoints.bundle import Bundle, Item, Limits
from models.checkpoints.inspection import Tensor
from models.checkpoints.onnx_file import looks_like_onnx, walk
from models.checkpoints.refused import shown
from models.checkpoints.sniff import sniff


@dataclass(frozen=True)
class Place:
    """A tensor, and the byte of `path` at which it begins; None where it is not stored in one piece."""

    tensor: Tensor
    path: Path
    start: int | None


def places(bundle: Bundle, limits: Limits) -> list[Place]:
    """Every tensor of safetensors, ONNX and GGUF files; of PyTorch's own where there are none of these.

    Names are those of the inspection. Raises Refused for what a header breaks.
    """
    found = [*_safetensors(bundle, limits)]
    for item in bundle.items:
        if sniff(item) == "gguf":
            found += _gguf(item, limits)
        elif looks_like_onnx(item.path):
            found += _onnx(item, bundle, limits)
    return found or [*_pickled(bundle, limits)]


def _safetensors(bundle: Bundle, limits: Limits) -> Iterator[Place]:
    starts: dict[Path, dict[str, int]] = {}
    for name, (item, tensor) in safetensors_header.locate(bundle, limits).items():
        if item.path not in starts:
            entries, start = safetensors_header.header(item, limits)
            starts[item.path] = {key: start + _low(entry) for key, entry in entries.items()}
        yield Place(tensor, item.path, starts[item.path][name])


def _low(entry: object) -> int:
    """Where a tensor begins after the header, as its checked entry says; 0 for the metadata."""
    offsets = entry.get("data_offsets") if isinstance(entry, dict) else None
    return int(offsets[0]) if isinstance(offsets, list) else 0


def _gguf(item: Item, limits: Limits) -> Iterator[Place]:
    header = gguf_header.read(item, limits)
    for tensor, start in zip(header.tensors, header.starts, strict=True):
        yield Place(tensor, item.path, start)


def _onnx(item: Item, bundle: Bundle, limits: Limits) -> Iterator[Place]:
    for stored in filter(lambda tensor: tensor.is_weight, walk(item, bundle, limits).tensors):
        where = stored.item or item
        tensor = Tensor(shown(stored.name), tuple(stored.dims), stored.dtype, stored.bytes, where.name)
        yield Place(tensor, where.path, stored.offset)


def _pickled(bundle: Bundle, limits: Limits) -> Iterator[Place]:
    from models.checkpoints import torch_zip
    from models.checkpoints.archive import is_torch_zip

    for item in bundle.items:
        if is_torch_zip(item):
            for tensor, start in torch_zip.located(item, limits):
                yield Place(tensor, item.path, start)
