"""The attention-sink study on a model that a user brought: the same tracing, the same tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
from PIL import Image

from data.errors import CloudChamberError
from data.records.attention_sinks import MODELS, TOKENS
from data.shelf import in_use
from data.sources.pictures import PICTURES
from models.checkpoints.attention import AttentionModel, Images
from models.checkpoints.refused import shown
from precompute.runs import attention_tables as rows
from precompute.runs import brought
from precompute.runs.attention_looking import Looked, look
from precompute.runs.attention_samples import Samples, batches, make_samples
from precompute.runs.brought_tokens import tokenizer_of
from precompute.runs.subjects import Tokenizer
from precompute.studies.attention_sinks import MAX_TOKENS, AttentionConfig
from precompute.study import Device, Recorder

_PIXELS = 50_000_000  # of a picture that is decoded
_FORMATS = ("PNG", "JPEG", "WEBP", "BMP")


@lru_cache(maxsize=1)
def _opened(root: str, slug: str, device: str, progress: Callable[[int, int, str], None]) -> AttentionModel:
    return brought.open_model(slug, device, progress)


class _Once:
    """A progress callback that all calls of one worker share, so that it does not split the cache."""

    report: Callable[[int, int, str], None] | None = None

    def __call__(self, done: int, total: int, stage: str) -> None:
        if self.report is not None:
            self.report(done, total, stage)


_PROGRESS = _Once()


def run(config: AttentionConfig, recorder: Recorder, device: Device) -> None:
    """Trace what lies on the shelf in use under `config.subject`. Raises CloudChamberError."""
    if config.task != "trace":
        raise CloudChamberError(
            "brought_unsupported",
            f"The task {config.task!r} is measured for the reference models only.",
            "Leave the task out: a model that is brought is traced.",
            where="task",
        )
    _PROGRESS.report = recorder.progress
    with brought.kindly():
        model = _opened(str(in_use().shelf.root), config.subject, device.name, _PROGRESS)
        for notice in model.notices:
            recorder.notice(notice.kind, notice.message, notice.count)
        if model.takes == "text":
            looked, how = _text(config, model, recorder)
        elif model.takes == "image":
            looked, how = _pictures(config, model, recorder)
        else:
            looked, how = _maps(config, model, recorder)
        recorder.write(MODELS.name, _card(config.subject, model, how))
        look(config, looked, recorder)


def _card(slug: str, model: AttentionModel, how: str) -> pa.Table:
    entry = in_use().shelf.get(slug)
    return rows.model(
        name=entry.read("name") or shown(entry.files()[0][0]),
        format=model.format,
        architecture=model.architecture,
        family=model.family,
        layers=model.layers,
        heads=model.heads,
        kv_heads=model.kv_heads,
        parameters=model.parameters,
        vocabulary=model.vocabulary,
        max_positions=model.max_positions,
        dtype=model.dtype,
        tokenizer=how,
    )


def _text(config: AttentionConfig, model: AttentionModel, recorder: Recorder) -> tuple[Looked, str]:
    tokenizer, said = tokenizer_of(model, config.content)
    if said:
        recorder.notice("no_tokenizer", said, 1)
    length = _length(config, model, recorder)
    samples = make_samples(config.model_copy(update={"length": length}), tokenizer, recorder)
    _check_ids(samples, model, tokenizer)
    recorder.write(TOKENS.name, rows.tokens(samples.ids, tokenizer.pieces, tokenizer.is_special))
    groups = tuple((group, torch.tensor([samples.ids[i] for i in group])) for group in batches(samples))
    how = f"{tokenizer.vocabulary:,} tokens" if model.tokenizer is not None else "none: bytes or ids"
    return Looked(model.layers, model.trace, groups), how


def _length(config: AttentionConfig, model: AttentionModel, recorder: Recorder) -> int:
    """Tokens a chunk: what was asked for, what the model can read, what is traced here."""
    if model.length is not None:
        if model.length != config.length:
            recorder.notice(
                "length_fixed",
                f"The model reads exactly {model.length:,} tokens; chunks have that length.",
                1,
            )
        return model.length
    most = min(model.max_positions or MAX_TOKENS, MAX_TOKENS)
    if config.length > most and config.samples > 1:
        recorder.notice("length_cut", f"The model reads at most {most:,} tokens; chunks have that length.", 1)
    return min(config.length, most)


def _check_ids(samples: Samples, model: AttentionModel, tokenizer: Tokenizer) -> None:
    """A tokenizer that does not belong to the model shows in ids that the embedding does not have."""
    largest = max(max(ids) for ids in samples.ids)
    if model.vocabulary is not None and largest >= model.vocabulary:
        raise CloudChamberError(
            "brought_input",
            f"The text holds token {largest:,} ({shown(tokenizer.pieces([largest])[0])}), but the model "
            f"embeds {model.vocabulary:,} ids only.",
            "Bring the tokenizer that belongs to this model.",
            where="tokenizer.json",
        )


def _pictures(config: AttentionConfig, model: AttentionModel, recorder: Recorder) -> tuple[Looked, str]:
    assert model.images is not None  # an image model without a way to show it pictures is no model
    if config.text == "images":
        found = _own_pictures(config, recorder)
    elif config.text in PICTURES:
        found = PICTURES[config.text].read(config.samples)
    else:
        raise CloudChamberError(
            "text_unknown",
            f"This model looks at pictures, and {config.text!r} is no set of pictures.",
            f"Choose one of: {', '.join(PICTURES)}, or bring pictures.",
            where="text",
        )
    groups, pieces = [], []
    for number, picture in enumerate(found):  # one at a time: they may differ in width
        pixels = model.images.prepare([picture])
        groups.append(((number,), pixels))
        pieces.append(model.images.pieces(pixels))
    if max(map(len, pieces)) > MAX_TOKENS:
        raise CloudChamberError(
            "brought_input",
            f"A picture becomes {max(map(len, pieces)):,} patches here; at most {MAX_TOKENS:,} are traced.",
            "Bring a smaller picture, or a model with larger patches.",
            where="pictures",
        )
    _write_patches(pieces, recorder)
    return Looked(model.layers, model.trace, tuple(groups)), _shape(model.images)


def _shape(images: Images) -> str:
    return f"none: pictures of {images.shape[1]} × {images.shape[2]} pixels"


def _write_patches(pieces: Sequence[Sequence[str]], recorder: Recorder) -> None:
    """Positions of a picture are its patches; they are called by row and column."""
    for sample, names in enumerate(pieces):
        special = [name.startswith("[") for name in names]
        table = rows.tokens([range(len(names))], partial(_named, names), special.__getitem__)
        recorder.write(
            TOKENS.name, table.set_column(0, "sample", pa.array([sample] * len(names), pa.int32()))
        )


def _named(names: Sequence[str], ids: Sequence[int]) -> list[str]:
    return [names[i] for i in ids]


def _own_pictures(config: AttentionConfig, recorder: Recorder) -> list[npt.NDArray[np.uint8]]:
    """The pictures of a shelf entry, decoded with bounds."""
    files = in_use().shelf.get(config.content or "").files()
    if len(files) > config.samples:
        recorder.notice("pictures_cut", f"{len(files)} pictures came; {config.samples} are shown.", 1)
    found = []
    for name, path in files[: config.samples]:
        try:
            with Image.open(path, formats=_FORMATS) as picture:
                if picture.width * picture.height > _PIXELS:
                    raise CloudChamberError(
                        "brought_too_large",
                        f"The picture has {picture.width:,} × {picture.height:,} pixels.",
                        f"Bring one with at most {_PIXELS // 1_000_000} million.",
                        where=shown(name),
                    )
                found.append(np.asarray(picture.convert("RGB"), dtype=np.uint8))
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
            raise CloudChamberError(
                "brought_damaged",
                f"This is no picture that can be read: {shown(error)}.",
                "Bring a PNG, JPEG, WebP or BMP file.",
                where=shown(name),
            ) from error
    return found


def _maps(config: AttentionConfig, model: AttentionModel, recorder: Recorder) -> tuple[Looked, str]:
    length, count = model.length or 0, model.samples or 1
    names = list(model.pieces) or [str(i) for i in range(length)]
    table = rows.tokens([range(length)] * count, partial(_named, names), lambda _: False)
    recorder.write(TOKENS.name, table)
    return Looked(model.layers, model.trace, ((tuple(range(count)), None),)), "none: maps only"
