"""The installer: what it takes for complete, and what it says when it cannot go on.

Real installations are too slow for here; these tests use environments without packages.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pip
import pytest

from app import environment

PIP = Path(pip.__file__).parents[1]
ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A copy of what the installer reads."""
    for name in environment.SOURCES:
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def stamp(project: Path, extras: list[str]) -> Path:
    venv = project / ".venv"
    venv.mkdir(exist_ok=True)
    content = {"fingerprint": environment.fingerprint(project), "extras": extras}
    (venv / "cloudchamber.json").write_text(json.dumps(content))
    return venv


def test_extras_are_those_of_the_project(project: Path) -> None:
    assert environment.known_extras(project) == ("models", "cluster", "test")
    assert environment.parse_extras("models, test", project) == {"models", "test"}
    assert environment.parse_extras("", project) == frozenset()
    with pytest.raises(ValueError, match="no extra 'torch'; choose from models, cluster, test"):
        environment.parse_extras("torch", project)


def test_a_stamp_holds_until_a_list_of_packages_changes(project: Path) -> None:
    venv = stamp(project, ["models"])
    assert environment.installed_extras(venv, project) == {"models"}
    with (project / "constraints.txt").open("a") as file:
        file.write("# one more line\n")
    assert environment.installed_extras(venv, project) is None


def test_a_moved_project_installs_again(project: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    venv = stamp(project, ["models"])
    moved = tmp_path_factory.mktemp("moved") / "project"
    shutil.copytree(project, moved)
    assert environment.installed_extras(venv, project) == {"models"}
    assert environment.installed_extras(moved / ".venv", moved) is None


@pytest.mark.parametrize("content", ["", "{", "[1]", "null", '{"fingerprint": "0"}'])
def test_a_damaged_stamp_is_no_stamp(project: Path, content: str) -> None:
    venv = stamp(project, [])
    (venv / "cloudchamber.json").write_text(content)
    assert environment.installed_extras(venv, project) is None


def test_an_installation_cut_short_is_no_installation(project: Path) -> None:
    venv = stamp(project, ["models"])
    (venv / "installing").touch()
    assert environment.installed_extras(venv, project) is None


def test_a_half_made_environment_does_not_work(tmp_path: Path) -> None:
    assert not environment.works(tmp_path / "absent")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").symlink_to(tmp_path / "gone")  # the Python it was made from was removed
    assert not environment.works(tmp_path)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "no-pip"], check=True)
    assert not environment.works(tmp_path / "no-pip")


def test_a_failed_installation_says_so_and_leaves_no_stamp(project: Path) -> None:
    # A fresh environment that borrows pip, which saves the seconds that its own would take.
    venv = project / ".venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    library = next(venv.glob("lib/python*/site-packages"))
    (library / "borrowed.pth").write_text(str(PIP))
    # An index that holds nothing stands for a network that is down.
    environ = {
        **os.environ,
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(project),
        "PIP_CONFIG_FILE": os.devnull,
        "PYTHONPATH": str(ROOT),
    }
    code = "import sys, pathlib; from app import environment as e; e.ensure(set(), pathlib.Path(sys.argv[1]))"
    done = subprocess.run(
        [sys.executable, "-c", code, str(project)], capture_output=True, text=True, env=environ, check=False
    )
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        "cloudchamber: pip could not install the packages; the lines above say why. Then run make again."
    )
    assert environment.installed_extras(venv, project) is None
    assert not (venv / "installing").exists()


def make(*arguments: str, path: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run make in the real project with a doctored PATH."""
    environ = {**os.environ, **({"PATH": path} if path else {})}
    for inherited in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL"):  # the tests themselves may run under make
        environ.pop(inherited, None)
    return subprocess.run(
        [shutil.which("make") or "make", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env=environ,
        check=False,
    )


def fake_python(folder: Path, name: str, body: str) -> None:
    file = folder / name
    file.write_text(f"#!/bin/sh\n{body}\n")
    file.chmod(0o755)


needs_make = pytest.mark.skipif(shutil.which("make") is None, reason="no make here")


@needs_make
def test_make_without_a_new_enough_python_says_one_line(tmp_path: Path) -> None:
    for tool in ("sh", "echo", "sed"):
        (tmp_path / tool).symlink_to(shutil.which(tool) or f"/bin/{tool}")
    fake_python(tmp_path, "python3", "exit 1")  # as an older Python answers the question for its version
    done = make("setup", path=str(tmp_path))
    assert done.returncode != 0
    assert done.stderr.splitlines()[0] == (
        "cloudchamber: no Python 3.11 or newer was found; install one, "
        "or name it: make setup PYTHON=/path/to/python3"
    )


@needs_make
def test_make_passes_over_an_old_python3(tmp_path: Path) -> None:
    for tool in ("sh", "echo", "sed"):
        (tmp_path / tool).symlink_to(shutil.which(tool) or f"/bin/{tool}")
    fake_python(tmp_path, "python3", "exit 1")
    fake_python(tmp_path, "python3.12", 'case "$1" in -c) exit 0;; *) echo "chosen: $0 $*";; esac')
    done = make("setup", "EXTRAS=cluster", path=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().endswith("python3.12 app/environment.py --extras cluster")


@needs_make
def test_make_with_an_unknown_extra_lists_them() -> None:
    done = make("setup", "EXTRAS=everything")
    assert (
        "EXTRAS: there is no extra 'everything'; choose from models, cluster, test, or none." in done.stderr
    )
    assert done.returncode != 0


def test_a_python_without_venv_names_the_package(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *a: None if name == "ensurepip" else real(name, *a)
    )
    with pytest.raises(SystemExit) as stopped:
        environment.check_venv()
    assert stopped.value.code == 1
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    assert f"sudo apt-get install python{version}-venv" in capsys.readouterr().err


@pytest.mark.parametrize("version", [(3, 6), (3, 8), (3, 10)])
def test_an_old_python_is_refused(
    version: tuple[int, int], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "version_info", (*version, 0, "final", 0))
    with pytest.raises(SystemExit):
        environment.check_version()
    assert f"Python {version[0]}.{version[1]} is too old" in capsys.readouterr().err
