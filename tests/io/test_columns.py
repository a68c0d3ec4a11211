"""Names of columns: positions, colors, normals and labels, by one rule in every format."""

import struct

import numpy as np
import pytest

from voxax.errors import FileFormatError
from voxax.io import read, read_labels
from voxax.io.columns import cloud_from_columns, labels_of, unpacked_colors
from voxax.io.point_cloud import to_uint8

POINTS = np.array([[1, 2, 3], [4, 5, 6], [7, 8, 9.5]])
AXES = dict(zip("xyz", POINTS.T, strict=True))
WRITERS = ("columns", "ply", "pcd", "npz", "structured")


@pytest.fixture(params=WRITERS)
def stored(request, tmp_path):
    """Return a function that stores columns [3] with the points, and reads them back."""

    def store(label_field: str | None = None, **columns):
        everything = AXES | {name: np.asarray(values) for name, values in columns.items()}
        if request.param == "columns":
            return cloud_from_columns(everything, "memory", label_field)
        kinds = [(name, values.dtype) for name, values in everything.items()]
        rows = np.zeros(3, kinds)
        for name, values in everything.items():
            rows[name] = values
        path = tmp_path / f"cloud.{request.param.replace('structured', 'npz')}"
        if request.param == "npz":
            np.savez(path, xyz=POINTS, **columns)
        elif request.param == "structured":
            np.savez(path, cloud=rows)
        elif request.param == "ply":
            path.write_bytes(_ply(rows))
        else:
            path.write_bytes(_pcd(rows))
        return read(path, label_field=label_field)

    return store


def _ply(rows: np.ndarray) -> bytes:
    types = {"f4": "float", "f8": "double", "u1": "uchar", "u2": "ushort", "u4": "uint",
             "i4": "int"}  # fmt: skip
    lines = ["ply", "format binary_little_endian 1.0", f"element vertex {len(rows)}"]
    lines += [f"property {types[rows.dtype[n].str[1:]]} {n}" for n in rows.dtype.names]
    return ("\n".join([*lines, "end_header"]) + "\n").encode() + rows.tobytes()


def _pcd(rows: np.ndarray) -> bytes:
    kinds = [rows.dtype[name] for name in rows.dtype.names]
    lines = [
        "VERSION 0.7",
        f"FIELDS {' '.join(rows.dtype.names)}",
        f"SIZE {' '.join(str(kind.itemsize) for kind in kinds)}",
        f"TYPE {' '.join(kind.kind.upper() for kind in kinds)}",
        f"WIDTH {len(rows)}\nHEIGHT 1\nDATA binary\n",
    ]
    return "\n".join(lines).encode() + rows.tobytes()


# --- labels ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["label", "Label", "scalar_Label", "class", "scalar_class"])
@pytest.mark.parametrize("kind", [np.uint8, np.uint16, np.int32, np.float32, np.float64])
def test_labels_of_every_type(stored, name, kind):
    cloud = stored(**{name: np.array([3, 0, 19], kind)})
    assert cloud.labels.tolist() == [3, 0, 19]
    assert cloud.labels.dtype == np.int32
    assert cloud.attributes == {}


@pytest.mark.parametrize(
    "values",
    [
        np.array([2, np.nan, 6], np.float32),
        np.array([2, np.inf, 6], np.float64),
        np.array([2, 2**32 - 1, 6], np.uint32),
        np.array([2, 2**32 - 1, 6], np.float32),
        np.array([2, -1, 6], np.int32),
    ],
)
def test_a_label_that_is_not_set_is_unknown(stored, values):
    assert stored(scalar_Classification=values).labels.tolist() == [2, -1, 6]


@pytest.mark.parametrize("value", [2**63 - 1, -(2**63)])
def test_unset_labels_of_64_bits(value):
    assert labels_of(np.array([2, value, 6])).tolist() == [2, -1, 6]
    assert labels_of(np.array([2, 2**64 - 1, 6], np.uint64)).tolist() == [2, -1, 6]
    assert labels_of(np.array([2, 2**40, 6])) is None


@pytest.mark.parametrize(
    "values", [np.array([0.25, 0.5, 0.75], np.float32), np.array([0, 1, 0.5]), np.full(3, np.nan)]
)
def test_scores_are_no_labels(stored, values):
    cloud = stored(**{"class": values})
    assert cloud.labels is None
    np.testing.assert_array_equal(cloud.attributes["class"], values)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("class", "label"),  # Paris-Lille-3D: `label` is the object
        ("sem_class", "label"),
        ("semantic", "class"),
        ("label", "classification"),
        ("class", "category"),
        ("scalar_Label", "scalar_Classification"),
    ],
)
def test_precedence(stored, first, second):
    columns = {second: np.array([70, 80, 90], np.uint16), first: np.array([1, 2, 3], np.uint8)}
    cloud = stored(**columns)
    assert cloud.labels.tolist() == [1, 2, 3]
    kept = second.removeprefix("scalar_")
    assert {name: v.tolist() for name, v in cloud.attributes.items()} == {kept: [70, 80, 90]}
    cloud = stored(second, **columns)
    assert cloud.labels.tolist() == [70, 80, 90]
    assert cloud.attributes[first.removeprefix("scalar_")].tolist() == [1, 2, 3]


def test_the_next_name_is_taken_where_the_first_holds_no_labels(stored):
    columns = {"class": np.array([0.5, 0.25, 1], np.float32), "label": np.array([4, 5, 6], "u1")}
    cloud = stored(**columns)
    assert cloud.labels.tolist() == [4, 5, 6]
    assert cloud.attributes["class"].tolist() == [0.5, 0.25, 1]


def test_label_field(stored):
    columns = {"treeID": np.array([4, 2.5, np.nan], np.float32), "label": np.array([1, 2, 3], "u1")}
    assert stored("treeID", **columns).labels.tolist() == [4, -1, -1]
    assert stored("treeid", **columns).labels.tolist() == [4, -1, -1]
    with pytest.raises(FileFormatError, match=r"has no column 'tree' to take .* treeID, label"):
        stored("tree", **columns)
    with pytest.raises(FileFormatError, match=r"column 'score' .* holds no labels.*such as 0\.25"):
        stored("score", score=np.array([0.25, 0.5, 0.75], np.float32))


def test_labels_of_another_file(tmp_path):
    np.savez(tmp_path / "cloud.npz", xyz=POINTS, label=[9, 9, 9])
    np.savez(tmp_path / "a.npz", segment=[[1.0], [np.nan], [3.0]], instance=[5, 6, 7])
    np.savez(tmp_path / "b.npz", mine=[1, 2, 3], other=[4, 5, 6])
    cloud = read(tmp_path / "cloud.npz", tmp_path / "a.npz")
    assert cloud.labels.tolist() == [1, -1, 3]
    assert cloud.attributes["instance"].tolist() == [5, 6, 7]
    cloud = read(tmp_path / "cloud.npz", tmp_path / "b.npz", label_field="other")
    assert cloud.labels.tolist() == [4, 5, 6]
    assert read_labels(tmp_path / "b.npz", "mine").tolist() == [1, 2, 3]
    with pytest.raises(FileFormatError, match="has no mine; its arrays are segment, instance"):
        read_labels(tmp_path / "a.npz", "mine")
    (tmp_path / "c.label").write_bytes(struct.pack("<3I", 7 << 16 | 40, 8 << 16, 0))
    assert read_labels(tmp_path / "c.label").tolist() == [40, 0, 0]
    assert read_labels(tmp_path / "c.label", "instance").tolist() == [7, 8, 0]


# --- names -------------------------------------------------------------------------------


def test_names_are_kept(stored):
    cloud = stored(
        Amplitude=np.array([1, 2, 3], np.float32),
        treeID=np.array([4, 5, 6], np.int32),
        scalar_GPSTime=np.array([7.0, 8, 9]),
        scalar_Intensity=np.array([1, 0, 1], np.float32),
    )
    assert set(cloud.attributes) == {"Amplitude", "treeID", "GPSTime", "intensity"}
    assert cloud.attributes["treeID"].dtype == np.int32
    assert cloud.attributes["GPSTime"].tolist() == [7, 8, 9]


def test_names_that_differ_in_case_or_prefix_only_are_all_kept():
    names = ("Foo", "foo", "scalar_Foo", "Intensity", "intensity")
    cloud = cloud_from_columns(AXES | {n: np.full(3, k) for k, n in enumerate(names)}, "memory")
    found = {name: int(values[0]) for name, values in cloud.attributes.items()}
    assert found == {"Foo": 0, "foo": 1, "scalar_Foo": 2, "Intensity": 3, "intensity": 4}
    colors = dict.fromkeys(("red", "green", "blue"), np.ones(3, np.uint8))
    cloud = cloud_from_columns(AXES | colors | {"rgb": np.arange(3)}, "memory")
    assert cloud.attributes["rgb"].tolist() == [[1] * 3] * 3
    assert cloud.attributes["rgb_"].tolist() == [0, 1, 2]
    upper = {name.upper(): values for name, values in AXES.items()}
    np.testing.assert_array_equal(cloud_from_columns(upper, "memory").positions, POINTS)


@pytest.mark.parametrize("names", [("nx", "ny", "nz"), ("normal_x", "normal_y", "normal_z")])
def test_normals(stored, names):
    values = np.array([[0, 0, 1], [0, 1, 0], [1, 0, 0]], np.float32)
    cloud = stored(**dict(zip(names, values.T, strict=True)))
    np.testing.assert_array_equal(cloud.attributes["normals"], values)
    assert set(cloud.attributes) == {"normals"}


# --- colors ------------------------------------------------------------------------------

COLORS = np.array([[255, 128, 64], [10, 20, 30], [0, 0, 255]])
SCALES = {
    "uint8": COLORS.astype(np.uint8),
    "uint16 of 8 bits": COLORS.astype(np.uint16),
    "uint16": (COLORS * 257).astype(np.uint16),
    "int32": COLORS.astype(np.int32),
    "floats to 1": (COLORS / 255).astype(np.float32),
    "floats to 255": COLORS.astype(np.float32),
    "floats a little above 1": (COLORS / 255 * 1.0000001).astype(np.float64),
    "floats to 65535": (COLORS * 257.0),
}


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize(
    "names",
    [
        ("red", "green", "blue"),
        ("r", "g", "b"),
        ("R", "G", "B"),
        ("diffuse_red", "diffuse_green", "diffuse_blue"),
    ],
)
def test_colors_of_every_name_and_scale(stored, names, scale):
    cloud = stored(**dict(zip(names, SCALES[scale].T, strict=True)))
    assert cloud.attributes["rgb"].tolist() == COLORS.tolist()
    assert cloud.attributes["rgb"].dtype == np.uint8
    assert set(cloud.attributes) == {"rgb"}


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", ["rgb", "color", "colors", "Colours"])
def test_arrays_of_colors(tmp_path, name, scale):
    np.savez(tmp_path / "a.npz", xyz=POINTS, **{name: SCALES[scale]})
    assert read(tmp_path / "a.npz").attributes["rgb"].tolist() == COLORS.tolist()


def test_the_fourth_color_is_alpha(tmp_path):
    rgba = np.column_stack([COLORS / 255, [0, 0.5, 1]])
    np.savez(tmp_path / "a.npz", xyz=POINTS, rgba=rgba)
    cloud = read(tmp_path / "a.npz")
    assert cloud.attributes["rgb"].tolist() == COLORS.tolist()
    assert cloud.attributes["alpha"].tolist() == [0, 0.5, 1]


PACKED = (COLORS[:, 0] << 16 | COLORS[:, 1] << 8 | COLORS[:, 2]).astype(np.uint32)
with np.errstate(invalid="ignore"):
    PACKINGS = {
        "uint32": PACKED,
        "opaque": PACKED | np.uint32(0xFF000000),
        "int32": (PACKED | np.uint32(0xFF000000)).view(np.int32),
        "bits in float32": PACKED.view(np.float32),
        "opaque in float32": (PACKED | np.uint32(0xFF000000)).view(np.float32),
        "number in float32": PACKED.astype(np.float32),
        "uint64": PACKED.astype(np.uint64),
        "number in float64": (PACKED | np.uint32(0xFF000000)).astype(np.float64),
        "float32 in float64": PACKED.view(np.float32).astype(np.float64),
    }


@pytest.mark.parametrize("packing", PACKINGS)
def test_packed_colors(packing):
    assert unpacked_colors(PACKINGS[packing]).tolist() == COLORS.tolist()
    for name in ("rgb", "rgba", "RGB"):
        cloud = cloud_from_columns(AXES | {name: PACKINGS[packing]}, "memory")
        assert cloud.attributes["rgb"].tolist() == COLORS.tolist()
        assert set(cloud.attributes) == {"rgb"}


def test_packed_colors_of_no_point():
    assert unpacked_colors(np.array([np.nan, 0], np.float32)).tolist() == [[0, 0, 0]] * 2
    assert unpacked_colors(np.zeros(0, np.float64)).shape == (0, 3)


def test_scales_at_their_limits():
    assert to_uint8(np.array([[0.0, 2.0, 1.0]])).tolist() == [[0, 2, 1]]
    assert to_uint8(np.array([[0.5, 1.2, -1]])).tolist() == [[128, 255, 0]]
    assert to_uint8(np.array([[np.nan, np.inf, 255.0]])).tolist() == [[0, 0, 255]]
    assert to_uint8(np.array([[-1, 127, 0]], np.int8)).tolist() == [[255, 127, 0]]
    assert to_uint8(np.array([[np.nan] * 3])).tolist() == [[0, 0, 0]]
    assert to_uint8(np.zeros((0, 3), np.uint16)).shape == (0, 3)


# --- arrays of positions -----------------------------------------------------------------


@pytest.mark.parametrize("name", ["xyz", "points", "coord", "coords", "pos", "Positions"])
def test_arrays_of_positions(tmp_path, name):
    np.savez(tmp_path / "a.npz", **{name: np.column_stack([POINTS, [7, 8, 9], [0.5, 1, 0]])})
    cloud = read(tmp_path / "a.npz")
    np.testing.assert_array_equal(cloud.positions, POINTS)
    assert cloud.attributes["column_3"].tolist() == [7, 8, 9]
    assert cloud.attributes["column_4"].tolist() == [0.5, 1, 0]
    names = ("x", "y", "z", "label", "_")
    cloud = read(tmp_path / "a.npz", columns=names)
    assert cloud.labels.tolist() == [7, 8, 9]
    assert cloud.attributes == {}
    with pytest.raises(FileFormatError, match="has 5 columns, not the 4 that columns says"):
        read(tmp_path / "a.npz", columns=4)


@pytest.mark.parametrize("name", ["data", "arr_0"])
def test_arrays_whose_names_say_nothing(tmp_path, name):
    np.savez(tmp_path / "a.npz", **{name: POINTS, "sem_labels": [1, 2, 3]})
    np.testing.assert_array_equal(read(tmp_path / "a.npz").positions, POINTS)
    assert read(tmp_path / "a.npz").labels.tolist() == [1, 2, 3]
    np.savez(tmp_path / "b.npz", **{name: [4, 5, 6]})
    assert read_labels(tmp_path / "b.npz").tolist() == [4, 5, 6]
    with pytest.raises(FileFormatError, match=f"its arrays are {name}"):
        read(tmp_path / "b.npz")


def test_axes_and_structured_arrays_without_a_usual_name(tmp_path):
    np.savez(tmp_path / "a.npz", **AXES, Intensity=[1, 2, 3])
    assert read(tmp_path / "a.npz").attributes["intensity"].tolist() == [1, 2, 3]
    rows = np.zeros(3, [("position", "f8", 3), ("x", "f4"), ("y", "f4"), ("z", "f4")])
    for name, values in AXES.items():
        rows[name] = values
    np.savez(tmp_path / "a.npz", vertices=rows, faces=np.zeros((9, 3)))
    np.testing.assert_array_equal(read(tmp_path / "a.npz").positions, POINTS)


def test_the_class_of_a_whole_cloud_is_no_label_of_points(tmp_path):
    for label in (3, [3]):
        np.savez(tmp_path / "a.npz", points=POINTS, label=label)
        assert read(tmp_path / "a.npz").labels is None


def test_objects_in_an_archive_are_left_out(tmp_path):
    np.savez(tmp_path / "a.npz", xyz=POINTS, meta=np.array([{"sensor": 1}, None, None]))
    assert read(tmp_path / "a.npz").attributes == {}


def test_archives_that_claim_too_much(tmp_path):
    import zipfile

    for shape, compression in (
        ((10**12, 3), zipfile.ZIP_STORED),
        ((1 << 26,), zipfile.ZIP_DEFLATED),
    ):
        header = np.lib.format.magic(1, 0)
        text = f"{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}}}".ljust(117) + "\n"
        header += struct.pack("<H", len(text)) + text.encode()
        with zipfile.ZipFile(tmp_path / "a.npz", "w", compression) as archive:
            archive.writestr("xyz.npy", header + bytes(72))
        with pytest.raises(FileFormatError, match=r"says \d+ bytes of array 'xyz', \d+ are there"):
            read(tmp_path / "a.npz")
