"""What was brought: from the shelf through the intake to an inspection or an opened model."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from data.errors import CloudChamberError
from data.shelf import Entry, in_use
from models.checkpoints import intake
from models.checkpoints.bundle import Bundle, Item, Limits, Progress, no_progress
from models.checkpoints.inspection import Inspection
from models.checkpoints.refused import Refused

if TYPE_CHECKING:
    from models.checkpoints.attention import AttentionModel

INSPECTION, STATISTICS, CONSENT, _UNPACKED = "inspection", "statistics", "consent", "unpacked"


@contextlib.contextmanager
def kindly() -> Iterator[None]:
    """What the intake refuses becomes the error that people and scripts are shown."""
    try:
        yield
    except Refused as refused:
        raise CloudChamberError(refused.kind, refused.message, refused.remedy, refused.where) from refused


def limits() -> Limits:
    """The limits of the shelf in use; those of a page where it says nothing."""
    return Limits(**in_use().limits)


def bundle_of(entry: Entry, progress: Progress = no_progress) -> Bundle:
    """The files of an entry with archives unpacked, which happens once."""
    known = entry.read(_UNPACKED)
    if known is not None:
        return Bundle(tuple(Item(name, entry.folder / place) for name, place in json.loads(known)))
    items = [Item(name, path) for name, path in entry.files()]
    folder = entry.folder / "members"
    folder.mkdir(exist_ok=True)
    bundle = intake.unpack(items, folder, limits(), progress)
    places = [
        (i.name, str(i.path.relative_to(entry.folder) if i.path.is_relative_to(entry.folder) else i.path))
        for i in bundle.items
    ]
    entry.write(_UNPACKED, json.dumps(places))
    return bundle


def inspect(slug: str, progress: Progress = no_progress) -> Inspection:
    """Inspect an entry of the shelf in use and keep what was found beside it."""
    entry = in_use().shelf.get(slug)
    with kindly():
        progress(0, 1, "reading the header")
        found = intake.inspect(bundle_of(entry, progress), limits())
    if found.consent and entry.read(CONSENT) is not None:
        found = Inspection(**(asdict_shallow(found) | {"refusal": None}))
    entry.write(INSPECTION, found.to_json())
    return found


def asdict_shallow(found: Inspection) -> dict[str, Any]:
    """The fields of an inspection with their values as they are."""
    return {name: getattr(found, name) for name in found.__dataclass_fields__}


def statistics(slug: str, progress: Progress = no_progress) -> None:
    """Compute the values of every tensor of an entry and keep them beside it."""
    entry = in_use().shelf.get(slug)
    with kindly():
        found = intake.statistics(bundle_of(entry, progress), limits(), progress)
    rows = [
        {k: None if v != v or v in (float("inf"), float("-inf")) else v for k, v in asdict(s).items()}
        for s in found
    ]
    entry.write(STATISTICS, json.dumps(rows, allow_nan=False))


def open_model(slug: str, device: str, progress: Progress = no_progress) -> AttentionModel:
    """The model of an entry of the shelf in use, on `device`."""
    entry = in_use().shelf.get(slug)
    consent = entry.read(CONSENT) is not None
    return intake.open_model(bundle_of(entry, progress), limits(), device, consent, progress)
