"""A header is a claim: counts that no file of this size can hold, and decoders that fail."""

import json
import struct
import time
import tracemalloc

import numpy as np
import pytest
from fuzz import FILES

from voxax.errors import FileFormatError
from voxax.io import read

HUGE = 10**12


def refused(path, message: str) -> None:
    """Check that a file is refused at once, with its path, and without memory for the claim."""
    began = time.process_time()
    tracemalloc.start()
    try:
        with pytest.raises(FileFormatError, match=message) as caught:
            read(path, points=10)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert str(path) in str(caught.value)
    assert peak < 100 * path.stat().st_size + (50 << 20)
    assert time.process_time() - began < 5


def claiming(tmp_path, name: str, old: bytes, new: bytes):
    """Write a small whole file, with one claim replaced."""
    content = FILES[name]()
    assert content.count(old) == 1
    path = tmp_path / name
    path.write_bytes(content.replace(old, new))
    return path


@pytest.mark.parametrize(
    ("name", "old", "new", "message"),
    [
        ("text.ply", "element vertex 12", f"element vertex {HUGE}", "rows of vertex, at most"),
        ("points.ply", "element vertex 12", f"element vertex {HUGE}", f"{HUGE} rows of vertex"),
        ("points.ply", "element vertex 12", "element vertex -12", "says -12 rows of vertex"),
        ("text.ply", "element face 4", f"element face {HUGE}", "rows of face, at most"),
        ("mesh.ply", "element face 4", f"element face {HUGE}", f"{HUGE} rows of face"),
        ("strips.ply", "element tristrips 1", "element tristrips 99999999", "rows of tristrips"),
        ("mesh.off", "\n4 2 0", f"\n{HUGE} 2 0", f"{HUGE} corners"),
        ("mesh.off", "\n4 2 0", f"\n4 {HUGE} 0", f"{HUGE} faces"),
        (
            "scene.glb",
            '"count": 12, "type": "VEC3"',
            '"count": 99, "type": "VEC3"',
            "bytes of an array",
        ),
    ],
)
def test_count_in_text(tmp_path, name, old, new, message):
    refused(claiming(tmp_path, name, old.encode(), new.encode()), message)


def test_element_without_columns(tmp_path):
    path = tmp_path / "a.ply"
    header = "ply\nformat {} 1.0\nelement vertex {}\nend_header\n"
    for layout in ("ascii", "binary_little_endian"):
        path.write_text(header.format(layout, HUGE))
        refused(path, f"{HUGE} rows of vertex")


def test_glb_with_an_array_that_has_no_bytes(tmp_path):
    described = {
        "accessors": [{"componentType": 5126, "count": HUGE, "type": "VEC3", "sparse": {}}],
        "bufferViews": [],
        "nodes": [{"mesh": 0}],
        "meshes": [{"primitives": [{"attributes": {"POSITION": 0}}]}],
    }
    head = json.dumps(described).encode()
    content = struct.pack("<4sIIII", b"glTF", 2, 20 + len(head), len(head), 0x4E4F534A) + head
    (tmp_path / "a.glb").write_bytes(content)
    refused(tmp_path / "a.glb", f"says {12 * HUGE} bytes of values, at most")
    (tmp_path / "a.glb").write_bytes(content[:12] + struct.pack("<I", 2**32 - 1) + content[16:])
    refused(tmp_path / "a.glb", f"says {2**32 - 1} bytes of a chunk")
    scene = FILES["scene.glb"]()
    at = scene.index(b"BIN\0") - 4
    (tmp_path / "a.glb").write_bytes(scene[:at] + struct.pack("<I", 2**32 - 1) + scene[at + 4 :])
    refused(tmp_path / "a.glb", f"says {2**32 - 1} bytes of a chunk, 168 are there")
    (tmp_path / "a.glb").write_bytes(scene[:4] + struct.pack("<I", 1) + scene[8:])
    refused(tmp_path / "a.glb", "is glTF of version 1: 2 is read")
    (tmp_path / "a.glb").write_bytes(scene[:11])
    refused(tmp_path / "a.glb", "is cut short: its 11 bytes hold no part of a scene")


def test_binary_stl(tmp_path):
    content = FILES["binary.stl"]()
    path = tmp_path / "a.stl"
    path.write_bytes(content[:80] + struct.pack("<I", 2**32 - 1) + content[84:])
    refused(path, f"says {2**32 - 1} triangles, 4 are there")
    path.write_bytes(content[:-1])
    refused(path, "says 4 triangles, 3 are there")


def patched(tmp_path, name: str, at: int, layout: str, value: int):
    content = bytearray(FILES[name]())
    struct.pack_into(layout, content, at, value)
    path = tmp_path / name
    path.write_bytes(content)
    return path


@pytest.mark.parametrize(
    ("name", "at", "layout", "value", "message"),
    [
        ("legacy.las", 100, "<I", 2**30, f"says {2**30} variable length records"),
        ("extended.las", 100, "<I", 2**32 - 1, "variable length records"),
        ("layered.laz", 100, "<I", 9999, "says 9999 variable length records"),
        ("legacy.las", 96, "<I", 2**31, f"points begin at byte {2**31}"),
        ("legacy.laz", 96, "<I", 2**31, f"points begin at byte {2**31}"),
        ("legacy.las", 107, "<I", 2**32 - 1, f"says {2**32 - 1} points, 12 are there"),
        ("extended.las", 247, "<Q", HUGE, f"says {HUGE} points, 12 are there"),
        ("legacy.laz", 107, "<I", 2**32 - 1, f"says {2**32 - 1} points, at most"),
        ("layered.laz", 247, "<Q", HUGE, f"says {HUGE} points, at most"),
        # As many as such a file could hold, were it written so.
        ("layered.laz", 247, "<Q", 10**5, "says 100000 points, 12 are there"),
    ],
)
def test_las_counts(tmp_path, name, at, layout, value, message):
    refused(patched(tmp_path, name, at, layout, value), message)


def test_las_extended_records_are_not_read(tmp_path):
    path = patched(tmp_path, "extended.las", 243, "<I", 2**32 - 1)
    assert len(read(path)) == 12


@pytest.mark.parametrize("name", ["legacy.laz", "layered.laz"])
def test_laz_number_of_chunks(tmp_path, name):
    content = bytearray(FILES[name]())
    start = struct.unpack_from("<I", content, 96)[0]
    table = struct.unpack_from("<q", content, start)[0]
    struct.pack_into("<I", content, table + 4, 2**32 - 1)
    (tmp_path / name).write_bytes(content)
    refused(tmp_path / name, f"says {2**32 - 1} chunks, at most")


def test_laz_length_of_a_layer(tmp_path):
    content = bytearray(FILES["layered.laz"]())
    start = struct.unpack_from("<I", content, 96)[0]
    point = struct.unpack_from("<H", content, 105)[0]
    struct.pack_into("<I", content, start + 8 + point + 4, 2**32 - 16)
    (tmp_path / "a.laz").write_bytes(content)
    refused(tmp_path / "a.laz", "12 points end at byte")


def test_laz_without_its_record(tmp_path):
    content = FILES["legacy.laz"]().replace(b"laszip encoded\0", b"something else\0")
    (tmp_path / "a.laz").write_bytes(content)
    refused(tmp_path / "a.laz", "not the LASzip record|LASzip")


def test_laz_written_to_a_stream_names_its_table_at_the_end(tmp_path):
    content = bytearray(FILES["legacy.laz"]())
    start = struct.unpack_from("<I", content, 96)[0]
    table = content[start : start + 8]
    content[start : start + 8] = struct.pack("<q", -1)
    (tmp_path / "a.laz").write_bytes(content + table)
    assert len(read(tmp_path / "a.laz")) == 12


@pytest.mark.parametrize("offset", [-1, 0, 10**6, 2**45])
@pytest.mark.parametrize("name", ["legacy.laz", "layered.laz"])
def test_laz_without_its_table(tmp_path, name, offset):
    content = bytearray(FILES[name]())
    struct.pack_into("<q", content, struct.unpack_from("<I", content, 96)[0], offset)
    (tmp_path / name).write_bytes(content)
    refused(tmp_path / name, "has no table of its chunks: it is cut short or broken")


def test_laz_of_equal_points_is_read_in_pieces(tmp_path, monkeypatch):
    laspy = pytest.importorskip("laspy")
    header = laspy.LasHeader(point_format=6, version="1.4")
    data = laspy.LasData(header)
    data.x = data.y = data.z = np.ones(120_000)
    data.write(tmp_path / "a.laz")
    whole = read(tmp_path / "a.laz")
    assert len(whole) == 120_000
    monkeypatch.setattr("voxax.io.las.PIECE", 7_001)
    np.testing.assert_array_equal(read(tmp_path / "a.laz").positions, whole.positions)


def test_laz_on_which_lazrs_panics_is_refused_or_read_by_laszip(tmp_path):
    laspy = pytest.importorskip("laspy")
    content = bytearray(FILES["layered.laz"]())
    start = struct.unpack_from("<I", content, 96)[0]
    table = struct.unpack_from("<q", content, start)[0]
    record = content.index(b"laszip encoded") - 2 + 54
    # Chunks of any length, and a table of chunks that is empty.
    struct.pack_into("<I", content, record + 12, 2**32 - 1)
    struct.pack_into("<I", content, table + 4, 0)
    (tmp_path / "a.laz").write_bytes(content)
    if laspy.LazBackend.Laszip.is_available():
        assert len(read(tmp_path / "a.laz")) == 12
    else:
        refused(tmp_path / "a.laz", "lazrs cannot read .*; LASzip may read it: pip install laszip")


def test_laz_of_a_version_that_lazrs_does_not_know_is_read_by_laszip(tmp_path):
    laspy = pytest.importorskip("laspy")
    content = bytearray(FILES["layered.laz"]())
    record = content.index(b"laszip encoded") - 2 + 54
    items = struct.unpack_from("<H", content, record + 32)[0]
    for item in range(items):  # kind, bytes, version 3: version 4 differs for several scanners
        struct.pack_into("<H", content, record + 34 + 6 * item + 4, 4)
    (tmp_path / "a.laz").write_bytes(content)
    if laspy.LazBackend.Laszip.is_available():
        assert len(read(tmp_path / "a.laz")) == 12
    else:
        refused(tmp_path / "a.laz", "version: 4 is not supported.*LASzip .* pip install laszip")


@pytest.mark.parametrize("length", [0, 1, 15])
def test_hdf5_heap_that_never_ends(tmp_path, length):
    pytest.importorskip("h5py")
    content = bytearray(FILES["chamber.hdf5"]())
    place = content.index(b"GCOL") + 16
    # The free room behind the objects has the index 0.
    while (index := struct.unpack_from("<H", content, place)[0]) != 0:
        assert index < 9
        place += 16 + -(-struct.unpack_from("<Q", content, place + 8)[0] // 8) * 8
    struct.pack_into("<Q", content, place + 8, length)
    (tmp_path / "a.hdf5").write_bytes(content)
    refused(tmp_path / "a.hdf5", "its lists have impossible sizes")
