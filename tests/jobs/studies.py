"""Real studies of the smallest kind, which behave badly in one named way each."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import tempfile
import time
from types import MappingProxyType
from typing import Literal

import pyarrow as pa

from data.errors import CloudChamberError
from data.schema import Column, TableSpec
from precompute.study import Config, Device, Profile, Recorder, Study

LETTERS = TableSpec(
    "letters",
    "The characters of a text.",
    (
        Column("position", pa.int32(), "index", "Place in the text"),
        Column("letter", pa.string(), "", "The character"),
        Column("worker", pa.int64(), "", "Process that wrote it"),
    ),
    key=("position",),
)


class LetterConfig(Config):
    """`content` is written letter by letter, `seconds` apart, unless `fault` says otherwise."""

    content: str | None = ""
    seconds: float = 0.0
    fault: Literal[
        "none", "error", "kind", "segv", "kill", "exit", "spin", "memory", "rss", "file", "print", "hang"
    ] = "none"


def run(config: LetterConfig, recorder: Recorder, device: Device) -> None:
    """Write the letters of the text, or fail in the way asked for."""
    _FAULTS.get(config.fault, lambda: None)()
    text = config.content or ""
    for position, letter in enumerate(text):
        recorder.progress(position, len(text), "Writing letters")
        time.sleep(config.seconds)
        row = {"position": [position], "letter": [letter], "worker": [os.getpid()]}
        recorder.write("letters", pa.table(row, schema=LETTERS.arrow_schema))
    recorder.progress(len(text), len(text), "Writing letters")


def _error() -> None:
    raise ValueError("secret text of the visitor")


def _kind() -> None:
    raise CloudChamberError("package_missing", "The model is not installed.", "Run `make setup`.", "/root/x")


def _spin() -> None:
    while True:
        pass


def _memory() -> None:
    bytearray(1 << 45)


def _rss() -> None:
    blocks = []
    while True:
        blocks.append(bytearray(b"x") * (1 << 24))
        time.sleep(0.01)


def _file() -> None:
    with tempfile.TemporaryFile() as handle:
        handle.write(b"x" * (1 << 25))


def _print() -> None:
    print('{"job": "somebody else\'s", "ok": true}')
    os.write(1, b"not JSON at all\n")
    sys.stdout.flush()


_FAULTS = {
    "error": _error,
    "kind": _kind,
    "segv": lambda: ctypes.string_at(0),
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "exit": lambda: os._exit(3),
    "spin": _spin,
    "memory": _memory,
    "rss": _rss,
    "file": _file,
    "print": _print,
    "hang": lambda: time.sleep(600),
}


def plan(profile: Profile) -> list[LetterConfig]:
    """One run."""
    return [LetterConfig(subject="paper", content="abc")]


LETTERS_STUDY = Study(
    slug="letters",
    title="Letters",
    question="Which letters?",
    summary="Writes letters.",
    papers=(),
    version=1,
    tables=MappingProxyType({"letters": LETTERS}),
    subjects=MappingProxyType({}),
    config=LetterConfig,
    plan=plan,
    run="tests.jobs.studies:run",
)
STUDIES = MappingProxyType({"letters": LETTERS_STUDY})
