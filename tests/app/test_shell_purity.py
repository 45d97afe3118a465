"""What the app's process imports: never torch or transformers, and no Plotly on the landing page."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from precompute.registry import STUDIES
from tests.app.small_store import publish_small

ROOT = Path(__file__).resolve().parents[2]

_SCRIPT = """
import json, sys
from streamlit.testing.v1 import AppTest
# AppTest itself imports Plotly; forget it, so that only an import by a page counts.
for name in [name for name in sys.modules if name.partition(".")[0] == "plotly"]:
    del sys.modules[name]
loaded = {}
at = AppTest.from_file("app/main.py", default_timeout=60).run()
for page in sys.argv[1:]:
    at.switch_page(f"pages/{page}.py").run()
    assert not at.exception, [e.value for e in at.exception]
    loaded[page] = [name for name in ("torch", "transformers", "plotly") if name in sys.modules]
print(json.dumps(loaded))
"""


@pytest.mark.parametrize("store", [True, False], ids=["with a store", "without a store"])
def test_pages_load_neither_torch_nor_transformers(tmp_path: Path, store: bool) -> None:
    if store:
        publish_small(tmp_path / "traces.duckdb")
    # Order matters: a module stays loaded once a page has asked for it.
    pages = ["home", "ledger", "columns", *STUDIES]
    environment = os.environ | {"CLOUDCHAMBER_HOME": str(tmp_path), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT, *pages],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-2_000:]
    loaded = json.loads(done.stdout.strip().splitlines()[-1])
    assert loaded["home"] == loaded["ledger"] == loaded["columns"] == []
    for slug in STUDIES:
        assert set(loaded[slug]) <= {"plotly"}
