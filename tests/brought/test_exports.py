"""The packaged models, exported to ONNX, measure as the packaged models do."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from data import paths
from data.sources.reactions import REACTIONS
from data.sources.texts import TEXTS
from models.attention.trace import collect
from models.checkpoints.bundle import Bundle, Item, Limits
from models.checkpoints.openers import onnx as opener
from precompute.runs import subjects
from precompute.runs.brought_tokens import own_tokenizer
from tests.brought import exports
from tests.models.test_openers_onnx import traced

pytestmark = pytest.mark.models
torch.set_num_threads(1)


@pytest.mark.parametrize("slug", exports.SUBJECTS)
def test_tokenizers_give_the_packaged_ids(slug: str) -> None:
    subject = subjects.load(slug, paths.cache_dir())
    own = own_tokenizer(exports.tokenizer_of(subject))
    texts = [smiles for _, smiles in REACTIONS] + [t.read(2_000) for t in TEXTS.values()]
    for text in (*texts, "", "CC é [Na+]>>[OH-] ~", "[CLS] a [PAD] b"):
        for special in (False, True):
            assert own.encode(text, special) == subject.tokenizer.encode(text, special), text
    ids = range(subject.tokenizer.vocabulary)
    assert own.pieces(ids) == subject.tokenizer.pieces(ids)
    assert [own.is_special(i) for i in ids] == [subject.tokenizer.is_special(i) for i in ids]


@pytest.mark.parametrize("slug", exports.SUBJECTS)
def test_onnx_measures_the_same(slug: str, tmp_path: Path) -> None:
    subject = subjects.load(slug, paths.cache_dir())
    text = REACTIONS[0][1] if slug == "rxnmapper-albert" else next(iter(TEXTS.values())).read(600)
    ids = torch.tensor([subject.tokenizer.encode(text, special=True)[:64]])
    expected = collect(subject.model, ids).attention
    exports.onnx(subject, tmp_path)
    assert not subject.model.training
    found = Bundle(tuple(Item(p.name, p) for p in sorted(tmp_path.iterdir())))
    card = opener.inspect(found, Limits())
    assert card.refusal is None
    assert (card.layers, card.heads) == (subject.layers, subject.heads)
    assert card.vocabulary == subject.model.config.vocab_size
    assert card.adds_special
    layers, _ = traced(opener.open_model(found, Limits(), "cpu"), ids)
    for name in expected:
        if not name.endswith("norm_ratio") and name != "top_key":
            got = np.stack([getattr(layer, name) for layer in layers], axis=1)
            np.testing.assert_allclose(got, expected[name], atol=1e-4, err_msg=name)
