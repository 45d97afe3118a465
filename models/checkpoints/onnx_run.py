"""Running an ONNX graph with onnxruntime so that it hands out its attention."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
import torch

from models.attention.from_maps import reduce_map
from models.attention.trace import LayerAttention, OnAttention, OnMap, OnStates, Progress
from models.checkpoints.bundle import Item
from models.checkpoints.onnx_file import Stored
from models.checkpoints.onnx_graph import Found, Input, listed
from models.checkpoints.refused import Refused, shown

_MAP_BYTES = 3 * 2**29  # of attention that one pass may hand out; more layers, more passes
_CHUNK = 2**22  # entries looked at together
_IN_MEMORY = 2**26  # bytes of a file that is handed over as bytes
_TYPES = {1: np.float32, 6: np.int32, 7: np.int64, 9: np.bool_, 10: np.float16}
_REMEDY = (
    "Export it in float32 with opset_version=17: torch.onnx.export(model.float(), inputs, 'model.onnx')."
)
Maps = npt.NDArray[Any]


class Runner:
    """The graph of one file, on the CPU. `names` are the tensors that it hands out."""

    def __init__(self, item: Item, tensors: Sequence[Stored], inputs: Sequence[Input]) -> None:
        self.item, self.inputs, self.tensors = item, inputs, tensors
        self._base = item.path
        self._outside = [t for t in tensors if t.item is not None and t.item.path != item.path]
        if self._outside:
            self._base = self._gathered(self._folder)
        self._brain = any(t.dtype == "BF16" for t in tensors)
        self._session: tuple[tuple[str, ...], Any] = ((), None)

    @cached_property
    def _folder(self) -> Path:
        """A folder that goes with this object; small files never need one."""
        self._kept = tempfile.TemporaryDirectory(prefix="cloudchamber-onnx-")
        return Path(self._kept.name)

    def _gathered(self, folder: Path) -> Path:
        """The model with its data files beside it, under names of ours.

        The files were checked when the model was walked; the model's own words for them are replaced.
        """
        places: dict[Path, str] = {}
        for tensor in self._outside:
            assert tensor.item is not None
            place = places.setdefault(tensor.item.path, f"data{len(places)}")
            if not (folder / place).exists():
                _place(tensor.item.path, folder / place)
        model = onnx.load(self.item.path, load_external_data=False)
        for proto in _tensors(model.graph, 0):
            for entry in proto.external_data:
                if entry.key == "location":
                    entry.value = places[self._file_of(entry.value)]
        (folder / "model.onnx").write_bytes(model.SerializeToString())
        return folder / "model.onnx"

    def _file_of(self, location: str) -> Path:
        for tensor in self._outside:
            if tensor.item is not None and tensor.external.get("location") == location:
                return tensor.item.path
        raise Refused("brought_unsafe", f"The data file {shown(location)!r} was not looked at.", _REMEDY)

    def session(self, names: tuple[str, ...]) -> Any:
        """A session whose last outputs are `names`; the one made last is kept.

        Serialised protobuf messages that follow each other are one message, so that outputs are
        declared by bytes behind the file's own; the weights are never parsed here.
        """
        if self._session[1] is not None and self._session[0] == names:
            return self._session[1]
        self._session = ((), None)
        tail = onnx.ModelProto()
        for name in names:
            tail.graph.output.add().name = name
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4  # what goes wrong is raised, too
        options.intra_op_num_threads = int(os.environ.get("OMP_NUM_THREADS") or 0)
        options.inter_op_num_threads = 1
        # Constants are folded and nodes that do nothing dropped; nothing is fused across an output.
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
        with self._kindly("opened"), self._exposed(tail.SerializeToString()) as model:
            session = onnxruntime.InferenceSession(
                model, options, providers=["CPUExecutionProvider"], enable_fallback=False
            )
        self._session = (names, session)
        return session

    @contextlib.contextmanager
    def _exposed(self, tail: bytes) -> Iterator[str | bytes]:
        """The model with `tail` behind it: bytes of a small one, the path of a large one."""
        if self._base.stat().st_size <= _IN_MEMORY and not self._outside:
            yield self._base.read_bytes() + tail
            return
        exposed = self._folder / "exposed.onnx"
        try:
            with self._base.open("rb") as source, exposed.open("wb") as target:
                shutil.copyfileobj(source, target, 2**22)
                target.write(tail)
            yield str(exposed)
        finally:
            exposed.unlink(missing_ok=True)  # the runtime holds what it needs

    def run(self, names: tuple[str, ...], fed: dict[str, Maps]) -> list[Maps]:
        """The tensors `names` for one sample. Raises Refused with the runtime's reason."""
        session = self.session(names)
        with self._kindly("run"):
            return list(session.run(list(names), fed))

    @contextlib.contextmanager
    def _kindly(self, what: str) -> Iterator[None]:
        try:
            yield
        except (Refused, MemoryError):
            raise
        except Exception as error:  # the runtime raises kinds of its own, and plain ones
            text = " ".join(str(error).split())
            if self._brain or "bfloat16" in text.lower():
                reason = "its weights are bfloat16, which onnxruntime's CPU kernels mostly lack"
            elif "NOT_IMPLEMENTED" in text or "Could not find an implementation" in text:
                reason = f"onnxruntime lacks an operator: {shown(text.rpartition(' : ')[2])}"
            else:
                reason = shown(text.rpartition(" : ")[2])
            raise Refused(
                "brought_unsupported",
                f"The graph cannot be {what}: {reason}.",
                _REMEDY,
                shown(self.item.name),
            ) from error

    def feed(self, sample: Maps) -> dict[str, Maps]:
        """What the graph is fed for one sample: ids `(T,)` or pixels `(C, H, W)`."""
        return {i.name: _value(i, sample) for i in self.inputs}


def _value(given: Input, sample: Maps) -> Maps:
    dtype = _TYPES[given.code]
    if given.role == "cache":  # nothing came before: the axis that may have any length has none
        sizes = [1 if axis == 0 else (size or 0) for axis, size in enumerate(given.shape)]
        return np.zeros(sizes, dtype=dtype)
    if given.role == "flag":
        return np.zeros([size or 1 for size in given.shape], dtype=dtype)
    length = sample.shape[0]
    row = {
        "ids": sample,
        "image": sample,
        "mask": np.ones(length),
        "segments": np.zeros(length),
        "positions": np.arange(length),
    }[given.role or "ids"]
    return np.repeat(np.asarray(row).astype(dtype)[None], given.shape[0] or 1, axis=0)


def _place(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system, or none that knows links
        shutil.copyfile(source, target)


def _tensors(graph: onnx.GraphProto, depth: int) -> list[onnx.TensorProto]:
    """Every tensor of a graph, those of its nodes' attributes among them."""
    if depth > 12:
        return []
    found = list(graph.initializer)
    for node in graph.node:
        for a in node.attribute:
            found += [a.t, *a.tensors]
            for inner in [a.g, *a.graphs]:
                found += _tensors(inner, depth + 1)
    return found


def heads_of(maps: Maps, batch: int) -> Maps | None:
    """One sample's maps `(H, T, T)`, out of what a softmax node hands out for `batch` equal samples.

    `(N, H, T, T)`, `(N*H, T, T)` and `(N, K, G, T, T)` of grouped queries; None for anything else
    (windows, cross attention, pooling).
    """
    if maps.ndim < 3 or maps.shape[-1] != maps.shape[-2] or maps.shape[0] % batch or not maps.size:
        return None
    if maps.ndim > 3 and maps.shape[0] != batch:
        return None
    flat = maps.reshape(-1, *maps.shape[-2:])
    return flat[: len(flat) // batch]


def not_finite(tensors: Sequence[Stored]) -> list[str]:
    """Names of the tensors, stored as raw bytes, that hold NaN or infinite values."""
    kinds = {"F16": "<f2", "F32": "<f4", "F64": "<f8"}
    bad = []
    for tensor in tensors:
        if (
            tensor.dtype in kinds
            and tensor.item is not None
            and tensor.offset is not None
            and tensor.elements
        ):
            values = np.memmap(tensor.item.path, kinds[tensor.dtype], "r", tensor.offset, tensor.elements)
            if not all(np.isfinite(values[i : i + _CHUNK]).all() for i in range(0, len(values), _CHUNK)):
                bad.append(tensor.name)
    return bad


@dataclass(frozen=True)
class Tracer:
    """`models.checkpoints.attention.Trace` of a graph: its layers are `found`."""

    runner: Runner
    found: tuple[Found, ...]
    heads: int
    length: int | None
    prepare: Callable[[torch.Tensor], Maps]  # inputs of the study to what `feed` takes, one a sample

    def __call__(
        self,
        inputs: torch.Tensor | None,
        *,
        on_attention: OnAttention,
        on_states: OnStates = lambda _: None,
        on_map: OnMap | None = None,
        map_samples: tuple[int, ...] = (0,),
        progress: Progress | None = None,
    ) -> None:
        """Run one sample at a time, as many layers a pass as fit; a layer is handed out once all have run."""
        if inputs is None:
            raise Refused("brought_input", "The model was given nothing.", "Give it a text or a picture.")
        samples = self.prepare(inputs)
        total, done = len(self.found) * len(samples), 0
        for start, stop in self._passes(samples[0]):
            layers: list[list[LayerAttention]] = [[] for _ in range(start, stop)]
            for number, sample in enumerate(samples):
                for layer, maps in enumerate(self._maps(sample, start, stop)):
                    if on_map is not None and number in map_samples:
                        for head, one in enumerate(maps):
                            on_map(start + layer, number, head, one.astype(np.float32))
                    layers[layer].append(self._reduced(start + layer, maps))
                    done += 1
                    if progress is not None and done % len(samples) == 0:
                        progress(done * len(self.found) // total, len(self.found))
            for each in layers:
                on_attention(_together(each))

    def _passes(self, sample: Maps) -> list[tuple[int, int]]:
        """Which layers are handed out together, so that their maps fit into `_MAP_BYTES`."""
        length = self.length or len(sample)
        most = max(1, _MAP_BYTES // (4 * self.heads * length**2))
        passes = -(-len(self.found) // most)
        step = -(-len(self.found) // passes)
        return [(i, min(i + step, len(self.found))) for i in range(0, len(self.found), step)]

    def _maps(self, sample: Maps, start: int, stop: int) -> list[Maps]:
        fed = self.runner.feed(sample)
        batch = len(next(iter(fed.values())))
        found = []
        raw = self.runner.run(tuple(f.tensor for f in self.found[start:stop]), fed)
        for at, given in zip(self.found[start:stop], raw, strict=True):
            maps = heads_of(given, batch)
            wrong = sample.ndim == 1 and given.shape[-1] != len(sample)
            if maps is None or wrong or len(maps) != self.heads:
                raise Refused(
                    "brought_unsupported",
                    f"The softmax hands out an array of shape {given.shape}, which is no map of "
                    f"{self.heads} heads over this input.",
                    "Choose another text, or export the model without its key-value cache.",
                    shown(at.node),
                )
            if not np.isfinite(maps).all():
                raise self._not_finite(at)
            found.append(maps)
        return found

    def _not_finite(self, at: Found) -> Refused:
        bad = not_finite(self.runner.tensors)
        reason = f"{len(bad)} tensors hold NaN or infinite values" if bad else "the computation overflows"
        return Refused(
            "brought_not_finite",
            f"The attention holds NaN: {reason}.",
            "Bring a checkpoint from before the training diverged, exported in float32.",
            listed(bad) if bad else shown(at.node),
        )

    def _reduced(self, layer: int, maps: Maps) -> LayerAttention:
        try:
            return reduce_map(layer, maps[None])
        except ValueError as error:
            raise Refused(
                "brought_unsupported",
                f"What the softmax hands out is no attention: {error}.",
                "Bring the maps themselves as .npy (layers, heads, T, T).",
                shown(self.found[layer].node),
            ) from error


def _together(samples: Sequence[LayerAttention]) -> LayerAttention:
    """One layer's samples, traced one by one, as if traced together."""
    names = [f.name for f in fields(LayerAttention) if f.name != "layer"]
    return LayerAttention(
        layer=samples[0].layer, **{n: np.concatenate([getattr(s, n) for s in samples]) for n in names}
    )


def same_shape(runner: Runner, found: Sequence[Found], sample: Maps) -> tuple[tuple[Found, ...], int, int]:
    """Which of `found` are self-attention over one sequence, with how many heads and positions.

    Runs `sample` once. Where layers differ (a hierarchy), the shape most of them share is taken; for a
    text it has to be as long as the text. Raises Refused where none is left.
    """
    fed = runner.feed(sample)
    batch = len(next(iter(fed.values())))
    shapes = []
    for maps in runner.run(tuple(f.tensor for f in found), fed):
        heads = heads_of(maps, batch)
        shapes.append(None if heads is None else heads.shape[:2])
    fitting = [s for s in shapes if s is not None and (sample.ndim != 1 or s[1] == len(sample))]
    if not fitting:
        raise Refused(
            "brought_unsupported",
            "Every attention of the graph is across two sequences or within windows; maps of one "
            "sequence onto itself are what is measured here.",
            "Export the encoder or the decoder alone, without a key-value cache.",
            listed(f.node for f in found),
        )
    heads, length = max(fitting, key=lambda s: (fitting.count(s), s[1]))
    kept = tuple(f for f, s in zip(found, shapes, strict=True) if s == (heads, length))
    return kept, heads, length
