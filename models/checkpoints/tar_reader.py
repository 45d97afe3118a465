"""The members of a tar, one after the other, for archives that strangers made.

POSIX ustar with the extensions that tar, Python and git write (long names, large sizes). Python's
tarfile reads extended headers of any length into memory and can be led into endless loops by negative
or sparse sizes, so its part that is needed here is written out: every number has a bound.
Source: POSIX.1-2017, pax, "ustar Interchange Format" and "pax Header Block".
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from models.checkpoints.byte_streams import Read
from models.checkpoints.refused import Refused, shown

BLOCK = 512
_EXTENDED = 2**16  # bytes of an extended header; a name and a few numbers
_SIZE = 2**62
_AGAIN = "Pack it again with `tar -cf model.tar folder`, or transfer it again if it was cut."
_LINKS = {b"1": "a hard link", b"2": "a symbolic link", b"K": "a symbolic link"}
_DEVICES = {b"3": "a device", b"4": "a device", b"6": "a pipe"}


@dataclass(frozen=True)
class Member:
    """A plain file within a tar; its `size` bytes come next in the stream."""

    name: str
    size: int


def is_tar(head: bytes) -> bool:
    """Whether a stream that begins with these 512 bytes is a tar."""
    return head[257:262] == b"ustar"


def members(read: Read, first: bytes, where: str) -> Iterator[Member]:
    """The plain files of a tar whose first block is `first` and the rest comes from `read`.

    The caller reads exactly `padded(member.size)` bytes before it asks for the next. Folders are passed
    over. Raises Refused for links, devices, sparse files, bad checksums and a missing end.
    """
    block = first
    extended: dict[str, str] = {}
    while block.strip(b"\0"):
        if len(block) < BLOCK or not _checks(block):
            kind: Any = "brought_truncated" if len(block) < BLOCK else "brought_damaged"
            raise Refused(kind, "The archive breaks off or is damaged between two members.", _AGAIN, where)
        what, size = block[156:157], _number(block[124:136], where)
        if what in b"xgL" and what:
            text = _extended(read, size, where)
            if what == b"L":
                extended["path"] = text.rstrip(b"\0").decode("utf-8", "replace")
            elif what == b"x":
                extended |= _records(text, where)
        else:
            name = extended.get("path") or _name(block)
            if "size" in extended:
                size = _decimal(extended["size"], where)
            _refuse_special(what, name, extended)
            if what != b"5":
                yield Member(name, size)
            elif size:
                raise Refused("brought_damaged", "A folder of the archive has contents.", _AGAIN, shown(name))
            extended = {}
        block = read(BLOCK)
    if not block:
        raise Refused("brought_truncated", "The archive ends without its end mark.", _AGAIN, where)


def padded(size: int) -> int:
    """Bytes that contents of `size` bytes take in a tar."""
    return -(-size // BLOCK) * BLOCK


def _refuse_special(what: bytes, name: str, extended: dict[str, str]) -> None:
    """Only plain files and folders go on."""
    special = _LINKS.get(what) or _DEVICES.get(what)
    if special:
        raise Refused(
            "brought_unsafe",
            f"The archive holds {special}, which could lead out of its folder.",
            "Pack the files themselves: `tar --dereference -cf model.tar folder`.",
            where=shown(name),
        )
    if what not in (b"0", b"\0", b"7", b"5") or any(key.startswith("GNU.sparse") for key in extended):
        raise Refused(
            "brought_unsupported",
            "The archive holds a member that is no plain file.",
            "Pack it again without --sparse and without --incremental.",
            where=shown(name),
        )


def _name(block: bytes) -> str:
    name = block[:100].split(b"\0")[0]
    prefix = block[345:500].split(b"\0")[0] if block[257:263] == b"ustar\0" else b""
    return (prefix + b"/" + name if prefix else name).decode("utf-8", "replace")


def _checks(block: bytes) -> bool:
    """Whether the header's sum is the one it tells."""
    told = block[148:156].strip(b" \0")
    if not told or not set(told) <= set(b"01234567"):
        return False
    return int(told, 8) == sum(block[:148]) + 8 * ord(" ") + sum(block[156:])


def _number(field: bytes, where: str) -> int:
    """Octal digits, or base 256 when the first bit is set."""
    if field[0] & 0x80:
        value = int.from_bytes(bytes([field[0] & 0x7F]) + field[1:], "big")
    else:
        digits = field.strip(b" \0")
        if not set(digits) <= set(b"01234567"):
            raise Refused("brought_damaged", "A size in the archive is no number.", _AGAIN, where)
        value = int(digits or b"0", 8)
    if value > _SIZE:
        raise Refused("brought_damaged", "A size in the archive is impossible.", _AGAIN, where)
    return value


def _decimal(text: str, where: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise Refused("brought_damaged", "A size in the archive is no number.", _AGAIN, where)
    return int(text)


def _extended(read: Read, size: int, where: str) -> bytes:
    """The contents of an extended header."""
    if size > _EXTENDED:
        raise Refused("brought_unsafe", f"A name in the archive takes {size:,} bytes.", _AGAIN, where)
    content = read(padded(size))
    if len(content) < padded(size):
        raise Refused("brought_truncated", "The archive breaks off within a name.", _AGAIN, where)
    return content[:size]


def _records(content: bytes, where: str) -> dict[str, str]:
    """The keys and values of a pax header: "30 path=…\\n" over and over."""
    found: dict[str, str] = {}
    while content:
        told, _, _ = content.partition(b" ")
        length = int(told) if told.isdigit() and len(told) < 6 else 0
        record, content = content[len(told) + 1 : length], content[length:]
        key, equals, value = record.partition(b"=")
        if length <= len(told) or not equals or not value.endswith(b"\n"):
            raise Refused("brought_damaged", "An extended header of the archive is damaged.", _AGAIN, where)
        found[key.decode("utf-8", "replace")] = value[:-1].decode("utf-8", "replace")
    return found
