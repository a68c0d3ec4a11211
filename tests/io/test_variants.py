"""Files as programs write them, and not as the descriptions of the formats have it."""

import struct

import numpy as np
import pytest
from fuzz import FILES, POINTS

from voxax.errors import FileFormatError
from voxax.io import read

TRIANGLE = [[1, 2, 3], [4, 5, 6], [7, 8, 9.5]]
HEADER = (
    "ply", "format {} 1.0", "element vertex 3",
    "property float x", "property float y", "property float z", "end_header", "",
)  # fmt: skip
TEXT = "1 2 3\n4 5 6\n7 8 9.5\n"


def header(layout: str = "ascii", end: str = "\n") -> str:
    return end.join(HEADER).format(layout)


def binary(order: str = "<") -> bytes:
    return struct.pack(order + "9f", *np.ravel(TRIANGLE))


def test_ply_headers_of_many_programs(tmp_path):
    plain = header()
    variants = {
        "byte order mark": "\ufeff" + plain + TEXT,
        "byte order mark before the data": plain + "\ufeff" + TEXT,
        "spaces at the ends of lines": plain.replace("\n", "  \n") + TEXT,
        "space behind the first word": plain.replace("ply\n", "ply \n") + TEXT,
        "tabs": plain.replace(" ", "\t") + TEXT,
        "lines end in CR LF": (plain + TEXT).replace("\n", "\r\n"),
        "lines end in CR": (plain + TEXT).replace("\n", "\r"),
        "only the end in CR LF": plain.replace("end_header\n", "end_header\r\n") + TEXT,
        "only the end in LF": plain.replace("\n", "\r\n").replace("er\r\n", "er\n") + TEXT,
        "comment of another language": plain.replace("element", "comment Höhe é\nelement") + TEXT,
        "obj_info": plain.replace("element", "obj_info num_cols 3\nelement") + TEXT,
        "empty line in the header": plain.replace("element", "\nelement") + TEXT,
        "empty lines in the data": plain + TEXT.replace("\n", "\n\n"),
        "spaces around rows": plain + "  " + TEXT.replace("\n", " \n\t"),
        "types in capitals": plain.replace("float", "FLOAT") + TEXT,
        "newer names of types": plain.replace("float x", "float64 x") + TEXT,
        "comment before the format": plain.replace("format", "comment a\nformat") + TEXT,
        "comment with a byte 0x85": plain.replace("element", "comment \x85 a\nelement") + TEXT,
    }
    for name, content in variants.items():
        path = tmp_path / f"{name}.ply"
        path.write_bytes(content.encode("utf-8"))
        assert read(path).positions.tolist() == TRIANGLE, name
    latin = plain.replace("element", "comment Höhe\nelement") + TEXT
    path.write_bytes(latin.encode("latin-1"))
    assert read(path).positions.tolist() == TRIANGLE


@pytest.mark.parametrize("layout", ["binary_little_endian", "binary_big_endian"])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("last", ["\n", "\r\n", "\r", " \n"])
def test_ply_binary_data_begin_behind_any_end_of_line(tmp_path, layout, end, last):
    head = header(layout, end).removesuffix(end) + last
    if end == "\r" and last == "\r\n":
        # Lines end in CR: what follows belongs to the data.
        head = head.removesuffix("\n")
    body = binary(">" if "big" in layout else "<")
    if last != "\r" or end == "\r":
        # The first byte is that of a line end too.
        body = b"\n" + body[1:]
    (tmp_path / "a.ply").write_bytes(head.encode() + body)
    found = read(tmp_path / "a.ply").positions
    assert found[1:].tolist() == TRIANGLE[1:]
    assert len(found) == 3


def test_ply_numbers_as_microsoft_prints_them(tmp_path):
    words = ("1.#QNAN", "-1.#IND", "1.#QNAN0", "-1.#IND00", "nan(ind)", "-nan(ind)", "1.#SNAN")
    rows = "".join(f"1 2 3 {word}\n" for word in (*words, "1.#INF", "-1.#INF00", "1.#J", "5"))
    head = header().replace("vertex 3", "vertex 11").replace("end_h", "property float q\nend_h")
    (tmp_path / "a.ply").write_text(head + rows)
    values = read(tmp_path / "a.ply").attributes["q"]
    assert np.isnan(values[:7]).all()
    assert values[7:].tolist() == [np.inf, -np.inf, np.inf, 5]


def test_ply_columns_of_integers_that_hold_something_else(tmp_path):
    columns = "".join(
        f"property {column}\n" for column in ("uchar a", "int b", "int c", "ushort d")
    )
    head = header().replace("end_header", columns + "end_header")
    (tmp_path / "a.ply").write_text(
        head + "1 2 3 255.0 nan 1 65536\n4 5 6 1e1 2 -2147483648 0\n7 8 9.5 0 0.5 2147483647 1\n"
    )
    found = read(tmp_path / "a.ply").attributes
    assert found["a"].dtype == np.uint8
    assert found["a"].tolist() == [255, 10, 0]
    assert found["b"].tolist() == pytest.approx([np.nan, 2, 0.5], nan_ok=True)
    assert found["c"].dtype == np.int32
    assert found["c"].tolist() == [1, -(2**31), 2**31 - 1]
    assert found["d"].tolist() == [65536, 0, 1]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("1.0000 2.0000 3\n4 5 6\n", "says 3 rows of vertex, 2 are there"),
        (
            "1.00 2 3\n4 5\n7 8 9\n",
            "rows of vertex: .*requires 3 columns but 2 were found at row 1 ",
        ),
        ("1 2 3 4\n" * 3, "rows of vertex: .*requires 3 columns but 4 were found"),
        ("1 2 z\n" * 3, "rows of vertex: .*: could not convert string .*z"),
    ],
)
def test_ply_rows_of_text_that_do_not_fit(tmp_path, rows, message):
    (tmp_path / "a.ply").write_text(header() + rows)
    with pytest.raises(FileFormatError, match=message):
        read(tmp_path / "a.ply")


def test_ply_lists_of_text(tmp_path):
    listed = "element face 2\nproperty uchar part\nproperty list uchar int vertex_index\n"
    listed += "property list int float weights\nelement edge 1\nproperty int vertex1\n"
    head = header().replace("end_header", listed + "end_header") + TEXT
    (tmp_path / "a.ply").write_text(head + "4 3 0 1 2 0\n5 3 0 2 1 2 .5 1\n9\n")
    cloud = read(tmp_path / "a.ply", points=100)
    np.testing.assert_array_equal(cloud.attributes["part"], cloud.attributes["face"] + 4)
    (tmp_path / "a.ply").write_text(head + "4 3 0 1 2 0\n5 3 0 2\n9\n")
    with pytest.raises(FileFormatError, match=r"row 1 of face in .* ends before its vertex_index"):
        read(tmp_path / "a.ply")


@pytest.mark.parametrize("layout", ["ascii", "binary_little_endian"])
def test_ply_names_of_any_kind(tmp_path, layout):
    names = ("Scalar field", "Höhe über", "twice", "twice", "H_he_ber")
    columns = "".join(f"property float {name}\n" for name in names)
    head = (
        header(layout).replace("end_header", columns + "end_header").replace("vertex 3", "vertex 1")
    )
    body = b"1 2 3 4 5 6 7 8\n" if layout == "ascii" else struct.pack("<8f", *range(1, 9))
    (tmp_path / "a.ply").write_bytes(head.encode("latin-1") + body)
    cloud = read(tmp_path / "a.ply")
    assert {name: values.tolist() for name, values in cloud.attributes.items()} == {
        "Scalar field": [4], "Höhe über": [5], "twice": [6], "twice_": [7], "H_he_ber": [8],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("property float y", "property quaternion y", "unknown types quaternion; known are char"),
        ("property float y", "property float", "line 5 of .* is not one of PLY: 'property float'"),
        ("vertex 3", "vertex three", "line 3 of .* is not one of PLY: 'element vertex three'"),
        ("format ascii 1.0", "format morse 1.0", "line 2 of .*'format morse 1.0'"),
        ("format ascii 1.0\n", "", "has no format; known are ascii"),
        ("ply\n", "plywood\n", "its first line is not 'ply'"),
        ("end_header", "end", "has no end_header"),
    ],
)
def test_ply_headers_that_say_nothing(tmp_path, old, new, message):
    (tmp_path / "a.ply").write_text(header().replace(old, new) + TEXT)
    with pytest.raises(FileFormatError, match=message):
        read(tmp_path / "a.ply")


def test_ply_columns_and_lines_outside_the_format(tmp_path):
    text = header().replace("end_header", "property bool kept\nend_header")
    text = text.replace("element", "Created by a program\nelement", 1)
    rows = "".join(f"{line} 1\n" for line in TEXT.strip().splitlines())
    (tmp_path / "a.ply").write_text(text + rows)
    cloud = read(tmp_path / "a.ply")
    np.testing.assert_array_equal(cloud.positions, TRIANGLE)
    assert cloud.attributes["kept"].tolist() == [1, 1, 1]
    binary = header("binary_little_endian").encode()
    binary = binary.replace(b"end_header", b"property bool kept\nend_header")
    body = b"".join(struct.pack("<3fB", *row, 1) for row in TRIANGLE)
    (tmp_path / "a.ply").write_bytes(binary + body)
    assert read(tmp_path / "a.ply").attributes["kept"].tolist() == [1, 1, 1]
    (tmp_path / "a.ply").write_bytes(binary.replace(b"element", b"Created\nelement", 1) + body)
    with pytest.raises(FileFormatError, match=r"line 3 of .* is not one of PLY: 'Created'"):
        read(tmp_path / "a.ply")


# --- meshes ------------------------------------------------------------------------------

SQUARE = [[0, 0, 0], [2, 0, 0], [2, 1, 0], [0, 1, 0]]


def check_square(path, count: int = 400) -> None:
    cloud = read(path, points=count)
    assert len(cloud) == count
    assert np.ptp(cloud.positions, axis=0) == pytest.approx([2, 1, 0], abs=0.05)


def test_stl_with_bytes_behind_its_end(tmp_path):
    corners = np.array(SQUARE, np.float32)
    rows = b"".join(
        struct.pack("<12fH", 0, 0, 1, *corners[list(face)].flat, 0)
        for face in ((0, 1, 2), (0, 2, 3))
    )
    for title in (b"", b"solid made by a program that writes this first"):
        whole = title.ljust(80) + struct.pack("<I", 2) + rows
        for behind in (b"", b"\0", b"end", bytes(50), b"\xff" * 77):
            (tmp_path / "a.stl").write_bytes(whole + behind)
            check_square(tmp_path / "a.stl")


def test_glb_with_bytes_behind_its_end(tmp_path):
    pytest.importorskip("trimesh")
    for behind in (b"", b"\0", bytes(30), b"\xff" * 30):
        (tmp_path / "a.glb").write_bytes(FILES["scene.glb"]() + behind)
        assert len(read(tmp_path / "a.glb", points=20)) == 20


@pytest.mark.parametrize(
    "content",
    [
        "OFF\n4 2 0\n{v0}\n{v1}\n{v2}\n{v3}\n3 0 1 2\n3 0 2 3\n",
        "OFF 4 1 0\n{v0}\n{v1}\n{v2}\n{v3}\n4 0 1 2 3\n",
        "OFF4 1 0\n{v0}\n{v1}\n{v2}\n{v3}\n4 0 1 2 3\n",
        "OFF # of a square\n# counts\n\n4 1 0\n\n{v0}\n{v1} # second\n{v2}\n{v3}\n\n4 0 1 2 3\n",
        "OFF\n4\n1\n0\n{v0}\n{v1}\n{v2}\n{v3}\n4 0 1 2 3\n",
        "OFF\n4 1\n{v0}\n{v1}\n{v2}\n{v3}\n4 0 1 2 3\n",
        "OFF\n4 1 0\n{v0} {v1}\n{v2} {v3}\n4 0 1\n2 3\n",
        "OFF\n4 2 0\n0 0\n0 2 0 0\n2 1 0 0 1 0 3 0 1 2 3 0 2 3",
        "OFF\r\n4 1 0\r\n{v0}\r\n{v1}\r\n{v2}\r\n{v3}\r\n4 0 1 2 3\r\n",
        "\ufeffOFF\n4 1 0\n{v0}\n{v1}\n{v2}\n{v3}\n4 0 1 2 3\n",
        "off\n4 1 0\n{v0}\n{v1}\n{v2}\n{v3}\n4 0 1 2 3\n",
        "4OFF\n4 1 0\n{v0} 1\n{v1} 1\n{v2} 1\n6 0 0 0\n4 0 1 2 3\n".replace("6 0 0 0", "0 2 0 2"),
    ],
)
def test_off_in_lines_of_any_kind(tmp_path, content):
    rows = {f"v{row}": " ".join(map(str, corner)) for row, corner in enumerate(SQUARE)}
    (tmp_path / "a.off").write_bytes(content.format(**rows).encode())
    check_square(tmp_path / "a.off")


def test_off_colors_and_normals(tmp_path):
    corner = "{} {} {}"
    cases = {
        "COFF": (corner + " 255 128 0 255", [255, 128, 0]),
        "OFF": (corner + " 255 128 0", [255, 128, 0]),
        "COFF ": (corner + " 1.0 0.5 0.0 1.0", [255, 128, 0]),
        "CNOFF": (corner + " 0 0 -1 255 128 0 255", [255, 128, 0]),
    }
    for keyword, (row, color) in cases.items():
        lines = [keyword, "4 1 0", *(row.format(*at) for at in SQUARE), "4 0 1 2 3", ""]
        (tmp_path / "a.off").write_text("\n".join(lines))
        cloud = read(tmp_path / "a.off", points=50)
        assert cloud.attributes["rgb"].tolist() == [color] * 50, keyword
        up = -1 if "N" in keyword else 1
        assert cloud.attributes["normals"].tolist() == [[0, 0, up]] * 50
    rows = [" ".join(map(str, at)) for at in SQUARE]
    faces = ["3 0 1 2 255 0 0", "3 0 2 3 0 0 255"]
    (tmp_path / "a.off").write_text("\n".join(["OFF", "4 2 0", *rows, *faces]))
    cloud = read(tmp_path / "a.off", points=50)
    of_face = np.array([[255, 0, 0], [0, 0, 255]])
    np.testing.assert_array_equal(cloud.attributes["rgb"], of_face[cloud.attributes["face"]])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("OFF\n4 2 0\n0.00000 0 0\n1.00000 0 0\n", "says 4 corners and 2 faces, 2 and 0 are there"),
        ("OFF\n1 1 0\n0 0 0\n3 0 0 a\n", "as OFF: ValueError"),
        ("OFF\n3 1 0\n0 0 0\n1 0 0\n0 1 0\n1000000000000 0 1 2\n", "1 faces, 3 and 0 are there"),
        ("OFF\n3 1 0\n0 0 0\n1 0 0\n0 1 0\n-3 0 1 2\n", "1 faces, 3 and 0 are there"),
        ("OFF BINARY\n" + "\0" * 60, "not an OFF file of text|as OFF"),
        ("nOFF\n4\n1 0 0\n1 2 3 4\n", "does not begin with OFF"),
        ("solid\n", "does not begin with OFF"),
    ],
)
def test_off_that_is_none(tmp_path, content, message):
    (tmp_path / "a.off").write_text(content)
    with pytest.raises(FileFormatError, match=message):
        read(tmp_path / "a.off")


def test_meshes_of_points_alone_are_points(tmp_path):
    trimesh = pytest.importorskip("trimesh")
    rows = [" ".join(f"{value:.6f}" for value in row) for row in POINTS]
    (tmp_path / "a.obj").write_text("".join(f"v {row} 1.0 0.5 0.0\n" for row in rows))
    (tmp_path / "a.off").write_text(
        "\n".join(["OFF", "12 0 0", *(f"{row} 255 128 0" for row in rows)])
    )
    colors = np.tile(np.array([255, 128, 0, 255], np.uint8), (12, 1))
    scene = trimesh.Scene()
    matrix = trimesh.transformations.translation_matrix([1, 2, 3])
    scene.add_geometry(trimesh.PointCloud(POINTS, colors), transform=matrix)
    scene.add_geometry(trimesh.PointCloud(POINTS[:5], colors[:5]))
    (tmp_path / "a.glb").write_bytes(scene.export(file_type="glb"))
    for name in ("a.obj", "a.off"):
        cloud = read(tmp_path / name)
        np.testing.assert_allclose(cloud.positions, POINTS, atol=1e-6)
        assert cloud.attributes["rgb"].tolist() == [[255, 128, 0]] * 12
    cloud = read(tmp_path / "a.glb")
    placed = np.concatenate([POINTS[:5], POINTS + np.array([1, 2, 3])])
    np.testing.assert_allclose(np.sort(cloud.positions, 0), np.sort(placed, 0), atol=1e-6)
    assert cloud.attributes["rgb"].tolist() == [[255, 128, 0]] * 17


@pytest.mark.filterwarnings("error")
def test_numbers_that_are_none(tmp_path):
    # A signaling NaN, which a cast to float64 reports.
    rows = np.ones((3, 4), "<f4")
    rows[1, 1] = np.frombuffer(struct.pack("<I", 0x7FA00000), "<f4")[0]
    rows[2] = [np.inf, 1, 1, np.nan]
    (tmp_path / "a.bin").write_bytes(rows.tobytes())
    assert read(tmp_path / "a.bin").positions.tolist() == [[1, 1, 1]]
    corners = np.array([*SQUARE, [np.nan, 0, 0], [np.inf, 1, 1], [3e38, -3e38, 3e38]], np.float32)
    faces = ((0, 1, 2), (0, 2, 4), (0, 2, 3), (0, 5, 1), (4, 5, 6))
    cells = [struct.pack("<12fH", 0, 0, 1, *corners[list(face)].flat, 0) for face in faces]
    (tmp_path / "a.stl").write_bytes(bytes(80) + struct.pack("<I", 5) + b"".join(cells))
    cloud = read(tmp_path / "a.stl", points=400)
    assert np.unique(cloud.attributes["face"]).tolist() == [0, 2]
    check_square(tmp_path / "a.stl")


# --- LAS ---------------------------------------------------------------------------------


def zeroed(name: str, places: list[tuple[int, int]]) -> bytes:
    content = bytearray(FILES[name]())
    for at, size in places:
        content[at : at + size] = bytes(size)
    return bytes(content)


@pytest.mark.parametrize(
    ("name", "places"),
    [
        ("legacy.las", [(107, 4)]),
        # The two counts of LAS 1.4; then the newer alone, as writers of older versions leave it.
        ("extended.las", [(107, 4), (247, 8)]),
        ("extended.las", [(247, 8)]),
        ("layered.laz", [(107, 4), (247, 8)]),
        ("layered.laz", [(247, 8)]),
    ],
)
def test_las_with_points_that_its_header_does_not_count(tmp_path, name, places):
    (tmp_path / name).write_bytes(zeroed(name, places))
    cloud = read(tmp_path / name)
    np.testing.assert_allclose(cloud.positions, POINTS, atol=6e-4)
    assert cloud.attributes["tree"].tolist() == list(range(12))


def test_las_without_points_holds_none(tmp_path):
    content = FILES["legacy.las"]()
    start = struct.unpack_from("<I", content, 96)[0]
    (tmp_path / "a.las").write_bytes(zeroed("legacy.las", [(107, 4)])[:start])
    with pytest.raises(FileFormatError, match=r"holds no points$"):
        read(tmp_path / "a.las")
    (tmp_path / "a.laz").write_bytes(zeroed("legacy.laz", [(107, 4)]))
    with pytest.raises(FileFormatError, match="says 0 points, and does not say how many"):
        read(tmp_path / "a.laz")
