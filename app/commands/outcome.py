"""How a command ends: exit codes, and one sentence with its remedy when it fails."""

from __future__ import annotations

import errno
import json
import os
import sys
import traceback
from collections.abc import Mapping

from data.errors import CloudChamberError
from models.checkpoints.refused import KINDS as BROUGHT

DONE, OUR_FAULT, WRONG_USE, REFUSED, LIMIT, MISSING, CANCELLED = 0, 1, 2, 3, 4, 5, 130

DEBUG_VARIABLE = "CLOUDCHAMBER_DEBUG"

# Exit code -> kinds of CloudChamberError; a test holds these lists to the kinds in the code.
KINDS: Mapping[int, tuple[str, ...]] = {
    # Another argument or setting mends it.
    WRONG_USE: (
        *("usage", "unknown_study", "unknown_profile", "unknown_subject", "subject_unknown", "run_unknown"),
        *("jobs_invalid", "config_invalid", "name_invalid", "name_taken", "text_unknown", "artefact_unknown"),
        "dataset_unknown",
        *("port_in_use", "port_forbidden", "port_invalid", "host_unknown"),
        *(
            "home_unwritable",
            "read_only",
            "log_unwritable",
            "staging_unwritable",
            "cache_unwritable",
            "staging_unseen",
        ),
        *("store_busy", "store_locked", "store_unwritable", "device_unavailable", "chrome_invalid"),
        *("scheduler_unreachable", "scheduler_workers", "path_missing", "out_taken", "job_invalid"),
    ),
    # What is there cannot be used.
    REFUSED: (
        *("store_missing", "store_corrupt", "store_newer", "store_older", "store_unreadable"),
        *("runs_missing", "traces_missing", "published_damaged", "published_too_big", "artefact_twice"),
        *("text_empty", "text_short", "registry_unreadable", "brought_gone"),
        *BROUGHT,
    ),
    # The machine has no more.
    LIMIT: ("disk_full", "out_of_memory", "shelf_full", "job_memory", "job_timeout", "job_disk"),
    # Something that must be installed first.
    CANCELLED: ("cancelled", "job_cancelled"),
    MISSING: (
        "package_missing",
        "package_damaged",
        "dataset_missing",
        "dataset_damaged",
        "library_missing",
        "browser_missing",
        "scheduler_missing",
    ),
    # Ours to mend, or damage that no command can explain.
    OUR_FAULT: (
        "our_fault",
        "job_error",
        "job_crashed",
        "trace_invalid",
        "artefact_name",
        "map_codec",
        "map_damaged",
        "map_invalid",
    ),
}
CODES = {kind: code for code, kinds in KINDS.items() for kind in kinds}


def exit_code(error: CloudChamberError) -> int:
    """The exit code of an error. A kind that is not listed is refused input."""
    return CODES.get(error.kind, REFUSED)


def explain(error: BaseException) -> CloudChamberError:
    """Any exception as a sentence with a remedy."""
    if isinstance(error, CloudChamberError):
        return error
    if isinstance(error, MemoryError):
        return CloudChamberError(
            "out_of_memory", "The memory is used up.", "Close other programs, or use --jobs 1."
        )
    if isinstance(error, ModuleNotFoundError) and error.name:
        return CloudChamberError(
            "library_missing",
            f"The library {error.name.partition('.')[0]!r} is not installed.",
            "Run `make setup` to install everything.",
        )
    if isinstance(error, OSError) and (known := _operating_system(error)):
        return known
    return CloudChamberError(
        "our_fault",
        f"This should not have happened: {type(error).__name__}: {error}".rstrip(": "),
        f"Set {DEBUG_VARIABLE}=1 to see where, and please report it.",
    )


def _operating_system(error: OSError) -> CloudChamberError | None:
    where = str(error.filename or "")
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return CloudChamberError(
            "disk_full",
            "The disk is full.",
            "Free some space, or set CLOUDCHAMBER_HOME to another disk.",
            where,
        )
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return CloudChamberError(
            "read_only",
            "A file or folder cannot be written.",
            "Change its permissions, or set CLOUDCHAMBER_HOME to a folder that can be written.",
            where,
        )
    return None


def report(error: BaseException, *, as_json: bool) -> int:
    """Print what went wrong and return the exit code. No traceback, unless CLOUDCHAMBER_DEBUG is set."""
    if os.environ.get(DEBUG_VARIABLE):
        traceback.print_exception(error)
    said = explain(error)
    if as_json:
        fields = {"kind": said.kind, "message": said.message, "where": said.where, "remedy": said.remedy}
        print(json.dumps({"error": fields}, ensure_ascii=False))
    else:
        from rich.text import Text

        from app.commands.output import errors

        # The sentence itself names the option or argument; a file or table is named after it.
        named = said.where.startswith("-") or said.where.isupper()
        place = f" ({said.where})" if said.where and not named else ""
        errors().print(Text(said.message + place, style="red"), soft_wrap=True)
        errors().print(Text(said.remedy), soft_wrap=True)
    sys.stdout.flush()
    return exit_code(said)
