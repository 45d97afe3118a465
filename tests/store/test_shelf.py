"""The shelf: what was brought is found again by its content, and by nothing that a visitor called it."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from data.errors import CloudChamberError
from data.shelf import MAX_FILES, Shelf, in_use, is_brought, use_shelf


def stream(content: bytes) -> io.BytesIO:
    return io.BytesIO(content)


def test_the_same_content_is_the_same_entry_whatever_it_is_called(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path)
    first = shelf.put([("a.bin", stream(b"one")), ("b.bin", stream(b"two"))])
    second = shelf.put([("x", stream(b"two")), ("../../y", stream(b"one"))])
    assert first.slug == second.slug and is_brought(first.slug)
    assert shelf.put([("a.bin", stream(b"one"))]).slug != first.slug
    # sha256 of the sorted hex digests of the files: nothing else goes into the name
    assert first.slug == "brought-7285db8f3810702a"


def test_other_names_for_the_same_content_take_the_place_of_the_first(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path)
    first = shelf.put([("configuration.json", stream(b"{}")), ("w.bin", stream(b"w"))])
    first.write("inspection", "{}")
    again = shelf.put([("w.bin", stream(b"w")), ("configuration.json", stream(b"{}"))])
    assert again.read("inspection") == "{}"  # nothing new: what is known stays
    renamed = shelf.put([("w.bin", stream(b"w")), ("config.json", stream(b"{}"))])
    assert renamed.slug == first.slug and renamed.read("inspection") is None
    assert [(name, path.read_bytes()) for name, path in renamed.files()] == [
        ("w.bin", b"w"),
        ("config.json", b"{}"),
    ]


def test_no_name_of_a_visitor_becomes_a_path(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path / "shelf")
    names = ["../escape", "/etc/passwd", "CON", "a" * 5_000, "x\0y", "..", "ü/\n"]
    entry = shelf.put([(name, stream(name.encode())) for name in names])
    assert [name for name, _ in entry.files()] == names
    assert [path.read_bytes() for _, path in entry.files()] == [name.encode() for name in names]
    made = sorted(p.relative_to(tmp_path).as_posix() for p in tmp_path.rglob("*"))
    numbers = [f"shelf/{entry.slug}/{n:04}" for n in range(len(names))]
    assert made == ["shelf", f"shelf/{entry.slug}", *numbers, f"shelf/{entry.slug}/files.json"]


def test_a_path_is_referred_to_and_not_copied(tmp_path: Path) -> None:
    there = tmp_path / "model.bin"
    there.write_bytes(b"weights")
    shelf = Shelf(tmp_path / "shelf")
    entry = shelf.put([("model.bin", there)])
    assert entry.files() == [("model.bin", there)] and entry.bytes == 7
    assert [p.name for p in entry.folder.iterdir()] == ["files.json"]
    assert entry.slug == Shelf(tmp_path / "other").put([("m", stream(b"weights"))]).slug


def test_too_much_leaves_nothing_behind(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path, max_bytes=100)
    with pytest.raises(CloudChamberError, match="this is more") as error:
        shelf.put([("a", stream(b"x" * 60)), ("b", stream(b"y" * 60))])
    assert error.value.kind == "shelf_full" and "analyze" in error.value.remedy
    assert list(tmp_path.iterdir()) == []
    shelf.put([("a", stream(b"x" * 60))])
    with pytest.raises(CloudChamberError) as error:
        shelf.put([("b", stream(b"y" * 60))])  # what lies there already counts
    assert error.value.kind == "shelf_full"
    with pytest.raises(CloudChamberError) as error:
        Shelf(tmp_path / "many").put((str(n), stream(b"")) for n in range(MAX_FILES + 1))
    assert error.value.kind == "shelf_full"


def test_nothing_is_no_entry(tmp_path: Path) -> None:
    with pytest.raises(CloudChamberError) as error:
        Shelf(tmp_path).put([])
    assert error.value.kind == "brought_empty"


@pytest.mark.parametrize("slug", ["brought-0123456789abcdef", "../x", "", "brought-", "brought-../../etc"])
def test_what_is_not_there_says_so(tmp_path: Path, slug: str) -> None:
    with pytest.raises(CloudChamberError) as error:
        Shelf(tmp_path).get(slug)
    assert error.value.kind == "brought_gone"
    Shelf(tmp_path).remove(slug)


def test_documents_lie_beside_the_files(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path)
    entry = shelf.put([("a", stream(b"1"))])
    assert entry.read("inspection") is None
    entry.write("inspection", json.dumps({"format": "x"}))
    assert json.loads(shelf.get(entry.slug).read("inspection") or "") == {"format": "x"}
    assert [e.slug for e in shelf.entries()] == [entry.slug]
    shelf.remove(entry.slug)
    assert shelf.entries() == [] and shelf.used() == 0


def test_the_shelf_in_use_is_that_of_the_block(tmp_path: Path) -> None:
    with pytest.raises(CloudChamberError) as error:
        in_use()
    assert error.value.kind == "brought_gone"
    with use_shelf(tmp_path, {"members": 3}):
        assert in_use().shelf.root == tmp_path and in_use().limits == {"members": 3}
    with pytest.raises(CloudChamberError):
        in_use()
