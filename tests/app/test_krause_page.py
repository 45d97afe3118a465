"""The Krause page without a browser: every tab, every control, and its failures."""

from __future__ import annotations

from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from app.views.krause_tabs import NAMES
from tests.app.krause_store import fill, particle_run

PAGE = Path(__file__).resolve().parents[2] / "app" / "main.py"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("krause")
    fill(folder / "traces.duckdb", folder / "staging")
    return folder


@pytest.fixture
def page(home: Path, monkeypatch: pytest.MonkeyPatch) -> AppTest:
    monkeypatch.setenv("CLOUDCHAMBER_HOME", str(home))
    return opened()


def opened(**query: str) -> AppTest:
    test = AppTest.from_file(str(PAGE), default_timeout=60)
    for name, value in query.items():
        test.query_params[name] = value
    test.switch_page("pages/krause_attention.py")
    return test


def words(test: AppTest) -> str:
    return "\n".join(element.value for element in (*test.markdown, *test.caption))


def test_the_main_figure_is_read_aloud(page: AppTest) -> None:
    page.run()
    assert not page.exception
    text = words(page)
    assert "gives 75\N{NO-BREAK SPACE}% and Krause **20\N{NO-BREAK SPACE}%**" in text
    assert "cannot exceed 24\N{NO-BREAK SPACE}%" in text


SAID = {
    "Emergence": "half of its 75\N{NO-BREAK SPACE}% within **100 updates**",
    "Vision": "**+2.00 points [+2.00, +2.00]** over 3 paired seeds",
    "Particles": "truncation makes the clusters that last",
    "Cost": "dense scores grow as N^**2.00**",
    "Generation": "Krause against softmax: **+0.0144 bits per pixel",
    "In a pretrained model": "The standard branch keeps its sink",
    "Windows and widths": "with 4 keys of a window of 16",
    "Claims": "No ceiling is involved",
    "Numbers": "",
    "How this is computed": "Student's t",
}


@pytest.mark.parametrize("name", NAMES)
def test_every_tab_says_what_its_figures_show(home: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv("CLOUDCHAMBER_HOME", str(home))
    test = opened(view=name).run()
    assert not test.exception and not test.error
    assert SAID[name] in words(test)


def test_the_byte_model_has_no_sink_and_the_page_says_so(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLOUDCHAMBER_HOME", str(home))
    test = opened(network="Byte language model, King James").run()
    assert "No sink forms at this size and length of training" in words(test)
    assert test.number_input(key="layer").value == 3  # its maps have layers and heads
    test.number_input(key="layer").set_value(1).run()
    assert not test.exception


def test_the_threshold_recounts(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLOUDCHAMBER_HOME", str(home))
    test = opened(metric="Sink rate").run()
    assert "Krause **0\N{NO-BREAK SPACE}%**" in words(test)
    test.slider(key="eps").set_value(0.15).run()
    assert "Krause **100\N{NO-BREAK SPACE}%**" in words(test)


@pytest.mark.parametrize("space", ["Circle", "Sphere", "Opinions (1-D)"])
def test_particles_live_in_every_space(home: Path, monkeypatch: pytest.MonkeyPatch, space: str) -> None:
    monkeypatch.setenv("CLOUDCHAMBER_HOME", str(home))
    test = opened(view="Particles", p_space=space, p_n="60", p_steps="50").run()
    assert not test.exception
    assert ("opinions settle in" if space.startswith("Op") else "which is rounding") in words(test)


@pytest.mark.parametrize(
    "query",
    [{"metric": "nonsense"}, {"view": "Vision", "v_query": "inf"}, {"view": "Particles", "p_radius": "<b>"}],
)
def test_a_link_that_asks_for_nonsense_is_answered(
    home: Path, monkeypatch: pytest.MonkeyPatch, query: dict[str, str]
) -> None:
    monkeypatch.setenv("CLOUDCHAMBER_HOME", str(home))
    test = opened(**query).run()
    assert not test.exception
    assert "The link asks for" in words(test)


def test_another_query_looks_elsewhere(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLOUDCHAMBER_HOME", str(home))
    test = opened(view="Vision").run()
    test.number_input(key="v_query").set_value(0.0).run()
    assert "The class token spreads over" in words(test)


def test_without_networks_the_page_says_what_to_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from data.publish import publish
    from data.records.krause_attention import TABLES

    publish(tmp_path / "traces.duckdb", [particle_run(tmp_path / "s", "topk", 10.0, 12, None)], TABLES)
    monkeypatch.setenv("CLOUDCHAMBER_HOME", str(tmp_path))
    test = opened().run()
    assert not test.exception
    assert "no networks with Krause attention" in words(test)
