"""Hostile and broken .npy and .npz files: nothing is unpickled, nothing grows without bound."""

from __future__ import annotations

import io
import os
import pickle
import resource
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from models.checkpoints.bundle import Bundle, Item, Limits
from models.checkpoints.inspection import Inspection
from models.checkpoints.openers import maps as opener
from models.checkpoints.refused import Refused
from tests.models.test_openers_maps import attention, bundle, npy, npz

MAPS = attention(1, 2, 1, 6, 6).astype(np.float32)
NPY, NPZ = npy(MAPS), npz({"layer_0": MAPS[:, 0], "layer_1": MAPS[:, 1]})
PACKED = npz({"layer_0": MAPS[:, 0], "layer_1": MAPS[:, 1]}, np.savez_compressed)


def refused(folder: Path, content: bytes, limits: Limits | None = None) -> Refused:
    found = bundle(folder, content, "maps.npz")
    with pytest.raises(Refused) as error:
        opener.inspect(found, limits or Limits())
    assert error.value.remedy
    assert error.value.where
    return error.value


class Marker:
    """A pickle that writes a file when it is opened."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


def test_objects_are_never_unpickled(tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    array = np.array([Marker(marker)], dtype=object)
    for content in (npy(array), npz({"maps": array}), npz({"maps": array}, np.savez_compressed)):
        error = refused(tmp_path, content)
        assert error.kind == "brought_pickle"
        assert "never" in error.message
        assert not marker.exists()
    plain = bundle(tmp_path, pickle.dumps(Marker(marker)), "maps.npy")
    assert not opener.recognises(plain)
    assert not marker.exists()


def header(text: str, version: int = 1, data: bytes = b"") -> bytes:
    raw = text.encode("latin-1") + b"\n"
    size = struct.pack("<H" if version == 1 else "<I", len(raw))
    return b"\x93NUMPY" + bytes([version, 0]) + size + raw + data


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000,), }", "brought_truncated"),
        ("{'descr': '<f4', 'fortran_order': False, 'shape': (" + "9" * 18 + ",), }", "brought_truncated"),
        ("{'descr': '<f4', 'fortran_order': False, 'shape': (99999, 99999, 99999), }", "brought_truncated"),
        ("{'descr': '<f4', 'fortran_order': False, 'shape': (-1, 4), }", "brought_damaged"),
        ("{'descr': '<f4', 'fortran_order': False, 'shape': (" + "1," * 100 + "), }", "brought_damaged"),
        ("{'descr': '<f4', 'fortran_order': __import__('os'), 'shape': (1,), }", "brought_damaged"),
        ("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,), }", "brought_unsupported"),
        ("{'descr': '<q9', 'fortran_order': False, 'shape': (1,), }", "brought_unsupported"),
        ("{'descr': '<f999', 'fortran_order': False, 'shape': (1,), }", "brought_unsupported"),
        ("{'descr': '|O', 'fortran_order': False, 'shape': (1,), }", "brought_pickle"),
        ("(" * 9_000, "brought_damaged"),
        ("{}", "brought_damaged"),
        ("", "brought_truncated"),
    ],
)  # fmt: skip
def test_headers_that_lie(tmp_path: Path, text: str, kind: str) -> None:
    assert refused(tmp_path, header(text)).kind == kind


def test_header_lengths_and_versions(tmp_path: Path) -> None:
    endless = b"\x93NUMPY\x02\x00" + struct.pack("<I", 2**32 - 1) + b"{" * 100
    assert refused(tmp_path, endless).kind == "brought_unsafe"
    assert refused(tmp_path, NPY[:20]).kind == "brought_truncated"
    assert refused(tmp_path, NPY[:10]).kind == "brought_truncated"
    assert refused(tmp_path, b"\x93NUMPY\x09\x00" + NPY[8:]).kind == "brought_damaged"


@pytest.mark.parametrize("share", [0.5, 0.9, 0.999])
def test_data_that_ends_early_or_late(tmp_path: Path, share: float) -> None:
    assert refused(tmp_path, NPY[: int(len(NPY) * share)]).kind == "brought_truncated"
    assert refused(tmp_path, NPY + b"\0").kind == "brought_damaged"
    assert refused(tmp_path, NPZ[: int(len(NPZ) * share)]).kind == "brought_truncated"


def archive(members: list[tuple[str, bytes]], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as target:
        for name, content in members:
            target.writestr(name, content)
    return buffer.getvalue()


def test_a_bomb_is_not_unpacked(tmp_path: Path) -> None:
    """1 MB that would grow to 1 GB."""
    head = header("{'descr': '<f4', 'fortran_order': False, 'shape': (256, 1, 1024, 1024), }")
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as target, target.open("m.npy", "w") as member:
        member.write(head)
        for _ in range(1024):
            member.write(bytes(2**20))
    assert len(buffer.getvalue()) < 2**21
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    error = refused(tmp_path, buffer.getvalue())
    assert error.kind == "brought_unsafe"
    assert "grows from" in error.message
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 20_000  # KB


def test_a_member_longer_than_the_list_says(tmp_path: Path) -> None:
    """The list of members promises little, the packed stream holds more: reading stops at the promise."""
    weights = npy(attention(1, 1, 1, 64, 64).astype(np.float32))
    content = bytearray(archive([("m.npy", weights + bytes(2**20))]))
    at = content.rfind(b"PK\x01\x02")
    content[at + 24 : at + 28] = struct.pack("<I", len(weights))
    found = bundle(tmp_path, bytes(content), "m.npz")
    opener.inspect(found, Limits())
    with pytest.raises(Refused) as error:
        opener.open_model(found, Limits(), "cpu")
    assert error.value.kind == "brought_damaged"


@pytest.mark.parametrize("name", ["../m.npy", "/m.npy", "a/m.npy", "..\\m.npy", "C:m.npy"])
def test_names_that_lead_out(tmp_path: Path, name: str) -> None:
    assert refused(tmp_path, archive([(name, NPY)])).kind == "brought_unsafe"


def test_other_archives(tmp_path: Path) -> None:
    inner = archive([("x.npy", NPY)])
    assert not opener.recognises(bundle(tmp_path, archive([("inner.zip", inner)]), "a.zip"))
    assert refused(tmp_path, archive([("a.npy", NPY), ("b.zip", inner)])).kind == "brought_unsupported"
    assert refused(tmp_path, archive([("a.npy", inner)])).kind == "brought_truncated"
    assert refused(tmp_path, archive([("a.npy", NPY)], zipfile.ZIP_LZMA)).kind == "brought_unsupported"
    locked = bytearray(archive([("a.npy", NPY)]))
    locked[6] |= 1
    at = locked.rfind(b"PK\x01\x02")
    locked[at + 8] |= 1
    assert "password" in refused(tmp_path, bytes(locked)).message


def test_too_many_members_are_counted_before_they_are_listed(tmp_path: Path) -> None:
    content = archive([("a.npy", NPY)])
    end = content.rfind(b"PK\x05\x06")
    million = struct.pack("<4sQHHIIQQQQ", b"PK\x06\x06", 44, 45, 45, 0, 0, 10**6, 10**6, 46 * 10**6, 0)
    locator = struct.pack("<4sIQI", b"PK\x06\x07", 0, end, 1)
    tail = b"PK\x05\x06" + struct.pack("<HHHHIIH", 0, 0, 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0)
    error = refused(tmp_path, content[:end] + million + locator + tail)
    assert error.kind == "brought_unsafe"
    assert "1,000,000 members" in error.message
    many = archive([(f"layer_{i}.npy", NPY) for i in range(30)])
    assert refused(tmp_path, many, Limits(members=20)).kind == "brought_unsafe"


def test_names_of_positions_are_bounded(tmp_path: Path) -> None:
    wide = header(
        "{'descr': '<U900000', 'fortran_order': False, 'shape': (6,), }", data=bytes(6 * 4 * 900_000)
    )
    content = archive([("maps.npy", NPY), ("tokens.npy", wide)], zipfile.ZIP_STORED)
    card = opener.inspect(bundle(tmp_path, content, "m.npz"), Limits())
    assert card.refusal is not None
    assert card.refusal["kind"] == "brought_mismatch"
    surrogate = header(
        "{'descr': '<U1', 'fortran_order': False, 'shape': (6,), }", data=b"\xff\xff\xff\x7f" * 6
    )
    content = archive([("maps.npy", NPY), ("tokens.npy", surrogate)], zipfile.ZIP_STORED)
    with pytest.raises(Refused):
        opener.inspect(bundle(tmp_path, content, "m.npz"), Limits())


FUZZ = settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def _used(folder: Path, content: bytes) -> None:
    """Inspected and, if that is allowed, opened and measured: nothing but Refused leaves."""
    path = folder / "0"
    path.write_bytes(content)
    found = Bundle((Item("maps.npz", path),))
    if not opener.recognises(found):
        return
    try:
        card = opener.inspect(found, Limits())
        assert Inspection.from_json(card.to_json()) == card
        model = opener.open_model(found, Limits(), "cpu")
        layers: list[Any] = []
        model.trace(
            None,
            on_attention=layers.append,
            on_states=lambda _: None,
            on_map=lambda *_: None,
            map_samples=(0,),
            progress=None,
        )
    except Refused:
        return
    assert len(layers) == card.layers
    assert all(np.isfinite(layer.importance).all() for layer in layers)


@FUZZ
@given(
    st.sampled_from([NPY, NPZ, PACKED]),
    st.lists(st.tuples(st.integers(0, 2_000), st.integers(0, 255)), min_size=1, max_size=12),
)
def test_fuzz_changed_bytes(tmp_path: Path, content: bytes, changes: list[tuple[int, int]]) -> None:
    changed = bytearray(content)
    for at, value in changes:
        changed[at % len(changed)] = value
    _used(tmp_path, bytes(changed))


@FUZZ
@given(
    st.text(alphabet="{}()[]'\",: descrfortanshape_oFTlu<>|=f4VU12950", max_size=120), st.binary(max_size=64)
)
def test_fuzz_headers(tmp_path: Path, text: str, data: bytes) -> None:
    _used(tmp_path, header(text, data=data))


@FUZZ
@given(
    st.sampled_from(["<f2", "<f4", ">f8", "|V2", "<U3", "|S4", "<i4", "|b1", "<c8", "<M8[s]", "<f16"]),
    st.lists(st.integers(0, 3), max_size=6),
    st.booleans(),
    st.binary(max_size=2_000),
)
def test_fuzz_arrays(tmp_path: Path, kind: str, shape: list[int], order: bool, data: bytes) -> None:
    size = np.dtype(kind).itemsize * int(np.prod(shape))
    text = f"{{'descr': '{kind}', 'fortran_order': {order}, 'shape': ({''.join(f'{n},' for n in shape)}), }}"
    _used(tmp_path, header(text, data=(data * (size // max(len(data), 1) + 1))[:size]))
