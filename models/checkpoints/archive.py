"""Archives unpacked under limits: members become numbered files, their names stay text.

Zip, tar and gzip. Everything a header claims is checked before anything is written, and everything
written is counted. Never followed: links, names that lead out, archives within archives.
"""

from __future__ import annotations

import contextlib
import re
import stat
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, Literal

from models.checkpoints import tar_reader
from models.checkpoints.bundle import Item, Limits, Progress, no_progress
from models.checkpoints.byte_streams import Gunzip, Read, grows_too_much
from models.checkpoints.refused import Refused, shown
from models.checkpoints.sniff import sniff
from models.checkpoints.zip_directory import AGAIN, BROKEN, ENTRY_ROOM, entries

Kind = Literal["zip", "tar", "gzip"]

_CHUNK = 2**20
_LOCAL_HEADER = 30  # bytes before the name of a zip's member
_ENCRYPTED = 0x1 | 0x40  # flags of a zip's member
_JUNK_PARTS = ("__MACOSX",)
_JUNK = re.compile(r"\.[^.].*|readme.*|license.*|notice|thumbs\.db|desktop\.ini", re.IGNORECASE)
_UNPACK = "Unpack the inner archive first and pack its files as one zip."
_CONVERT = (
    "Load it where it was trained, then call model.save_pretrained(folder, safe_serialization=True) "
    "and bring that folder."
)
_LEGACY = {"pickle", "storages", "tensors"}  # members of what torch wrote before version 1.6


def is_torch_zip(item: Item, limits: Limits | None = None) -> bool:
    """Whether a file is what torch.save writes: a zip with a data.pkl in its one folder."""
    return any(name.rpartition("/")[2] == "data.pkl" for name in _names(item, limits or Limits()))


def is_npz(item: Item, limits: Limits | None = None) -> bool:
    """Whether a file is what numpy.savez writes: a zip of nothing but .npy files."""
    names = _names(item, limits or Limits())
    return bool(names) and all(name.endswith(".npy") for name in names)


def _names(item: Item, limits: Limits) -> list[str]:
    """The names in a zip; none when it is no zip or lists more than could be torch's or NumPy's."""
    with item.path.open("rb") as file:
        if file.read(2) != b"PK":
            return []
    try:
        return [entry.filename for entry in entries(item, limits.tensors, ENTRY_ROOM)]
    except Refused:
        return []


def unpack(
    item: Item, kind: Kind | str, folder: Path, limits: Limits, progress: Progress = no_progress
) -> list[Item]:
    """The members of an archive as files of `folder` named by number, those of upper folders first.

    What systems and repositories leave in archives (__MACOSX, hidden files, README, LICENSE) is passed
    over. `limits.total_bytes` covers all of `folder`, so several archives share it. On an error nothing
    of this archive stays. Raises Refused: brought_unsafe (too many members, too great a ratio, links,
    names that lead out), brought_too_large, brought_truncated, brought_damaged (checksums, names that
    stand twice), brought_unsupported (password, compression, archive in an archive), brought_pickle.
    """
    writer = _Writer(item, folder, limits, progress)
    try:
        if kind == "zip":
            _unzip(item, writer, limits)
        else:
            _untar(item, writer, limits, packed=kind == "gzip")
    except BaseException:
        writer.undo()
        raise
    return sorted(writer.written, key=lambda i: i.name.count("/"))  # stable: archive order within a depth


class _Writer:
    """Writes members, checks their names and counts their bytes."""

    def __init__(self, item: Item, folder: Path, limits: Limits, progress: Progress) -> None:
        self.written: list[Item] = []
        self.expected = item.size  # bytes, for the progress
        self.position: Callable[[], int] = lambda: self._done  # of them, how many are behind us
        self._item, self._folder, self._limits, self._progress = item, folder, limits, progress
        present = list(folder.iterdir())
        self._next = len(present)
        self._total = sum(path.stat().st_size for path in present)
        self._seen: set[str] = set()
        self._count = 0
        self._done = 0

    def wants(self, name: str) -> bool:
        """Whether a member is to be written. Raises Refused for a name that leads out or stands twice."""
        self._count += 1
        if self._count > self._limits.members:
            raise self.refuse(
                "brought_unsafe",
                f"The archive has more than {self._limits.members:,} members",
                "Pack only the files of the model.",
            )
        parts = name.replace("\\", "/").split("/")
        if "\0" in name or parts[0] == "" or parts[0][1:2] == ":" or ".." in parts:
            raise self.refuse(
                "brought_unsafe", "A member's name leads out of the archive", "Pack the folder itself.", name
            )
        plain = "/".join(part for part in parts if part not in ("", "."))
        if plain in self._seen:
            raise self.refuse("brought_damaged", "Two members have the same name", AGAIN, name)
        self._seen.add(plain)
        kept = [part for part in parts if part not in ("", ".")]
        return bool(kept) and not any(part in _JUNK_PARTS or _JUNK.fullmatch(part) for part in kept)

    def write(self, name: str, read: Read, size: int | None) -> None:
        """Write `size` bytes from `read` (all there are for None) as the next file."""
        plain = "/".join(p for p in name.replace("\\", "/").split("/") if p not in ("", "."))
        target = Item(plain, self._folder / f"{self._next:05}")
        self._next += 1
        self.written.append(target)
        self._room(size or 0)
        with target.path.open("xb") as file:
            left = size
            while left != 0 and (chunk := read(_CHUNK if left is None else min(left, _CHUNK))):
                self._room(len(chunk))
                self._total += len(chunk)
                self._done += len(chunk)
                left = None if left is None else left - len(chunk)
                file.write(chunk)
                self._progress(
                    min(self.position(), self.expected), self.expected, f"unpacking {shown(target.base)}"
                )
        if left:
            raise self.refuse("brought_truncated", f"It ends {left:,} bytes early", AGAIN, name)
        self._refuse_nested(target)

    def _room(self, size: int) -> None:
        if self._total + size > self._limits.total_bytes:
            raise self.refuse(
                "brought_too_large",
                f"It unpacks to more than {self._limits.total_bytes >> 20:,} MB",
                "Use `cloudchamber analyze PATH` where the files are; it has no such limit.",
            )

    def _refuse_nested(self, target: Item) -> None:
        kind = sniff(target)
        if kind in ("tar", "gzip", "compressed") or (
            kind == "zip" and not is_torch_zip(target, self._limits) and not is_npz(target, self._limits)
        ):
            raise self.refuse(
                "brought_unsupported", "The archive holds another archive", _UNPACK, target.name
            )

    def refuse(self, kind: Any, what: str, remedy: str, name: str = "") -> Refused:
        """A refusal that names the archive, and the member if it is one's fault."""
        where = f"{shown(self._item.base)}: {shown(name)}" if name else shown(self._item.base)
        return Refused(kind, f"{what}.", remedy, where=where)

    def undo(self) -> None:
        """Delete what was written."""
        for item in self.written:
            with contextlib.suppress(FileNotFoundError):  # refused before it was made
                item.path.unlink()


def _unzip(item: Item, writer: _Writer, limits: Limits) -> None:
    found = entries(item, limits.members)
    _refuse_overlap(found, writer)
    wanted = []
    for entry in found:
        wants = writer.wants(entry.orig_filename)  # zipfile cuts `filename` at a null byte
        if not entry.is_dir() and wants:
            _check(entry, writer, limits)
            wanted.append(entry)
        elif stat.S_ISLNK(entry.external_attr >> 16):
            _check(entry, writer, limits)
    total = sum(entry.file_size for entry in wanted)
    if grows_too_much(item.size, total, limits):
        raise writer.refuse(
            "brought_unsafe",
            f"Its {item.size:,} bytes claim to unpack to {total:,}",
            "Pack only the files of the model, each once.",
        )
    writer.expected = total
    with zipfile.ZipFile(item.path) as archive:
        for entry in wanted:
            with _damage(writer, entry.filename):
                stream = archive.open(entry)
            with stream:
                writer.write(entry.filename, _tamed(stream, writer, entry.filename), entry.file_size)


@contextlib.contextmanager
def _damage(writer: _Writer, name: str) -> Iterator[None]:
    """What zipfile raises on a damaged member becomes a refusal that names it."""
    try:
        yield
    except BROKEN as error:
        raise writer.refuse("brought_damaged", "A member is damaged", AGAIN, name) from error


def _tamed(stream: IO[bytes], writer: _Writer, name: str) -> Read:
    def read(size: int) -> bytes:
        with _damage(writer, name):
            return stream.read(size)

    return read


def _check(entry: zipfile.ZipInfo, writer: _Writer, limits: Limits) -> None:
    """What a zip says of a member, before it is opened."""
    name, mode = entry.filename, entry.external_attr >> 16
    if stat.S_IFMT(mode) not in (0, stat.S_IFREG, stat.S_IFDIR):
        raise writer.refuse(
            "brought_unsafe",
            "A member is a link or a device, which could lead out of its folder",
            "Pack the files themselves: `zip -r model.zip folder` without --symlinks.",
            name,
        )
    if entry.flag_bits & _ENCRYPTED:
        raise writer.refuse(
            "brought_unsupported", "The archive has a password", "Pack it again without one.", name
        )
    if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise writer.refuse(
            "brought_unsupported",
            "A member is packed with a method other than deflate",
            "Pack it again with `zip -r model.zip folder`.",
            name,
        )
    if grows_too_much(entry.compress_size, entry.file_size, limits):
        raise writer.refuse(
            "brought_unsafe",
            f"A member of {entry.compress_size:,} bytes claims to unpack to {entry.file_size:,}",
            "Bring that file without packing it.",
            name,
        )


def _refuse_overlap(found: list[zipfile.ZipInfo], writer: _Writer) -> None:
    """Members that share their bytes: the way to a bomb that no ratio of a single member shows."""
    end = 0
    for entry in sorted(found, key=lambda e: e.header_offset):
        if entry.header_offset < end:
            raise writer.refuse("brought_unsafe", "Two members share the same bytes", AGAIN, entry.filename)
        end = entry.header_offset + _LOCAL_HEADER + entry.compress_size


def _untar(item: Item, writer: _Writer, limits: Limits, *, packed: bool) -> None:
    with item.path.open("rb") as file:
        read: Read = Gunzip(item, file, limits) if packed else file.read
        writer.position = file.tell
        first = read(tar_reader.BLOCK)
        if not tar_reader.is_tar(first):
            _write_one(item, writer, first, read)
            return
        for member in tar_reader.members(read, first, shown(item.base)):
            if not writer.wants(member.name):
                _skip(read, tar_reader.padded(member.size), writer, member.name)
                continue
            if member.name in _LEGACY and _all_legacy(writer):
                raise writer.refuse(
                    "brought_pickle", "This is a pickle as torch wrote them before version 1.6", _CONVERT
                )
            writer.write(member.name, read, member.size)
            _skip(read, tar_reader.padded(member.size) - member.size, writer, member.name)


def _all_legacy(writer: _Writer) -> bool:
    return all(i.name in _LEGACY | {"sys_info"} for i in writer.written)


def _write_one(item: Item, writer: _Writer, first: bytes, read: Read) -> None:
    """What a gzip holds that is no tar: one file, called like the gzip without its ending."""
    parts = iter([first])

    def rest(size: int) -> bytes:
        return next(parts, b"") or read(size)

    name = item.base[:-3] if item.base.lower().endswith(".gz") else item.base
    if not writer.wants(name):
        name = "file"
    writer.write(name, rest, None)


def _skip(read: Read, size: int, writer: _Writer, name: str) -> None:
    """Pass over bytes of a stream that cannot be sought in."""
    while size:
        chunk = read(min(size, _CHUNK))
        if not chunk:
            raise writer.refuse("brought_truncated", "The archive ends within a member", AGAIN, name)
        size -= len(chunk)
