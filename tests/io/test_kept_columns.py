"""Whatever a file says of its points is kept, also where points are drawn from a surface."""

import struct

import numpy as np
import pytest
from fuzz import FILES

from voxax.errors import FileFormatError
from voxax.io import PointCloud, read
from voxax.io.options import ReadOptions
from voxax.io.surface import sample_surface, strip_triangles

# Two triangles side by side; the corners differ in every column.
CORNERS = np.array([[0, 0, 0], [2, 0, 0], [2, 2, 0], [0, 2, 0]], float)
COLUMNS = (
    "float x", "float y", "float z", "float nx", "float ny", "float nz", "float Intensity",
    "ushort label", "int Object_Id", "uchar red", "uchar green", "uchar blue",
)  # fmt: skip
VALUES = [
    (*corner, 0.6, 0, -0.8, corner[0] / 2, 40 + row, 100 * row, 100 * row // 2, 0, 255)
    for row, corner in enumerate(CORNERS.tolist())
]


def mesh_ply(faces: str, rows: str) -> str:
    columns = "".join(f"property {column}\n" for column in COLUMNS)
    body = "".join(" ".join(map(str, row)) + "\n" for row in VALUES)
    head = f"ply\nformat ascii 1.0\nelement vertex 4\n{columns}{faces}end_header\n"
    return head + body + rows


def test_columns_of_the_vertices_go_with_the_points_of_a_ply_mesh(tmp_path):
    faces = "element face 2\nproperty list uchar int vertex_indices\n"
    (tmp_path / "a.ply").write_text(mesh_ply(faces, "3 0 1 2\n3 0 2 3\n"))
    cloud = read(tmp_path / "a.ply", points=500)
    nearest = np.linalg.norm(cloud.positions[:, None] - CORNERS, axis=2).argmin(axis=1)
    # Of the corner of its own triangle that weighs most, which may not be the nearest.
    own = np.array([[0, 1, 2], [0, 2, 3]])[cloud.attributes["face"]]
    assert (cloud.labels[:, None] == 40 + own).any(axis=1).all()
    assert (cloud.labels == 40 + nearest).mean() > 0.7
    np.testing.assert_array_equal(cloud.attributes["Object_Id"], 100 * (cloud.labels - 40))
    np.testing.assert_allclose(cloud.attributes["intensity"], cloud.positions[:, 0] / 2, atol=1e-6)
    assert cloud.attributes["intensity"].dtype == np.float32
    np.testing.assert_allclose(cloud.attributes["normals"], [[0.6, 0, -0.8]] * 500, atol=1e-6)
    assert set(cloud.attributes) == {"rgb", "intensity", "Object_Id", "normals", "face"}


def test_columns_of_the_faces_go_with_the_points_of_a_ply_mesh(tmp_path):
    columns = "property list uchar int vertex_indices\nproperty int part\nproperty uchar Red\n"
    columns += "property uchar Green\nproperty uchar Blue\nproperty uchar class\n"
    rows = "4 0 1 2 3 7 1 2 3 5\n3 0 2 3 8 4 5 6 6\n"
    head = "ply\nformat ascii 1.0\nelement vertex 4\nproperty float x\nproperty float y\n"
    head += f"property float z\nelement face 2\n{columns}end_header\n"
    corners = "".join(f"{x:g} {y:g} {z:g}\n" for x, y, z in CORNERS)
    (tmp_path / "a.ply").write_text(head + corners + rows)
    cloud = read(tmp_path / "a.ply", points=300)
    second = cloud.attributes["face"] == 2
    assert 0 < second.sum() < 300
    np.testing.assert_array_equal(cloud.labels, np.where(second, 6, 5))
    np.testing.assert_array_equal(cloud.attributes["part"], np.where(second, 8, 7))
    np.testing.assert_array_equal(
        cloud.attributes["rgb"], np.where(second[:, None], [4, 5, 6], [1, 2, 3])
    )
    by_name = read(tmp_path / "a.ply", points=300, label_field="part")
    np.testing.assert_array_equal(by_name.labels, np.where(second, 8, 7))


def test_normals_without_a_direction_are_those_of_the_triangle(tmp_path):
    faces = "element face 2\nproperty list uchar int vertex_indices\n"
    content = mesh_ply(faces, "3 0 1 2\n3 0 2 3\n")
    for nothing in ("0 0 0", "nan nan nan"):
        (tmp_path / "a.ply").write_text(content.replace("0.6 0 -0.8", nothing))
        normals = read(tmp_path / "a.ply", points=50).attributes["normals"]
        assert normals.tolist() == [[0, 0, 1]] * 50


@pytest.mark.parametrize(
    ("strip", "triangles"),
    [
        ([0, 1, 2], [[0, 1, 2]]),
        ([0, 1, 3, 2], [[0, 1, 3], [3, 1, 2]]),
        ([0, 1, 2, -1, 2, 3, 1, 0], [[0, 1, 2], [2, 3, 1], [1, 3, 0]]),
        ([-1, 0, -1, 0, 1, -1], []),
        ([], []),
    ],
)
def test_strips(strip, triangles):
    found = strip_triangles([np.array(strip, int)])
    assert found.tolist() == triangles
    if triangles:
        cloud = sample_surface(PointCloud(CORNERS), found, ReadOptions(points=20))
        assert (cloud.attributes["normals"][:, 2] == 1).all()


@pytest.mark.parametrize("layout", ["ascii", "binary_big_endian"])
def test_strips_of_a_ply_are_a_surface(tmp_path, layout):
    head = f"ply\nformat {layout} 1.0\nelement vertex 4\nproperty float x\nproperty float y\n"
    head += "property float z\nelement tristrips 1\nproperty list int int vertex_indices\n"
    strip = (0, 1, 3, 2, -1)
    body = "".join(f"{x:g} {y:g} {z:g}\n" for x, y, z in CORNERS).encode() + b"5 0 1 3 2 -1\n"
    if layout != "ascii":
        body = struct.pack(">12f6i", *CORNERS.flat, len(strip), *strip)
    (tmp_path / "a.ply").write_bytes(head.encode() + b"end_header\n" + body)
    cloud = read(tmp_path / "a.ply", points=400)
    quarters = (cloud.positions[:, 0] > 1) * 2 + (cloud.positions[:, 1] > 1)
    assert np.bincount(quarters, minlength=4) == pytest.approx([100] * 4, abs=30)
    assert cloud.attributes["normals"].tolist() == [[0, 0, 1]] * 400


def test_names_keep_their_case(tmp_path):
    columns = "property float Planarity\nproperty float scalar_Roughness_(0.5)\nproperty int RING\n"
    head = "ply\nformat ascii 1.0\nelement vertex 1\nproperty float X\nproperty float Y\n"
    head += f"property float Z\n{columns}end_header\n1 2 3 4 5 6\n"
    (tmp_path / "a.ply").write_text(head)
    cloud = read(tmp_path / "a.ply")
    assert set(cloud.attributes) == {"Planarity", "Roughness_(0.5)", "ring"}


# --- LAS ---------------------------------------------------------------------------------


@pytest.mark.parametrize("extension", [".las", ".laz"])
@pytest.mark.parametrize("layout", [0, 3, 6, 8])
def test_every_field_of_las_that_a_point_uses(tmp_path, layout, extension):
    laspy = pytest.importorskip("laspy")
    header = laspy.LasHeader(point_format=layout, version="1.4" if layout > 5 else "1.2")
    header.scales = [0.01] * 3
    header.add_extra_dims(
        [
            laspy.ExtraBytesParams("treeID", "i4"),
            laspy.ExtraBytesParams(
                "Pulse width", "u2", scales=np.array([0.1]), offsets=np.zeros(1)
            ),
            laspy.ExtraBytesParams("vector", "3f4"),
            laspy.ExtraBytesParams("time", "f4"),
            laspy.ExtraBytesParams("unused", "u1"),
        ]
    )
    data = laspy.LasData(header)
    data.x = data.y = data.z = np.arange(4.0)
    data.user_data, data.point_source_id = [7, 8, 9, 0], [0, 0, 300, 0]
    data.withheld = [0, 1, 0, 0]
    data.treeID, data["Pulse width"] = [-1, 2, 3, 4], [0.5, 1.5, 2.5, 3.5]
    data.vector, data["time"] = np.arange(12).reshape(4, 3), np.arange(4) / 2
    if layout == 8:
        data.nir = [0, 1, 2, 65535]
    data.write(tmp_path / f"a{extension}")
    found = read(tmp_path / f"a{extension}").attributes
    assert found["user_data"].tolist() == [7, 8, 9, 0]
    assert found["point_source_id"].tolist() == [0, 0, 300, 0]
    assert found["withheld"].tolist() == [0, 1, 0, 0]
    assert found["treeID"].tolist() == [-1, 2, 3, 4]
    assert found["Pulse width"] == pytest.approx([0.5, 1.5, 2.5, 3.5])
    assert found["vector"].tolist() == np.arange(12).reshape(4, 3).tolist()
    assert found["unused"].tolist() == [0] * 4
    # GPS time is the attribute `time`, where the format has one.
    assert found["extra_time"].tolist() == [0, 0.5, 1, 1.5]
    assert ("nir" in found) == (layout == 8)
    assert "scan_direction_flag" not in found
    assert ("time" in found) == (layout != 0)


def test_las_extra_dimension_without_a_description(tmp_path):
    content = bytearray(FILES["legacy.las"]())
    # The record that describes the extra bytes gets the number of another record.
    at = content.index(b"LASF_Spec") + 16
    content[at : at + 2] = struct.pack("<H", 999)
    (tmp_path / "a.las").write_bytes(content)
    assert read(tmp_path / "a.las").attributes["ExtraBytes"].shape == (12, 4)


def test_las_labels_of_an_extra_dimension(tmp_path):
    path = tmp_path / "a.las"
    path.write_bytes(FILES["legacy.las"]())
    assert read(path, label_field="tree").labels.tolist() == list(range(12))
    assert read(path).labels.tolist() == [row % 5 for row in range(12)]


@pytest.mark.parametrize("element", ["polygon", "faces", "trifans", "face_", "range_grid"])
def test_surfaces_of_other_elements_are_named(tmp_path, element):
    head = "ply\nformat ascii 1.0\nelement vertex 4\n"
    head += "".join(f"property float {axis}\n" for axis in "xyz")
    head += "element face 1\nproperty list uchar int vertex_indices\n"
    head += f"element {element} 1\nproperty list uchar int vertex_indices\nend_header\n"
    rows = "0 0 0\n1 0 0\n0 1 0\n1 1 0\n3 0 1 2\n3 1 3 2\n"
    (tmp_path / "a.ply").write_text(head + rows)
    if element == "range_grid":  # of a scanner's image, no surface
        assert len(read(tmp_path / "a.ply", points=9)) == 9
        return
    with pytest.raises(FileFormatError, match=f"1 rows of '{element}', which name vertices"):
        read(tmp_path / "a.ply")
