"""Attention maps as .npy, or as the arrays of an .npz: no model, but all that is measured of one."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from models.checkpoints.bundle import Bundle, Limits, Progress, no_progress
from models.checkpoints.inspection import Inspection, Notice, Tensor
from models.checkpoints.npy_header import Npy, is_npy, read_headers
from models.checkpoints.npz_members import is_npz
from models.checkpoints.refused import Refused, shown

if TYPE_CHECKING:
    from models.checkpoints.attention import AttentionModel

LONGEST = 1_024  # positions of a map; more cannot be drawn without pooling
_LAYOUT = "Save them as numpy.save('maps.npy', maps) with axes (layers, heads, T, T), query before key."
_SOFTMAX = (
    "If these are scores, save their softmax: weights = numpy.exp(s - s.max(-1, keepdims=True)); "
    "weights /= weights.sum(-1, keepdims=True)."
)
_TEXT = 4_000  # bytes of one token's name


@dataclass(frozen=True)
class Maps:
    """Arrays that are maps: one of all layers, or one a layer, in order."""

    arrays: tuple[Npy, ...]
    samples: int
    layers: int
    heads: int
    length: int
    names: tuple[str, ...]  # of the positions
    notices: tuple[Notice, ...]

    def layer(self, layer: int) -> npt.NDArray[Any]:
        """The maps of a layer `(N, H, T, T)` where they lie, in the stored type (bfloat16 in float32)."""
        if len(self.arrays) == 1:
            array = self.arrays[0].mapped()
            whole = array[None, None] if array.ndim == 3 else array[None] if array.ndim == 4 else array
            found = whole[:, layer]
        else:
            array = self.arrays[layer].mapped()
            found = array[None] if array.ndim == 3 else array
        return self.arrays[0].numbers(found)


def recognises(bundle: Bundle) -> bool:
    """All files are NumPy arrays, or archives of them."""
    return bool(bundle.items) and all(is_npy(i.path) or is_npz(i.path) for i in bundle.items)


def inspect(bundle: Bundle, limits: Limits) -> Inspection:
    """What the headers say; see registry."""
    arrays = _headers(bundle, limits)
    tensors = tuple(Tensor(shown(a.name), a.shape, a.dtype_name, a.bytes, a.item.name) for a in arrays)
    shared: dict[str, Any] = {
        "opener": "maps",
        "study": "attention_sinks",
        "architecture": "attention maps",
        "family": "maps",
        "takes": "nothing",
        "bytes": sum(a.bytes for a in arrays),
        "files": tuple((i.name, i.size) for i in bundle.items),
        "tensors": tensors,
    }
    try:
        maps = _arranged(arrays)
    except Refused as refused:
        if refused.kind not in ("brought_unsupported", "brought_mismatch", "brought_too_large"):
            raise
        said = {
            "kind": refused.kind,
            "message": refused.message,
            "where": refused.where,
            "remedy": refused.remedy,
        }
        return Inspection(format="NumPy arrays", refusal=said, **shared)
    what = "one array" if len(maps.arrays) == 1 else f"{len(maps.arrays)} arrays, one a layer"
    return Inspection(
        format=f"Attention maps, {what}",
        layers=maps.layers,
        heads=maps.heads,
        kv_heads=maps.heads,
        samples=maps.samples,
        length=maps.length,
        notices=maps.notices,
        facts={"Names of positions": f"{len(maps.names):,}" if maps.names else "none: numbers"},
        **shared,
    )


def _headers(bundle: Bundle, limits: Limits) -> list[Npy]:
    if len(bundle.items) > limits.members:
        raise Refused("brought_too_large", f"There are {len(bundle.items):,} arrays.", _LAYOUT)
    arrays = [npy for item in bundle.items for npy in read_headers(item, limits)]
    total = sum(a.bytes for a in arrays)
    if total > limits.total_bytes:
        raise Refused("brought_too_large", f"The arrays have {total:,} bytes in all.", "Bring fewer samples.")
    return arrays


def _arranged(arrays: Sequence[Npy]) -> Maps:
    """Which of the arrays are maps, and of what."""
    maps = [a for a in arrays if a.is_real and 3 <= len(a.shape) <= 5 and a.shape[-1] == a.shape[-2]]
    texts = [a for a in arrays if a.is_text]
    if not maps:
        shapes = ", ".join(f"{shown(a.name)} {a.shape} {a.dtype_name}" for a in arrays[:5])
        raise Refused(
            "brought_unsupported",
            f"No array has the shape of attention maps, whose last two axes are equal: {shapes}.",
            _LAYOUT,
        )
    if len(maps) > 1:
        maps = _by_layer(maps)
    first = maps[0]
    shape, notices = first.shape, []
    if len(maps) == 1 and len(shape) == 3:
        notices.append(Notice("one_layer", "Maps of three axes are taken as the heads of one layer."))
    if len(maps) == 1:
        samples, layers, heads = ((1,) * (5 - len(shape)) + shape)[:3]
    else:
        samples, layers, heads = (shape[0] if len(shape) == 4 else 1), len(maps), shape[-3]
    length = shape[-1]
    if 0 in shape:
        raise Refused("brought_unsupported", f"The maps are empty: {shape}.", _LAYOUT, shown(first.name))
    if length > LONGEST:
        raise Refused(
            "brought_too_large",
            f"The maps have {length:,} positions; at most {LONGEST:,} are drawn.",
            f"Bring maps of shorter texts, or, of causal attention, maps[..., :{LONGEST}, :{LONGEST}].",
            shown(first.name),
        )
    if any(a.is_bfloat16 for a in maps):
        said = "Two-byte entries without a name are read as bfloat16, which NumPy has no type for."
        notices.append(Notice("bfloat16", said, len(maps)))
    left = len(arrays) - len(maps) - min(len(texts), 1)
    if left:
        notices.append(Notice("arrays_left_out", "Arrays that are no maps are left out.", left))
    return Maps(tuple(maps), samples, layers, heads, length, _names(texts, samples, length), tuple(notices))


def _by_layer(maps: Sequence[Npy]) -> list[Npy]:
    """One array a layer, ordered by the numbers in their names."""
    shapes = {a.shape for a in maps}
    if len(shapes) > 1 or len(maps[0].shape) > 4:
        raise Refused(
            "brought_mismatch",
            f"{len(maps)} arrays could be maps, and their shapes differ or hold several layers each.",
            "Bring one array of all layers, or one (heads, T, T) a layer, named layer_0, layer_1, …",
            ", ".join(shown(a.name) for a in maps[:5]),
        )
    return sorted(maps, key=lambda a: ([int(n[:9]) for n in re.findall(r"\d+", a.name)], a.name))


def _names(texts: Sequence[Npy], samples: int, length: int) -> tuple[str, ...]:
    """What the positions are called: of the first sample, if every sample has its own."""
    if not texts:
        return ()
    named = next((t for t in texts if t.name in ("tokens", "pieces", "words")), texts[0])
    if named.shape not in ((length,), (samples, length)) or not 0 < named.itemsize <= _TEXT:
        raise Refused(
            "brought_mismatch",
            f"The names of the positions have the shape {named.shape}, the maps {length:,} positions.",
            "Bring one name a position, or leave the names out.",
            shown(named.name),
        )
    return tuple(named.texts())


def open_model(
    bundle: Bundle, limits: Limits, device: str, consent: bool = False, progress: Progress = no_progress
) -> AttentionModel:
    """The maps, every row of which has been looked at once."""
    from models.attention.from_maps import Repairs, clean
    from models.checkpoints.attention import AttentionModel

    maps = _arranged(_headers(bundle, limits))
    repairs = Repairs()
    for layer in range(maps.layers):
        progress(layer, maps.layers, "checking rows")
        array = maps.layer(layer)
        for sample, heads in _blocks(maps):
            with_error = maps.arrays[layer if len(maps.arrays) > 1 else 0]
            try:
                repairs += clean(array[sample, heads])[2]
            except ValueError as error:
                raise Refused(
                    "brought_input",
                    f"These are no attention weights: {error}.",
                    _SOFTMAX,
                    f"{shown(with_error.name)}, layer {layer}, sample {sample}",
                ) from error
    if repairs.empty == repairs.rows:
        raise Refused("brought_not_finite", "No row of the maps holds weights.", _LAYOUT)
    notices = list(maps.notices)
    if repairs.renormalised:
        said = "Rows whose sum was near 1 were divided by it."
        notices.append(Notice("renormalised", said, repairs.renormalised))
    if repairs.empty:
        said = "Rows that are all zero, NaN or infinite are left out: a query that sees nothing, or padding."
        notices.append(Notice("rows_left_out", said, repairs.empty))
    return AttentionModel(
        format="Attention maps",
        architecture="attention maps",
        family="maps",
        takes="nothing",
        layers=maps.layers,
        heads=maps.heads,
        kv_heads=maps.heads,
        parameters=0,
        trace=_Traced(maps),
        samples=maps.samples,
        length=maps.length,
        pieces=maps.names,
        dtype=maps.arrays[0].dtype_name,
        notices=tuple(notices),
    )


def _blocks(maps: Maps) -> Iterator[tuple[int, slice]]:
    step = max(1, 2**21 // maps.length**2)
    for sample in range(maps.samples):
        for start in range(0, maps.heads, step):
            yield sample, slice(start, start + step)


@dataclass(frozen=True)
class _Traced:
    """`models.checkpoints.attention.Trace` of stored maps: nothing is run, and no states are known."""

    maps: Maps

    def __call__(
        self,
        inputs: Any,
        *,
        on_attention: Any,
        on_states: Any = None,
        on_map: Any = None,
        map_samples: tuple[int, ...] = (0,),
        progress: Any = None,
    ) -> None:
        from models.attention.from_maps import clean, reduce_map

        for layer in range(self.maps.layers):
            array = self.maps.layer(layer)
            for sample in (s for s in map_samples if on_map is not None and s < self.maps.samples):
                for head in range(self.maps.heads):
                    on_map(layer, sample, head, clean(array[sample, head])[0].astype(np.float32))
            on_attention(reduce_map(layer, array))
            if progress is not None:
                progress(layer + 1, self.maps.layers)
