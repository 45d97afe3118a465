""" "How this is computed": formula, units, estimator, traps, and the lines of code that do it."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import streamlit as st

from app.widgets.prose import cite
from data.paths import source_root
from precompute.study import Paper


@dataclass(frozen=True)
class Method:
    """How a number on the page is computed.

    `formula` is LaTeX; `symbols` explains its letters, with units; `estimator` says what is averaged
    over what; `traps` are the ways to read or compute it wrongly; `source` names a function,
    "models.attention.sinks:importance".
    """

    name: str
    formula: str
    symbols: Mapping[str, str] = field(default_factory=dict)
    estimator: str = ""
    traps: Sequence[str] = ()
    source: str = ""
    papers: Sequence[Paper] = ()


@lru_cache(maxsize=64)
def source_code(ref: str) -> tuple[str, int, str]:
    """File, line and text of a function or class "package.module:name", read without importing it.

    Raises LookupError when there is none of that name.
    """
    module, _, name = ref.partition(":")
    path = source_root() / (module.replace(".", "/") + ".py")
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise LookupError(f"no module {module}") from error
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node.name == name:
            lines = text.splitlines()[node.lineno - 1 : node.end_lineno]
            return path.relative_to(source_root()).as_posix(), node.lineno, "\n".join(lines)
    raise LookupError(f"{module} defines no {name}")


def explain(methods: Sequence[Method]) -> None:
    """The methods of a page, one after the other."""
    for method in methods:
        st.header(method.name, anchor=False)
        if method.formula:
            st.latex(method.formula)
        if method.symbols:
            st.markdown("\n".join(f"- {symbol}: {meaning}" for symbol, meaning in method.symbols.items()))
        if method.estimator:
            st.markdown(f"**Estimator.** {method.estimator}", width=720)
        if method.traps:
            st.markdown("**Traps**\n" + "\n".join(f"- {trap}" for trap in method.traps), width=720)
        if method.papers:
            st.caption(" · ".join(cite(paper) for paper in method.papers))
        if method.source:
            path, line, code = source_code(method.source)
            with st.expander(f"The code: {path}, line {line}", icon=":material/code:"):
                st.code(code, language="python")
