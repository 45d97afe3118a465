"""The header of safetensors files: names, shapes, types and places of tensors, without reading any.

The format (a length, a JSON object, the data) allows no code, no overlaps and no holes; every rule is
checked here before the library opens the file, so that a message can name the tensor that breaks it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from models.checkpoints.bundle import Bundle, Item, Limits
from models.checkpoints.inspection import Tensor
from models.checkpoints.refused import Refused, shown

# Bits of an element, by the format's own names (safetensors 0.8).
BITS: Mapping[str, int] = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
    **dict.fromkeys(("I16", "U16", "F16", "BF16"), 16),
    **dict.fromkeys(("I32", "U32", "F32"), 32),
    **dict.fromkeys(("I64", "U64", "F64", "C64"), 64),
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
}
INDEX_NAMES = ("model.safetensors.index.json", "diffusion_pytorch_model.safetensors.index.json")
_LENGTH = 8  # bytes that say how long the header is
_AGAIN = "Save it again with safetensors.torch.save_file, or transfer it again if it was cut."
_MAX_DIMENSIONS = 64


def looks_like(head: bytes) -> bool:
    """Whether the first bytes of a file are a header's length and the start of its JSON object."""
    return len(head) > _LENGTH and head[_LENGTH : _LENGTH + 1] == b"{"


def header(item: Item, limits: Limits) -> tuple[dict[str, Any], int]:
    """The parsed header of a file and where its data begin. Raises Refused."""
    size = item.size
    with item.path.open("rb") as file:
        length = int.from_bytes(file.read(_LENGTH), "little")
        if size < _LENGTH + 2:
            raise _refuse("brought_truncated", f"The file ends after {size} bytes, within its header", item)
        if length > limits.header_bytes:
            raise _refuse(
                "brought_damaged", f"Its header claims {length:,} bytes, more than the format allows", item
            )
        if _LENGTH + length > size:
            raise _refuse(
                "brought_truncated",
                f"The file ends at byte {size:,}; its header alone goes on to {_LENGTH + length:,}",
                item,
            )
        raw = file.read(length)
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _refuse("brought_damaged", "Its header is not UTF-8", item) from error
    try:
        parsed = json.loads(text, object_pairs_hook=_no_twice, parse_constant=_no_constant)
    except _Twice as error:
        raise _refuse("brought_damaged", f"Its header names {shown(error.name)} twice", item) from error
    except (ValueError, RecursionError) as error:
        raise _refuse("brought_damaged", "Its header is no JSON", item) from error
    if not isinstance(parsed, dict):
        raise _refuse("brought_damaged", "Its header is no JSON object", item)
    return parsed, _LENGTH + length


def tensors_of(item: Item, limits: Limits) -> tuple[Tensor, ...]:
    """The tensors of one file, in the order of their data. Raises Refused when any rule is broken."""
    entries, start = header(item, limits)
    entries.pop("__metadata__", None)
    if len(entries) > limits.tensors:
        raise _refuse(
            "brought_too_large", f"It holds {len(entries):,} tensors, more than {limits.tensors:,}", item
        )
    placed = sorted((_entry(name, entry, item) for name, entry in entries.items()), key=lambda p: p[:2])
    end = 0
    for low, high, tensor in placed:
        if low != end:
            what = "overlaps the one before it" if low < end else "leaves a hole before it"
            raise _refuse("brought_damaged", f"The data of tensor {shown(tensor.name)} {what}", item)
        end = high
    if start + end > item.size:
        raise _refuse(
            "brought_truncated",
            f"The file ends at byte {item.size:,}; its tensors go on to {start + end:,}",
            item,
        )
    if start + end < item.size:
        raise _refuse("brought_damaged", f"{item.size - start - end:,} bytes follow its last tensor", item)
    return tuple(tensor for _, _, tensor in placed)


def _entry(name: str, entry: Any, item: Item) -> tuple[int, int, Tensor]:
    """Where a tensor's data lie, and the tensor."""

    def wrong(what: str) -> Refused:
        return _refuse("brought_damaged", f"Tensor {shown(name)} {what}", item)

    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise wrong("is not described by dtype, shape and data_offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in BITS:
        raise wrong(f"has the unknown type {shown(dtype)}")
    if not isinstance(shape, list) or len(shape) > _MAX_DIMENSIONS or not all(_is_size(n) for n in shape):
        raise wrong("has no shape of whole numbers")
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(_is_size(n) for n in offsets):
        raise wrong("has no place in the file")
    count = 1
    for n in shape:
        count *= n
        if count > 2**63:
            raise wrong("has more elements than there are")
    low, high = offsets
    if low > high or (high - low) * 8 != count * BITS[dtype]:
        raise wrong(f"takes {high - low:,} bytes, but its shape and type need {count * BITS[dtype] // 8:,}")
    return low, high, Tensor(name, tuple(shape), dtype, high - low, item.name)


def _is_size(n: object) -> bool:
    return isinstance(n, int) and not isinstance(n, bool) and 0 <= n < 2**63


def weights(bundle: Bundle) -> tuple[Item, ...]:
    """The safetensors files of a bundle, by content, in the order of their names."""
    found = []
    for item in bundle.items:
        with item.path.open("rb") as file:
            head = file.read(_LENGTH + 1)
        if looks_like(head) and not item.base.endswith((".json", ".txt", ".model")):
            found.append(item)
    return tuple(sorted(found, key=lambda i: i.name))


def locate(bundle: Bundle, limits: Limits) -> dict[str, tuple[Item, Tensor]]:
    """Every tensor of the bundle's safetensors files: name -> (file, tensor).

    An index (model.safetensors.index.json), if there is one, must name files of the bundle and nothing
    else, and hold what it says. Raises Refused for a missing shard, a tensor that is missing or stands
    in two shards, and names that are paths.
    """
    found: dict[str, tuple[Item, Tensor]] = {}
    for item in _shards(bundle, limits):
        for tensor in tensors_of(item, limits):
            if tensor.name in found:
                other = shown(found[tensor.name][0].base)
                raise Refused(
                    "brought_damaged",
                    f"Tensor {shown(tensor.name)} stands in two files: {other} and {shown(item.base)}.",
                    "Bring the shards of one model only.",
                    where=shown(tensor.name),
                )
            found[tensor.name] = (item, tensor)
        if len(found) > limits.tensors:
            raise _refuse("brought_too_large", f"There are more than {limits.tensors:,} tensors", item)
    for name, shard in index(bundle, limits).items():
        if name not in found:
            raise Refused(
                "brought_incomplete",
                f"The index says that {shown(shard)} holds tensor {shown(name)}, but no file does.",
                "Bring all shards of the same version of the model.",
                where=shown(name),
            )
    return found


def tensors(bundle: Bundle, limits: Limits) -> tuple[Tensor, ...]:
    """All tensors of the bundle's safetensors files."""
    return tuple(tensor for _, tensor in locate(bundle, limits).values())


def index(bundle: Bundle, limits: Limits) -> dict[str, str]:
    """The index's weight_map, tensor -> file; empty without an index. Raises Refused."""
    item = bundle.named(*INDEX_NAMES) or next(iter(bundle.ending(".safetensors.index.json")), None)
    if item is None:
        return {}
    parsed = read_json(item, limits.tokenizer_bytes)
    mapped = parsed.get("weight_map")
    if not isinstance(mapped, dict) or not all(isinstance(v, str) for v in mapped.values()):
        raise _refuse("brought_damaged", "The index has no weight_map of names", item)
    for shard in set(mapped.values()):
        if "/" in shard or "\\" in shard or shard in (".", "..", "") or "\0" in shard:
            raise Refused(
                "brought_unsafe",
                f"The index names {shown(shard)}, which is a path and not one of the files beside it.",
                "Only files that are brought are read. Save the model again with save_pretrained.",
                where=shown(item.base),
            )
    return mapped


def _shards(bundle: Bundle, limits: Limits) -> tuple[Item, ...]:
    """The files to read: those the index names, or all of them without one."""
    found = weights(bundle)
    names = set(index(bundle, limits).values())
    if not names:
        return found
    by_base = {item.base: item for item in found}
    missing = sorted(names - set(by_base))
    if missing:
        present = bundle.named(missing[0])
        if present is not None and present.size == 0:
            raise _refuse("brought_empty", "The shard is empty", present)
        if present is not None:
            raise _refuse(
                "brought_damaged", "The index names it as a shard, but it is no safetensors file", present
            )
        raise Refused(
            "brought_incomplete",
            f"{len(missing)} of {len(names)} shards that the index names did not come: {shown(missing[0])}.",
            "Bring all of them together, or one zip of the whole folder.",
            where=shown(missing[0]),
        )
    return tuple(by_base[name] for name in sorted(names))


def read_json(item: Item, most: int) -> dict[str, Any]:
    """A JSON object from a file of at most `most` bytes. Raises Refused."""
    if item.size > most:
        raise _refuse(
            "brought_too_large", f"The file has {item.size:,} bytes; at most {most:,} are read", item
        )
    try:
        parsed = json.loads(item.path.read_bytes().decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise _refuse("brought_damaged", "The file is no JSON that can be read", item) from error
    if not isinstance(parsed, dict):
        raise _refuse("brought_damaged", "The file holds no JSON object", item)
    return parsed


class _Twice(Exception):
    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


def _no_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise _Twice(name)
            seen.add(name)
    return found


def _no_constant(text: str) -> Any:
    raise ValueError(f"{text} is no number of JSON")


def _refuse(kind: Any, what: str, item: Item) -> Refused:
    return Refused(kind, f"{what}.", _AGAIN, where=shown(item.base))
