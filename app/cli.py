"""`cloudchamber`: the command line. Commands live in app/commands; this file only lists them."""

from __future__ import annotations

import os
import sys
from typing import Annotated, Any

import typer

from app.commands.analyze import analyze
from app.commands.claims import claims
from app.commands.doctor import doctor
from app.commands.export import export
from app.commands.new_study import new_study
from app.commands.outcome import CANCELLED, WRONG_USE, report
from app.commands.precompute import precompute
from app.commands.runs import runs
from app.commands.serve import serve
from app.commands.studies import studies
from app.commands.verify import verify

app = typer.Typer(
    name="cloudchamber",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Figures of what models do inside, each with the paper's claim beside the measured trace.",
    epilog="Exit codes: 0 done, 2 wrong use, 3 input refused, 4 stopped by a limit, 5 model or library "
    "missing, 130 cancelled, 1 our fault. State lives in $CLOUDCHAMBER_HOME, by default the folder "
    ".cloudchamber beside the sources.",
)

LOOK, MAKE, KEEP = "Look", "Make", "Maintain"


def _examples(*lines: str) -> str:
    """Examples for the end of a help page; the backspace keeps their lines apart."""
    return "\b\n[bold]Examples[/]\n" + "\n".join(f"[dim]$[/] cloudchamber {line}" for line in lines)


def _register() -> None:
    commands: tuple[tuple[Any, str, str, str], ...] = (
        (
            serve,
            "serve",
            LOOK,
            _examples("serve", "serve --port 8600 --host 0.0.0.0", "serve --traces results/"),
        ),
        (studies, "studies", LOOK, _examples("studies", "studies attention_sinks", "studies --json")),
        (claims, "claims", LOOK, _examples("claims", "claims attention_sinks --json")),
        (runs, "runs", LOOK, _examples("runs --failed", "runs 3f9a", "runs --study attention_sinks --json")),
        (
            precompute,
            "precompute",
            MAKE,
            _examples(
                "precompute --profile smoke",
                "precompute attention_sinks --profile laptop --jobs 2",
                "precompute attention_sinks --only all-minilm-l6-v2 --force",
            ),
        ),
        (
            analyze,
            "analyze",
            MAKE,
            _examples(
                "analyze my-model/ --text notes.txt --out results/",
                "analyze model.zip --length 256 --samples 8 --json",
                "analyze maps.npz --eps 0.2",
            ),
        ),
        (verify, "verify", MAKE, _examples("verify", "verify 3f9a51c2", "verify --all --json")),
        (doctor, "doctor", KEEP, _examples("doctor", "doctor --json")),
        (new_study, "new-study", KEEP, _examples("new-study rotary_phase")),
        (export, "export", KEEP, _examples("export", "export 3f9a51c2 77ab01ee")),
    )
    for function, name, panel, epilog in commands:
        app.command(name, rich_help_panel=panel, epilog=epilog)(function)


_register()

# The base of all errors of the command line: typer's own, or click's in versions that stand on it.
USAGE_ERRORS: tuple[type[Exception], ...] = tuple(
    kind
    for kind in typer.BadParameter.__mro__
    if issubclass(kind, Exception) and kind.__name__ == "ClickException"
)


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(f"cloudchamber {version('cloudchamber')}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


def run(arguments: list[str]) -> int:
    """Run one command line and return its exit code."""
    as_json = "--json" in arguments
    command = typer.main.get_command(app)
    try:
        code = command.main(args=arguments, prog_name="cloudchamber", standalone_mode=False)
        sys.stdout.flush()
        if code == CANCELLED:  # Ctrl-C, which typer turns into an exit code and no word
            raise KeyboardInterrupt
        return int(code or 0)
    except USAGE_ERRORS as error:
        return _report_usage(error, as_json)
    except (typer.Abort, KeyboardInterrupt):
        from data.errors import CloudChamberError

        return report(CloudChamberError("cancelled", "Stopped.", "Start it again."), as_json=as_json)
    except BrokenPipeError:
        # The reader, `head` for one, has seen enough. Python would complain once more on exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:  # noqa: BLE001 - the last stop: everything becomes a sentence and a code
        return report(error, as_json=as_json)


def _report_usage(error: Any, as_json: bool) -> int:
    from data.errors import CloudChamberError

    message = error.format_message()
    if not message:  # `cloudchamber` alone has shown its help already
        return WRONG_USE
    command = error.ctx.command_path if getattr(error, "ctx", None) else "cloudchamber"
    message = message if message.endswith((".", "?")) else message + "."
    return report(CloudChamberError("usage", message, f"Try `{command} --help`."), as_json=as_json)


def main() -> None:
    """Entry point of the console script."""
    raise SystemExit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
