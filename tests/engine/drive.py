"""A precompute of the tiny study in a process of its own: `python -m tests.engine.drive HOME SPEC`.

SPEC is JSON: {"count", "settings", "version", "jobs", "wait"}. Prints one JSON object per event; ends
like the command line does: 0, 1 (a run failed), 2 (refused), 130 (interrupted).
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from data.errors import CloudChamberError
from precompute import engine
from precompute.events import Event
from precompute.study import Profile
from tests.engine import tiny


def drive(home: Path, spec: dict[str, Any]) -> int:
    """Compute and publish; the exit code."""
    study = tiny.study(*tiny.plan(spec["count"], **spec.get("settings", {})), version=spec.get("version", 1))
    try:
        summary = engine.run_plan(
            [study],
            Profile.smoke,
            store_path=home / "traces.duckdb",
            staging=home / "staging",
            jobs=spec.get("jobs", 2),
            wait=spec.get("wait", False),
            on_event=say,
        )
    except CloudChamberError as error:
        print(json.dumps({"refused": error.kind, "text": str(error)}), flush=True)
        return 2
    print(json.dumps({"summary": engine.counts(summary)}), flush=True)
    return 130 if summary.interrupted else int(summary.failed > 0)


def say(event: Event) -> None:
    """One line per event."""
    print(json.dumps({type(event).__name__: asdict(event)}), flush=True)


if __name__ == "__main__":
    engine._PUBLISH_SECONDS = 0.0  # as often as it can: that is what is to be hit
    sys.exit(drive(Path(sys.argv[1]), json.loads(sys.argv[2])))
