"""What a torch pickle describes, read without unpickling: names, shapes and types of tensors.

A pickle is a program for a small stack machine. This is that machine with nothing to call: it knows
the instructions that torch.save writes, numbers, texts and containers, and of all the globals it may be
asked for those that stand for tensors, which become descriptions. Anything else is refused by name.
Sources: Python's Lib/pickletools.py for the instructions; torch/_weights_only_unpickler.py and
torch/_utils.py (torch 2.13) for what torch.save writes and torch.load(weights_only=True) takes.
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from models.checkpoints.refused import Refused, shown

MAX_PICKLE = 16 * 2**20  # bytes; names and shapes of a hundred thousand tensors
_MAX_STEPS = 4_000_000
_MAX_TEXT = 2**16  # of a single name or text, bytes
_MAX_DIMENSIONS = 64
_LARGEST = 2**62  # of a size, stride or offset
EXPORT = (
    "Load it where it was trained, then call model.save_pretrained(folder, safe_serialization=True) "
    "and bring that folder."
)

# Types of elements: torch's storage and dtype names -> (the name in safetensors, bytes).
_STORAGES = {
    "DoubleStorage": ("F64", 8), "FloatStorage": ("F32", 4), "HalfStorage": ("F16", 2),
    "BFloat16Storage": ("BF16", 2), "LongStorage": ("I64", 8), "IntStorage": ("I32", 4),
    "ShortStorage": ("I16", 2), "CharStorage": ("I8", 1), "ByteStorage": ("U8", 1),
    "BoolStorage": ("BOOL", 1), "ComplexFloatStorage": ("C64", 8), "ComplexDoubleStorage": ("C128", 16),
}  # fmt: skip
_DTYPES = {
    "float64": ("F64", 8), "float32": ("F32", 4), "float16": ("F16", 2), "bfloat16": ("BF16", 2),
    "int64": ("I64", 8), "int32": ("I32", 4), "int16": ("I16", 2), "int8": ("I8", 1), "uint8": ("U8", 1),
    "uint16": ("U16", 2), "uint32": ("U32", 4), "uint64": ("U64", 8), "bool": ("BOOL", 1),
    "float8_e4m3fn": ("F8_E4M3", 1), "float8_e5m2": ("F8_E5M2", 1), "float8_e8m0fnu": ("F8_E8M0", 1),
    "float8_e4m3fnuz": ("F8_E4M3FNUZ", 1), "float8_e5m2fnuz": ("F8_E5M2FNUZ", 1),
}  # fmt: skip
_PLAIN = ("collections.OrderedDict", "torch.Size", "torch.device")
_REBUILD = {"_rebuild_tensor": 4, "_rebuild_tensor_v2": 6, "_rebuild_tensor_v3": 7, "_rebuild_parameter": 3}


@dataclass(frozen=True)
class Stored:
    """A tensor that the pickle describes. `record` names its bytes in the zip, `record_bytes` are those
    that the pickle claims; the tensor reads elements `offset + strides` of them."""

    record: str
    record_bytes: int
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    item_bytes: int

    @property
    def elements(self) -> int:
        """Number of entries."""
        count = 1
        for size in self.shape:
            count *= size
        return count


@dataclass(frozen=True)
class _Global:
    name: str


@dataclass(frozen=True)
class _Storage:
    record: str
    bytes: int
    dtype: str
    item_bytes: int


class Other:
    """A value that is neither a tensor nor plain: a device, a shape."""


def read(content: bytes, where: str) -> Any:
    """The object of a pickle: plain values, dicts, lists and tuples, with `Stored` for every tensor.

    Raises Refused: brought_pickle for a global or an instruction that is not torch's, brought_damaged for
    a program that breaks off or contradicts itself, brought_too_large.
    """
    if len(content) > MAX_PICKLE:
        raise Refused(
            "brought_too_large", f"Its pickle alone takes {len(content):,} bytes.", EXPORT, where=where
        )
    machine = _Machine(content, where)
    try:
        return machine.run()
    except (IndexError, KeyError, TypeError, ValueError, struct.error) as error:
        raise Refused(
            "brought_damaged",
            f"Its pickle breaks off or is damaged at byte {machine.at:,}.",
            f"Save it again. {EXPORT}",
            where=where,
        ) from error


class _Machine:
    """The stack, the memo and the marks. Errors of the program show as IndexError, TypeError, …"""

    def __init__(self, content: bytes, where: str) -> None:
        self.at = 0
        self._content, self._where = content, where
        self._stack: list[Any] = []
        self._marks: list[list[Any]] = []
        self._memo: dict[int, Any] = {}

    def run(self) -> Any:
        for _ in range(_MAX_STEPS):
            code = self._take(1)
            if code == b".":
                return self._stack.pop()
            step = _STEPS.get(code)
            if step is None:
                raise self._pickle(f"uses the instruction {code!r}, which torch.save does not write")
            step(self)
        raise Refused("brought_too_large", "Its pickle has too many steps.", EXPORT, where=self._where)

    def _pickle(self, what: str) -> Refused:
        return Refused("brought_pickle", f"The pickle {what}.", EXPORT, where=self._where)

    def _take(self, size: int) -> bytes:
        found = self._content[self.at : self.at + size]
        if len(found) != size:
            raise IndexError("the pickle ends")
        self.at += size
        return found

    def _number(self, form: str) -> Any:
        return struct.unpack(form, self._take(struct.calcsize(form)))[0]

    def _push(self, value: Any) -> None:
        self._stack.append(value)

    def _text(self, form: str) -> str:
        length = self._number(form)
        if length > _MAX_TEXT:
            raise Refused(
                "brought_too_large",
                f"Its pickle holds a text of {length:,} bytes.",
                EXPORT,
                where=self._where,
            )
        return self._take(length).decode("utf-8", "replace")

    def _line(self) -> str:
        end = self._content.index(b"\n", self.at, self.at + 1_000)
        line = self._content[self.at : end].decode("utf-8", "replace")
        self.at = end + 1
        return line

    def _since_mark(self) -> list[Any]:
        items, self._stack = self._stack, self._marks.pop()
        return items

    def mark(self) -> None:
        self._marks.append(self._stack)
        self._stack = []

    def find_global(self) -> None:
        name = f"{self._line()}.{self._line()}"
        module, _, last = name.rpartition(".")
        known = (
            name in _PLAIN
            or (module == "torch" and (last in _STORAGES or last in _DTYPES))
            or name == "torch.storage.UntypedStorage"
            or (module == "torch._utils" and last in _REBUILD)
        )
        if not known:
            raise self._pickle(f"asks for {shown(name)}, which is no tensor; it may run code")
        self._push(_Global(name))

    def reduce(self) -> None:
        arguments, function = self._stack.pop(), self._stack.pop()
        if not isinstance(function, _Global) or not isinstance(arguments, tuple):
            raise TypeError("nothing to call")
        last = function.name.rpartition(".")[2]
        if last in _REBUILD:
            self._push(self._tensor(last, arguments))
        elif last == "OrderedDict":
            self._push(OrderedDict(_pairs(arguments)))
        elif function.name in _PLAIN:
            self._push(Other())
        else:
            raise self._pickle(f"calls {shown(function.name)}")

    def _tensor(self, function: str, arguments: tuple[Any, ...]) -> Stored:
        if len(arguments) < _REBUILD[function]:
            raise TypeError("too few arguments of a tensor")
        if function == "_rebuild_parameter":
            if not isinstance(arguments[0], Stored):
                raise TypeError("a parameter of something else")
            return arguments[0]
        storage, offset, shape, strides = arguments[:4]
        dtype, item_bytes = storage.dtype, storage.item_bytes
        if function == "_rebuild_tensor_v3":
            dtype, item_bytes = _DTYPES[arguments[6].name.removeprefix("torch.")]
        sizes = (offset, *shape, *strides)
        if not isinstance(shape, tuple) or not isinstance(strides, tuple) or len(shape) != len(strides):
            raise TypeError("no shape")
        if len(shape) > _MAX_DIMENSIONS or not all(type(n) is int and 0 <= n < _LARGEST for n in sizes):
            raise ValueError("an impossible shape")
        return Stored(storage.record, storage.bytes, offset, shape, strides, dtype, item_bytes)

    def storage(self) -> None:
        """A reference to a record: ("storage", type, name of the record, device, elements)."""
        word, kind, record, _, count = self._stack.pop()
        if word != "storage" or not isinstance(kind, _Global) or not isinstance(record, str):
            raise TypeError("no storage")
        if type(count) is not int or not 0 <= count < _LARGEST:
            raise ValueError("an impossible storage")
        last = kind.name.rpartition(".")[2]
        dtype, item_bytes = ("U8", 1) if last == "UntypedStorage" else _STORAGES[last]
        self._push(_Storage(record, count * item_bytes, dtype, item_bytes))

    def build(self) -> None:
        """The state of an OrderedDict: torch.nn.Module.state_dict keeps versions of modules in it."""
        state, target = self._stack.pop(), self._stack[-1]
        if not isinstance(target, OrderedDict) or not isinstance(state, dict) or set(state) - {"_metadata"}:
            raise self._pickle("sets attributes of an object")

    def append(self) -> None:
        value = self._stack.pop()
        self._list().append(value)

    def appends(self) -> None:
        values = self._since_mark()
        self._list().extend(values)

    def _list(self) -> list[Any]:
        target = self._stack[-1]
        if not isinstance(target, list):
            raise self._pickle(f"appends to a {type(target).__name__}")
        return target

    def set_item(self) -> None:
        value, key = self._stack.pop(), self._stack.pop()
        self._set([key, value])

    def set_items(self) -> None:
        self._set(self._since_mark())

    def _set(self, items: list[Any]) -> None:
        target = self._stack[-1]
        if not isinstance(target, dict):
            raise self._pickle(f"sets items of a {type(target).__name__}")
        for key, value in _paired(items):
            target[key] = value

    def put(self, form: str) -> None:
        self._memo[self._number(form)] = self._stack[-1]

    def get(self, form: str) -> None:
        self._push(self._memo[self._number(form)])

    def tuple_of(self, count: int) -> None:
        if len(self._stack) < count:
            raise IndexError("too few values")
        self._stack[-count:] = [tuple(self._stack[-count:])]

    def protocol(self) -> None:
        if (told := self._take(1)[0]) != 2:
            raise self._pickle(f"has protocol {told}; torch.save writes 2 unless told otherwise")


def _pairs(arguments: tuple[Any, ...]) -> list[tuple[Any, Any]]:
    """What an OrderedDict is made of: nothing, or a list of pairs."""
    if not arguments:
        return []
    (pairs,) = arguments
    return _paired([value for key, item in pairs for value in (key, item)])


def _paired(items: list[Any]) -> list[tuple[Any, Any]]:
    """Keys and values; keys are texts or numbers, as nested ones could take forever to hash."""
    pairs = list(zip(items[::2], items[1::2], strict=True))
    if not all(isinstance(key, str | int | float | None) for key, _ in pairs):
        raise TypeError("a key that is neither text nor number")
    return pairs


def _push_of(make: Callable[[_Machine], Any]) -> Callable[[_Machine], None]:
    return lambda machine: machine._push(make(machine))


_STEPS: dict[bytes, Callable[[_Machine], None]] = {
    b"\x80": _Machine.protocol,
    b"(": _Machine.mark,
    b"c": _Machine.find_global,
    b"R": _Machine.reduce,
    b"Q": _Machine.storage,
    b"b": _Machine.build,
    b"a": _Machine.append,
    b"e": _Machine.appends,
    b"s": _Machine.set_item,
    b"u": _Machine.set_items,
    b"q": lambda m: m.put("<B"),
    b"r": lambda m: m.put("<I"),
    b"h": lambda m: m.get("<B"),
    b"j": lambda m: m.get("<I"),
    b"t": _push_of(lambda m: tuple(m._since_mark())),
    b"\x85": lambda m: m.tuple_of(1),
    b"\x86": lambda m: m.tuple_of(2),
    b"\x87": lambda m: m.tuple_of(3),
    b")": _push_of(lambda m: ()),
    b"]": _push_of(lambda m: []),
    b"}": _push_of(lambda m: {}),
    b"\x8f": _push_of(lambda m: []),  # a set; its elements do not matter
    b"N": _push_of(lambda m: None),
    b"\x88": _push_of(lambda m: True),
    b"\x89": _push_of(lambda m: False),
    b"J": _push_of(lambda m: m._number("<i")),
    b"K": _push_of(lambda m: m._number("<B")),
    b"M": _push_of(lambda m: m._number("<H")),
    b"G": _push_of(lambda m: m._number(">d")),
    b"\x8a": _push_of(lambda m: int.from_bytes(m._take(m._take(1)[0]), "little", signed=True)),
    b"X": _push_of(lambda m: m._text("<I")),
    b"U": _push_of(lambda m: m._text("<B")),
}
