"""Tokenizers of models that were brought: their own if one came along, else bytes or ids."""

from __future__ import annotations

import re
from collections.abc import Sequence

from tokenizers import Tokenizer as FastTokenizer

from data.errors import CloudChamberError
from models.checkpoints.attention import AttentionModel
from precompute.runs.subjects import Tokenizer, _ByteLevel, _Fast

_ID_LIST = re.compile(r"[\s\[(]*\d+(?:[\s,;]+\d+)*[\s\])]*")
_BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")
BYTES = 256


def tokenizer_of(model: AttentionModel, content: str | None) -> tuple[Tokenizer, str]:
    """A tokenizer for `model`, and a sentence to say if the model came without one (else empty).

    Without one, `content` that consists of integers is read as ids, anything else as UTF-8 bytes.
    Raises CloudChamberError("brought_input") when the model has fewer than 256 ids and no ids came.
    """
    if model.tokenizer is not None:
        return own_tokenizer(model.tokenizer), ""
    known = model.vocabulary or 0
    if content is not None and _ID_LIST.fullmatch(content):
        return _Ids(known), "The model came without a tokenizer: the numbers are read as token ids."
    if known and known < BYTES:
        raise CloudChamberError(
            "brought_input",
            f"The model came without a tokenizer and knows {known} ids, too few to read bytes.",
            "Add its tokenizer.json, or give token ids as numbers: 3 17 4 …",
            where="tokenizer.json",
        )
    return (
        _Bytes(known or BYTES),
        "The model came without a tokenizer: the text is read byte by byte (ids 0 to 255), which only "
        "makes sense for a model of bytes. Add its tokenizer.json for any other.",
    )


def own_tokenizer(fast: FastTokenizer) -> Tokenizer:
    """A tokenizer of the `tokenizers` library as the study reads it.

    What its post-processor puts before and after a text are its start and end tokens.
    """
    fast.no_truncation()
    fast.no_padding()
    bare = fast.encode("a", add_special_tokens=False).ids
    whole = fast.encode("a", add_special_tokens=True).ids
    starts = [i for i in range(len(whole) - len(bare) + 1) if whole[i : i + len(bare)] == bare]
    start, end = (whole[: starts[0]], whole[starts[0] + len(bare) :]) if starts else ([], [])
    kinds = f"{type(fast.decoder).__name__} {fast.decoder!r} {fast.pre_tokenizer!r}"
    if "ByteLevel" in kinds:
        return _ByteLevel(fast, tuple(start), tuple(end))
    return _Pieces(fast, tuple(start), tuple(end))


class _Pieces(_Fast):
    """Word pieces as they are, but for SentencePiece's mark of a space and its tokens of one byte."""

    def _piece(self, token_id: int) -> str:
        token = super()._piece(token_id)
        if (byte := _BYTE_TOKEN.fullmatch(token)) is not None:
            return bytes([int(byte[1], 16)]).decode("utf-8", errors="backslashreplace")
        return token.replace("▁", " ")


class _Raw:
    """Ids without a vocabulary: nothing is special, nothing is put around a text."""

    def __init__(self, vocabulary: int) -> None:
        self.vocabulary = vocabulary

    def is_special(self, token_id: int) -> bool:
        return False


class _Bytes(_Raw):
    """UTF-8 bytes; a printable ASCII byte shows as its character."""

    def encode(self, text: str, special: bool) -> list[int]:
        return list(text.encode("utf-8", errors="replace"))

    def pieces(self, ids: Sequence[int]) -> list[str]:
        return [bytes([i]).decode("utf-8", errors="backslashreplace") if i < BYTES else f"<{i}>" for i in ids]


class _Ids(_Raw):
    """Integers in a text are ids, in their order."""

    def encode(self, text: str, special: bool) -> list[int]:
        # Nine digits hold every id there is; a longer number is nobody's id and is refused further on.
        return [min(int(number[:18]), 2**31 - 1) for number in re.findall(r"\d+", text)]

    def pieces(self, ids: Sequence[int]) -> list[str]:
        return [str(i) for i in ids]
