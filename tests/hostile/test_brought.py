"""What must not get through the door: every refusal names its reason and a remedy, and nothing runs."""

from __future__ import annotations

import tarfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from models.checkpoints import intake
from models.checkpoints.bundle import Item, Limits
from models.checkpoints.refused import KINDS, Refused
from tests.hostile import brought
from tests.hostile.brought import Case, f32, header, index, one

WEIGHTS = "model.safetensors"
CONFIG = {"config.json": lambda: b'{"model_type": "llama", "architectures": ["LlamaForCausalLM"]}'}
TWO = {"w": f32([2], 0, 8)}
PAIR = {"a": f32([1], 0, 4)}
SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")


def weights(entries: object, data: bytes = b"") -> Callable[[], bytes]:
    return lambda: header(entries, data)


def tensor(entry: object, data: bytes, kind: str, says: str) -> Case:
    return one(WEIGHTS, weights({"blk.7.w": entry}, data), kind, says, "save_file")


def sharded(weight_map: Mapping[str, str], kind: str, says: str, remedy: str, **more: bytes) -> Case:
    shards = {name: (lambda content=content: content) for name, content in more.items()}
    return Case({"model.safetensors.index.json": index(weight_map), **CONFIG, **shards}, kind, says, remedy)


def shard(*names: str) -> bytes:
    return header({name: f32([1], 4 * n, 4 * n + 4) for n, name in enumerate(names)}, bytes(4 * len(names)))


SAFETENSORS = {
    "length 2^63": one(WEIGHTS, lambda: b"\0" * 7 + b"\x80{}", "brought_damaged", "9,223", "Save it again"),
    "header of 100 MB + 1": one(
        WEIGHTS, lambda: (10**8 + 1).to_bytes(8, "little") + b"{}", "brought_damaged", "100,000,001", "Save"
    ),
    "header past the end": one(
        WEIGHTS,
        lambda: (500).to_bytes(8, "little") + b"{}",
        "brought_truncated",
        "ends at byte 10",
        "transfer",
    ),
    "cut within the data": one(
        WEIGHTS, lambda: brought.good()[:-3], "brought_truncated", "its tensors go on to", "transfer it again"
    ),
    "not UTF-8": one(WEIGHTS, weights(b'{"\xff\xfe": 1}'), "brought_damaged", "UTF-8", "save_file"),
    "no JSON": one(WEIGHTS, weights(b"{'w': 1}"), "brought_damaged", "no JSON", "save_file"),
    "deep JSON": one(WEIGHTS, weights(b'{"a":' * 50_000), "brought_damaged", "no JSON", "save_file"),
    "duplicate key": one(
        WEIGHTS, weights(b'{"blk.7.w":{},"blk.7.w":{}}'), "brought_damaged", "blk.7.w twice", "save_file"
    ),
    "overlap": one(
        WEIGHTS,
        weights({"a": f32([2], 0, 8), "b": f32([2], 4, 12)}, bytes(12)),
        "brought_damaged",
        "tensor b overlaps",
        "save_file",
    ),
    "hole": one(
        WEIGHTS,
        weights({"a": f32([1], 0, 4), "b": f32([1], 8, 12)}, bytes(12)),
        "brought_damaged",
        "tensor b leaves a hole",
        "save_file",
    ),
    "shape overflow": tensor(
        f32([2**40, 2**40], 0, 4), bytes(4), "brought_damaged", "blk.7.w has more elements"
    ),
    "negative shape": tensor(f32([-1], 0, 4), bytes(4), "brought_damaged", "blk.7.w has no shape"),
    "shape of booleans": tensor(f32([True], 0, 4), bytes(4), "brought_damaged", "blk.7.w has no shape"),
    "shape of fractions": tensor(f32([1.0], 0, 4), bytes(4), "brought_damaged", "blk.7.w has no shape"),
    "negative place": tensor(f32([1], -4, 0), bytes(4), "brought_damaged", "blk.7.w has no place"),
    "backward place": tensor(f32([1], 4, 0), bytes(4), "brought_damaged", "blk.7.w takes -4"),
    "size that is not the shape's": tensor(
        f32([3], 0, 4), bytes(4), "brought_damaged", "blk.7.w takes 4 bytes"
    ),
    "unknown type": tensor(
        {"dtype": "F7", "shape": [1], "data_offsets": [0, 1]}, b"0", "brought_damaged", "unknown type F7"
    ),
    "more keys": tensor(
        {**f32([1], 0, 4), "code": 1}, bytes(4), "brought_damaged", "blk.7.w is not described"
    ),
    "trailing bytes": one(WEIGHTS, weights(TWO, bytes(11)), "brought_damaged", "3 bytes follow", "save_file"),
    "pickle after the tensors": one(
        WEIGHTS,
        weights(TWO, bytes(8) + brought.bare_pickle()),
        "brought_damaged",
        "bytes follow",
        "save_file",
    ),
}

NOT_A_MODEL = {
    "empty file": one(WEIGHTS, lambda: b"", "brought_empty", "empty", "Transfer"),
    "Git LFS pointer": one(
        WEIGHTS,
        lambda: b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n",
        "brought_pointer",
        "pointer",
        "git lfs pull",
    ),
    "pointer in a folder": Case(
        {**CONFIG, WEIGHTS: lambda: b"version https://git-lfs.github.com/spec/v1\n"},
        "brought_pointer",
        "pointer",
        "git lfs pull",
    ),
    "login page": one(WEIGHTS, lambda: b"<!DOCTYPE html><p>Log in", "brought_pointer", "web page", "again"),
    "weights alone": one(WEIGHTS, brought.good, "brought_incomplete", "config.json", "tokenizer.json"),
    "configuration alone": Case(CONFIG, "brought_incomplete", "without weights", "model.safetensors"),
    "noise": one("a.gguf", lambda: bytes(range(256)) * 9, "brought_unknown", "known", "GGUF"),
    "picture": one(
        "a.safetensors",
        lambda: b"\x89PNG\r\n\x1a\n" + bytes(99),
        "brought_unsupported",
        "picture",
        "looks at",
    ),
    "Keras": one("a.pt", lambda: b"\x89HDF\r\n\x1a\n" + bytes(99), "brought_unsupported", "HDF5", "ONNX"),
    "TFLite": one(
        "a.onnx", lambda: b"\x1c\0\0\0TFL3" + bytes(99), "brought_unsupported", "TensorFlow Lite", "ONNX"
    ),
    "table": one("a.npy", lambda: b"a,b\n1,2\n" * 9, "brought_unsupported", "table", "safetensors|folder"),
    "7z": one("m.zip", lambda: b"7z\xbc\xaf\x27\x1c" + bytes(99), "brought_unsupported", "archive", "tar.gz"),
}

INDEX = {
    "passwd": sharded({"a": "../../etc/passwd"}, "brought_unsafe", "../../etc/passwd", "save_pretrained"),
    "absolute": sharded({"a": "/etc/passwd"}, "brought_unsafe", "/etc/passwd", "save_pretrained"),
    "backslash": sharded({"a": "..\\passwd"}, "brought_unsafe", "..\\passwd", "save_pretrained"),
    "null byte": sharded({"a": "m\0.safetensors"}, "brought_unsafe", "path", "save_pretrained"),
    "missing shard": sharded(
        {"a": SHARDS[0], "b": SHARDS[1]},
        "brought_incomplete",
        SHARDS[1],
        "together",
        **{SHARDS[0]: shard("a")},
    ),
    "half-written shard": sharded(
        {"a": SHARDS[0], "b": SHARDS[1]},
        "brought_truncated",
        "ends at byte",
        "transfer it again",
        **{SHARDS[0]: shard("a"), SHARDS[1]: shard("b")[:-2]},
    ),
    "empty shard": sharded(
        {"a": SHARDS[0], "b": SHARDS[1]},
        "brought_empty",
        "empty",
        "again",
        **{SHARDS[0]: shard("a"), SHARDS[1]: b""},
    ),
    "tensor in two shards": sharded(
        {"a": SHARDS[0], "b": SHARDS[1]},
        "brought_damaged",
        "Tensor a stands in two files",
        "one model",
        **{SHARDS[0]: shard("a"), SHARDS[1]: shard("a", "b")},
    ),
    "tensor that no shard holds": sharded(
        {"a": SHARDS[0], "b": SHARDS[0]},
        "brought_incomplete",
        "tensor b",
        "all shards",
        **{SHARDS[0]: shard("a")},
    ),
    "shard twice": Case(
        {"x/" + WEIGHTS: lambda: shard("a"), "y/" + WEIGHTS: lambda: shard("a"), **CONFIG},
        "brought_damaged",
        "Tensor a stands in two files",
        "one model",
    ),
    "no map": Case(
        {"model.safetensors.index.json": lambda: b'{"weight_map": [1]}', **CONFIG, WEIGHTS: brought.good},
        "brought_damaged",
        "weight_map",
        "again",
    ),
}

ARCHIVES = {
    "bomb": one("m.zip", brought.zip_bomb, "brought_unsafe", "67,108,864", "without packing"),
    "overlapping members": one("m.zip", brought.zip_overlap, "brought_unsafe", "share", "zip -r"),
    "a million members": one(
        "m.zip", brought.zip_million, "brought_unsafe", "1,000,000 members", "Pack only"
    ),
    "a million members named npz": one(
        "maps.npz", brought.zip_million, "brought_unsafe", "1,000,000 members", "Pack only|savez"
    ),
    "name leads out": one("m.zip", lambda: brought.zipped({"../x": b"{}"}), "brought_unsafe", "../x", "Pack"),
    "absolute name": one(
        "m.zip", lambda: brought.zipped({"/etc/x": b"{}"}), "brought_unsafe", "/etc/x", "Pack"
    ),
    "drive name": one("m.zip", lambda: brought.zipped({"C:\\x": b"{}"}), "brought_unsafe", "C:", "Pack"),
    "backslash name": one(
        "m.zip", lambda: brought.zipped({"a\\..\\x": b"{}"}), "brought_unsafe", "..", "Pack"
    ),
    "symlink": one("m.zip", brought.zip_symlink, "brought_unsafe", "config.json", "zip -r"),
    "password": one("m.zip", lambda: brought.zip_flag(1), "brought_unsupported", "password", "without one"),
    "lzma": one("m.zip", lambda: brought.zip_flag(0, 14), "brought_unsupported", "method", "zip -r"),
    "zip in zip": one(
        "m.zip",
        lambda: brought.zipped({"m/inner.zip": brought.zipped(brought.folder())}),
        "brought_unsupported",
        "inner.zip",
        "inner archive",
    ),
    "tar.gz in zip": one(
        "m.zip",
        lambda: brought.zipped({"m/inner": brought.gzipped(b"x")}),
        "brought_unsupported",
        "inner",
        "inner archive",
    ),
    "claims more than it has": one(
        "m.zip", lambda: brought.zip_of_claims(9_000), "brought_truncated", "config.json", "zip -r"
    ),
    "claims less than it has": one(
        "m.zip", lambda: brought.zip_of_claims(900), "brought_damaged", "config.json", "zip -r"
    ),
    "checksum": one(
        "m.zip",
        lambda: brought.corrupt(brought.zipped({"config.json": b"{}" * 99}, 0), 60),
        "brought_damaged",
        "config.json",
        "zip -r",
    ),
    "cut zip": one(
        "m.zip",
        lambda: brought.zipped(brought.folder())[:-40],
        "brought_truncated",
        "list of members",
        "end is missing",
    ),
    "cut gzip": one(
        "m.tgz",
        lambda: brought.gzipped(brought.tar_file("config.json", 5_000))[:-30],
        "brought_truncated",
        "ends",
        "tar -czf",
    ),
    "damaged gzip": one(
        "m.tgz",
        lambda: brought.corrupt(brought.gzipped(bytes(range(256)) * 40), 20),
        "brought_damaged",
        "damaged",
        "tar -czf",
    ),
    "gzip bomb": one(
        "m.gz", lambda: brought.gzipped(bytes(2**25)), "brought_unsafe", "200 times", "without packing"
    ),
    "cut tar": one(
        "m.tar",
        lambda: brought.tar_file("config.json", 5_000)[:3_000],
        "brought_truncated",
        "config.json",
        "cut",
    ),
    "tar symlink": one(
        "m.tar", lambda: brought.tar_link(tarfile.SYMTYPE), "brought_unsafe", "symbolic link", "dereference"
    ),
    "tar hard link": one(
        "m.tar", lambda: brought.tar_link(tarfile.LNKTYPE), "brought_unsafe", "hard link", "dereference"
    ),
    "tar device": one(
        "m.tar", lambda: brought.tar_link(tarfile.CHRTYPE), "brought_unsafe", "device", "dereference"
    ),
    "tar pipe": one(
        "m.tar", lambda: brought.tar_link(tarfile.FIFOTYPE), "brought_unsafe", "pipe", "dereference"
    ),
    "tar leads out": one(
        "m.tar", lambda: brought.tar_file("a/../../x"), "brought_unsafe", "a/../../x", "Pack"
    ),
    "tar absolute": one("m.tar", lambda: brought.tar_file("/etc/x"), "brought_unsafe", "/etc/x", "Pack"),
    "nothing in it": one(
        "m.zip",
        lambda: brought.zipped({"__MACOSX/x": b"1", ".DS_Store": b"1"}),
        "brought_empty",
        "no file",
        "Pack",
    ),
}


def ones() -> object:
    import torch

    return torch.ones(2)


def optimizer() -> bytes:
    """What a training script leaves beside its weights."""
    import torch

    layer = torch.nn.Linear(2, 2)
    adam = torch.optim.Adam(layer.parameters())
    layer(torch.ones(1, 2)).sum().backward()
    adam.step()
    return brought.torch_file(adam.state_dict())


PICKLES = {
    name: one(name, brought.bare_pickle, "brought_pickle", "pickle", "safe_serialization=True")
    for name in ("a.pt", "a.pth", "a.bin", "a.safetensors", "a.npy", "a.gguf", "a.onnx", "a.ckpt")
} | {
    "legacy tar": one("a.pt", brought.legacy_tar, "brought_pickle", "1.6", "safe_serialization=True"),
    "in a zip": one(
        "m.zip",
        lambda: brought.zipped({"m/a.pt": brought.bare_pickle()}),
        "brought_pickle",
        "pickle",
        "safe_serialization",
    ),
    "torch zip": one(
        "a.safetensors",
        lambda: brought.torch_file({"w": brought.Marks()}),
        "brought_pickle",
        "asks for (posix|nt).system",
        "safe_serialization",
    ),
    "torch zip of tensors": one(
        "a.pt", lambda: brought.torch_file({"w": ones()}), "brought_incomplete", "pickle", "config.json"
    ),
    "state of an optimizer": one(
        "optimizer.pt",
        optimizer,
        "brought_pickle",
        r"state of an optimizer \(state, param_groups\)",
        "Save the weights",
    ),
    "settings": one(
        "settings.pth",
        lambda: brought.torch_file({"lr": 0.1, "name": "run"}),
        "brought_pickle",
        "holds lr, name, and no tensors",
        "Save the weights",
    ),
    "torch zip with config": Case(
        {**CONFIG, "pytorch_model.bin": lambda: brought.torch_file({"w": brought.Marks()})},
        "brought_pickle|brought_mismatch|brought_incomplete",
        "system|config.json|Config",
        ".",
    ),
    "array of objects": one(
        "a.npy",
        brought.npy_of_objects,
        "brought_pickle|brought_unsafe|brought_unsupported",
        "object|pickle",
        ".",
    ),
}

CASES = SAFETENSORS | {f"index: {k}": v for k, v in INDEX.items()} | NOT_A_MODEL
CASES |= {f"archive: {k}": v for k, v in ARCHIVES.items()} | {f"pickle: {k}": v for k, v in PICKLES.items()}


@pytest.fixture(autouse=True)
def no_marker() -> Iterator[None]:
    """The file that a pickle makes when it is obeyed never appears."""
    brought.MARKER.unlink(missing_ok=True)
    yield
    assert not brought.MARKER.exists(), "a pickle was obeyed"


def shelve(files: Mapping[str, Callable[[], bytes]], folder: Path) -> list[Item]:
    """Files under numbers, as the shelf keeps them."""
    items = []
    for number, (name, make) in enumerate(files.items()):
        path = folder / f"{number:04}"
        path.write_bytes(make())
        items.append(Item(name, path))
    return items


def verdict(items: list[Item], folder: Path, limits: Limits | None = None) -> dict[str, str]:
    """The refusal that the door gives, raised or written into the inspection."""
    limits = limits or Limits()
    members = folder / "members"
    members.mkdir()
    try:
        found = intake.inspect(intake.unpack(items, members, limits), limits)
    except Refused as refused:
        return {k: getattr(refused, k) for k in ("kind", "message", "remedy", "where")}
    assert found.refusal is not None, "it was taken"
    return dict(found.refusal)


@pytest.mark.parametrize("name", CASES)
def test_it_is_refused_with_a_reason_and_a_remedy(name: str, tmp_path: Path) -> None:
    import re

    case = CASES[name]
    started = time.monotonic()
    said = verdict(shelve(case.files, tmp_path), tmp_path)
    assert said["kind"] in case.kind.split("|"), said
    assert said["kind"] in KINDS
    text = f"{said['message']} {said['where']}"
    assert case.says in text or re.search(case.says, text), said
    assert re.search(case.remedy, said["remedy"]), said
    assert said["where"] or "no file" in said["message"], said
    assert said["message"].endswith(".")
    assert str(tmp_path) not in f"{text} {said['remedy']}", "a path of ours got out"
    assert time.monotonic() - started < 5
    assert not (tmp_path.parent / "x").exists()
