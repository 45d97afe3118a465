"""What can be said of a file before anything is computed: plain data that travels as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Takes = Literal["text", "image", "nothing"]  # what an analysis of it needs from the visitor


@dataclass(frozen=True)
class Tensor:
    """One stored tensor, from a header. `dtype` as its format names it: F32, BF16, F8_E4M3, Q4_K, …"""

    name: str
    shape: tuple[int, ...]
    dtype: str
    bytes: int
    file: str = ""  # the visitor's name of the file that holds it

    @property
    def elements(self) -> int:
        """Number of entries; 1 for a scalar."""
        count = 1
        for size in self.shape:
            count *= size
        return count


@dataclass(frozen=True)
class Notice:
    """A silent repair or a warning, with how many things it concerns."""

    kind: str
    message: str
    count: int = 1


@dataclass(frozen=True)
class Inspection:
    """What was found, headers only. Fields that a format does not tell are None or empty.

    `refusal` is the reason why no analysis can start ({kind, message, where, remedy}), or None; what
    else was found is still worth showing. `consent` says that it can start once the visitor has
    allowed a restricted unpickling.
    """

    format: str  # for people: "Hugging Face folder, 2 safetensors shards", "ONNX, opset 17"
    opener: str = ""  # slug of the opener that takes it
    study: str = ""  # slug of the study that analyses it
    architecture: str = ""  # class name as stored: "LlamaForCausalLM", or what the tensors look like
    family: str = ""  # transformers' model_type, "timm ViT", …
    takes: Takes = "text"
    layers: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    width: int | None = None
    vocabulary: int | None = None
    max_positions: int | None = None
    samples: int | None = None  # that stored maps hold
    length: int | None = None  # tokens of a sequence, where it is fixed: stored maps, an image's patches
    parameters: int = 0
    bytes: int = 0  # of all tensors as stored
    tokenizer: str = ""  # "byte-level BPE, 49,152 tokens"; empty without one
    adds_special: bool = False  # the tokenizer puts its own tokens around a text
    image: tuple[int, ...] = ()  # (channels, height, width) an image model takes
    window: str = ""  # "22 of 26 layers see the last 512 tokens"; empty when all is seen
    files: tuple[tuple[str, int], ...] = ()  # (the visitor's name, bytes)
    tensors: tuple[Tensor, ...] = ()
    notices: tuple[Notice, ...] = ()
    refusal: Mapping[str, str] | None = None
    consent: bool = False
    facts: Mapping[str, str] = field(default_factory=dict)  # more rows for the card: {"Opset": "17"}

    def to_json(self) -> str:
        """One JSON object."""
        return json.dumps(asdict(self), ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> Inspection:
        """Back from `to_json`. Raises ValueError for anything else: the text comes from the worker."""
        try:
            raw: dict[str, Any] = json.loads(text)
            raw["tensors"] = tuple(
                Tensor(
                    str(t["name"]),
                    tuple(map(int, t["shape"])),
                    str(t["dtype"]),
                    int(t["bytes"]),
                    str(t["file"]),
                )
                for t in raw["tensors"]
            )
            raw["notices"] = tuple(
                Notice(str(n["kind"]), str(n["message"]), int(n["count"])) for n in raw["notices"]
            )
            raw["files"] = tuple((str(name), int(size)) for name, size in raw["files"])
            raw["image"] = tuple(map(int, raw["image"]))
            return cls(**raw)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not an inspection: {error}") from error


@dataclass(frozen=True)
class Statistics:
    """Values of one tensor, computed in float64 over all its finite entries; NaN where there are none."""

    name: str
    mean: float
    std: float
    minimum: float
    maximum: float
    zeros: int
    nans: int
    infinities: int
