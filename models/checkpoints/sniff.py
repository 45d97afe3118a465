"""What a file is, by its bytes. Its name is never asked."""

from __future__ import annotations

import struct
from typing import Literal

from models.checkpoints.bundle import Item
from models.checkpoints.safetensors_header import looks_like

Format = Literal[
    "empty", "pointer", "page", "safetensors", "gguf", "onnx", "npy", "zip", "tar", "gzip", "compressed",
    "pickle", "hdf5", "tflite", "json", "image", "parquet", "text", "unknown",
]  # fmt: skip

_HEAD = 4096
_MAGIC: tuple[tuple[bytes, Format], ...] = (
    (b"GGUF", "gguf"),
    (b"\x93NUMPY", "npy"),
    (b"PK\x03\x04", "zip"),
    (b"PK\x05\x06", "zip"),
    (b"\x1f\x8b", "gzip"),
    (b"BZh", "compressed"),
    (b"\xfd7zXZ\x00", "compressed"),
    (b"\x28\xb5\x2f\xfd", "compressed"),
    (b"7z\xbc\xaf\x27\x1c", "compressed"),
    (b"Rar!\x1a\x07", "compressed"),
    (b"\x89HDF\r\n\x1a\n", "hdf5"),
    (b"\x89PNG\r\n\x1a\n", "image"),
    (b"\xff\xd8\xff", "image"),
    (b"BM", "image"),
    (b"PAR1", "parquet"),
    (b"version https://git-lfs", "pointer"),
)


def sniff(item: Item) -> Format:
    """The format of a file, from its first bytes (and, for Parquet and images, no more than those)."""
    with item.path.open("rb") as file:
        head = file.read(_HEAD)
    return of_bytes(head, item.size)


def of_bytes(head: bytes, size: int) -> Format:
    """The format of a file of `size` bytes that begins with `head`."""
    if size == 0:
        return "empty"
    for magic, name in _MAGIC:
        if head.startswith(magic):
            return name
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return "image"
    if head[4:8] == b"TFL3":
        return "tflite"
    if head[257:262] == b"ustar":
        return "tar"
    if looks_like(head) and struct.unpack("<Q", head[:8])[0] >= 2:
        return "safetensors"
    if head[:1] == b"\x80" and len(head) > 1 and 2 <= head[1] <= 5:
        return "pickle"
    if _onnx(head):
        return "onnx"
    return _text(head)


def _onnx(head: bytes) -> bool:
    """A ModelProto: field 1 (ir_version) as a small varint, then a field that a ModelProto has."""
    if len(head) < 4 or head[0] != 0x08 or not 1 <= head[1] <= 127:
        return False
    # producer_name .. metadata_props: fields 2 to 8, 14, 20, 25 of the proto, by their first key byte
    return head[2] in (0x12, 0x1A, 0x22, 0x28, 0x32, 0x3A, 0x42, 0x72)


def _text(head: bytes) -> Format:
    """Text of some kind, or bytes that nothing here knows."""
    stripped = head.lstrip(b"\xef\xbb\xbf \t\r\n")
    if b"\0" in head or not stripped:
        return "unknown" if stripped else "text"
    lowered = stripped[:256].lower()
    if lowered.startswith((b"<!doctype", b"<html", b"<?xml", b"<head")):
        return "page"
    if stripped[:1] in (b"{", b"["):
        return "json"
    printable = sum(byte >= 32 or byte in (9, 10, 13) for byte in head)
    return "text" if printable >= 0.95 * len(head) else "unknown"
