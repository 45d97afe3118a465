"""Files that strangers bring to break things or by mistake: each is a few lines of code, none is stored.

A case is what was brought (name -> bytes), the kind of refusal it must meet, a word that the refusal
must say (the file, the tensor, the number) and one of its remedy.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import pickle
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save as save_safetensors

MARKER = Path("/tmp") / f"cloudchamber-marker-{os.getpid()}"  # a pickle that is obeyed creates it


@dataclass(frozen=True)
class Case:
    """What was brought and what must be said of it."""

    files: Mapping[str, Callable[[], bytes]]
    kind: str
    says: str
    remedy: str
    symlinks: Mapping[str, str] = field(default_factory=dict)


def one(name: str, make: Callable[[], bytes], kind: str, says: str, remedy: str) -> Case:
    """A single file."""
    return Case({name: make}, kind, says, remedy)


# Safetensors


def header(entries: object, data: bytes = b"") -> bytes:
    """A safetensors file with any header, an object or its raw bytes."""
    raw = entries if isinstance(entries, bytes) else json.dumps(entries).encode()
    return struct.pack("<Q", len(raw)) + raw + data


def f32(shape: list[object], low: int, high: int) -> dict[str, object]:
    """An entry of a safetensors header."""
    return {"dtype": "F32", "shape": shape, "data_offsets": [low, high]}


def good() -> bytes:
    """Weights without fault: a matrix, a scalar and an empty tensor."""
    return save_safetensors(
        {"w": torch.arange(6.0).reshape(2, 3), "s": torch.tensor(2.5), "e": torch.ones(0, 3)}
    )


def index(weight_map: Mapping[str, str]) -> Callable[[], bytes]:
    """A model.safetensors.index.json."""
    return lambda: json.dumps({"metadata": {}, "weight_map": weight_map}).encode()


# Pickles


class Marks:
    """Creates MARKER when it is unpickled."""

    def __reduce__(self) -> tuple[object, ...]:
        return (os.system, (f"touch {MARKER}",))


def bare_pickle() -> bytes:
    return pickle.dumps({"w": Marks()}, protocol=2)


def torch_file(value: object) -> bytes:
    """What torch.save writes."""
    out = io.BytesIO()
    torch.save(value, out)
    return out.getvalue()


def torch_zip(program: bytes, records: Mapping[str, bytes] | None = None) -> bytes:
    """A torch zip around any pickle."""
    members = {"model/data.pkl": program, "model/version": b"3\n", "model/byteorder": b"little"}
    members |= {f"model/data/{key}": content for key, content in (records or {}).items()}
    return zipped(members, zipfile.ZIP_STORED)


def tensor_program(numel: int = 4, shape: bytes = b"K\x04\x85", offset: bytes = b"K\x00") -> bytes:
    """A pickle of {"w": one float32 tensor} whose storage claims `numel` elements."""
    storage = b"(X\x07\x00\x00\x00storagectorch\nFloatStorage\nX\x01\x00\x00\x000X\x03\x00\x00\x00cpuJ"
    storage += struct.pack("<i", numel) + b"tQ"
    tensor = b"ctorch._utils\n_rebuild_tensor_v2\n(" + storage + offset + shape + b"K\x01\x85\x89}tR"
    return b"\x80\x02}X\x01\x00\x00\x00w" + tensor + b"s."


def legacy_tar() -> bytes:
    """What torch wrote before version 1.6: a tar of pickles."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name in ("pickle", "storages", "tensors"):
            member = tarfile.TarInfo(name)
            member.size = len(bare_pickle())
            archive.addfile(member, io.BytesIO(bare_pickle()))
    return out.getvalue()


def npy_of_objects() -> bytes:
    out = io.BytesIO()
    np.save(out, np.array([Marks()], dtype=object), allow_pickle=True)
    return out.getvalue()


# Archives


def zipped(members: Mapping[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    """A zip."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as archive:
        for name, content in members.items():
            archive.writestr(zipfile.ZipInfo(name), content, compress_type=method)
    return out.getvalue()


def folder() -> dict[str, bytes]:
    """A small folder of a model."""
    return {"m/config.json": b'{"model_type": "llama"}', "m/model.safetensors": good()}


def tarred(member: tarfile.TarInfo, content: bytes = b"") -> bytes:
    """A tar of one member."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        archive.addfile(member, io.BytesIO(content))
    return out.getvalue()


def tar_link(kind: bytes) -> bytes:
    member = tarfile.TarInfo("config.json")
    member.type, member.linkname = kind, "/etc/passwd"
    return tarred(member)


def tar_file(name: str, size: int = 2) -> bytes:
    member = tarfile.TarInfo(name)
    member.size = size
    return tarred(member, b"{" * size)


def zip_symlink() -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        info = zipfile.ZipInfo("config.json")
        info.external_attr, info.create_system = 0o120777 << 16, 3
        archive.writestr(info, "/etc/passwd")
    return out.getvalue()


def zip_flag(flag: int, method: int = 0) -> bytes:
    """A zip whose one member says that it is encrypted (0x1), or packed with some method."""
    content = bytearray(zipped({"config.json": b"{}"}, zipfile.ZIP_STORED))
    for signature, flags, methods in ((b"PK\x03\x04", 6, 8), (b"PK\x01\x02", 8, 10)):
        at = content.find(signature)
        content[at + flags] |= flag
        content[at + methods : at + methods + 2] = struct.pack("<H", method)
    return bytes(content)


def zip_bomb() -> bytes:
    """64 MB of zeros in 64 KB."""
    return zipped({"m/model.safetensors": bytes(2**26)})


def zip_of_claims(size: int) -> bytes:
    """A zip whose member claims another size than it has."""
    content = bytearray(zipped({"config.json": b"{}" * 500}, zipfile.ZIP_STORED))
    for signature, place in ((b"PK\x03\x04", 22), (b"PK\x01\x02", 24)):
        at = content.find(signature) + place
        content[at : at + 4] = struct.pack("<I", size)
    return bytes(content)


def zip_overlap() -> bytes:
    """Members that all share the bytes of the first, as in D. Fifield's "A better zip bomb" (2019)."""
    content = zlib.compress(bytes(100_000))[2:-4]
    local = struct.pack("<4s5H3I2H", b"PK\x03\x04", 20, 0, 8, 0, 0, 0, len(content), 100_000, 1, 0)
    listing = b"".join(
        struct.pack("<4s6H3I5H2I", b"PK\x01\x02", 20, 20, 0, 8, 0, 0, 0, len(content), 100_000, 1, *[0] * 6)
        + bytes([name])
        for name in range(97, 117)
    )
    end = struct.pack("<4s4H2IH", b"PK\x05\x06", 0, 0, 20, 20, len(listing), len(local) + 1 + len(content), 0)
    return local + b"a" + content + listing + end


def zip_million() -> bytes:
    """A list of a million empty members, and no more."""
    entry = struct.pack("<4s6H3I5H2I", b"PK\x01\x02", 20, 20, 0, 0, 0, 0, 0, 0, 0, 1, *[0] * 6) + b"a"
    listing = entry * 1_000_000
    first = struct.pack("<4s5H3I2H", b"PK\x03\x04", 20, 0, 0, 0, 0, 0, 0, 0, 1, 0) + b"a"
    end64 = struct.pack("<4sQ2H2I4Q", b"PK\x06\x06", 44, 45, 45, 0, 0, 10**6, 10**6, len(listing), len(first))
    locator = struct.pack("<4sIQI", b"PK\x06\x07", 0, len(first) + len(listing), 1)
    end = struct.pack("<4s4H2IH", b"PK\x05\x06", 0, 0, 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0)
    return first + listing + end64 + locator + end


def corrupt(content: bytes, at: int) -> bytes:
    """One bit flipped."""
    changed = bytearray(content)
    changed[at] ^= 0x10
    return bytes(changed)


def gzipped(content: bytes) -> bytes:
    return gzip.compress(content, mtime=0)
