"""The trace store as pages see it: one shared connection, always at its newest generation.

What is read is cached by content: `cached_on(store, queries.heads, run_id)` runs its query once per
generation of the store and for all visitors. Results are shared, so nobody may change them in place.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

import streamlit as st

from app.widgets.states import stop_with
from data.errors import CloudChamberError
from data.paths import store_path
from data.store import Store, open_store

P = ParamSpec("P")
R = TypeVar("R")


@st.cache_resource(show_spinner=False, on_release=lambda store: store.close())
def _connection(path: str) -> Store:
    return open_store(Path(path))


def try_store(path: Path | None = None) -> Store:
    """The store at its newest generation. Raises CloudChamberError when it cannot be read."""
    target = str(path or store_path())
    store = _connection(target)
    try:
        store.refresh()
    except CloudChamberError:
        _connection.clear(target)  # so that the next visit opens what lies there then
        raise
    return store


def current_store(path: Path | None = None) -> Store:
    """The store at its newest generation; where there is none, the page says so and ends here."""
    try:
        return try_store(path)
    except CloudChamberError as error:
        stop_with(error)


@st.cache_resource(show_spinner=False, max_entries=512)
def _result(name: str, path: str, content: str, args: tuple, kwargs: dict, _call: Callable[[], Any]) -> Any:
    return _call()


def cached_on(
    store: Store, query: Callable[Concatenate[Store, P], R], *args: P.args, **kwargs: P.kwargs
) -> R:
    """`query(store, *args, **kwargs)`, computed once per generation of the store's content.

    Arguments are values (text, numbers, tuples of them). The result is shared between visitors and
    read-only. Lets CloudChamberError through.
    """
    name = f"{query.__module__}.{query.__qualname__}"
    call = lambda: query(store, *args, **kwargs)  # noqa: E731
    result: R = _result(name, str(store.path), store.generation, args, kwargs, call)
    return result
