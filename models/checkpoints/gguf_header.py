"""The header of a GGUF file: its metadata and the list of tensors, read with bounds and without numpy maps.

Layout (version 2 and 3, little endian): "GGUF", version, number of tensors, number of metadata entries;
then the entries, then for each tensor name, shape, type and offset.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any, BinaryIO

from models.checkpoints.bundle import Item, Limits
from models.checkpoints.inspection import Tensor
from models.checkpoints.refused import Refused, shown

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_MAX_ENTRIES = 100_000
_MAX_STRING = 16 * 2**20
_MAX_ARRAY = 4_000_000
_KEPT_ARRAY = 64  # entries of an array that are kept; vocabularies are counted and passed over
_MAX_AXES = 8
_AGAIN = "Transfer the file again, or convert the model anew with llama.cpp."


@dataclass(frozen=True)
class GGUFHeader:
    """Metadata (arrays longer than 64 entries as their length alone), tensors, and where each begins."""

    version: int
    metadata: dict[str, Any]
    tensors: tuple[Tensor, ...]
    starts: tuple[int, ...]  # bytes from the beginning of the file


def read(item: Item, limits: Limits) -> GGUFHeader:
    """The header of a file. Raises Refused for one that breaks the format or its bounds."""
    with item.path.open("rb") as file:
        reader = _Reader(file, item)
        if reader.take(4) != b"GGUF":
            raise reader.refuse("brought_unknown", "This is no GGUF file")
        version = reader.number("I")
        if version not in (2, 3):
            raise reader.refuse("brought_unsupported", f"It is of GGUF version {version}; 2 and 3 are read")
        count, entries = reader.number("Q"), reader.number("Q")
        if entries > _MAX_ENTRIES or count > limits.tensors:
            raise reader.refuse("brought_too_large", f"It claims {entries:,} entries and {count:,} tensors")
        metadata = dict(reader.entry() for _ in range(entries))
        tensors = tuple(reader.tensor() for _ in range(count))
        start = file.tell()
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or not 1 <= alignment <= 2**16:
        raise reader.refuse("brought_damaged", "Its alignment is no small number")
    end = max((offset + tensor.bytes for offset, tensor in tensors), default=0)
    begin = -(-start // alignment) * alignment
    if begin + end > item.size:
        raise reader.refuse(
            "brought_truncated", f"The file ends at byte {item.size:,}; its tensors go on to {begin + end:,}"
        )
    starts = tuple(begin + offset for offset, _ in tensors)
    return GGUFHeader(version, metadata, tuple(tensor for _, tensor in tensors), starts)


@dataclass
class _Reader:
    file: BinaryIO
    item: Item

    def refuse(self, kind: Any, what: str) -> Refused:
        return Refused(kind, f"{what}.", _AGAIN, where=shown(self.item.base))

    def take(self, size: int) -> bytes:
        found = self.file.read(size)
        if len(found) != size:
            raise self.refuse(
                "brought_truncated", f"The file ends at byte {self.item.size:,}, within its header"
            )
        return found

    def number(self, code: str) -> Any:
        (value,) = struct.unpack("<" + code, self.take(struct.calcsize("<" + code)))
        return value

    def string(self) -> str:
        size = self.number("Q")
        if size > _MAX_STRING:
            raise self.refuse("brought_damaged", f"A text in its header claims {size:,} bytes")
        return self.take(size).decode("utf-8", errors="replace")

    def entry(self) -> tuple[str, Any]:
        return self.string(), self.value(self.number("I"))

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            return self.array()
        if kind not in _SCALARS:
            raise self.refuse("brought_damaged", f"An entry of its header has the unknown type {kind}")
        return self.number(_SCALARS[kind])

    def array(self) -> Any:
        kind, size = self.number("I"), self.number("Q")
        if kind == _ARRAY or size > _MAX_ARRAY:
            raise self.refuse("brought_damaged", f"A list in its header claims {size:,} entries")
        if kind in _SCALARS:
            width = struct.calcsize("<" + _SCALARS[kind])
            raw = self.take(size * width)
            return list(struct.unpack(f"<{size}{_SCALARS[kind]}", raw)) if size <= _KEPT_ARRAY else size
        values = [self.value(kind) for _ in range(size)]
        return values if size <= _KEPT_ARRAY else size

    def tensor(self) -> tuple[int, Tensor]:
        """Where a tensor begins, and the tensor; its shape is turned round to that of torch."""
        from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

        name, axes = self.string(), self.number("I")
        if axes > _MAX_AXES:
            raise self.refuse("brought_damaged", f"Tensor {shown(name)} claims {axes:,} axes")
        shape = tuple(reversed([self.number("Q") for _ in range(axes)]))
        kind, offset = self.number("I"), self.number("Q")
        count = 1
        for size in shape:
            count *= size
        try:
            block, width = GGML_QUANT_SIZES[GGMLQuantizationType(kind)]
        except (ValueError, KeyError) as error:
            raise self.refuse(
                "brought_damaged", f"Tensor {shown(name)} has the unknown type {kind}"
            ) from error
        if count > 2**48 or offset > 2**48:
            raise self.refuse("brought_damaged", f"Tensor {shown(name)} is larger than any file")
        bytes_ = -(-count // block) * width
        return offset, Tensor(name, shape, GGMLQuantizationType(kind).name, bytes_, self.item.name)
