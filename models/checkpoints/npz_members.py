"""The arrays of an .npz, which is a zip: listed under limits, and found in it without unpacking."""

from __future__ import annotations

import struct
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from models.checkpoints.bundle import Item, Limits
from models.checkpoints.refused import Refused, shown
from models.checkpoints.zip_directory import BROKEN, entries

_LOCAL = b"PK\x03\x04"
_FREE = 2**20  # bytes a member may grow to at any ratio
_SAVE = "Save it again with numpy.savez('maps.npz', maps=maps)."


def is_npz(path: Path) -> bool:
    """Whether the first member of a zip is a .npy file by name."""
    with path.open("rb") as file:
        head = file.read(30)
        if len(head) < 30 or not head.startswith(_LOCAL):
            return False
        return file.read(min(int.from_bytes(head[26:28], "little"), 1_000)).endswith(b".npy")


def members(item: Item, limits: Limits) -> list[zipfile.ZipInfo]:
    """The members, all of them plain arrays. Raises Refused for anything that is no honest .npz."""
    where = shown(item.name)
    found = entries(item, limits.members)
    total = sum(info.file_size for info in found)
    if total > limits.total_bytes:
        raise Refused(
            "brought_unsafe",
            f"The arrays unpack to {total:,} bytes; at most {limits.total_bytes:,} are taken.",
            "Bring fewer samples, or half precision.",
            where,
        )
    names: set[str] = set()
    for info in found:
        _check(info, f"{where}: {shown(info.filename)}", limits)
        if not 0 <= info.header_offset < item.size:
            raise Refused("brought_damaged", "A member lies outside of the archive.", _SAVE, where)
        if info.filename in names:
            raise Refused("brought_damaged", "Two members have the same name.", _SAVE, where)
        names.add(info.filename)
    return found


def _check(info: zipfile.ZipInfo, where: str, limits: Limits) -> None:
    if set(info.filename) & set("/\\:") or info.filename.startswith(".."):
        raise Refused("brought_unsafe", "A member's name leads out of the archive.", _SAVE, where)
    if not info.filename.endswith(".npy"):
        raise Refused("brought_unsupported", "A member is no array, as all of an .npz are.", _SAVE, where)
    if info.flag_bits & 0x1:
        raise Refused("brought_unsupported", "The archive has a password.", _SAVE, where)
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise Refused("brought_unsupported", "The archive is packed in an unusual way.", _SAVE, where)
    if info.file_size > max(_FREE, limits.ratio * info.compress_size):
        raise Refused(
            "brought_unsafe",
            f"A member grows from {info.compress_size:,} to {info.file_size:,} bytes.",
            _SAVE,
            where,
        )


def with_member(item: Item, name: str, read: Callable[[IO[bytes]], Any]) -> Any:
    """What `read` makes of a member's stream; Refused where the archive is damaged there."""
    try:
        with zipfile.ZipFile(item.path) as archive, archive.open(name) as stream:
            return read(stream)
    except BROKEN as error:
        raise Refused(
            "brought_damaged",
            "A member of the archive is damaged.",
            _SAVE,
            f"{shown(item.name)}: {shown(name)}",
        ) from error


def place_of(item: Item, info: zipfile.ZipInfo) -> int | None:
    """Where the bytes of a member lie in the archive if they are stored as they are, else None."""
    if info.compress_type != zipfile.ZIP_STORED:
        return None
    with item.path.open("rb") as file:
        file.seek(info.header_offset)
        head = file.read(30)
    name, extra = struct.unpack("<HH", head[26:30]) if len(head) == 30 else (0, 0)
    start = info.header_offset + 30 + name + extra
    if not head.startswith(_LOCAL) or start + info.file_size > item.size:
        raise Refused(
            "brought_truncated",
            "The archive ends within a member.",
            _SAVE,
            shown(f"{item.name}: {info.filename}"),
        )
    return int(start)


def unpacked(item: Item, name: str, size: int) -> IO[bytes]:
    """A member in a temporary file without a name, which is gone when it is closed or the process ends."""

    def copy(stream: IO[bytes]) -> IO[bytes]:
        file = tempfile.TemporaryFile()  # noqa: SIM115  (it is handed out)
        left = size
        while left and (chunk := stream.read(min(left, 2**20))):
            file.write(chunk)
            left -= len(chunk)
        if left or stream.read(1):
            raise zipfile.BadZipFile("a member is not as long as the list says")
        file.flush()
        return file

    found: IO[bytes] = with_member(item, name, copy)
    return found
