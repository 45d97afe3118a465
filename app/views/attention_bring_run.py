"""Steps 2 and 3 of "Bring your own": what the model reads, and the run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import streamlit as st

from app import jobs
from app.figures.inspector import title
from app.views import attention_bring_files as files
from app.views.attention_jobs import status_of
from app.views.attention_runs import Run
from app.views.attention_text import missing, outcome, text_area
from app.widgets import states
from data.shelf import Entry
from data.sources.pictures import PICTURES
from data.sources.texts import TEXTS
from models.checkpoints.inspection import Inspection
from precompute.studies.attention_sinks import MAX_TOKENS, STUDY, map_settings

_PICTURES = "_bring_pictures"  # session state: slug of the visitor's own pictures
MAX_SAMPLES = 100
MAX_PICTURES = 32
_LIBRARIES = {"onnx": ("onnxruntime", "onnx"), "maps": ()}


def what_it_reads(entry: Entry, found: Inspection) -> dict[str, Any] | None:
    """The configuration of a run; None while something is missing, which is said."""
    makers: dict[str, Callable[[Inspection], dict[str, Any] | None]] = {
        "text": _text,
        "image": _pictures,
        "nothing": _maps,
    }
    config = makers[found.takes](found)
    if config is None:
        return None
    length = int(config["length"])
    settings = map_settings(found.layers or 1, found.heads or 1, length)
    if not settings["maps"]:
        states.notice(
            "At this length all maps would take more than a visit may use: numbers are kept, maps not."
        )
    return {"subject": entry.slug, **config, **settings}


def _text(found: Inspection) -> dict[str, Any] | None:
    names = {"free": "Your own text", **{slug: f"{spec.title} (bundled)" for slug, spec in TEXTS.items()}}
    first, second, third = st.columns([0.5, 0.25, 0.25], gap="small")
    with first:
        text = st.selectbox(
            "Text",
            list(names),
            index=1,
            format_func=names.__getitem__,
            key="bring_text",
            help="The bundled texts are those that the reference models read, so the numbers compare.",
        )
    with second:
        length = _length(found)
    with third:
        samples = st.number_input(
            "Chunks",
            1,
            MAX_SAMPLES,
            20,
            key="bring_samples",
            help="Consecutive chunks of the text; numbers are means over them. A short text has fewer.",
        )
    content = text_area("bring_content") if text == "free" else None
    bos = st.toggle(
        "With special tokens",
        value=found.adds_special,
        key="bring_special",
        disabled=not found.tokenizer,
        help="Begin each chunk as the tokenizer does by itself, with BOS or [CLS] … [SEP].",
    )
    if not found.tokenizer:
        states.notice(
            "It came without a tokenizer: text is read byte by byte, and a list of numbers as token ids. "
            "Bring tokenizer.json along for anything else."
        )
    if content is not None and not content.strip():
        states.notice("There is no text to trace yet. Type or paste some.")
        return None
    config = {"text": text, "bos": bool(bos), "length": length, "samples": int(samples)}
    return config | ({"content": content} if content is not None else {})


def _length(found: Inspection) -> int:
    most = min(found.length or found.max_positions or MAX_TOKENS, MAX_TOKENS)
    low = most if found.length else 1
    value = st.number_input(
        "Tokens in a chunk",
        low,
        most,
        min(64, most) if not found.length else most,
        key="bring_length",
        disabled=low == most,
        help=f"Up to {most:,} here. Sink rates of different lengths do not compare; the reference is 64.",
    )
    return int(value)


def _pictures(found: Inspection) -> dict[str, Any] | None:
    names = {slug: f"{spec.title} (bundled)" for slug, spec in PICTURES.items()}
    names["images"] = "Pictures of your own"
    lines = not found.image or found.image[-2] < found.image[-1]  # wide, or as wide as the picture: text
    chosen = st.selectbox(
        "Pictures",
        list(names),
        index=list(names).index("line") if lines else 0,
        format_func=names.__getitem__,
        key="bring_pictures_set",
        help="Each is fitted to what the model takes: "
        + (" × ".join(str(side) for side in found.image) or "any size")
        + " (channels × height × width).",
    )
    config: dict[str, Any] = {"text": chosen, "length": min(found.length or 64, MAX_TOKENS), "samples": 8}
    if chosen != "images":
        return config
    entry = _own_pictures()
    if entry is None:
        states.notice("Choose one or several pictures: PNG, JPEG, WebP or BMP.")
        return None
    count = len(entry.files())
    st.caption(f"{count} picture{'s' if count > 1 else ''}: {files.said(files.label(entry))}")
    return config | {"content": entry.slug, "samples": min(count, MAX_PICTURES)}


def _own_pictures() -> Entry | None:
    def keep(entry: Entry) -> None:
        st.session_state[_PICTURES] = entry.slug

    files.upload("Your pictures", "pictures", "Shown to the model and to nobody else.", keep)
    slug = st.session_state.get(_PICTURES)
    return files.on_shelf(slug) if slug else None


def _maps(found: Inspection) -> dict[str, Any]:
    length, samples = found.length or 1, found.samples or 1
    st.markdown(f"Nothing: the maps are there already, {samples:,} × {length:,} tokens.")
    return {"text": "given", "length": length, "samples": samples}


def run_it(entry: Entry, found: Inspection, config: dict[str, Any] | None, run: Run) -> None:
    """The button, progress with Cancel, and what became of it."""
    lacking = _lacking(found)
    key = files.job_key("run", entry.slug)
    job = st.session_state.get(key)
    status = status_of(job) if job is not None else None
    busy = status is not None and not status.finished
    pressed = st.button(
        "Trace it",
        type="primary",
        key="bring_go",
        icon=":material/play_arrow:",
        disabled=config is None or busy or bool(lacking),
        help="Runs the model here, in a process of its own. Its attention then is in every view above.",
    )
    if lacking:
        states.notice(f"{', '.join(lacking)} is not installed here. `make setup` installs it.")
    if pressed and config is not None:
        with states.guarded():
            if entry.read("name") is None and len(entry.files()) > 1:
                entry.write("name", title(found.architecture, found.family, found.parameters))
            st.session_state[key] = job = jobs.pool().submit(STUDY.slug, config, jobs.visit())
    if job is not None:
        outcome(job, run)


def _lacking(found: Inspection) -> tuple[str, ...]:
    import importlib.util

    needed = _LIBRARIES.get(found.opener)
    if needed is None:
        return missing("")
    return tuple(name for name in needed if importlib.util.find_spec(name) is None)
