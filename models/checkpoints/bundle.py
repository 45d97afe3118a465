"""What was brought, as a handful of named files. Names are a stranger's words; paths are ours."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

Progress = Callable[[int, int, str], None]  # done, total, stage; cancel by raising


def no_progress(done: int, total: int, stage: str) -> None:
    """For callers that do not watch."""


@dataclass(frozen=True)
class Item:
    """One file. `name` is what it was called where it came from (its last part tells roles, such as
    config.json, and stands in messages; it never becomes a path). `path` is where its bytes lie."""

    name: str
    path: Path

    @property
    def base(self) -> str:
        """The last part of the name."""
        return self.name.replace("\\", "/").rstrip("/").rpartition("/")[2]

    @property
    def size(self) -> int:
        """Bytes."""
        return self.path.stat().st_size


@dataclass(frozen=True)
class Limits:
    """What an intake may use. The page's; the command line raises `file_bytes` and `total_bytes`."""

    file_bytes: int = 2**30  # of one file as it comes
    total_bytes: int = 4 * 2**30  # of everything unpacked
    members: int = 2_000  # of an archive
    ratio: int = 200  # unpacked over packed bytes of a member
    header_bytes: int = 100_000_000  # of a safetensors header; the format's own limit
    tensors: int = 200_000
    config_bytes: int = 4 * 2**20  # of a JSON file that is parsed whole
    tokenizer_bytes: int = 64 * 2**20
    parameters: int = 4_000_000_000  # of a model that is built


@dataclass(frozen=True)
class Bundle:
    """Everything that was brought together, archives unpacked."""

    items: tuple[Item, ...]

    def named(self, *bases: str) -> Item | None:
        """The file with one of these last parts, the first base that is found winning; None if none is."""
        for base in bases:
            for item in self.items:
                if item.base == base:
                    return item
        return None

    def ending(self, *suffixes: str) -> Sequence[Item]:
        """The files whose last part ends so, by name."""
        return sorted((i for i in self.items if i.base.lower().endswith(suffixes)), key=lambda i: i.name)
