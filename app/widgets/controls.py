"""Controls that live in the URL, so that a link reproduces the screen.

Streamlit (1.67) binds a widget to the query parameter of its key: it reads the parameter when the
widget first appears, and drops it without a word when it is invalid or equals the default. What we
add: an address that asked for something else than what is shown is said under the control. Choices
are written as the label that is on screen; numbers as numbers.

Two holes are closed here: whole numbers go through float widgets, because `?n=inf` in an integer
number_input raises OverflowError inside Streamlit, and every string is made inert before it is shown.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeVar

import streamlit as st

from app.widgets.prose import inert
from app.widgets.states import notice

V = TypeVar("V")
_STATE = "_bound_controls"  # of this page: {"page", "asked": {key: raw}, "shown": {key: fallback}, "encode"}


def _registry() -> dict[str, Any]:
    """What this visit knows of the bound controls of the page; forgotten when the page changes."""
    page = st.context.url or ""
    state = st.session_state.get(_STATE)
    if state is None or state["page"] != page:
        state = {"page": page, "checked": set(), "refused": {}, "encode": {}}
        st.session_state[_STATE] = state
    return state


def bound_values() -> dict[str, str | list[str]]:
    """Every bound control of the page as its parameter's value."""
    values = {}
    for key, encode in _registry()["encode"].items():
        value = st.session_state.get(key)
        if value is not None:
            values[key] = encode(value)
    return values


def _asked(key: str) -> list[str] | None:
    """What the address asks of a control that appears for the first time on this page; None if nothing."""
    state = _registry()
    if key in state["checked"]:
        return None
    state["checked"].add(key)
    values = st.query_params.get_all(key)
    return values or None


def _settle(
    key: str,
    asked: list[str] | None,
    shown: Any,
    encode: Callable[[Any], str | list[str]],
    same: Callable[[list[str], Any], bool],
    valid: str,
) -> None:
    """Register the control and, if it does not show what the address asked for, say so."""
    state = _registry()
    state["encode"][key] = encode
    if asked is not None and not same(asked, shown):
        state["refused"][key] = (asked[-1], shown)
    if key in state["refused"]:
        raw, fallback = state["refused"][key]
        if shown == fallback:
            said = encode(shown)
            now = inert(", ".join(said) if isinstance(said, list) else said, 60) or "nothing"
            notice(f"The link asks for “{inert(raw, 40)}”, which is not {valid}. Shown: {now}.")
        else:
            del state["refused"][key]


def choice(
    label: str,
    options: Mapping[V, str] | Sequence[V],
    key: str,
    *,
    default: V | None = None,
    help: str | None = None,
    style: Literal["select", "segmented", "pills", "radio"] = "select",
    **settings: Any,
) -> V:
    """One of `options` (value -> label, or plain values), bound to the URL under `key`.

    `default` is the first option if not given. Raises ValueError without options: an empty selection
    is a state of the page, not of a control.
    """
    names = dict(options) if isinstance(options, Mapping) else {option: str(option) for option in options}
    values = list(names)
    if not values:
        raise ValueError(f"{label}: nothing to choose from")
    start = values.index(default) if default in names else 0
    asked = _asked(key)
    name = lambda value: names.get(value, str(value))  # noqa: E731
    common = {"format_func": name, "key": key, "help": help, "bind": "query-params", **settings}
    if style == "select":
        shown = st.selectbox(label, values, index=start, **common)
    elif style == "radio":
        shown = st.radio(label, values, index=start, horizontal=True, **common)
    else:
        make = st.segmented_control if style == "segmented" else st.pills
        shown = make(label, values, default=values[start], required=True, **common)
    if shown not in names:  # an option of an earlier selection that the new one does not have
        shown = values[start]
    _settle(key, asked, shown, name, lambda raw, value: raw[-1] == name(value), "one of the options")
    return shown


def choices(
    label: str,
    options: Mapping[V, str] | Sequence[V],
    key: str,
    *,
    default: Sequence[V] = (),
    help: str | None = None,
    **settings: Any,
) -> list[V]:
    """Any number of `options`, bound to the URL under `key` (repeated parameter)."""
    names = dict(options) if isinstance(options, Mapping) else {option: str(option) for option in options}
    asked = _asked(key)
    name = lambda value: names.get(value, str(value))  # noqa: E731
    shown = st.pills(
        label,
        list(names),
        selection_mode="multi",
        default=list(default),
        format_func=name,
        key=key,
        help=help,
        bind="query-params",
        **settings,
    )
    shown = [value for value in shown if value in names]
    encode = lambda value: [name(v) for v in value]  # noqa: E731
    _settle(
        key,
        asked,
        shown,
        encode,
        lambda raw, value: sorted(filter(None, raw)) == sorted(encode(value)),
        "among the options",
    )
    return shown


def number(
    label: str,
    low: float,
    high: float,
    key: str,
    *,
    default: float,
    step: float,
    help: str | None = None,
    format: str | None = None,
    style: Literal["slider", "input"] = "slider",
    **settings: Any,
) -> float:
    """A number in [low, high], bound to the URL under `key`; an int when low, high and step are ints."""
    whole = all(isinstance(bound, int) for bound in (low, high, default, step))
    asked = _asked(key)
    make = st.slider if style == "slider" else st.number_input
    shown = make(
        label,
        min_value=float(low),
        max_value=float(high),
        value=float(default),
        step=float(step),
        format=format or ("%.0f" if whole else None),
        key=key,
        help=help,
        bind="query-params",
        **settings,
    )
    result = round(shown) if whole else float(shown)
    encode = lambda value: str(round(value)) if whole else f"{float(value):.6g}"  # noqa: E731
    said = f"{'a whole number' if whole else 'a number'} from {low:g} to {high:g}"
    _settle(key, asked, result, encode, lambda raw, value: _is_number(raw[-1], value), said)
    return result


def _is_number(raw: str, value: float) -> bool:
    try:
        return math.isclose(float(raw), value, rel_tol=1e-6, abs_tol=1e-12)
    except ValueError:
        return False


def toggle(label: str, key: str, *, default: bool = False, help: str | None = None, **settings: Any) -> bool:
    """On or off, bound to the URL under `key` (`true` or `false`)."""
    asked = _asked(key)
    shown = bool(st.toggle(label, value=default, key=key, help=help, bind="query-params", **settings))
    encode = lambda value: "true" if value else "false"  # noqa: E731
    _settle(key, asked, shown, encode, lambda raw, value: raw[-1].lower() == encode(value), "true or false")
    return shown


def text(
    label: str, key: str, *, default: str = "", longest: int = 200, help: str | None = None, **settings: Any
) -> str:
    """A short text, bound to the URL under `key`; longer ones are cut to `longest` characters."""
    asked = _asked(key)
    shown = st.text_input(
        label, value=default, max_chars=longest, key=key, help=help, bind="query-params", **settings
    )
    shown = (shown or "")[:longest]
    said = f"a text of at most {longest} characters"
    _settle(key, asked, shown, str, lambda raw, value: raw[-1] == value, said)
    return shown


def tabs(labels: Sequence[str], key: str, **settings: Any) -> Sequence[Any]:
    """Tabs whose choice is in the URL. Only the open one should be computed: ask `tab.open`."""
    asked = _asked(key)
    made = st.tabs(list(labels), key=key, bind="query-params", **settings)
    shown = next((label for label, tab in zip(labels, made, strict=True) if tab.open), labels[0])
    _settle(key, asked, shown, str, lambda raw, value: raw[-1] == value, "one of the tabs")
    return made
