"""Every parser under random input: nothing but `Refused` leaves it, and it says what, where and what to do.

The parsers are called below the intake's last net, so that a slip shows as what it is. The examples are
the same in every run; CLOUDCHAMBER_FUZZ=20000 draws that many new ones for each test. ONNX graphs and
arrays are fuzzed in test_onnx.py and test_maps.py.
"""

from __future__ import annotations

import io
import itertools
import json
import os
import pickle
import struct
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from models.checkpoints import (
    archive,
    gguf_header,
    hf_config,
    intake,
    pickle_listing,
    safetensors_header,
    tensor_statistics,
    tokenizer_files,
    torch_zip,
)
from models.checkpoints.attention import AttentionModel
from models.checkpoints.bundle import Bundle, Item, Limits
from models.checkpoints.inspection import Inspection
from models.checkpoints.refused import KINDS, Refused
from models.checkpoints.sniff import sniff
from tests.hostile import brought
from tests.hostile.small_llama import CONFIG, TOKENIZER, tensors, weights

EXAMPLES = int(os.environ.get("CLOUDCHAMBER_FUZZ", 150))
FUZZ = settings(
    max_examples=EXAMPLES,
    derandomize="CLOUDCHAMBER_FUZZ" not in os.environ,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
LIMITS = Limits(
    file_bytes=10**7, total_bytes=10**7, tensors=1_000, members=50, header_bytes=10**6, parameters=10**6
)
_numbers = itertools.count()


def put(folder: Path, **files: bytes) -> Bundle:
    """Files of these names (double underscores are dots) under paths of ours."""
    items = []
    for name, content in files.items():
        path = folder / f"{next(_numbers):08}"
        path.write_bytes(content)
        items.append(Item(name.replace("__", "."), path))
    return Bundle(tuple(items))


def only_refused(call: Callable[[], Any], folder: Path) -> None:
    """`call` returns, or refuses with a kind, a sentence and a remedy that tell no path of ours."""
    try:
        call()
        return
    except Refused as error:
        refused = error
    assert refused.kind in KINDS
    assert refused.message.endswith(".") and refused.remedy, refused
    assert str(folder) not in str(refused)
    assert len(str(refused)) < 2_000
    assert str(refused).isprintable()


def changed(content: bytes) -> st.SearchStrategy[bytes]:
    """`content` with some bytes changed, cut out, doubled or put in."""
    at = st.integers(0, max(len(content) - 1, 0))

    def apply(edits: list[tuple[str, int, int, bytes]]) -> bytes:
        data = bytearray(content)
        for kind, one, two, new in edits:
            low, high = sorted((one, two))
            if kind == "set" and low < len(data):
                data[low : low + len(new)] = new
            elif kind == "cut":
                del data[low:high]
            elif kind == "insert":
                data[low:low] = new
            elif kind == "repeat":
                data[high:high] = data[low:high]
        return bytes(data)

    edit = st.tuples(
        st.sampled_from(["set", "set", "set", "cut", "insert", "repeat"]), at, at, st.binary(max_size=9)
    )
    return st.lists(edit, min_size=1, max_size=6).map(apply)


ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.text(max_size=20),
    st.sampled_from(["F32", "F4", "BF16", "../x", "\0", "\ud800", "model.safetensors", 10**6, 10**9, -1, 0]),
)
JSON = st.recursive(
    ODD, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner, max_size=4)
)


def dumped(value: object) -> bytes:
    return json.dumps(value).encode("utf-8", errors="surrogatepass")


# Safetensors

ENTRY = st.fixed_dictionaries(
    {},
    optional={
        "dtype": st.sampled_from(["F32", "F16", "BF16", "F8_E4M3", "F4", "F6_E2M3", "C64", "BOOL"]) | ODD,
        "shape": st.lists(st.integers(0, 9) | ODD, max_size=4) | ODD,
        "data_offsets": st.lists(st.integers(0, 64) | ODD, max_size=3) | ODD,
        "more": ODD,
    },
)


@FUZZ
@given(
    st.dictionaries(st.text(max_size=9) | st.just("__metadata__"), ENTRY | JSON, max_size=5),
    st.binary(max_size=80),
)
def test_safetensors_headers(tmp_path: Path, header: dict[str, Any], data: bytes) -> None:
    bundle = put(tmp_path, model__safetensors=brought.header(dumped(header), data))
    only_refused(lambda: safetensors_header.tensors(bundle, LIMITS), tmp_path)
    only_refused(lambda: tensor_statistics.of_bundle(bundle, LIMITS), tmp_path)


@FUZZ
@given(changed(brought.good()))
def test_safetensors_bytes(tmp_path: Path, content: bytes) -> None:
    bundle = put(tmp_path, model__safetensors=content)
    only_refused(lambda: safetensors_header.tensors(bundle, LIMITS), tmp_path)
    only_refused(lambda: tensor_statistics.of_bundle(bundle, LIMITS), tmp_path)


@FUZZ
@given(JSON | st.fixed_dictionaries({"weight_map": JSON}))
def test_indices_of_shards(tmp_path: Path, index: Any) -> None:
    bundle = put(tmp_path, model__safetensors=brought.good(), model__safetensors__index__json=dumped(index))
    only_refused(lambda: safetensors_header.locate(bundle, LIMITS), tmp_path)


# Hugging Face folders

KEYS = [
    *CONFIG,
    *("head_dim", "sliding_window", "layer_types", "rope_scaling", "rope_theta", "rms_norm_eps"),
    *("hidden_act", "torch_dtype", "dtype", "tie_word_embeddings", "quantization_config", "auto_map"),
    *("is_encoder_decoder", "pad_token_id", "initializer_range", "text_config", "vision_config"),
]
FAMILIES = ["llama", "bert", "gpt2", "gemma3_text", "mistral", "vit", "modernbert", "mamba", "t5", "clip"]


@FUZZ
@given(
    st.dictionaries(st.sampled_from(KEYS), JSON | st.integers(0, 64), max_size=4),
    st.sampled_from(FAMILIES),
    st.lists(st.sampled_from(list(CONFIG)), max_size=2),
)
def test_configurations(tmp_path: Path, odd: dict[str, Any], family: str, without: list[str]) -> None:
    config = {**CONFIG, "model_type": family, **odd}
    for key in without:
        config.pop(key, None)
    bundle = put(tmp_path, config__json=dumped(config), model__safetensors=brought.good())
    only_refused(lambda: hf_config.read(bundle, LIMITS), tmp_path)
    found = intake.inspect(bundle, LIMITS)
    assert Inspection.from_json(found.to_json()).refusal == found.refusal


@settings(FUZZ, max_examples=max(EXAMPLES // 5, 20))
@given(st.dictionaries(st.sampled_from(KEYS), JSON | st.integers(0, 64), max_size=3))
def test_configurations_that_are_built(tmp_path: Path, odd: dict[str, Any]) -> None:
    """Weights of the plain configuration under a changed one: refused, or the model is that size."""
    pytest.importorskip("transformers")
    bundle = put(tmp_path, config__json=dumped({**CONFIG, **odd}), model__safetensors=weights())
    opened: list[AttentionModel] = []
    only_refused(lambda: opened.append(intake.open_model(bundle, LIMITS, "cpu")), tmp_path)
    for model in opened:
        assert model.layers == 1
        assert model.parameters == sum(t.size for t in tensors().values())


@FUZZ
@given(changed(TOKENIZER))
def test_tokenizers(tmp_path: Path, content: bytes) -> None:
    bundle = put(tmp_path, tokenizer__json=content)
    only_refused(lambda: tokenizer_files.load(bundle, LIMITS), tmp_path)


@FUZZ
@given(changed(b"[PAD]\n[UNK]\n[CLS]\n[SEP]\na\n##b\n"), changed(b"#version: 0.2\na b\nab c\n"), JSON)
def test_vocabularies(tmp_path: Path, words: bytes, merges: bytes, vocabulary: Any) -> None:
    bundle = put(tmp_path, vocab__txt=words)
    only_refused(lambda: tokenizer_files.load(bundle, LIMITS), tmp_path)
    bundle = put(tmp_path, vocab__json=dumped(vocabulary), merges__txt=merges)
    only_refused(lambda: tokenizer_files.load(bundle, LIMITS), tmp_path)


# Archives

FOLDER = brought.folder()


def tarred() -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as file:
        for name, content in FOLDER.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            file.addfile(member, io.BytesIO(content))
    return out.getvalue()


ARCHIVES = {"zip": brought.zipped(FOLDER), "tar": tarred(), "gzip": brought.gzipped(tarred())}


@pytest.mark.parametrize("kind", ARCHIVES)
def test_archives(tmp_path: Path, kind: str) -> None:
    @FUZZ
    @given(changed(ARCHIVES[kind]))
    def run(content: bytes) -> None:
        (item,) = put(tmp_path, model=content).items
        members = tmp_path / f"members-{next(_numbers)}"
        members.mkdir()
        only_refused(lambda: archive.unpack(item, kind, members, LIMITS), tmp_path)
        assert sum(p.stat().st_size for p in members.rglob("*")) <= LIMITS.total_bytes
        assert all(p.is_file() and not p.is_symlink() and p.name.isdigit() for p in members.iterdir())

    run()


@FUZZ
@given(
    st.lists(
        st.tuples(
            st.text(max_size=20)
            | st.sampled_from(["../x", "/x", "a/../../x", "C:\\x", "x\0y", "config.json"]),
            st.sampled_from(
                [tarfile.REGTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE, tarfile.CHRTYPE]
            ),
            st.integers(-5, 3_000),
        ),
        max_size=4,
    )
)
def test_members_of_tars(tmp_path: Path, members: list[tuple[str, bytes, int]]) -> None:
    blocks = b""
    for name, kind, size in members:
        member = tarfile.TarInfo(name)
        member.type, member.size = kind, max(size, 0)
        try:
            blocks += member.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape") + bytes(
                -(-max(size, 0) // 512) * 512
            )
        except (ValueError, UnicodeError):
            return
    (item,) = put(tmp_path, model=blocks + bytes(1_024)).items
    place = tmp_path / f"members-{next(_numbers)}"
    place.mkdir()
    only_refused(lambda: archive.unpack(item, "tar", place, LIMITS), tmp_path)
    assert not (tmp_path / "x").exists() and not Path("/x").exists()


# PyTorch's own files


@FUZZ
@given(changed(brought.tensor_program()))
def test_pickles_of_tensors(tmp_path: Path, program: bytes) -> None:
    only_refused(lambda: pickle_listing.read(program, "data.pkl"), tmp_path)
    (item,) = put(tmp_path, model=brought.torch_zip(program, {"0": bytes(16)})).items
    only_refused(lambda: torch_zip.listing(item, LIMITS), tmp_path)
    only_refused(lambda: torch_zip.located(item, LIMITS), tmp_path)


@FUZZ
@given(
    st.lists(st.sampled_from([bytes([c]) for c in range(256)]) | st.binary(max_size=6), max_size=40).map(
        b"".join
    )
)
def test_pickles_of_random_opcodes(tmp_path: Path, program: bytes) -> None:
    only_refused(lambda: pickle_listing.read(b"\x80\x02" + program + b".", "data.pkl"), tmp_path)


@FUZZ
@given(
    st.recursive(
        ODD.filter(lambda v: not isinstance(v, str) or v.isprintable()),
        lambda i: st.lists(i, max_size=3) | st.dictionaries(st.text(max_size=5), i, max_size=3),
    ),
    st.integers(0, 5),
)
def test_pickles_of_settings(tmp_path: Path, value: Any, protocol: int) -> None:
    (item,) = put(tmp_path, model=brought.torch_zip(pickle.dumps(value, protocol))).items
    only_refused(lambda: torch_zip.listing(item, LIMITS), tmp_path)


# GGUF


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


def gguf() -> bytes:
    entries = [
        text("general.architecture") + struct.pack("<I", 8) + text("llama"),
        text("llama.block_count") + struct.pack("<II", 4, 1),
        text("tokenizer.ggml.tokens") + struct.pack("<IIQ", 9, 8, 2) + text("a") + text("b"),
    ]
    tensor = text("w") + struct.pack("<IQIQ", 1, 32, 8, 0)  # 32 numbers of Q8_0
    head = b"GGUF" + struct.pack("<IQQ", 3, 1, len(entries)) + b"".join(entries) + tensor
    return head + bytes(-len(head) % 32) + bytes(34)


@FUZZ
@given(changed(gguf()))
def test_gguf_headers(tmp_path: Path, content: bytes) -> None:
    bundle = put(tmp_path, model__gguf=content)
    only_refused(lambda: gguf_header.read(bundle.items[0], LIMITS), tmp_path)
    if sniff(bundle.items[0]) == "gguf":
        only_refused(lambda: tensor_statistics.of_bundle(bundle, LIMITS), tmp_path)
    found = intake.inspect(bundle, LIMITS)
    assert Inspection.from_json(found.to_json()).refusal == found.refusal


def test_the_gguf_that_is_changed_is_whole(tmp_path: Path) -> None:
    header = gguf_header.read(put(tmp_path, model__gguf=gguf()).items[0], LIMITS)
    assert (header.metadata["llama.block_count"], header.tensors[0].dtype) == (1, "Q8_0")


# Anything


@FUZZ
@given(
    st.binary(max_size=200),
    st.sampled_from(["config.json", "model.onnx", "a.pt", "a.npz", "x.gguf", "../../x"]),
)
def test_any_bytes_under_any_name(tmp_path: Path, content: bytes, name: str) -> None:
    (item,) = put(tmp_path, x=content).items
    members = tmp_path / f"members-{next(_numbers)}"
    members.mkdir()
    only_refused(lambda: sniff(item), tmp_path)

    def door() -> None:
        found = intake.inspect(intake.unpack([Item(name, item.path)], members, LIMITS), LIMITS)
        assert found.refusal is not None or found.opener

    only_refused(door, tmp_path)
