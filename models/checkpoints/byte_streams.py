"""Streams of bytes for archives that are read from front to back: plain, and gzip under limits."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import IO

from models.checkpoints.bundle import Item, Limits
from models.checkpoints.refused import Refused, shown

FREE = 2**20  # bytes that anything may unpack to at any ratio
_CHUNK = 2**16
_STREAMS = 100_000  # of one gzip file, which may be several in a row
_MAGIC = b"\x1f\x8b"
_WITH_HEADER = 31  # zlib's window argument that means: a gzip header, then a window of 32 KB

Read = Callable[[int], bytes]  # at most so many bytes; none at the end


def grows_too_much(before: int, after: int, limits: Limits) -> bool:
    """Whether `before` packed bytes that become `after` are built to exhaust the machine."""
    return after > max(FREE, limits.ratio * before)


class Gunzip:
    """Reads what a gzip file holds, never more than `limits.ratio` times its size."""

    def __init__(self, item: Item, file: IO[bytes], limits: Limits) -> None:
        self._item, self._file, self._limits = item, file, limits
        self._inflate = zlib.decompressobj(_WITH_HEADER)
        self._packed = b""
        self._given = 0
        self._streams = 1

    def __call__(self, size: int) -> bytes:
        """At most `size` bytes, fewer only before the end. Raises Refused."""
        parts: list[bytes] = []
        left = size
        while left and (part := self._some(min(left, _CHUNK))):
            parts.append(part)
            left -= len(part)
        self._given += size - left
        if grows_too_much(self._item.size, self._given, self._limits):
            raise Refused(
                "brought_unsafe",
                f"Its {self._item.size:,} bytes unpack to more than {self._limits.ratio} times as much.",
                "Bring the files without packing them.",
                where=shown(self._item.base),
            )
        return b"".join(parts)

    def _some(self, size: int) -> bytes:
        """At least one byte and at most `size`, or none at the end of the last stream."""
        while True:
            if self._inflate.eof and not self._next_stream():
                return b""
            if not self._packed:
                self._packed = self._file.read(_CHUNK)
                if not self._packed:
                    raise self._wrong("brought_truncated", "The archive ends within its data")
            try:
                out = self._inflate.decompress(self._packed, size)
            except zlib.error as error:
                raise self._wrong("brought_damaged", "The archive's packed data are damaged") from error
            self._packed = self._inflate.unused_data if self._inflate.eof else self._inflate.unconsumed_tail
            if out:
                return out

    def _next_stream(self) -> bool:
        """Go on to the stream after this one, if there is one; zeros may fill a file up to its end."""
        self._packed = self._packed.lstrip(b"\0")
        while len(self._packed) < len(_MAGIC) and (more := self._file.read(_CHUNK)):
            self._packed = (self._packed + more).lstrip(b"\0")
        if not self._packed:
            return False
        self._streams += 1
        if not self._packed.startswith(_MAGIC) or self._streams > _STREAMS:
            raise self._wrong("brought_damaged", "Bytes that are no gzip follow the archive's data")
        self._inflate = zlib.decompressobj(_WITH_HEADER)
        return True

    def _wrong(self, kind: object, what: str) -> Refused:
        again = "Pack it again with `tar -czf model.tar.gz folder`, or transfer it again."
        return Refused(kind, f"{what}.", again, where=shown(self._item.base))  # type: ignore[arg-type]
