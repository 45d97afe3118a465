"""README and CONTRIBUTING hold to the code: each command, option, setting and file they name exists."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from app import cli
from app.commands import outcome
from data.records.attention_sinks_queries import HEADLINE
from data.sources.texts import TEXTS
from precompute.registry import STUDIES
from precompute.study import Profile

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text("utf-8")
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
ANALYZE = (ROOT / "docs" / "analyze.md").read_text("utf-8")
DOCS = {"README.md": README, "CONTRIBUTING.md": CONTRIBUTING, "docs/analyze.md": ANALYZE}
EXAMPLE = "rotary_phase"  # the study of CONTRIBUTING's example, which does not exist

FILE = re.compile(r"(?<![\w$/.-])[\w.]+(?:/[\w.*-]+)+/?|(?<![\w-])[\w-]+\.(?:toml|txt|md)\b")

each_doc = pytest.mark.parametrize("name", DOCS)


def commands() -> dict[str, set[str]]:
    """Command -> its options, as the command line has them."""
    group = typer.main.get_command(cli.app)
    found = {}
    for name, command in group.commands.items():  # type: ignore[attr-defined]
        options = [word for p in command.params for word in (*p.opts, *p.secondary_opts)]
        found[name] = {word for word in options if word.startswith("--")}
    return found


def rows(text: str, heading: str) -> list[list[str]]:
    """The cells of the table under a heading, without its head."""
    section = text.split(f"\n## {heading}\n", 1)[1].split("\n## ", 1)[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def code_spans(text: str) -> Iterator[str]:
    """Everything that stands in single backticks or in a fenced block, line by line."""
    for block in re.findall(r"```\n(.*?)```", text, re.S):
        yield from block.splitlines()
    yield from re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", text, flags=re.S))


def sources(*folders: str) -> Iterator[tuple[Path, str]]:
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.py")):
            yield path, path.read_text("utf-8")


def test_every_command_has_its_row_with_exactly_its_options() -> None:
    documented = {
        row[0].strip("`"): set(re.findall(r"`(--[a-z-]+)`", row[2])) for row in rows(README, "Command line")
    }
    assert documented == commands()


def test_the_page_on_analyze_is_what_the_command_does() -> None:
    """Options with their defaults, headline keys and exit codes of docs/analyze.md, and of no other."""
    text = ANALYZE
    group = typer.main.get_command(cli.app)
    options = {o.opts[0]: o for o in group.commands["analyze"].params if o.opts[0].startswith("--")}  # type: ignore[attr-defined]
    listed = rows(text, "Options")
    assert [row[0].strip("`") for row in listed] == [name for name in options if name != "--help"]
    for name, _, default in listed:
        value = options[name.strip("`")].default
        if isinstance(value, int | float) and not isinstance(value, bool):
            assert default == f"{value:g}", name
    keys = [row[0].strip("`") for row in rows(text, "Answer")]
    assert keys == list(HEADLINE)
    epilog = " ".join(str(cli.app.info.epilog).split())
    assert " ".join(text.split("## Exit codes", 1)[1].split()).rstrip(".") in epilog


def test_what_can_be_brought_is_what_the_openers_take() -> None:
    from models.checkpoints.registry import OPENERS

    assert [tuple(row) for row in rows(README, "What you can bring")] == [
        (opener.title, opener.accepts) for opener in OPENERS.values()
    ]


def test_every_option_has_help() -> None:
    group = typer.main.get_command(cli.app)
    for name, command in group.commands.items():  # type: ignore[attr-defined]
        assert command.help, name
        for parameter in command.params:
            assert getattr(parameter, "help", None), f"{name} {parameter.name}"


def test_the_exit_codes_are_those_of_the_code() -> None:
    words = {
        "done": outcome.DONE,
        "wrong use": outcome.WRONG_USE,
        "input refused": outcome.REFUSED,
        "stopped by a limit": outcome.LIMIT,
        "model or library missing": outcome.MISSING,
        "cancelled": outcome.CANCELLED,
        "our fault": outcome.OUR_FAULT,
    }
    text = " ".join(README.split())
    epilog = " ".join(str(cli.app.info.epilog).split())
    for word, code in words.items():
        assert f"{code} {word}" in text, word
        assert f"{code} {word}" in epilog, word


def test_every_setting_is_documented_and_every_documented_setting_exists() -> None:
    used = {
        name
        for _, text in sources("app", "data", "models", "precompute")
        for name in re.findall(r"\bCLOUDCHAMBER_[A-Z_]+\b", text)
    }
    makefile = set(re.findall(r"^([A-Z]+)\s*\?=", (ROOT / "Makefile").read_text("utf-8"), re.M)) - {"JOBS"}
    documented = {name for row in rows(README, "Settings") for name in re.findall(r"`([A-Z_]+)`", row[0])}
    assert documented == used | makefile | {"CHROME"}


def test_messages_only_name_commands_and_options_that_exist() -> None:
    """`cloudchamber precompute --force` in a message, a docstring or a document is a real command line."""
    known = commands()
    texts = [
        *sources("app", "data", "models", "precompute"),
        *((ROOT / name, text) for name, text in DOCS.items()),
    ]
    for path, text in texts:
        for line in re.findall(r"`cloudchamber ([^`\n]+)`", text):
            name, *words = line.split()
            if name.startswith(("-", "{")):
                continue
            assert name in known, f"{path.name}: cloudchamber {line}"
            for word in words:
                if word.startswith("--") and "{" not in word:
                    assert word.partition("=")[0] in known[name] | {"--help"}, (
                        f"{path.name}: cloudchamber {line}"
                    )


def test_the_tour_names_what_is_on_screen() -> None:
    from app.views.attention_tabs import NAMES
    from app.views.krause_tabs import NAMES as KRAUSE

    section = README.split("## A tour in six lines", 1)[1].split("\n## ", 1)[0]
    assert len(re.findall(r"^\d\. ", section, re.M)) == 6
    shown = {*NAMES, *KRAUSE, *(study.title for study in STUDIES.values())}
    assert set(re.findall(r"\*\*(.+?)\*\*", section)) <= shown


@each_doc
def test_make_targets_exist(name: str) -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text("utf-8"), re.M))
    for span in code_spans(DOCS[name]):
        for target in re.findall(r"(?:^|\s)make ([a-z]+)\b", span):
            assert target in targets, span


@each_doc
def test_files_that_are_named_exist(name: str) -> None:
    missing = []
    for span in code_spans(DOCS[name]):
        for word in FILE.findall(span):
            top = word.split("/")[0]
            ours = (ROOT / top).exists() and top not in (".venv", ".cloudchamber")
            if EXAMPLE in word or not (ours or word.endswith((".toml", ".txt", ".md"))):
                continue
            if word == "tests/NAME":
                continue
            if not list(ROOT.glob(word.rstrip("/"))):
                missing.append(word)
    assert missing == []


@each_doc
def test_local_links_lead_somewhere(name: str) -> None:
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", DOCS[name]):
        assert (ROOT / target).is_file(), target


def test_the_profiles_are_those_of_the_code() -> None:
    assert [row[0].strip("`") for row in rows(CONTRIBUTING, "Profiles")] == [
        profile.value for profile in Profile
    ]


def test_every_package_with_weights_or_texts_has_its_licence() -> None:
    packages = {
        package for study in STUDIES.values() for s in study.subjects.values() for package in s.packages
    }
    packages |= {package for text in TEXTS.values() for package in text.packages}
    table = rows(README, "Data and licences")
    listed = {package for row in table for package in re.findall(r"`([^`]+)`", row[1])}
    assert packages <= listed
    for study in STUDIES.values():
        for subject in study.subjects.values():
            if subject.kind != "pretrained":
                continue  # trained or computed here: its packages hold data, checked below
            row = next(row for row in table if f"`{subject.packages[0]}`" == row[1])
            assert row[2].startswith(subject.licence), subject.slug
    for text in TEXTS.values():
        for package in text.packages:
            row = next(row for row in table if f"`{package}`" == row[1])
            assert row[2].startswith(text.licence), text.slug


def pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    return dict(line.split("==") for line in lines if line and not line.startswith("#"))


def test_the_tested_versions_are_accepted_ones() -> None:
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    exact = {canonicalize_name(name): version for name, version in pins().items()}
    lines = [
        *project["dependencies"],
        *(r for extra in project["optional-dependencies"].values() for r in extra),
    ]
    for line in lines:
        requirement = Requirement(line)
        version = exact.get(canonicalize_name(requirement.name))
        assert version, f"{requirement.name} has no tested version in constraints.txt"
        assert requirement.specifier.contains(Version(version), prereleases=True), line


def test_the_lists_of_packages_are_plain_pins() -> None:
    for name in ("constraints.txt", "requirements-models.txt"):
        for line in (ROOT / name).read_text("utf-8").splitlines():
            assert line.startswith("#") or re.fullmatch(r"[\w.-]+==[\w.]+", line), f"{name}: {line}"


def test_no_file_names_a_place_on_one_machine() -> None:
    """No absolute path of a machine and no address of a package index in anything that ships."""
    forbidden = re.compile(
        r"(?<![\w.])/(?:home|root|work|Users|opt)/\w|--(?:extra-)?index-url|files\.pythonhosted"
    )
    files = [path for path, _ in sources("app", "data", "models", "precompute")]
    files += [ROOT / name for name in ("Makefile", "pyproject.toml", "constraints.txt", ".ci/run", *DOCS)]
    found = [
        f"{path.relative_to(ROOT)}: {match.group()}"
        for path in files
        for match in forbidden.finditer(path.read_text("utf-8"))
    ]
    assert found == []


def test_a_checkpoint_loads_in_the_three_lines_of_the_readme() -> None:
    """The code block under "Networks trained here" runs as it stands, and the network predicts."""
    import torch

    section = README.split("## Networks trained here", 1)[1].split("\n## ", 1)[0]
    (code,) = re.findall(r"```python\n(.*?)```", section, re.S)
    assert len([line for line in code.splitlines() if line]) == 3
    names: dict[str, Any] = {}
    exec(code, names)
    tokens = torch.tensor([[0, *b"In the beginning God created the heaven and the eart"]])
    with torch.no_grad():
        logits = names["network"](tokens)
    assert logits.shape == (1, tokens.shape[1], 256)
    assert chr(int(logits[0, -1].argmax())) == "h"
