"""The real app as a process: started on a free port, waited for, stopped."""

from __future__ import annotations

import socket
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path

from app.commands.serve import ROOT, command, environment

APP = ROOT / "app" / "main.py"


class Server:
    """The app as `cloudchamber serve` starts it, on the loopback interface, with its own home folder.

    `home` becomes CLOUDCHAMBER_HOME and holds the server's log. `options` are Streamlit options
    ("server.disconnectedSessionTTL"). The constructor returns when the app answers.
    """

    def __init__(
        self,
        home: Path,
        script: Path = APP,
        options: dict[str, str] | None = None,
    ) -> None:
        self.home = home
        self.log = home / "server.log"
        port = _free_port()
        self.url = f"http://127.0.0.1:{port}"
        temporary = home / "tmp"  # so that a test can see what visits leave behind
        temporary.mkdir(parents=True, exist_ok=True)
        launch = command("127.0.0.1", port)
        launch[launch.index(str(APP))] = str(script)
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                launch + [f"--{key}={value}" for key, value in (options or {}).items()],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**environment(home), "TMPDIR": str(temporary), "TZ": "UTC"},
            )
        self._wait()

    def _wait(self, seconds: float = 60.0) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if self.process.poll() is not None:
                raise RuntimeError(f"the app ended at start:\n{self.log.read_text(errors='replace')}")
            try:
                with urllib.request.urlopen(f"{self.url}/_stcore/health", timeout=2) as reply:
                    if reply.status == 200:
                        return
            except (urllib.error.URLError, OSError):
                time.sleep(0.05)
        self.stop()
        raise RuntimeError(f"the app did not answer within {seconds:.0f} s; its log is {self.log}")

    def tracebacks(self) -> int:
        """How many tracebacks its log holds."""
        return self.log.read_text(errors="replace").count("Traceback")

    def stop(self) -> None:
        """End it as a person would, with SIGTERM; it has 15 s."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(timeout=15)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def seeded_home(folder: Path) -> Path:
    """A home folder whose store holds the traces that ship."""
    from app.commands.stored import all_tables
    from data.paths import published_dir
    from data.publish import import_published

    folder.mkdir(parents=True, exist_ok=True)
    import_published(published_dir(), folder / "traces.duckdb", all_tables())
    return folder
