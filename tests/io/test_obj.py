"""OBJ as the many programs write it."""

import re

import numpy as np
import pytest

from voxax.errors import FileFormatError
from voxax.io import read

CORNERS = "v 0 0 0\nv 2 0 0\nv 0 2 0\n"
TRIANGLE = CORNERS + "f 1 2 3\n"


def surface(tmp_path, content: str | bytes, count: int = 400):
    path = tmp_path / "a.obj"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return read(path, points=count)


@pytest.mark.parametrize(
    "content",
    [
        TRIANGLE,
        TRIANGLE.replace(" ", "\t"),
        TRIANGLE.replace(" ", "   ").replace("\n", " \n"),
        "  " + TRIANGLE.replace("\n", "\n  "),
        "\ufeff" + TRIANGLE,
        TRIANGLE.encode("utf-16"),
        b"# gr\xf6\xdfe\no \xfc\n" + TRIANGLE.encode(),
        TRIANGLE.replace("\n", "\r\n"),
        TRIANGLE.replace("\n", "\r"),
        CORNERS + "f 1 \\\n2 \\\n 3",
        TRIANGLE.replace("\n", " # said\n"),
        "f 1/1/1 2/2/1 3/3/1\nvt 0 0\nvt 1 0\nvt 0 1\nvn 0 0 1\n" + CORNERS,
        CORNERS + "vn 0 0 1\nf -3//-1 -2//-1 -1//-1\nl 1 2\np 3\n",
        "mtllib none.mtl\nusemtl a\ng b\ns 1\n" + TRIANGLE,
        TRIANGLE.replace("0\nv", "0 1.0\nv").replace("0\nf", "0 1.0\nf"),
        TRIANGLE.replace("v 2 0 0", "v 2 0 0 0.5 0.5 0.5"),
    ],
)
def test_one_triangle(tmp_path, content):
    cloud = surface(tmp_path, content)
    assert set(cloud.attributes) == {"normals", "face"}
    assert np.ptp(cloud.positions, axis=0) == pytest.approx([2, 2, 0], abs=0.3)
    assert cloud.positions[:, :2].sum(axis=1).max() <= 2
    assert not cloud.attributes["face"].any()


def test_polygons_of_the_old_name(tmp_path):
    square = CORNERS + "v 2 2 0\nfo 1 2 3\nfo -3 -1 -2\n"
    assert set(surface(tmp_path, square).attributes["face"].tolist()) == {0, 1}


@pytest.mark.parametrize("line", ["surf 0 1 0 1 1 2 3", "call other.obj", "bzp 1 2 3", "cdp 1 2 3"])
def test_parts_that_are_not_read_are_named(tmp_path, line):
    with pytest.raises(FileFormatError, match=f"line {line.split()[0]!r}: curved surfaces"):
        surface(tmp_path, TRIANGLE + line + "\n")


def test_corners_counted_back_are_counted_from_their_polygon(tmp_path):
    square = "v {0} 0 0\nv {1} 0 0\nv {1} 1 0\nv {0} 1 0\nf -4 -3 -2 -1\n"
    cloud = surface(tmp_path, square.format(0, 1) + square.format(5, 6) + "f 1 2 5\n")
    x, face = cloud.positions[:, 0], cloud.attributes["face"]
    np.testing.assert_array_equal(x > 4, np.isin(face, [2, 3]))
    assert np.ptp(x[face < 2]) == pytest.approx(1, abs=0.05)


@pytest.mark.parametrize("color", ["1.0 0.5 0.0", "255 128 0", "255 128 0 255", "1 .5 0 1.0"])
@pytest.mark.parametrize("face", ["", "f 1 2 3\n"])
def test_colors_of_every_scale(tmp_path, color, face):
    cloud = surface(tmp_path, CORNERS.replace("\n", f" {color}\n") + face)
    assert len(cloud) == (400 if face else 3)
    np.testing.assert_array_equal(np.unique(cloud.attributes["rgb"], axis=0), [[255, 128, 0]])
    assert ("alpha" in cloud.attributes) == (len(color.split()) == 4)


def test_points_alone(tmp_path):
    points = "\ufeff" + CORNERS.replace(" ", "\t").replace("\n", "\r\nvn 0 0 1\r\n")
    cloud = surface(tmp_path, points)
    assert cloud.positions.tolist() == [[0, 0, 0], [2, 0, 0], [0, 2, 0]]
    assert cloud.attributes["normals"].tolist() == [[0, 0, 1]] * 3


def test_polygons_of_several_sizes_are_those_of_another_reader(tmp_path, rng):
    trimesh = pytest.importorskip("trimesh")
    corners = rng.normal(size=(40, 3)).round(3)
    sizes = rng.integers(3, 6, 30)
    lines = ["v {} {} {}".format(*row) for row in corners]
    lines += ["f " + " ".join(map(str, rng.permutation(40)[:size] + 1)) for size in sizes]
    (tmp_path / "a.obj").write_text("\n".join(lines))
    with (tmp_path / "a.obj").open("rb") as stream:
        mesh = trimesh.load(stream, file_type="obj", process=False)
    cloud = read(tmp_path / "a.obj", points=20_000)
    assert cloud.attributes["face"].max() + 1 == len(mesh.faces) == (sizes - 2).sum()
    np.testing.assert_allclose(cloud.positions.mean(axis=0), mesh.centroid, atol=0.01)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (CORNERS + "f 0 1 2\n", r"name vertices -1\.\.1, but it has 3"),
        (CORNERS + "f 1 2 4\n", r"name vertices 0\.\.3, but it has 3"),
        (CORNERS + "f -4 1 2\n", "name vertices -1"),
        (CORNERS + "f 1 2 99999999999999999999\n", "as OBJ|but it has 3"),
        (CORNERS + "f 1 2 x\n", "as OBJ"),
        (CORNERS.replace("2", "two") + "f 1 2 3\n", "could not convert string .two. to float64"),
        (CORNERS + f"f 1 2 {'9' * 1000}\n", "as OBJ|but it has 3"),
        ("f 1 2 3\n", "it has 0"),
    ],
)
def test_broken_files(tmp_path, content, message):
    with pytest.raises(FileFormatError, match=message) as caught:
        surface(tmp_path, content)
    assert re.search(r"a\.obj", str(caught.value))
