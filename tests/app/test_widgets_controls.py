"""Controls in the URL: what a link asks for is shown, or it is said that it is not."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qs

import pytest
from streamlit.testing.v1 import AppTest


def page() -> None:
    """A page with one control of each kind, as pages use them."""
    import streamlit as st

    from app.widgets import controls
    from app.widgets.share import share_popover

    got: dict[str, Any] = {
        "model": controls.choice("Model", {"a": "SmolLM2 135M", "b": "MiniLM"}, "model", help="Which model."),
        "metric": controls.choice("Metric", ["mass", "entropy"], "metric", style="segmented"),
        "eps": controls.number("ε", 0.05, 0.95, "eps", default=0.3, step=0.05),
        "layer": controls.number("Layer", 0, 29, "layer", default=7, step=1, style="input"),
        "bos": controls.toggle("BOS", "bos"),
        "find": controls.text("Find", "find", longest=10),
        "kinds": controls.choices("Kinds", ["word", "space"], "kinds"),
    }
    opened = [tab.open for tab in controls.tabs(["Numbers", "Method"], "view")]
    got["view"] = ["Numbers", "Method"][opened.index(True)]
    st.session_state["got"] = got
    st.session_state["link"] = controls.bound_values()
    share_popover()


DEFAULTS = {
    "model": "a",
    "metric": "mass",
    "eps": 0.3,
    "layer": 7,
    "bos": False,
    "find": "",
    "kinds": [],
    "view": "Numbers",
}


def visit(**params: Any) -> AppTest:
    """Open the page with these query parameters."""
    at = AppTest.from_function(page, default_timeout=20)
    at.query_params.update(params)
    at.run()
    assert not at.exception
    return at


def notices(at: AppTest) -> list[str]:
    return [caption.value for caption in at.caption]


def test_without_parameters_everything_is_at_its_default() -> None:
    at = visit()
    assert at.session_state["got"] == DEFAULTS
    assert notices(at) == []


def test_a_link_sets_every_control() -> None:
    asked = {
        "model": "MiniLM",
        "metric": "entropy",
        "eps": "0.45",
        "layer": "12",
        "bos": "true",
        "find": "sink",
        "kinds": ["word", "space"],
        "view": "Method",
    }
    at = visit(**asked)
    assert at.session_state["got"] == {
        "model": "b",
        "metric": "entropy",
        "eps": 0.45,
        "layer": 12,
        "bos": True,
        "find": "sink",
        "kinds": ["word", "space"],
        "view": "Method",
    }
    assert isinstance(at.session_state["got"]["layer"], int)
    assert notices(at) == []
    assert at.session_state["link"] == asked  # and the share link asks for the same


@pytest.mark.parametrize(
    ("key", "raw", "said"),
    [
        ("model", "GPT-5", "not one of the options. Shown: SmolLM2 135M."),
        ("model", "<script>alert(1)</script>", "not one of the options. Shown: SmolLM2 135M."),
        ("model", "", "not one of the options. Shown: SmolLM2 135M."),
        ("metric", "a" * 5_000, "not one of the options. Shown: mass."),
        ("eps", "7", "not a number from 0.05 to 0.95. Shown: 0.3."),
        ("eps", "nan", "not a number from 0.05 to 0.95. Shown: 0.3."),
        ("eps", "2020-01-01", "not a number from 0.05 to 0.95. Shown: 0.3."),
        ("layer", "-3", "not a whole number from 0 to 29. Shown: 7."),
        ("layer", "inf", "not a whole number from 0 to 29. Shown: 7."),
        ("layer", "1e400", "not a whole number from 0 to 29. Shown: 7."),
        ("layer", "9" * 400, "not a whole number from 0 to 29. Shown: 7."),
        ("layer", "two", "not a whole number from 0 to 29. Shown: 7."),
        ("bos", "maybe", "not true or false. Shown: false."),
        ("find", "x" * 30, "not a text of at most 10 characters. Shown:"),
        ("kinds", "verb", "not among the options. Shown: nothing."),
        ("view", "../../etc/passwd", "not one of the tabs. Shown: Numbers."),
    ],
)
def test_an_impossible_value_falls_back_and_is_said(key: str, raw: str, said: str) -> None:
    at = visit(**{key: raw})
    if key != "find":
        assert at.session_state["got"][key] == DEFAULTS[key]
    assert len(notices(at)) == 1
    assert said in notices(at)[0].replace("\\", "")
    assert "<" not in notices(at)[0].replace("\\<", "")  # markup is escaped


def test_the_notice_stays_until_the_control_is_used() -> None:
    at = visit(eps="7")
    at.toggle(key="bos").set_value(True).run()
    assert len(notices(at)) == 1
    at.slider(key="eps").set_value(0.5).run()
    assert notices(at) == []
    at.slider(key="eps").set_value(0.3).run()
    assert notices(at) == []


def test_a_value_between_steps_is_taken_as_it_is() -> None:
    at = visit(eps="0.333")
    assert at.session_state["got"]["eps"] == pytest.approx(0.333)
    assert notices(at) == []


def test_the_share_link_names_every_control() -> None:
    at = visit(layer="12")
    assert not at.code  # made when it is opened
    at.session_state["share"] = True
    at.run()
    query = parse_qs(at.code[0].value.partition("?")[2])
    assert query == {
        "model": ["SmolLM2 135M"],
        "metric": ["mass"],
        "eps": ["0.3"],
        "layer": ["12"],
        "bos": ["false"],
        "view": ["Numbers"],
    }


def test_a_choice_needs_options() -> None:
    from app.widgets import controls

    with pytest.raises(ValueError, match="nothing to choose"):
        controls.choice("Model", {}, "model")
