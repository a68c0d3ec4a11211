"""Formats of daily use: text, arrays, HDF5, tables, E57, and gzip around any of them."""

import gzip
import re
import struct
import sys
import zlib

import numpy as np
import pytest

from voxax.errors import FileFormatError, MissingExtraError
from voxax.io import read, read_labels
from voxax.io.decoding import unpacked_limit
from voxax.io.point_cloud import to_uint8


def fails(message: str):
    return pytest.raises(FileFormatError, match=message)


@pytest.fixture
def points(rng) -> np.ndarray:
    """float64 [20, 3], of decimals that text holds as they are."""
    return np.round(rng.uniform(-40, 40, (20, 3)), 3)


def write_text(path, rows, delimiter=" ", above=""):
    lines = (delimiter.join(map(str, row)) for row in rows.tolist())
    path.write_text(above + "\n".join(lines) + "\n")


# --- text --------------------------------------------------------------------------------


@pytest.mark.parametrize("delimiter", [" ", "   ", "\t", ",", ", ", ";", "|"])
@pytest.mark.parametrize("above", ["", "{}", "# {}", "//{}", "# a scan\n\n# {}"])
def test_text_of_any_delimiter(tmp_path, points, delimiter, above):
    names = delimiter.join(("X", "Y", "Z", "Scalar_intensity"))
    above = above.format(names) + "\n" if above else ""
    rows = np.column_stack([points, np.arange(20) / 8])
    write_text(tmp_path / "scan.txt", rows, delimiter, above)
    cloud = read(tmp_path / "scan.txt")
    np.testing.assert_array_equal(cloud.positions, points)
    name = "intensity" if "X" in above else "column_3"
    assert list(cloud.attributes) == [name]
    np.testing.assert_array_equal(cloud.attributes[name], np.arange(20) / 8)


RGB = {"rgb": [[9, 0, 7], [1, 2, 3]]}
CLEAR = {"rgb": [[99, 40, 99], [1, 2, 3]], "column_6": [5, 6]}
RGB_99 = {"rgb": [[99, 0, 7], [1, 2, 3]]}
DARK = {"rgb": [[9, 4, 7], [1, 2, 3]], "alpha": [255, 255]}
OPAQUE = {"rgb": [[99, 40, 99], [1, 2, 3]], "alpha": [255, 255]}
RETURNS = {"column_3": [1, 1], "column_4": [2, 1], "column_5": [6, 2]}
UNCLEAR = {"column_3": [4, 1], "column_4": [5, 2], "column_5": [6, 3], "column_6": [5, 6]}


@pytest.mark.parametrize(
    ("name", "text", "attributes", "labels"),
    [
        ("a.csv", "x,y,z,label,i\n1,2,3,7,\n4,5,6,8,.5\n", {"i": [np.nan, 0.5]}, [7, 8]),
        ("a.csv", '"X";"Y";"Z";"q"\n1,0;2,0;3,0;1,5\n4;5;6;2,5\n', {"q": [1.5, 2.5]}, None),
        ("a.csv", "name,x,y,z\ncar,1,2,3\nbus,4,5,6\n", {}, None),
        ("a.csv", ",x,y,z\n0,1,2,3\n1,4,5,6\n", {"column_0": [0, 1]}, None),
        ("a.csv", "x,y,z,t\n1,2,3,1000000000000000001\n4,5,6,1\n", {"t": [10**18 + 1, 1]}, None),
        ("a.pts", "2\n1 2 3 -5 9 0 7\n4 5 6 9 1 2 3\n", {"intensity": [-5, 9], **RGB}, None),
        ("a.pts", "1\n1 2 3 5\n1\n4 5 6 7\n", {"intensity": [5, 7]}, None),
        ("a.txt", "1 2 3 0 0 1\n4 5 6 0.6 0.8 0\n", {"normals": [[0, 0, 1], [0.6, 0.8, 0]]}, None),
        ("a.txt", "1 2 3 99 0 7\n4 5 6 1 2 3\n", RGB_99, None),
        ("a.xyz", "1 2 3 99. 40. 99. 255.\n4 5 6 1. 2. 3. 255.\n", OPAQUE, None),
        ("a.txt", "1 2 3 9 4 7 255\n4 5 6 1 2 3 255\n", DARK, None),
        ("a.txt", f"1 2 3 {2**53 + 1} car\n4 5 6 1 no car\n", {"column_3": [2**53 + 1, 1]}, None),
        ("a.txt", "1 2 3 1 2 6\n4 5 6 1 1 2\n", RETURNS, None),
        ("a.txt", "# made by us\n# X Y Z\n// no more words\n1 2 3\n4 5 6\n", {}, None),
        ("a.csv", "sep=;\nz;y;x\n3;2;1\n6;5;4\n", {}, None),
        ("a.csv", '"Points_m_XYZ:0","Points_m_XYZ:1","Points_m_XYZ:2"\n1,2,3\n4,5,6\n', {}, None),
        ("a.csv", "Points:2,Points:1,Points:0\n3,2,1\n6,5,4\n", {}, None),
        ("a.txt", "1 2 3 99 40 99 5\n4 5 6 1 2 3 6\n", CLEAR, None),
        ("a.txt", "1 2 3 4 5 6 5\n4 5 6 1 2 3 6\n", UNCLEAR, None),
        ("a.txt", "1 2 3 1\n4 5 6 1.5\n", {"column_3": [1, 1.5]}, None),
        ("a.txt", "1 2 3\r4 5 6\r", {}, None),
        ("a.txt", "1,0 2,0 3,0\n4,0 5,0 6,0\n", {}, None),
        ("a.asc", "\ufeff1 2 3\r\n\r\n# between\r\n4 5 6\r\n", {}, None),
        ("a.xyz", "1 2 3 1.#QNAN\n4 5 6 -1.#IND00\n", {"column_3": [np.nan, np.nan]}, None),
        ("a.xyzn", "1 2 3 0 0 1\n4 5 6 0 1 0\n", {"normals": [[0, 0, 1], [0, 1, 0]]}, None),
        ("a.xyzrgb", "1 2 3 1 0 0.5\n4 5 6 0 1 0\n", {"rgb": [[255, 0, 128], [0, 255, 0]]}, None),
    ],
)  # fmt: skip
def test_text_as_programs_write_it(tmp_path, name, text, attributes, labels):
    (tmp_path / name).write_bytes(text.encode())
    cloud = read(tmp_path / name)
    assert cloud.positions.tolist() == [[1, 2, 3], [4, 5, 6]]
    assert set(cloud.attributes) == set(attributes)
    for key, values in attributes.items():
        np.testing.assert_array_equal(cloud.attributes[key], values)
    assert (None if cloud.labels is None else cloud.labels.tolist()) == labels


def test_text_of_other_encodings(tmp_path):
    for encoding in ("utf-16", "latin-1", "utf-8"):
        (tmp_path / "a.csv").write_bytes("x,y,z,größe\n1,2,3,4\n".encode(encoding))
        assert read(tmp_path / "a.csv").attributes["größe"].tolist() == [4]


def test_text_with_columns_given(tmp_path):
    (tmp_path / "a.txt").write_text("9 1 2 3 7\n9 4 5 6 8\n")
    cloud = read(tmp_path / "a.txt", columns=("_", "x", "y", "z", "label"))
    assert cloud.positions.tolist() == [[1, 2, 3], [4, 5, 6]]
    assert cloud.labels.tolist() == [7, 8]
    assert cloud.attributes == {}
    (tmp_path / "a.txt").write_text("1/2/3\n4/5/6\n")
    assert read(tmp_path / "a.txt", delimiter="/").positions.tolist() == [[1, 2, 3], [4, 5, 6]]
    with fails("has 3 columns, not the 4 that columns says"):
        read(tmp_path / "a.txt", delimiter="/", columns=4)


def test_text_in_several_blocks(tmp_path, monkeypatch, rng):
    monkeypatch.setattr("voxax.io.text.BLOCK", 200)
    rows = rng.integers(-99, 99, (300, 4))
    rows[250:, 3] = 7
    write_text(tmp_path / "a.txt", rows)
    cloud = read(tmp_path / "a.txt")
    np.testing.assert_array_equal(cloud.positions, rows[:, :3])
    np.testing.assert_array_equal(cloud.attributes["column_3"], rows[:, 3])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("hello\nworld\n", "line 2 .* holds no point, nor the names of columns: 'world'"),
        ("3\nwater\nO 0 0 0\n", "has 4 columns, and above them is 'water', which names 1"),
        ("2\n\nO 0 0 0\nH 1 0 0\n", "column x .* holds text, such as 'O'"),
        ("3\n1 2 3\n4 5 6\n", "cut short: it says 3 points, 2 are there"),
        ("1 2 3\n4 5\n", "as text: .*at row 1 .*counted from 0"),
        ("1 2 3\n4 5 6\n7 8 9 10\n", "has 3 columns, and 4 at row 2 .*counted from 0"),
        ("1 2 3\n4 5 x\n", "could not convert string 'x'"),
        ("x,y,z\n", "no line with three numbers"),
        ("a,b,c\n1,2,3\n", "'a,b,c', which names 3, and no x, y, z: give columns="),
        ("ply\nformat ascii 1.0\n", "line 2 .* holds no point"),
        ("1 2 3\0", "no text"),
    ],
)
def test_text_that_holds_no_points(tmp_path, text, message):
    (tmp_path / "a.txt").write_text(text)
    with fails(message):
        read(tmp_path / "a.txt")


# --- colors ------------------------------------------------------------------------------


def test_colors_of_minus_one_to_one():
    stored = np.arange(256, dtype=np.float32) / np.float32(127.5) - 1
    assert to_uint8(stored).tolist() == list(range(256))
    assert to_uint8(np.array([-1, 1, np.nan])).tolist() == [0, 255, 0]
    # A little below 0 is rounding.
    assert to_uint8(np.array([-0.01, 1.0])).tolist() == [0, 255]
    assert to_uint8(np.array([-2.0, 300.0])).tolist() == [0, 255]


# --- arrays ------------------------------------------------------------------------------


def test_npy(tmp_path, points):
    for array in (points, np.asfortranarray(points), points.astype(">f8")):
        np.save(tmp_path / "a.npy", array)
        np.testing.assert_array_equal(read(tmp_path / "a.npy").positions, points)
    np.save(tmp_path / "a.npy", np.column_stack([points, np.arange(20), np.arange(20)]))
    assert set(read(tmp_path / "a.npy").attributes) == {"column_3", "column_4"}
    cloud = read(tmp_path / "a.npy", columns=("x", "y", "z", "label", "_"))
    np.testing.assert_array_equal(cloud.labels, np.arange(20))
    table = np.zeros(20, [("x", "f4"), ("y", "f4"), ("z", "f4"), ("class", "u1")])
    table["y"], table["class"] = 1, np.arange(20)
    np.save(tmp_path / "a.npy", table)
    cloud = read(tmp_path / "a.npy")
    np.testing.assert_array_equal(cloud.positions, [[0, 1, 0]] * 20)
    np.testing.assert_array_equal(cloud.labels, np.arange(20))
    np.save(tmp_path / "a.npy", points.ravel())
    np.testing.assert_array_equal(read(tmp_path / "a.npy", columns=3).positions, points)


def test_npy_of_several_clouds(tmp_path, points):
    np.save(tmp_path / "a.npy", points.reshape(4, 5, 3))
    cloud = read(tmp_path / "a.npy")
    np.testing.assert_array_equal(cloud.positions, points)
    np.testing.assert_array_equal(cloud.attributes["item"], np.repeat(np.arange(4), 5))
    np.testing.assert_array_equal(read(tmp_path / "a.npy", item=2).positions, points[10:15])
    with fails(r"holds 4 clouds, 0\.\.3: item 4 is none"):
        read(tmp_path / "a.npy", item=4)


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.arange(9), r"array \[9\], not points: .* passed as labels="),
        (np.zeros((3, 500)), r"array \[3, 500\], not points: .* transpose it"),
        (np.zeros((2, 2)), r"array \[2, 2\], not points"),
        (np.array(["a"]), "<U1, not numbers"),
        (np.array([None]), "not numbers"),
        (np.zeros((0, 3)), "holds no points"),
    ],
)
def test_npy_that_holds_no_points(tmp_path, array, message):
    np.save(tmp_path / "a.npy", array)
    with fails(message):
        read(tmp_path / "a.npy")


def test_npy_that_claims_more_than_it_holds(tmp_path):
    np.save(tmp_path / "a.npy", np.zeros((7, 3)))
    content = (tmp_path / "a.npy").read_bytes()
    # As many bytes of header as before.
    larger = content.replace(b"(7, 3), }" + b" " * 20, b"(7000000000000000000, 3), }" + b"  ")
    assert larger != content
    (tmp_path / "a.npy").write_bytes(larger)
    with fails("says 21000000000000000000 numbers, 21 are there"):
        read(tmp_path / "a.npy")


@pytest.fixture
def h5(tmp_path):
    h5py = pytest.importorskip("h5py")

    def write(**arrays):
        with h5py.File(tmp_path / "a.h5", "w") as file:
            for name, values in arrays.items():
                file[name] = values
        return tmp_path / "a.h5"

    return write


def test_hdf5_of_modelnet(h5, points):
    path = h5(
        data=points.reshape(4, 5, 3),
        label=np.arange(4, dtype=np.uint8)[:, None],
        normal=np.tile([0.0, 0.0, 1.0], (4, 5, 1)),
        faceId=np.arange(20).reshape(4, 5),
    )
    cloud = read(path)
    np.testing.assert_array_equal(cloud.positions, points)
    np.testing.assert_array_equal(cloud.labels, np.repeat(np.arange(4), 5))
    np.testing.assert_array_equal(cloud.attributes["item"], np.repeat(np.arange(4), 5))
    np.testing.assert_array_equal(cloud.attributes["faceId"], np.arange(20))
    np.testing.assert_array_equal(cloud.attributes["normals"], [[0, 0, 1]] * 20)
    one = read(path, item=3, label_field="faceId")
    np.testing.assert_array_equal(one.positions, points[15:])
    np.testing.assert_array_equal(one.labels, np.arange(15, 20))


def test_hdf5_of_one_cloud(h5, points):
    colors = np.arange(60, dtype=np.uint8).reshape(20, 3)
    cloud = read(h5(**{"scan/xyz": points, "scan/rgb": colors, "count_room": [1, 2]}))
    np.testing.assert_array_equal(cloud.positions, points)
    np.testing.assert_array_equal(cloud.attributes["rgb"], colors)
    assert set(cloud.attributes) == {"rgb"}
    np.testing.assert_array_equal(read(h5(anything=points, b=np.arange(20))).positions, points)
    axes = dict(zip("XYZ", points.T, strict=True))
    cloud = read(h5(**{f"scan/{name}": values for name, values in axes.items()}, Class=[7] * 20))
    np.testing.assert_array_equal(cloud.positions, points)
    np.testing.assert_array_equal(cloud.labels, [7] * 20)
    with fails(r"holds an array \[3\], not points"):
        read(h5(a=np.arange(3)))
    with fails("no array of positions; its arrays are a float64.*, b float64"):
        read(h5(a=points, b=points))


def test_hdf5_of_a_time_projection_chamber(tmp_path):
    h5py = pytest.importorskip("h5py")
    events = [np.arange(16.0), np.arange(24.0) + 100]
    clusters = [[1, 0, 0, 0, 4, 1, 1, 1, 1, 2], [3, 0, 0, 0, 1]]
    with h5py.File(tmp_path / "a.h5", "w") as file:
        stored = file.create_dataset("point", (2,), h5py.vlen_dtype(np.float32))
        stored[0], stored[1] = events
        stored = file.create_dataset("cluster", (2,), h5py.vlen_dtype(np.int64))
        stored[0], stored[1] = clusters
    cloud = read(tmp_path / "a.h5")
    np.testing.assert_array_equal(cloud.positions, np.concatenate(events).reshape(-1, 8)[:, :3])
    assert cloud.labels.tolist() == [4, 2, 1, 1, 1]
    assert cloud.attributes["instance"].tolist() == [0, 1, 0, 0, 0]
    assert cloud.attributes["item"].tolist() == [0, 0, 1, 1, 1]
    assert cloud.attributes["energy"].tolist() == [3, 11, 103, 111, 119]
    assert read(tmp_path / "a.h5", item=1).labels.tolist() == [1, 1, 1]


def test_hdf5_that_claims_more_than_it_holds(tmp_path):
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("points", (10**11, 3), "f4", chunks=(1000, 3))
    with fails("says that it holds 1200000000000 bytes"):
        read(tmp_path / "a.h5")


# --- tables and E57 ----------------------------------------------------------------------


@pytest.fixture
def sweep(rng):
    """A sweep in the columns of Argoverse 2."""
    arrow = pytest.importorskip("pyarrow")
    half = rng.uniform(-40, 40, (20, 3)).astype(np.float16)
    columns = {name: half[:, axis] for axis, name in enumerate("xyz")}
    columns |= {"intensity": np.arange(20, dtype=np.uint8), "offset_ns": np.arange(20) * 1000}
    return half, arrow.table({**columns, "name": ["car"] * 20, "seen": [1, None] * 10})


@pytest.mark.parametrize("compression", ["uncompressed", "lz4", "zstd"])
def test_feather(tmp_path, sweep, compression):
    from pyarrow import feather

    feather.write_feather(sweep[1], str(tmp_path / "a.feather"), compression=compression)
    cloud = read(tmp_path / "a.feather")
    np.testing.assert_array_equal(cloud.positions, sweep[0])
    assert set(cloud.attributes) == {"intensity", "offset_ns", "seen"}
    assert cloud.attributes["intensity"].dtype == np.uint8
    assert np.isnan(cloud.attributes["seen"][1])


def test_feather_of_version_1(tmp_path):
    pytest.importorskip("pyarrow")
    (tmp_path / "a.feather").write_bytes(b"FEA1" + bytes(100) + b"FEA1")
    with fails("is Feather version 1, .* write it as version 2"):
        read(tmp_path / "a.feather")


def test_table_whose_positions_are_text(tmp_path):
    import pyarrow as arrow
    from pyarrow import parquet

    parquet.write_table(arrow.table({name: ["1", "2"] for name in "xyz"}), tmp_path / "a.parquet")
    with fails("column x holds string, no numbers"):
        read(tmp_path / "a.parquet")
    np.savez(tmp_path / "a.npz", **dict.fromkeys("xyz", np.array(["1", "2"])))
    with fails("has no numbers as x, y, z"):
        read(tmp_path / "a.npz", columns=3)


def test_parquet(tmp_path, sweep):
    import pyarrow as arrow
    from pyarrow import parquet

    table = sweep[1].append_column("seconds", arrow.array(np.arange(20).astype("M8[ns]")))
    table = table.append_column("pair", arrow.array([[1.0, 2.0]] * 20))
    parquet.write_table(table, tmp_path / "a.parquet")
    cloud = read(tmp_path / "a.parquet")
    np.testing.assert_array_equal(cloud.positions, sweep[0])
    np.testing.assert_array_equal(cloud.attributes["seconds"], np.arange(20))
    np.testing.assert_array_equal(cloud.attributes["pair"], [[1, 2]] * 20)
    parquet.write_table(table.drop(["z"]), tmp_path / "a.parquet")
    with fails("has no column z"):
        read(tmp_path / "a.parquet")


def test_e57(tmp_path, points):
    pye57 = pytest.importorskip("pye57")
    fields = dict(zip(("cartesianX", "cartesianY", "cartesianZ"), points.T, strict=True))
    fields["intensity"] = np.arange(20) / 20
    fields |= {f"color{name}": np.arange(20) for name in ("Red", "Green", "Blue")}
    fields["cartesianInvalidState"] = np.array([1] + [0] * 19)
    turn = np.array([np.sqrt(0.5), 0, 0, np.sqrt(0.5)])  # x to y
    with pye57.E57(str(tmp_path / "a.e57"), mode="w") as file:
        file.write_scan_raw(fields, rotation=turn, translation=np.array([10.0, 20, 30]))
        file.write_scan_raw(fields)
    turned = np.stack([10 - points[:, 1], 20 + points[:, 0], 30 + points[:, 2]], axis=1)[1:]
    cloud = read(tmp_path / "a.e57")
    np.testing.assert_allclose(cloud.positions, np.concatenate([turned, points[1:]]), atol=1e-5)
    np.testing.assert_array_equal(cloud.attributes["item"], np.repeat([0, 1], 19))
    np.testing.assert_array_equal(cloud.attributes["rgb"][:19, 2], np.arange(1, 20))
    one = read(tmp_path / "a.e57", item=0)
    np.testing.assert_allclose(one.positions, turned, atol=1e-5)
    np.testing.assert_allclose(one.attributes["intensity"], np.arange(1, 20) / 20, atol=1e-6)
    assert "item" not in one.attributes


LISTS = [np.arange(16), np.arange(24)], [[1, 0, 0, 0, 4, 1, 1, 1, 1, 2], [3, 0, 0, 0, 1]]


@pytest.mark.parametrize(
    "stored",
    [
        {}, {"chunks": (1,)}, {"chunks": (2,), "compression": "gzip"},
        {"chunks": (2,), "compression": "gzip", "shuffle": True},
        {"chunks": (1,), "shuffle": True},
        {"chunks": (2,), "compression": "lzf"},
        {"chunks": (2,), "compression": "lzf", "shuffle": True},
    ],
)  # fmt: skip
def test_lists_that_are_longer_than_the_file(tmp_path, monkeypatch, stored):
    """HDF5 takes the memory that a list claims before it looks for it."""
    h5py = pytest.importorskip("h5py")
    path, kinds = tmp_path / "a.h5", (np.float32, np.int64)
    with h5py.File(path, "w") as file:
        for name, kind, lists in zip(("point", "cluster"), kinds, LISTS, strict=True):
            stored_lists = file.create_dataset(name, (2,), h5py.vlen_dtype(kind), **stored)
            for number, values in enumerate(lists):
                stored_lists[number] = values
    assert len(read(path)) == 5
    with h5py.File(path, "a") as file:
        place = file["point"].id.get_offset()
        row = 4 + file.id.get_create_plist().get_sizes()[0] + 4
        if place is None:
            raw = np.zeros((file["point"].chunks[0], row), np.uint8)
            raw[0, 3] = 0x80  # of the length, the highest byte
            packed = raw.T.tobytes() if stored.get("shuffle") else raw.tobytes()
            if stored.get("compression") == "gzip":
                packed = zlib.compress(packed)
            elif stored.get("compression") == "lzf":
                packed = pytest.importorskip("lzf").compress(packed)
            file["point"].id.write_direct_chunk((0,), packed)
    if place is not None:
        content = path.read_bytes()
        path.write_bytes(content[:place] + struct.pack("<I", 2**31) + content[place + 4 :])
    with fails("a list of point has 2147483648 numbers, and the file room for"):
        read(path)


@pytest.mark.parametrize("compression", ["zstd", "lz4"])
@pytest.mark.parametrize("kind", ["numbers", "dictionary"])
def test_a_table_that_unpacks_to_more_than_a_scan_is_refused(tmp_path, compression, kind):
    """Before memory is taken, by what its buffers say."""
    arrow = pytest.importorskip("pyarrow")
    from pyarrow import feather

    zeros = np.zeros(2**27, np.int8)
    if kind == "dictionary":
        values = arrow.array([bytes(2**27).decode()])
        table = arrow.table({"x": arrow.DictionaryArray.from_arrays(np.zeros(9, "i4"), values)})
    else:
        table = arrow.table(dict.fromkeys("xyz", zeros))
    path = tmp_path / "a.feather"
    feather.write_feather(table, path, compression=compression)
    assert path.stat().st_size < 2**22
    before = arrow.total_allocated_bytes()
    with fails("says that it holds .* bytes: at most"):
        read(path)
    assert arrow.total_allocated_bytes() == before


def test_lists_of_a_table_that_end_elsewhere(tmp_path):
    arrow = pytest.importorskip("pyarrow")
    from pyarrow import feather

    columns = {name: np.arange(12, dtype="f4") for name in "xyz"}
    table = arrow.table({**columns, "pair": arrow.array([[1.0, 2.0]] * 12)})
    feather.write_feather(table, tmp_path / "a.feather", compression="uncompressed")
    content = (tmp_path / "a.feather").read_bytes()
    at = content.index(struct.pack("<13i", *range(0, 26, 2)))
    for place, value in [(5, 10**8), (5, -3), (12, 10**8), (0, -1)]:
        broken = bytearray(content)
        struct.pack_into("<i", broken, at + 4 * place, value)
        (tmp_path / "a.feather").write_bytes(broken)
        with fails("cannot read .* as FEATHER"):
            read(tmp_path / "a.feather")


# --- gzip --------------------------------------------------------------------------------


def test_gzip_of_a_scan_and_of_labels(tmp_path, points):
    write_text(tmp_path / "a.xyz", points)
    np.save(tmp_path / "a.npy", np.arange(20))
    (np.arange(20) << 16 | 7).astype("<u4").tofile(tmp_path / "a.label")
    for name in ("a.xyz", "a.npy", "a.label"):
        with gzip.open(tmp_path / f"{name}.gz", "wb") as stream:
            stream.write((tmp_path / name).read_bytes())
        (tmp_path / name).unlink()
    cloud = read(tmp_path / "a.xyz.gz", tmp_path / "a.npy.gz")
    np.testing.assert_array_equal(cloud.positions, points)
    np.testing.assert_array_equal(cloud.labels, np.arange(20))
    assert cloud.source == str(tmp_path / "a.xyz.gz")
    assert read_labels(tmp_path / "a.label.gz").tolist() == [7] * 20


def test_gzip_errors(tmp_path):
    path = tmp_path / "a.xyz.gz"
    path.write_bytes(gzip.compress(b"hello\nworld\n"))
    with fails(f"line 2 of {re.escape(str(path))} holds no point"):
        read(path)
    path.write_bytes(gzip.compress(b"1 2 3\n")[:-9])
    with fails(f"cannot read {re.escape(str(path))} as GZIP: EOFError"):
        read(path)
    path.write_bytes(b"1 2 3\n")
    with fails("as GZIP: BadGzipFile"):
        read(path)
    path.write_bytes(gzip.compress(b""))
    with fails("is empty"):
        read(path)
    (tmp_path / "a.doc.gz").write_bytes(gzip.compress(b"1 2 3"))
    with fails(r"its name ends in \.doc\.gz, known are"):
        read(tmp_path / "a.doc.gz")


def test_gzip_that_fills_the_memory_of_who_opens_it(tmp_path):
    path = tmp_path / "a.bin.gz"
    path.write_bytes(gzip.compress(bytes(2**26), 9))
    stored = path.stat().st_size
    assert unpacked_limit(stored) < 2**26
    with fails(f"of {stored} bytes holds more than {unpacked_limit(stored)} bytes"):
        read(path)


@pytest.mark.parametrize(
    ("extension", "library", "extra"),
    [
        (".laz", "laspy and lazrs", "io"),
        (".las", "laspy", "io"),
        (".ply", "plyfile", "io"),
        (".h5", "h5py", "hdf5"),
        (".parquet", "pyarrow", "arrow"),
        (".feather", "pyarrow", "arrow"),
        (".e57", "pye57", "e57"),
        (".pth", "torch", "torch"),
    ],
)
def test_missing_library_names_its_extra(tmp_path, monkeypatch, extension, library, extra):
    (tmp_path / f"a{extension}").write_bytes(b"anything")
    monkeypatch.setitem(sys.modules, library.split()[-1], None)
    message = f'reading {extension} needs {library}: pip install "voxax[{extra}]"'
    with pytest.raises(MissingExtraError, match=re.escape(message)):
        read(tmp_path / f"a{extension}")
