"""`cloudchamber serve`: the app in a browser, on the stored traces."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from data.errors import CloudChamberError

DEFAULT_PORT = 8501
ROOT = Path(__file__).resolve().parent.parent.parent


def serve(
    port: Annotated[int, typer.Option(help="Port to listen on; 0 takes a free one.")] = DEFAULT_PORT,
    host: Annotated[
        str, typer.Option(help="Address to listen on; 0.0.0.0 lets other machines in.")
    ] = "localhost",
    traces: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Show the exported traces of this folder as well."),
    ] = None,
    show: Annotated[
        bool | None,
        typer.Option("--open/--no-open", help="Open a browser; by default if there is a display."),
    ] = None,
) -> None:
    """Open the app on the stored traces.

    Brings the shipped traces into the store first, and prints the address once the app answers there.
    """
    from data.paths import home

    port = usable_port(host, port)
    state = home() if traces is None else home_with(traces)
    prepare(state)
    url = address(host, port)
    wanted = has_display() if show is None else show
    announce = [str(os.getpid()), local(host), str(port), url, "open" if wanted else "print"]
    sys.stdout.flush()
    subprocess.run([sys.executable, Path(__file__).with_name("announce.py"), *announce], check=True)
    # The server takes this process over: signals and the exit code are its own, nothing waits above it.
    os.chdir(ROOT)  # where Streamlit looks for .streamlit/config.toml
    os.execve(sys.executable, command(host, port), environment(state))


def command(host: str, port: int) -> list[str]:
    """The command line of the server."""
    options = {
        "server.address": host,
        "server.port": str(port),
        "server.headless": "true",
        "browser.gatherUsageStats": "false",
        "logger.hideWelcomeMessage": "true",
        "logger.level": "warning",
        "server.fileWatcherType": "none",
    }
    flags = [word for name, value in options.items() for word in (f"--{name}", value)]
    return [sys.executable, "-m", "streamlit", "run", str(ROOT / "app" / "main.py"), *flags]


def environment(state: Path) -> dict[str, str]:
    """The server's environment.

    Every visitor is a thread, and glibc gives each thread a heap that keeps what was freed: fifty
    visits then add 10 % to the server's memory. With two heaps they add nothing.
    """
    return {"MALLOC_ARENA_MAX": "2", **os.environ, "CLOUDCHAMBER_HOME": str(state)}


def prepare(state: Path) -> None:
    """Seed the store in `state` with what ships. A store that cannot be read is the app's to explain."""
    from app.commands.output import errors
    from app.commands.stored import seed
    from data.paths import STORE_NAME
    from data.store import open_store

    path = state / STORE_NAME
    try:
        seed(path)
        if path.exists():
            open_store(path).close()
    except CloudChamberError as error:
        if error.kind not in (
            "store_newer",
            "store_older",
            "store_corrupt",
            "store_unreadable",
            "store_locked",
        ):
            raise
        errors().print(f"{error} The app opens and says so.", style="yellow", markup=False, soft_wrap=True)


def home_with(traces: Path) -> Path:
    """A folder of state that holds the shipped traces and those of `traces`, and shares our cache.

    Raises CloudChamberError("traces_missing") when the folder holds none.
    """
    import hashlib

    from app.commands.stored import all_tables, seed
    from data.paths import MANIFEST_NAME, STORE_NAME, cache_dir, home
    from data.shipped import add_exported

    traces = traces.expanduser().absolute()
    if (traces / STORE_NAME).is_file():
        return traces
    if not (traces / MANIFEST_NAME).is_file():
        raise CloudChamberError(
            "traces_missing",
            "There are no traces in this folder.",
            f"Name one that `cloudchamber export --to` wrote, or one with a {STORE_NAME}.",
            where=str(traces),
        )
    state = home() / "served" / hashlib.sha256(str(traces).encode()).hexdigest()[:12]
    state.mkdir(parents=True, exist_ok=True)
    if not (state / "cache").exists():
        (state / "cache").symlink_to(cache_dir(), target_is_directory=True)
    store = state / STORE_NAME
    store.unlink(missing_ok=True)  # made again each time: the folder may have changed
    seed(store)
    add_exported(traces, store, all_tables())
    return state


def usable_port(host: str, port: int) -> int:
    """`port`, or a free one for 0. Raises a CloudChamberError that names the remedy if it cannot be had."""
    if not 0 <= port <= 65_535:
        raise CloudChamberError(
            "port_invalid", f"{port} is no port.", "Choose one from 1024 to 65535.", where="--port"
        )
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (socket.gaierror, UnicodeError) as error:
        raise _no_host(host) from error
    for family, kind, protocol, _, place in found:
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(place)
            except OSError as error:
                if error.errno == errno.EADDRNOTAVAIL and family == socket.AF_INET6 and len(found) > 1:
                    continue  # a name with an IPv6 address on a machine without IPv6
                raise _refused(host, port, error) from error
            port = port or int(probe.getsockname()[1])
    return port


def _no_host(host: str) -> CloudChamberError:
    return CloudChamberError(
        "host_unknown",
        f"{host!r} is no address of this machine.",
        "Use localhost, or 0.0.0.0 to let other machines in.",
        where="--host",
    )


def _refused(host: str, port: int, error: OSError) -> CloudChamberError:
    if error.errno == errno.EADDRINUSE:
        free = next_free(host, port)
        return CloudChamberError(
            "port_in_use",
            f"Port {port} is in use.",
            f"Choose another: `cloudchamber serve --port {free}`, or `make demo PORT={free}`.",
            where="--port",
        )
    if error.errno in (errno.EACCES, errno.EPERM):
        return CloudChamberError(
            "port_forbidden", f"Port {port} needs more rights.", "Choose one above 1023.", where="--port"
        )
    return _no_host(host)


def next_free(host: str, port: int) -> int:
    """The first port after `port` that nothing listens on; 0, which takes any, if there is none near."""
    for candidate in range(port + 1, min(port + 100, 65_536)):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((local(host), candidate))
            except OSError:
                continue
            return candidate
    return 0


def local(host: str) -> str:
    """The address at which this machine reaches a server that listens on `host`."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(host, host)


def address(host: str, port: int) -> str:
    """The URL to print."""
    name = "localhost" if host in ("0.0.0.0", "::", "", "127.0.0.1", "::1") else host
    return f"http://{f'[{name}]' if ':' in name else name}:{port}"


def has_display() -> bool:
    """Whether a browser could show up here: not in CI, not over SSH, not without a screen."""
    if os.environ.get("CI") or os.environ.get("SSH_CONNECTION"):
        return False
    return sys.platform == "darwin" or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
