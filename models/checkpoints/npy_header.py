"""Headers of .npy files, by a parser that takes nothing but a plain array; data is mapped, not read."""

from __future__ import annotations

import io
import re
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np
import numpy.typing as npt

from models.checkpoints import npz_members
from models.checkpoints.bundle import Item, Limits
from models.checkpoints.refused import Refused, shown

_MAGIC = b"\x93NUMPY"
_HEADER = 10_000  # bytes; NumPy's own limit
_AXES = 8
_DESCR = re.compile(r"'descr'\s*:\s*('([^']{0,40})'|\[|\()")
_ORDER = re.compile(r"'fortran_order'\s*:\s*(True|False)")
_SHAPE = re.compile(r"'shape'\s*:\s*\(([0-9,\sL]{0,400})\)")
_REAL = {"f2": "F16", "f4": "F32", "f8": "F64", "V2": "BF16"}
_OTHER = {"i1": "I8", "i2": "I16", "i4": "I32", "i8": "I64", "u1": "U8", "b1": "BOOL"}
_SAVE = "Save it with numpy.save('maps.npy', maps.astype(numpy.float32))."


@dataclass(frozen=True)
class Npy:
    """One array: where it lies and how to read it."""

    item: Item
    name: str  # of the array: the file's, without its ending
    descr: str
    fortran: bool
    shape: tuple[int, ...]
    offset: int
    packed: str | None = None  # the member of an .npz that has to be unpacked first; `offset` is in it

    @property
    def kind(self) -> str:
        """The type without its byte order: f4, V2, U7."""
        return self.descr.lstrip("<>|=")

    @property
    def is_real(self) -> bool:
        return self.kind in _REAL

    @property
    def is_bfloat16(self) -> bool:
        """Two bytes that NumPy does not know are what bfloat16 (ml_dtypes, JAX) is saved as."""
        return self.kind == "V2"

    @property
    def is_text(self) -> bool:
        return self.kind.startswith("U") and len(self.shape) in (1, 2)

    @property
    def dtype_name(self) -> str:
        return _REAL.get(self.kind) or _OTHER.get(self.kind) or shown(self.kind)

    @property
    def itemsize(self) -> int:
        return int(np.dtype(self.descr).itemsize)

    @property
    def bytes(self) -> int:
        count = self.itemsize
        for size in self.shape:
            count *= size
        return count

    def mapped(self) -> npt.NDArray[Any]:
        """The array on disk, read-only. Raises Refused where a packed one is damaged."""
        kind: np.dtype[Any] = np.dtype(self.descr)
        order: Literal["F", "C"] = "F" if self.fortran else "C"
        array: npt.NDArray[Any] = np.memmap(self._source, kind, "r", self.offset, self.shape, order)
        return array

    @cached_property
    def _source(self) -> Any:
        if self.packed is None:
            return self.item.path
        return npz_members.unpacked(self.item, self.packed, self.offset + self.bytes)

    def numbers(self, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """A part of `mapped` as numbers: bfloat16 is widened to float32, the rest stays."""
        if not self.is_bfloat16:
            return array
        order = ">" if self.descr.startswith(">") else "<"
        halves = np.ascontiguousarray(array).view(f"{order}u2")
        return (halves.astype(np.uint32) << 16).view(np.float32)

    def texts(self) -> list[str]:
        """The entries of a text array of one axis, or of the first row of two.

        Raises Refused for numbers that are no characters; a lone surrogate becomes U+FFFD.
        """
        array = self.mapped()
        row = np.ascontiguousarray(array if array.ndim == 1 else array[0])
        order = ">" if self.descr.startswith(">") else "<"
        codes = row.view(f"{order}u4").reshape(len(row), -1)
        if codes.size and int(codes.max()) > 0x10FFFF:
            raise Refused(
                "brought_damaged",
                "The names of the positions are no text.",
                "Leave them out.",
                shown(self.name),
            )
        names = ("".join(map(chr, each)).rstrip("\0") for each in codes.tolist())
        return [re.sub("[\ud800-\udfff]", "\ufffd", name) for name in names]


def is_npy(path: Path) -> bool:
    """By the first bytes."""
    with path.open("rb") as file:
        return file.read(len(_MAGIC)) == _MAGIC


def read_headers(item: Item, limits: Limits) -> list[Npy]:
    """The headers of the arrays in a .npy or .npz file. Raises Refused: "brought_pickle" for arrays of
    objects, "brought_truncated", "brought_damaged", "brought_unsafe", "brought_unsupported"."""
    if not npz_members.is_npz(item.path):
        with item.path.open("rb") as file:
            return [_header(item, file, item.base, item.size)]
    found = []
    for info in npz_members.members(item, limits):
        start: bytes = npz_members.with_member(item, info.filename, lambda s: s.read(_HEADER + 12))
        npy = _header(item, io.BytesIO(start), info.filename, info.file_size)
        place = npz_members.place_of(item, info)
        packed = {"packed": info.filename} if place is None else {"offset": place + npy.offset}
        found.append(replace(npy, **packed))
    return found


def _header(item: Item, file: IO[bytes], name: str, total: int) -> Npy:
    """The header at the start of `file`, an array of `total` bytes called `name`."""
    where = shown(item.name if name == item.base else f"{item.name}: {name}")
    start = file.read(12)
    if len(start) < 12 or not start.startswith(_MAGIC):
        raise Refused("brought_truncated", "The array ends within its header.", _SAVE, where)
    if start[6] not in (1, 2, 3):
        raise Refused("brought_damaged", f"Version {start[6]} of .npy does not exist.", _SAVE, where)
    offset = 10 if start[6] == 1 else 12  # version 1 has two bytes of length, 2 and 3 have four
    size = int.from_bytes(start[8:offset], "little")
    if size > _HEADER:
        raise Refused("brought_unsafe", f"The header has {size:,} bytes.", _SAVE, where)
    raw = start[offset:] + file.read(max(0, size - (12 - offset)))
    if len(raw) < size:
        raise Refused("brought_truncated", "The array ends within its header.", _SAVE, where)
    text = raw[:size].decode("utf-8" if start[6] == 3 else "latin-1", "replace")
    npy = _parsed(item, text, offset + size, name, where)
    have = total - npy.offset
    if have != npy.bytes:
        raise Refused(
            "brought_truncated" if have < npy.bytes else "brought_damaged",
            f"The shape {shown(npy.shape)} needs {shown(npy.bytes)} bytes, there are {have:,}.",
            "Copy it again, or save it again with numpy.save.",
            where,
        )
    return npy


def _parsed(item: Item, text: str, offset: int, name: str, where: str) -> Npy:
    descr, order, shape = _DESCR.search(text), _ORDER.search(text), _SHAPE.search(text)
    if descr is None or order is None or shape is None:
        raise Refused("brought_damaged", "The header is not what NumPy writes.", _SAVE, where)
    if descr.group(2) is None:
        raise Refused("brought_unsupported", "The array has named fields, not numbers.", _SAVE, where)
    kind = descr.group(2)
    if "O" in kind:
        raise Refused(
            "brought_pickle",
            "The array holds Python objects, which are stored as a pickle and are never opened.",
            "Save numbers: numpy.save('maps.npy', numpy.stack(list_of_maps).astype(numpy.float32)).",
            where,
        )
    plain = kind.lstrip("<>|=")
    if not re.fullmatch(r"[fiubcVSU]\d{1,6}|[Mm]8(\[.*\])?", plain):
        raise Refused("brought_unsupported", f"The type {shown(kind)!r} is not known.", _SAVE, where)
    sizes = [s.strip().rstrip("L") for s in shape.group(1).split(",")]
    numbers = [s for s in sizes if s]
    if len(numbers) > _AXES or not all(s.isdigit() and len(s) < 19 for s in numbers):
        raise Refused("brought_damaged", "The shape is none that an array has.", _SAVE, where)
    try:
        np.dtype(kind)
    except TypeError as error:
        raise Refused(
            "brought_unsupported", f"The type {shown(kind)!r} is not known.", _SAVE, where
        ) from error
    short = name.removesuffix(".npy")
    return Npy(item, short, kind, order.group(1) == "True", tuple(map(int, numbers)), offset)
