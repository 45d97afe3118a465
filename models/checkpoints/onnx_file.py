"""ONNX files without their weights: a bounded walk over the protobuf, which skips tensor data.

Google's parser reads a whole file into memory, and small messages grow a hundredfold in it. Here the
file is mapped, the messages that lead to tensors are walked under a budget, and what is handed to the
real parser is the same model with large tensor data left out. Field numbers: onnx/onnx.proto.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from models.checkpoints.bundle import Bundle, Item, Limits
from models.checkpoints.refused import Refused, shown

_FIELDS = 1_000_000  # walked in all; large exports have a tenth
_SLIM = 32 * 2**20  # bytes of a graph without its weights
_KEPT = 4_096  # bytes of tensor data that stay: shapes, axes, scales
_DEPTH = 12  # of messages in messages: graphs in attributes of nodes
_PROTOBUF = 2**31 - 1  # bytes; the format's own limit

_CHILDREN = MappingProxyType(
    {
        "model": {7: "graph", 25: "function"},
        "graph": {1: "node", 5: "tensor", 15: "sparse"},
        "node": {5: "attribute"},
        "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph"},
        "function": {7: "node"},
        "sparse": {1: "tensor", 2: "tensor"},
        "tensor": {13: "entry"},
        "entry": {},
    }
)
_MODEL_WIRES = {1: 0, 2: 2, 3: 2, 4: 2, 5: 0, 6: 2, 7: 2, 8: 2, 14: 2, 20: 2, 25: 2, 26: 2}
_DATA = frozenset({4, 5, 6, 7, 9, 10, 11})  # of TensorProto
_RAW = 9
DTYPES = MappingProxyType(  # TensorProto.DataType to (name, bits an entry)
    {
        1: ("F32", 32),
        2: ("U8", 8),
        3: ("I8", 8),
        4: ("U16", 16),
        5: ("I16", 16),
        6: ("I32", 32),
        7: ("I64", 64),
        8: ("STRING", 0),
        9: ("BOOL", 8),
        10: ("F16", 16),
        11: ("F64", 64),
        12: ("U32", 32),
        13: ("U64", 64),
        14: ("C64", 64),
        15: ("C128", 128),
        16: ("BF16", 16),
        17: ("F8_E4M3", 8),
        18: ("F8_E4M3FNUZ", 8),
        19: ("F8_E5M2", 8),
        20: ("F8_E5M2FNUZ", 8),
        21: ("U4", 4),
        22: ("I4", 4),
        23: ("F4", 4),
        24: ("F8_E8M0", 8),
        25: ("U2", 2),
        26: ("I2", 2),
    }
)


@dataclass
class Stored:
    """A tensor of the file: an initialiser, or the value of a Constant node (then named by its output).

    `offset` is where its raw bytes lie in `item`, None when they are written as a list of numbers.
    """

    name: str = ""
    dims: list[int] = field(default_factory=list)
    code: int = 0  # TensorProto.DataType
    data: int = 0  # bytes of data in the file itself
    offset: int | None = None
    external: dict[str, str] = field(default_factory=dict)
    elsewhere: bool = False  # data_location is EXTERNAL
    item: Item | None = None  # the file that holds the data
    constant: bool = False  # of a node, not an initialiser

    @property
    def dtype(self) -> str:
        return DTYPES.get(self.code, ("?", 0))[0]

    @property
    def elements(self) -> int:
        count = 1
        for size in self.dims:
            count *= size
        return count

    @property
    def is_weight(self) -> bool:
        """Not one of the shapes, axes and single numbers that a graph computes with."""
        if self.constant:
            return self.elements > 1 and self.dtype not in ("I64", "I32", "BOOL", "STRING")
        return self.dtype != "STRING"

    @property
    def bytes(self) -> int:
        """As stored: elements x bits, or what is there of strings."""
        bits = DTYPES.get(self.code, ("?", 0))[1]
        return (self.elements * bits + 7) // 8 if bits else self.data


@dataclass(frozen=True)
class Parts:
    """A walked file: the model without its large data, serialised, and its tensors."""

    slim: bytes
    tensors: tuple[Stored, ...]


class _Broken(Exception):
    """The bytes are no protobuf of this kind, or end early (`truncated`, in field `number`)."""

    def __init__(self, message: str, truncated: bool = False, number: int = 0) -> None:
        super().__init__(message)
        self.truncated, self.number = truncated, number


Buffer = mmap.mmap | bytes


def _varint(data: Buffer, at: int, end: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= end:
            raise _Broken("a number is cut off", truncated=True)
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value & (2**64 - 1), at
        if shift > 63:
            raise _Broken("a number has more than 64 bits")


def _fields(data: Buffer, at: int, end: int) -> Iterator[tuple[int, int, int, int, int]]:
    """(field number, wire type, start of the field, start and end of its value)."""
    while at < end:
        start = at
        tag, at = _varint(data, at, end)
        number, wire = tag >> 3, tag & 7
        if wire == 0:
            value, at = at, _varint(data, at, end)[1]
        elif wire in (1, 5):
            value, at = at, at + (8 if wire == 1 else 4)
        elif wire == 2:
            size, value = _varint(data, at, end)
            at = value + size
        else:
            raise _Broken(f"wire type {wire} is not used by ONNX")
        if number == 0 or at > end:
            raise _Broken("a field reaches past its end", number != 0, number)
        yield number, wire, start, value, at


def _mapped(path: Path) -> Buffer:
    with path.open("rb") as file:
        try:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except ValueError:  # an empty file cannot be mapped
            return b""


def looks_like_onnx(path: Path) -> bool:
    """Whether the bytes begin as a serialised ModelProto does; also when the end is missing."""
    data = _mapped(path)
    found: set[int] = set()
    try:
        for count, (number, wire, _, value, stop) in enumerate(_fields(data, 0, len(data))):
            if _MODEL_WIRES.get(number) != wire or count > 20_000:
                return False
            if number == 1 and not 1 <= _varint(data, value, stop)[0] <= 1_000:
                return False
            found.add(number)
    except _Broken as broken:
        return broken.truncated and 1 in found and bool((found | {broken.number}) & {2, 7, 8})
    return {1, 7} <= found


class _Walk:
    def __init__(self, data: Buffer, limits: Limits) -> None:
        self.data, self.limits = data, limits
        self.budget, self.size = _FIELDS, 0
        self.tensors: list[Stored] = []

    def message(self, kind: str, at: int, end: int, depth: int, into: object = None) -> bytes:
        """The message, serialised again without large data."""
        if depth > _DEPTH:
            raise Refused("brought_unsafe", f"Graphs lie more than {_DEPTH} deep in each other.", _EXPORT)
        children, out, output, found = _CHILDREN[kind], bytearray(), "", len(self.tensors)
        for number, wire, start, value, stop in _fields(self.data, at, end):
            self.budget -= 1
            if self.budget < 0:
                raise Refused("brought_too_large", f"The graph has more than {_FIELDS:,} parts.", _EXPORT)
            child = children.get(number) if wire == 2 else None
            if child is not None:
                target = self._tensor() if child == "tensor" else into
                inner = self.message(child, value, stop, depth + 1, target)
                out += _tag(number) + _number(len(inner)) + inner
                continue
            if kind == "tensor" and isinstance(into, Stored):
                self._of_tensor(into, number, wire, value, stop)
                if number in _DATA and stop - value > _KEPT:
                    continue
            elif kind == "entry" and isinstance(into, Stored):
                self._entry(into, at, end)
            elif kind == "node" and number == 2 and not output:
                output = self._text(value, stop)
            out += self.data[start:stop]
            if len(out) > _SLIM:
                raise Refused("brought_too_large", "The graph is large even without its weights.", _EXPORT)
        if kind == "node":
            for tensor in self.tensors[found:]:
                tensor.constant = True
                tensor.name = output or tensor.name
        return bytes(out)

    def _tensor(self) -> Stored:
        if len(self.tensors) >= self.limits.tensors:
            raise Refused(
                "brought_too_large", f"There are more than {self.limits.tensors:,} tensors.", _EXPORT
            )
        self.tensors.append(Stored())
        return self.tensors[-1]

    def _text(self, value: int, stop: int) -> str:
        return bytes(self.data[value : min(stop, value + 1_000)]).decode("utf-8", "replace")

    def _of_tensor(self, tensor: Stored, number: int, wire: int, value: int, stop: int) -> None:
        if number == 1:
            at = value
            while at < stop:
                size, at = _varint(self.data, at, stop)
                tensor.dims.append(size)
                if len(tensor.dims) > 64 or size >= 2**63:
                    raise _Broken("a tensor has a shape that no tensor has")
        elif number == 2 and wire == 0:
            tensor.code = _varint(self.data, value, stop)[0]
        elif number == 8 and wire == 2:
            tensor.name = self._text(value, stop)
        elif number == 14 and wire == 0:
            tensor.elsewhere = _varint(self.data, value, stop)[0] == 1
        elif number in _DATA:
            tensor.data += stop - value
            if number == _RAW:
                tensor.offset = value

    def _entry(self, tensor: Stored, at: int, end: int) -> None:
        pair = {n: self._text(v, s) for n, w, _, v, s in _fields(self.data, at, end) if w == 2}
        tensor.external[pair.get(1, "")] = pair.get(2, "")


def _tag(number: int) -> bytes:
    return _number(number << 3 | 2)


def _number(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


_EXPORT = "Export the model again with torch.onnx.export(model, inputs, 'model.onnx', opset_version=17)."


def walk(item: Item, bundle: Bundle, limits: Limits) -> Parts:
    """Read the structure of an ONNX file; every tensor's data is found and fits its shape.

    Raises Refused: "brought_truncated", "brought_damaged", "brought_unsafe", "brought_too_large", and
    "brought_incomplete" for external data that did not come along.
    """
    where = shown(item.name)
    if item.size > _PROTOBUF:
        raise Refused(
            "brought_too_large",
            f"An ONNX file holds at most 2 GB, this one has {item.size / 2**30:.1f} GB.",
            _DATA_REMEDY,
            where,
        )
    data = _mapped(item.path)
    walked = _Walk(data, limits)
    try:
        slim = walked.message("model", 0, len(data), 0)
    except _Broken as broken:
        if broken.truncated:
            raise Refused(
                "brought_truncated",
                "The ONNX file ends before its parts do.",
                "Copy or download it again and compare the size.",
                where,
            ) from broken
        raise Refused("brought_damaged", f"The ONNX file is damaged: {broken}.", _EXPORT, where) from broken
    except Refused as refused:
        refused.where = where
        raise
    for tensor in walked.tensors:
        _check(tensor, item, bundle)
    return Parts(slim, tuple(walked.tensors))


def _check(tensor: Stored, item: Item, bundle: Bundle) -> None:
    """The data of a tensor is as long as its shape says, and lies where it may."""
    where = f"{shown(item.name)}: {shown(tensor.name)}"
    if tensor.code not in DTYPES:
        raise Refused(
            "brought_damaged", f"The tensor has the unknown data type {tensor.code}.", _EXPORT, where
        )
    if tensor.elsewhere or tensor.external:
        _check_external(tensor, bundle, where)
        return
    tensor.item = item
    if tensor.dtype == "STRING":
        return
    least = tensor.bytes if tensor.offset is not None else (tensor.elements + 3) // 4
    if tensor.data < least or (tensor.offset is not None and tensor.data != tensor.bytes):
        raise Refused(
            "brought_damaged",
            f"The shape {shown(tuple(tensor.dims))} needs {shown(least)} bytes, there are {tensor.data:,}.",
            _EXPORT,
            where,
        )


_DATA_REMEDY = (
    "Put the data file beside the model: onnx.save(model, 'model.onnx', save_as_external_data=True, "
    "location='model.onnx.data'), and bring both."
)


def _check_external(tensor: Stored, bundle: Bundle, where: str) -> None:
    """External data may only be a plain file that was brought along."""
    entries = tensor.external
    unknown = set(entries) - {"location", "offset", "length", "checksum"}
    name = entries.get("location", "")
    if unknown or not name:
        what = f"the entry {shown(min(unknown))!r}" if unknown else "no location"
        raise Refused("brought_unsafe", f"The external data has {what}.", _DATA_REMEDY, where)
    if name.removeprefix("./") in ("", ".", "..") or set(name.removeprefix("./")) & set("/\\:\0"):
        raise Refused(
            "brought_unsafe",
            f"The tensor asks for the file {shown(name)!r}, which is no plain name beside the model.",
            _DATA_REMEDY,
            where,
        )
    found = bundle.named(name.removeprefix("./"))
    if found is None:
        raise Refused(
            "brought_incomplete", f"The data file {shown(name)!r} did not come along.", _DATA_REMEDY, where
        )
    if found.path.is_symlink() or not found.path.is_file():
        raise Refused(
            "brought_unsafe",
            f"The data file {shown(name)!r} is a link, and links are not followed.",
            "Copy the file itself (cp -L).",
            where,
        )
    numbers = [entries.get("offset", "0"), entries.get("length", str(tensor.bytes))]
    if not all(n.isascii() and n.isdigit() and len(n) < 20 for n in numbers):
        raise Refused("brought_damaged", "The place in the data file is no number.", _DATA_REMEDY, where)
    offset, length = map(int, numbers)
    if length != tensor.bytes or offset + length > found.size:
        raise Refused(
            "brought_truncated" if length == tensor.bytes else "brought_damaged",
            f"The tensor of shape {shown(tuple(tensor.dims))} asks for {shown(length)} bytes from byte "
            f"{offset:,} of {shown(name)!r}, which has {found.size:,}.",
            _DATA_REMEDY,
            where,
        )
    tensor.item, tensor.offset = found, offset
