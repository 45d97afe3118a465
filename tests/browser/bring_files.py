"""Files that visitors bring, made here: a tiny random Llama with its tokenizer, maps, a pickle."""

from __future__ import annotations

import io
import pickle
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np

LAYERS, HEADS, TOKENS = 3, 4, 16
_LLAMA = """
import sys
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import {config}, {model}
torch.manual_seed({seed})
folder, settings = sys.argv[1], {settings!r}
{model}({config}(vocab_size=300, hidden_size=32, intermediate_size=64, num_hidden_layers={layers},
    num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=2048, initializer_range=0.4,
    tie_word_embeddings=True, **settings)).save_pretrained(folder, safe_serialization=True)
tokenizer = Tokenizer(models.BPE())
tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
tokenizer.decoder = decoders.ByteLevel()
alphabet = pre_tokenizers.ByteLevel.alphabet()
tokenizer.train_from_iterator(
    ["in the beginning was the word"] * 9,
    trainers.BpeTrainer(vocab_size=300, initial_alphabet=sorted(alphabet), show_progress=False),
)
tokenizer.save(folder + "/tokenizer.json")
"""


def llama_files(
    folder: Path, *, layers: int = LAYERS, seed: int = 0, family: str = "Llama", **settings: object
) -> list[Path]:
    """A random model of the Llama family as `save_pretrained` writes it, with its tokenizer.

    Made in a process of its own, so that tests of pages do not import torch.
    """
    folder.mkdir(parents=True, exist_ok=True)
    code = _LLAMA.format(
        config=f"{family}Config", model=f"{family}ForCausalLM", layers=layers, seed=seed, settings=settings
    )
    subprocess.run([sys.executable, "-c", code, str(folder)], check=True, capture_output=True)
    return sorted(folder.iterdir())


def llama_zip(folder: Path, name: str = "tiny.zip", **settings: object) -> Path:
    """The same as one zip."""
    path = folder / name
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in llama_files(folder / f"{name}-files", **settings):  # type: ignore[arg-type]
            archive.write(file, f"tiny/{file.name}")
    return path


def maps_npy(folder: Path, name: str = "maps.npy") -> Path:
    """Causal maps (layers, heads, T, T) whose head h of every layer gives key 0 the share h / 4."""
    maps = np.tril(np.ones((LAYERS, HEADS, TOKENS, TOKENS), np.float32))
    maps /= maps.sum(-1, keepdims=True)
    share = np.arange(HEADS, dtype=np.float32)[None, :, None, None] / HEADS
    maps *= 1 - share
    maps[..., :1] += share
    path = folder / name
    np.save(path, maps)
    return path


class _Call:
    """What a malicious pickle does when it is loaded: it would write a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str, str]]:
        return open, (str(self.path), "w")


def evil_pickle(folder: Path, marker: Path) -> Path:
    """A .bin that creates `marker` if anybody unpickles it."""
    stream = io.BytesIO()
    pickle.dump({"weight": _Call(marker)}, stream)
    path = folder / "pytorch_model.bin"
    path.write_bytes(stream.getvalue())
    return path
