"""The list of members at the end of a zip, measured before it is parsed.

Python's zipfile builds an object for every entry of the list before it says how many there are; a few
megabytes can list a million. So the record at the end of the file is read first, the same way as
zipfile reads it, and only a list of bearable size goes on.
"""

from __future__ import annotations

import struct
import zipfile
import zlib

from models.checkpoints.bundle import Item
from models.checkpoints.refused import Refused, shown

BROKEN = (
    zipfile.BadZipFile,
    zlib.error,
    EOFError,
    struct.error,
    NotImplementedError,
    RuntimeError,
    ValueError,
)
AGAIN = "Pack it again with `zip -r model.zip folder`, or transfer it again if it was cut."

_END, _END64, _LOCATOR = b"PK\x05\x06", b"PK\x06\x06", b"PK\x06\x07"
_END_BYTES, _END64_BYTES, _LOCATOR_BYTES = 22, 56, 20
_COMMENT = 2**16  # bytes that may follow the end record
ENTRY_ROOM = 256  # of the list, for an entry of a library that names its members 0, 1, 2, …


def entries(item: Item, most: int, room: int = 1_024) -> list[zipfile.ZipInfo]:
    """The entries of a zip that lists at most `most` of them, of `room` bytes on average.

    Raises Refused: brought_unsafe for more, brought_truncated and brought_damaged for no such list.
    """
    count, listing = measured(item)
    if count > most or listing > most * room:
        many = f"{count:,} members" if count > most else f"members in {listing:,} bytes"
        raise Refused(
            "brought_unsafe",
            f"The archive lists {many}; at most {most:,} are taken.",
            "Pack only the files of the model.",
            where=shown(item.base),
        )
    try:
        with zipfile.ZipFile(item.path) as archive:
            found = archive.infolist()
    except BROKEN as error:
        raise Refused(
            "brought_damaged", "The archive's list of members is damaged.", AGAIN, where=shown(item.base)
        ) from error
    if len(found) > most:  # the record at the end said less
        raise Refused(
            "brought_unsafe",
            f"The archive lists {len(found):,} members but says {count:,}.",
            AGAIN,
            where=shown(item.base),
        )
    return found


def measured(item: Item) -> tuple[int, int]:
    """How many members a zip says it has, and the bytes of their list. Raises Refused without a list."""
    size = item.size
    with item.path.open("rb") as file:
        start = max(0, size - _COMMENT - _END_BYTES)
        file.seek(start)
        tail = file.read(_COMMENT + _END_BYTES)
        at = len(tail) - _END_BYTES
        plain = at >= 0 and tail[at:].startswith(_END) and tail[-2:] == b"\0\0"
        if not plain:
            at = tail.rfind(_END)
        if at < 0 or len(tail) < at + _END_BYTES:
            raise Refused(
                "brought_truncated",
                f"The archive ends at byte {size:,}, before its list of members.",
                "Transfer it again: the end is missing.",
                where=shown(item.base),
            )
        count, listing = struct.unpack("<HI", tail[at + 10 : at + 16])
        place = start + at - _LOCATOR_BYTES
        if place >= _END64_BYTES:
            file.seek(place - _END64_BYTES)
            record = file.read(_END64_BYTES + _LOCATOR_BYTES)
            if record.startswith(_END64) and record[_END64_BYTES:].startswith(_LOCATOR):
                count, listing = struct.unpack("<QQ", record[32:48])
    return int(count), int(listing)
