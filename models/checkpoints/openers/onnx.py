"""ONNX graphs: the softmax nodes of their attention are exposed, and onnxruntime runs them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from models.checkpoints import tokenizer_files
from models.checkpoints.bundle import Bundle, Item, Limits, Progress, no_progress
from models.checkpoints.inspection import Inspection, Notice, Takes, Tensor
from models.checkpoints.onnx_file import Stored, looks_like_onnx, walk
from models.checkpoints.onnx_graph import Graph, Input, listed
from models.checkpoints.onnx_heads import heads_of
from models.checkpoints.refused import Refused, shown

if TYPE_CHECKING:
    from models.checkpoints.attention import AttentionModel, Images
    from models.checkpoints.onnx_run import Maps, Runner

# What the runtime takes at most; a test holds these two against the installed one.
MAX_IR = 14
MAX_OPSET = 28
_MIN_OPSET = 7
_LONGEST = 65_536  # tokens or pixels that a fixed axis may ask for
_UNNAMED = ("", "graph", "main", "main_graph", "torch_jit", "torch-jit-export")  # what exporters write
_TYPES = {1, 6, 7, 9, 10}  # of inputs that can be fed: float32, int32, int64, bool, float16
_EAGER = (
    "Export it with attention written out: from_pretrained(…, attn_implementation='eager'), then "
    "torch.onnx.export(model, inputs, 'model.onnx', opset_version=17, dynamo=False), without an optimiser."
)
_TOO_NEW = "Export it again with opset_version=21."
_PARTS = "Export the encoder or the decoder alone, with the inputs input_ids and attention_mask."


@dataclass(frozen=True)
class _Read:
    item: Item
    graph: Graph
    tensors: tuple[Stored, ...]
    inspection: Inspection


def recognises(bundle: Bundle) -> bool:
    """One file of the bundle is a serialised ONNX model."""
    return any(looks_like_onnx(item.path) for item in bundle.items)


def inspect(bundle: Bundle, limits: Limits) -> Inspection:
    """What the graph says of itself; see registry."""
    return _read(bundle, limits).inspection


def _read(bundle: Bundle, limits: Limits) -> _Read:
    import onnx

    found = [item for item in bundle.items if looks_like_onnx(item.path)]
    if len(found) > 1:
        raise Refused(
            "brought_unsupported",
            f"There are {len(found)} ONNX files.",
            "Bring one of them at a time, with its data file if it has one.",
            listed(i.name for i in found),
        )
    if not found:
        raise Refused("brought_unknown", "No file is an ONNX model.", "Bring a .onnx file.")
    item = found[0]
    parts = walk(item, bundle, limits)
    try:
        model = onnx.ModelProto.FromString(parts.slim)
    except Exception as error:
        raise Refused(
            "brought_damaged",
            "The file begins like an ONNX model, but is none.",
            "Check it with onnx.checker.check_model('model.onnx').",
            shown(item.name),
        ) from error
    try:
        graph = Graph(model)
    except Refused as refused:
        refused.where = refused.where or shown(item.name)
        raise
    inspection = _described(bundle, limits, item, graph, parts.tensors)
    return _Read(item, graph, parts.tensors, inspection)


def _described(
    bundle: Bundle, limits: Limits, item: Item, graph: Graph, stored: tuple[Stored, ...]
) -> Inspection:
    model = graph.model
    opsets = {o.domain or "ai.onnx": int(o.version) for o in model.opset_import}
    opset = opsets.get("ai.onnx", 0)
    weights = [t for t in stored if t.is_weight]
    takes, refusal = _taken(graph, opset)
    width, vocabulary, positions = _embedding(graph)
    kinds = Counter(i.role or "?" for i in graph.inputs)
    facts = {
        "Opset": ", ".join(f"{shown(d)} {v}" for d, v in sorted(opsets.items())),
        "IR version": str(model.ir_version),
        "Producer": shown(" ".join(filter(None, (model.producer_name, model.producer_version))))
        or "not said",
        "Nodes": f"{len(graph.nodes):,}",
        "Softmax nodes that are attention": str(len(graph.attention)),
        "Inputs": listed(f"{i.name} ({i.role or 'unknown'})" for i in graph.inputs),
    }
    tokenizer, said_of_it = tokenizer_files.load(bundle, limits) if takes == "text" else (None, ())
    notices = list(said_of_it)
    if kinds["cache"]:
        said = "The key-value cache is fed empty."
        notices.append(Notice("cache_empty", said, kinds["cache"]))
    return Inspection(
        format=f"ONNX, opset {opset}",
        opener="onnx",
        study="attention_sinks",
        architecture="ONNX graph" if model.graph.name in _UNNAMED else shown(model.graph.name),
        family="ONNX",
        takes=takes,
        layers=len(graph.attention) or None,
        heads=heads_of(graph),
        width=width,
        vocabulary=vocabulary,
        max_positions=positions,
        length=_fixed_length(graph),
        parameters=sum(t.elements for t in weights),
        bytes=sum(t.bytes for t in weights),
        tokenizer=tokenizer_files.describe(tokenizer),
        adds_special=tokenizer_files.adds_special(tokenizer),
        image=_image(graph),
        files=tuple((i.name, i.size) for i in bundle.items),
        tensors=tuple(
            Tensor(shown(t.name), tuple(t.dims), t.dtype, t.bytes, (t.item or item).name) for t in weights
        ),
        notices=tuple(notices),
        refusal=refusal,
        facts=facts,
    )


def _taken(graph: Graph, opset: int) -> tuple[Takes, dict[str, str] | None]:
    """What the graph is fed, and why it cannot be analysed, if so."""
    roles = Counter(i.role for i in graph.inputs)
    takes: Takes = "image" if roles["image"] and not roles["ids"] else "text"
    unknown = [i for i in graph.inputs if i.role is None or not _can_feed(i)]
    ir = graph.model.ir_version
    said: tuple[str, str, str] | None = None
    if ir > MAX_IR or opset > MAX_OPSET:
        said = (
            f"The file has IR version {ir} and opset {opset}; the runtime here takes at most {MAX_IR} and "
            f"{MAX_OPSET}.",
            _TOO_NEW,
            "",
        )
    elif opset < _MIN_OPSET:
        said = (
            f"The file has opset {opset}; the runtime here takes {_MIN_OPSET} to {MAX_OPSET}.",
            "Convert it with onnx.version_converter.convert_version(model, 17).",
            "",
        )
    elif graph.foreign:
        said = (
            "The graph uses operators that are not part of ONNX.",
            "Export it without custom operators.",
            listed(graph.foreign),
        )
    elif graph.fused and not graph.attention:
        said = (
            f"Attention is computed by {len(graph.fused)} fused nodes, which keep their weights.",
            _EAGER,
            listed(graph.fused),
        )
    elif not graph.attention and graph.hidden:
        said = (
            f"{graph.hidden} Softmax nodes lie in branches, loops or functions of the graph, where "
            "they cannot be exposed.",
            "Export it without control flow (no generation loop), functions inlined.",
            "",
        )
    elif not graph.attention:
        said = (
            "No Softmax node lies between a product of queries and keys and a product with values.",
            _EAGER,
            "",
        )
    elif unknown:
        said = (
            "The graph wants inputs that nothing here can fill.",
            _PARTS,
            listed(f"{i.name} {tuple(i.shape)}" for i in unknown),
        )
    elif roles["ids"] + roles["image"] != 1:
        said = (
            f"The graph takes {roles['ids']} token sequences and {roles['image']} pictures; one of them is "
            "analysed here.",
            _PARTS,
            listed(i.name for i in graph.inputs),
        )
    if said is None:
        return takes, None
    return takes, {"kind": "brought_unsupported", "message": said[0], "where": said[2], "remedy": said[1]}


def _can_feed(given: Input) -> bool:
    return given.code in _TYPES and all(s is None or s <= _LONGEST for s in given.shape)


def _embedding(graph: Graph) -> tuple[int | None, int | None, int | None]:
    """Width, ids that are embedded, and positions that are, from the tables that are looked up."""
    ids = next((i.name for i in graph.inputs if i.role == "ids"), None)
    places = next((i.name for i in graph.inputs if i.role == "positions"), "")
    table = graph.tables.get(ids) if ids is not None else None
    if table is None:
        return None, None, None
    by_place = graph.tables.get(places)
    fits = by_place is not None and by_place[1] == table[1] and by_place[0] > 4
    return table[1], table[0], by_place[0] if fits and by_place else None


def _fixed_length(graph: Graph) -> int | None:
    ids = next((i for i in graph.inputs if i.role == "ids"), None)
    return ids.shape[1] if ids is not None else None


def _image(graph: Graph) -> tuple[int, ...]:
    given = next((i for i in graph.inputs if i.role == "image"), None)
    if given is None or not (given.shape[2] and given.shape[3]):
        return ()
    return (given.shape[1] or 3, given.shape[2], given.shape[3])


# --- opening ----------------------------------------------------------------------------------


def open_model(
    bundle: Bundle, limits: Limits, device: str, consent: bool = False, progress: Progress = no_progress
) -> AttentionModel:
    """The graph with its attention exposed, tried once; on the CPU whatever `device` says."""
    from models.checkpoints.onnx_run import Runner

    progress(0, 2, "reading the graph")
    read = _read(bundle, limits)
    found = read.inspection
    if found.refusal is not None:
        raise Refused(
            "brought_unsupported", found.refusal["message"], found.refusal["remedy"], found.refusal["where"]
        )
    progress(1, 2, "starting the runtime")
    runner = Runner(read.item, read.tensors, read.graph.inputs)
    make = _open_image if found.takes == "image" else _open_text
    model = make(bundle, limits, read, runner)
    progress(2, 2, "the graph runs")
    return model


def _open_text(bundle: Bundle, limits: Limits, read: _Read, runner: Runner) -> AttentionModel:
    import numpy as np

    from models.checkpoints.onnx_run import same_shape

    found = read.inspection
    length = found.length or min(8, found.max_positions or 8)
    kept, heads, _ = same_shape(runner, read.graph.attention, np.ones(length, dtype=np.int64))

    def prepare(inputs: Any) -> Maps:
        ids = np.asarray(inputs.cpu().numpy(), dtype=np.int64)
        if found.length is not None and ids.shape[1] != found.length:
            raise Refused(
                "brought_input",
                f"The graph reads exactly {found.length:,} tokens, not {ids.shape[1]:,}.",
                "Export it with dynamic_axes for the sequence, or choose that length.",
                shown(read.item.name),
            )
        return ids

    return _model(read, runner, kept, heads, None, prepare, tokenizer=tokenizer_files.load(bundle, limits)[0])


def _open_image(bundle: Bundle, limits: Limits, read: _Read, runner: Runner) -> AttentionModel:
    import numpy as np

    from models.checkpoints.onnx_images import GraphImages, candidates, normalisation
    from models.checkpoints.onnx_run import same_shape

    given = next(i for i in read.graph.inputs if i.role == "image")
    normalise, notices = normalisation(bundle, limits)
    refused: Refused | None = None
    for shape in candidates(given):
        try:
            kept, heads, length = same_shape(runner, read.graph.attention, np.zeros(shape, np.float32))
        except Refused as error:
            refused = refused or error
            continue
        images = GraphImages(shape, given.shape[3] is None and shape[1] != shape[2], length, normalise)

        def prepare(inputs: Any) -> Maps:
            return np.asarray(inputs.cpu().numpy(), dtype=np.float32)

        return _model(read, runner, kept, heads, length, prepare, images=images, notices=notices)
    raise refused or Refused("brought_unsupported", "The graph takes no picture.", _PARTS)


def _model(
    read: _Read,
    runner: Runner,
    kept: tuple[Any, ...],
    heads: int,
    length: int | None,
    prepare: Callable[[Any], Maps],
    *,
    tokenizer: Any | None = None,
    images: Images | None = None,
    notices: tuple[Notice, ...] = (),
) -> AttentionModel:
    from models.checkpoints.attention import AttentionModel
    from models.checkpoints.onnx_run import Tracer

    found = read.inspection
    left = len(read.graph.attention) - len(kept)
    if left:
        said = "Attention across sequences, within windows, or of other sizes is left out."
        notices += (Notice("attention_left_out", said, left),)
    dtypes = Counter(t.dtype for t in found.tensors)
    return AttentionModel(
        format=found.format,
        architecture=found.architecture,
        family=found.family,
        takes=found.takes,
        layers=len(kept),
        heads=heads,
        kv_heads=heads,
        parameters=found.parameters,
        trace=Tracer(runner, kept, heads, length, prepare),
        vocabulary=found.vocabulary,
        max_positions=found.max_positions,
        tokenizer=tokenizer,
        images=images,
        length=found.length,
        dtype=dtypes.most_common(1)[0][0] if dtypes else "",
        notices=(*found.notices, *notices),
    )
