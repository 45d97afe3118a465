"""What torch.save writes since version 1.6: a zip with one pickle and the bytes of every storage.

The pickle is first read by a machine that can call nothing (pickle_listing), and every storage is
checked against its record. Only then, and only where the visitor allowed it, torch.load opens the
same pickle with weights_only=True.
"""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from models.checkpoints import pickle_listing
from models.checkpoints.bundle import Item, Limits
from models.checkpoints.inspection import Notice, Tensor
from models.checkpoints.npz_members import place_of
from models.checkpoints.pickle_listing import EXPORT, MAX_PICKLE, Stored
from models.checkpoints.refused import Refused, shown
from models.checkpoints.zip_directory import BROKEN, ENTRY_ROOM, entries

if TYPE_CHECKING:
    import torch

# Keys under which training code keeps the weights, the likelier first.
CONTAINERS = ("state_dict", "model_state_dict", "model", "module", "net", "ema")
_DEEP = 4  # containers within containers
_BESIDE = 100  # records that hold no tensor: version, byteorder, …
_SAY = 5  # keys that a message names
_STATE = "Save the weights alone, torch.save(model.state_dict(), 'model.pt'), or better as safetensors."


def listing(item: Item, limits: Limits) -> tuple[Tensor, ...]:
    """The tensors that a file holds, nothing unpickled and no weights read. Raises Refused."""
    state, _, _ = _described(item, limits)
    return tuple(_tensor(name, stored, item) for name, stored in state.items())


def located(item: Item, limits: Limits) -> list[tuple[Tensor, int | None]]:
    """The same, each with the byte of the file at which it begins; None where strides leave gaps."""
    state, _, _ = _described(item, limits)
    found = entries(item, limits.tensors + _BESIDE, ENTRY_ROOM)
    records = {e.filename.partition("/")[2].removeprefix("data/"): e for e in found}
    starts = {name: place_of(item, records[name]) for name in {s.record for s in state.values()}}
    places = []
    for name, stored in state.items():
        start = starts[stored.record]
        whole = stored.strides == _row_major(stored.shape)
        at = start + stored.offset * stored.item_bytes if whole and start is not None else None
        places.append((_tensor(name, stored, item), at))
    return places


def _tensor(name: str, stored: Stored, item: Item) -> Tensor:
    return Tensor(name, stored.shape, stored.dtype, stored.elements * stored.item_bytes, item.name)


def _row_major(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))


def load_state_dict(item: Item, limits: Limits) -> tuple[dict[str, torch.Tensor], tuple[Notice, ...]]:
    """The tensors of a file by name, mapped from the disk, and what was passed over to get at them.

    The caller has the visitor's consent. Raises Refused: brought_pickle for what is no state dict of
    tensors or asks for code, brought_damaged and brought_truncated for records that do not fit,
    brought_too_large.
    """
    state, path, notices = _described(item, limits)
    import torch

    reader = torch._C.PyTorchFileReader(str(item.path))
    if reader.get_record("data.pkl") != _pickle(item, limits)[0]:
        raise _damaged("It shows one pickle to one reader and another to the next", item)
    found: Any = torch.load(item.path, map_location="cpu", mmap=True, weights_only=True)
    for key in path:
        found = found[key]
    return {name: found[name].detach() for name in state}, notices


def _described(item: Item, limits: Limits) -> tuple[dict[str, Stored], list[str], tuple[Notice, ...]]:
    """The state dict as descriptions, the keys that lead to it, and the notices."""
    content, records = _pickle(item, limits)
    described = pickle_listing.read(content, shown(item.base))
    path, state = _weights(described, item)
    tensors = {name: value for name, value in state.items() if isinstance(value, Stored)}
    if len(tensors) > limits.tensors:
        raise Refused(
            "brought_too_large",
            f"It holds {len(tensors):,} tensors; at most {limits.tensors:,} are taken.",
            EXPORT,
            where=shown(item.base),
        )
    for name, stored in tensors.items():
        _fits(name, stored, records, item)
    return tensors, path, tuple(_notices(described, path, state, tensors))


def _pickle(item: Item, limits: Limits) -> tuple[bytes, dict[str, int]]:
    """The pickle's bytes, and the size of every record under data/."""
    found = entries(item, limits.tensors + _BESIDE, ENTRY_ROOM)
    pickles = [entry for entry in found if entry.filename.rpartition("/")[2] == "data.pkl"]
    if len(pickles) != 1 or pickles[0].filename.count("/") != 1:
        raise _damaged("It is no zip of torch.save: it has not just one folder with a data.pkl", item)
    root = pickles[0].filename[: -len("data.pkl")]
    names = {entry.filename for entry in found}
    if len(names) != len(found) or not all(name.startswith(root) for name in names):
        raise _damaged("Two records have the same name, or one lies outside the folder", item)
    if root + "constants.pkl" in names:
        raise Refused(
            "brought_unsupported",
            "This is a TorchScript program, not weights.",
            f"{_STATE}",
            where=shown(item.base),
        )
    for entry in found:
        if entry.compress_type != zipfile.ZIP_STORED or entry.flag_bits & 0x41:
            raise _damaged(
                f"Its record {shown(entry.filename)} is packed; torch.save stores them plain", item
            )
    if pickles[0].file_size > MAX_PICKLE:
        raise Refused(
            "brought_too_large",
            f"Its pickle alone takes {pickles[0].file_size:,} bytes.",
            EXPORT,
            where=shown(item.base),
        )
    try:
        with zipfile.ZipFile(item.path) as archive:
            content = archive.read(pickles[0])
    except BROKEN as error:
        raise _damaged("Its pickle does not match its checksum", item) from error
    data = root + "data/"
    return content, {e.filename[len(data) :]: e.file_size for e in found if e.filename.startswith(data)}


def _fits(name: str, stored: Stored, records: Mapping[str, int], item: Item) -> None:
    """The record is there, as long as claimed, and all elements of the tensor lie in it."""
    held = records.get(stored.record)
    if held is None:
        raise _damaged(f"The numbers of tensor {shown(name)} are missing", item)
    if stored.record_bytes > held:
        raise _damaged(
            f"Tensor {shown(name)} claims {stored.record_bytes:,} bytes, but its record holds {held:,}", item
        )
    room = stored.record_bytes // stored.item_bytes
    last = stored.offset + sum((n - 1) * s for n, s in zip(stored.shape, stored.strides, strict=True))
    if 0 in stored.shape:
        return
    if stored.elements > room:
        raise _damaged(
            f"Tensor {shown(name)} has {stored.elements:,} elements, but only {room:,} are stored", item
        )
    if last >= room:
        raise _damaged(f"Tensor {shown(name)} reads past its record", item)


def _weights(found: Any, item: Item) -> tuple[list[str], dict[str, Any]]:
    """The keys that lead to a dict of tensors, and that dict. Raises Refused when there is none."""
    path: list[str] = []
    here = found
    while isinstance(here, dict) and len(path) <= _DEEP:
        inner = next((key for key in CONTAINERS if isinstance(here.get(key), dict)), None)
        if inner is None:  # a step counter beside the weights may be a tensor too, so only at the end
            if any(isinstance(value, Stored) for value in here.values()) and _named(here):
                return path, here
            break
        path.append(inner)
        here = here[inner]
    raise Refused("brought_pickle", _holds(found), _STATE, where=shown(item.base))


def _named(state: dict[Any, Any]) -> bool:
    """Whether the tensors of a dict have names, as those of an optimizer do not."""
    return all(isinstance(key, str) for key, value in state.items() if isinstance(value, Stored))


def _holds(found: Any) -> str:
    """What a file holds in place of weights, in one sentence."""
    if not isinstance(found, dict):
        what = {Stored: "one tensor without a name", list: "a list", tuple: "a tuple"}.get(
            type(found), "a value"
        )
        return f"It holds {what}, not the named tensors of a model."
    if not found:
        return "It holds an empty dict."
    keys = ", ".join(shown(key) for key in list(found)[:_SAY])
    more = f" and {len(found) - _SAY:,} more" if len(found) > _SAY else ""
    if {"state", "param_groups"} <= set(found):
        return f"It holds the state of an optimizer ({keys}{more}), not a model."
    return f"It holds {keys}{more}, and no tensors of a model under any name that is known here."


def _notices(found: Any, path: list[str], state: dict[str, Any], tensors: dict[str, Any]) -> list[Notice]:
    notices = []
    if path:
        beside = [shown(key) for key in found if key != path[0]]
        passed = f"; passed over: {', '.join(beside[:_SAY])}" if beside else ""
        notices.append(
            Notice(
                "container_opened",
                f"The weights are those under {'.'.join(path)}{passed}.",
                max(len(beside), 1),
            )
        )
    if rest := len(state) - len(tensors):
        notices.append(Notice("entries_skipped", f"{rest:,} entries among the weights are no tensors.", rest))
    return notices


def _damaged(what: str, item: Item) -> Refused:
    return Refused("brought_damaged", f"{what}.", f"Save it again. {EXPORT}", where=shown(item.base))
