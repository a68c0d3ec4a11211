"""Every format: files made here, broken files, and the real scans where they are."""

import re
import struct
import subprocess
import sys

import numpy as np
import pytest

from voxax.errors import FileFormatError, InputError, VoxaxError
from voxax.io import PointCloud, read, read_labels, readable_extensions
from voxax.io.decoding import MissingFileError, check_count, reading
from voxax.io.options import ReadOptions
from voxax.io.semantic_kitti import (
    SEMANTIC_KITTI_CLASS_NAMES,
    SEMANTIC_KITTI_LEARNING_MAP,
    to_common_classes,
)
from voxax.io.surface import fan_triangles, sample_surface

SQUARE = np.array([[0, 0, 0], [2, 0, 0], [2, 1, 0], [0, 1, 0]], float)


@pytest.fixture
def sweep(rng) -> np.ndarray:
    """float32 [50, 4]: x, y, z and intensity."""
    return rng.uniform(-40, 40, (50, 4)).astype(np.float32)


# --- the cloud ---------------------------------------------------------------------------


def test_cloud_converts_and_selects():
    cloud = PointCloud(
        np.arange(12, dtype=np.float32).reshape(4, 3),
        {"ring": np.arange(4), "rgb": np.zeros((4, 3), np.uint8)},
        np.array([3, 2, 1, 0], np.uint8),
        "here",
    )
    assert len(cloud) == 4
    assert cloud.positions.dtype == np.float64
    assert cloud.labels.dtype == np.int32
    assert cloud.select([True, False, False, True]).labels.tolist() == [3, 0]
    assert cloud.select([2, -1, 2]).attributes["ring"].tolist() == [2, 3, 2]
    assert cloud.select(slice(1, 3)).positions.tolist() == [[3, 4, 5], [6, 7, 8]]
    assert len(cloud.select([])) == 0
    assert cloud.select([0]).source == "here"
    assert cloud.with_labels([9, 9, 9, 9]).labels.tolist() == [9] * 4
    assert cloud.with_labels(None).labels is None
    assert cloud.labels.tolist() == [3, 2, 1, 0]
    assert repr(cloud) == ("PointCloud(4 points, labeled, {ring int64[4], rgb uint8[4, 3]} (here))")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((np.zeros((4, 2)),), r"shape \[N, 3\], got shape \[4, 2\] and dtype float64"),
        ((np.zeros((4, 3), complex),), "dtype complex128"),
        ((np.zeros((4, 3)), {"ring": np.zeros(3)}), "'ring' has 3 rows for 4 points"),
        ((np.zeros((4, 3)), {"ring": np.zeros((4, 1, 1))}), r"'ring' .* got \[4, 1, 1\]"),
        ((np.zeros((4, 3)), {"ring": [None] * 4}), "'ring' .* dtype object"),
        ((np.zeros((4, 3)), {}, np.zeros(5, int), "a.bin"), r"5 labels for 4 points \(a.bin\)"),
        ((np.zeros((1, 3)), {}, np.zeros((1, 1), int)), r"shape \[N\], got shape \[1, 1\]"),
        ((np.zeros((1, 3)), {}, [2**31]), "labels 2147483648..2147483648 reach outside int32"),
        ((np.zeros((1, 3)), {}, [np.nan]), "1 of 1 are not, the first is nan at row 0"),
        ((np.zeros((1, 3)), {}, ["car"]), "must be whole numbers"),
    ],
)
def test_cloud_errors(arguments, message):
    with pytest.raises(InputError, match=message):
        PointCloud(*arguments)


@pytest.mark.parametrize(
    ("index", "message"),
    [
        ([True, False], "a mask of 2 for 3 points"),
        ([0, 3], r"indices 0\.\.3 reach outside the 3 points"),
        ([-4], r"indices -4\.\.-4 reach outside the 3 points"),
        ([0.5], "bool mask .* got shape .* dtype float64"),
        (1, r"got shape \[\]"),
    ],
)
def test_select_errors(index, message):
    with pytest.raises(InputError, match=message):
        PointCloud(np.zeros((3, 3))).select(index)


# --- one round trip per format -----------------------------------------------------------


def test_kitti(tmp_path, sweep):
    path = tmp_path / "000000.bin"
    sweep.astype("<f4").tofile(path)
    cloud = read(str(path))
    np.testing.assert_array_equal(cloud.positions, sweep[:, :3])
    np.testing.assert_array_equal(cloud.attributes["intensity"], sweep[:, 3])
    assert cloud.labels is None
    assert cloud.source == str(path)


def test_semantic_kitti_labels_and_instances(tmp_path, sweep):
    sweep.tofile(tmp_path / "0.bin")
    semantic, instance = np.arange(50) + 200, np.arange(50) * 1000
    (semantic | instance << 16).astype("<u4").tofile(tmp_path / "0.label")
    cloud = read(tmp_path / "0.bin", tmp_path / "0.label")
    np.testing.assert_array_equal(cloud.labels, semantic)
    np.testing.assert_array_equal(cloud.attributes["instance"], instance)
    assert cloud.labels.dtype == np.int32
    np.testing.assert_array_equal(read_labels(tmp_path / "0.label"), semantic)


def test_nuscenes_is_known_by_its_double_extension(tmp_path, sweep):
    rows = np.column_stack([sweep, np.arange(50) % 32]).astype(np.float32)
    rows[7, 4] = np.nan
    rows.tofile(tmp_path / "x.pcd.bin")
    cloud = read(tmp_path / "x.pcd.bin")
    np.testing.assert_array_equal(cloud.positions, sweep[:, :3])
    assert cloud.attributes["ring"].dtype == np.int32
    assert cloud.attributes["ring"][[6, 7, 8]].tolist() == [6, -1, 8]


PLY_HEADER = """ply
format {format} 1.0
comment made by hand
element vertex {count}
property double X
property double Y
property double Z
property float scalar_Intensity
property uchar red
property uchar green
property uchar blue
property float nx
property float ny
property float nz
property short scalar_Label
end_header
"""


@pytest.mark.parametrize("layout", ["ascii", "binary_little_endian", "binary_big_endian"])
def test_ply_points(tmp_path, layout):
    rows = [
        (85000.125, 447412.25, -0.5, 0.25, 255, 128, 1, 0.0, 0.0, 1.0, 6),
        (85001.125, 447413.25, -1.5, 0.75, 0, 2, 3, 1.0, 0.0, 0.0, -1),
    ]
    content = PLY_HEADER.format(format=layout, count=2).encode()
    if layout == "ascii":
        content += "".join(" ".join(map(str, row)) + "\n" for row in rows).encode()
    else:
        order = ">" if "big" in layout else "<"
        content += b"".join(struct.pack(order + "3dfBBB3fh", *row) for row in rows)
    (tmp_path / "scan.ply").write_bytes(content)
    cloud = read(tmp_path / "scan.ply")
    assert cloud.positions.tolist() == [list(row[:3]) for row in rows]
    assert set(cloud.attributes) == {"intensity", "rgb", "normals"}
    assert cloud.attributes["intensity"].tolist() == [0.25, 0.75]
    assert cloud.attributes["intensity"].dtype.isnative
    assert cloud.attributes["rgb"].tolist() == [[255, 128, 1], [0, 2, 3]]
    assert cloud.attributes["rgb"].dtype == np.uint8
    assert cloud.attributes["normals"].tolist() == [[0, 0, 1], [1, 0, 0]]
    assert cloud.labels.tolist() == [6, -1]


@pytest.mark.parametrize(
    "polygons", [[[0, 1, 2], [0, 2, 3]], [[0, 1, 2, 3]], [[0, 1], [0, 1, 2, 3]]]
)
@pytest.mark.parametrize("text", [True, False])
def test_ply_mesh_is_sampled(tmp_path, polygons, text):
    plyfile = pytest.importorskip("plyfile")
    vertex = np.zeros(
        4, [(name, "f4") for name in "xyz"] + [("red", "u1"), ("green", "u1"), ("blue", "u1")]
    )
    for axis, name in enumerate("xyz"):
        vertex[name] = SQUARE[:, axis]
    vertex["red"] = SQUARE[:, 0] * 100
    face = np.empty(len(polygons), [("vertex_indices", "O")])
    face["vertex_indices"] = [np.array(polygon, "i4") for polygon in polygons]
    elements = [
        plyfile.PlyElement.describe(vertex, "vertex"),
        plyfile.PlyElement.describe(face, "face"),
    ]
    plyfile.PlyData(elements, text=text).write(str(tmp_path / "mesh.ply"))
    cloud = read(tmp_path / "mesh.ply", points=1000)
    check_square(cloud, 1000)
    # The color follows x, from vertex to vertex.
    np.testing.assert_allclose(
        cloud.attributes["rgb"][:, 0], cloud.positions[:, 0] * 100, atol=0.51
    )


def check_square(cloud: PointCloud, count: int):
    assert len(cloud) == count
    assert cloud.labels is None
    assert np.all(cloud.positions >= -1e-6)
    assert np.all(cloud.positions <= np.array([2, 1, 0]) + 1e-6)
    # Even over the surface: each quarter has its share.
    quarters = (cloud.positions[:, 0] > 1) * 2 + (cloud.positions[:, 1] > 0.5)
    assert np.all(np.abs(np.bincount(quarters, minlength=4) - count / 4) < 0.08 * count)
    np.testing.assert_allclose(np.abs(cloud.attributes["normals"]), [[0, 0, 1]] * count, atol=1e-6)


@pytest.mark.parametrize("extension", ["obj", "stl", "off", "glb"])
def test_meshes_are_sampled_with_a_seed(tmp_path, extension):
    trimesh = pytest.importorskip("trimesh")
    path = tmp_path / f"square.{extension}"
    # Bytes or text by format; written here since trimesh leaves closing the file to chance.
    content = trimesh.Trimesh(SQUARE, [[0, 1, 2], [0, 2, 3]], process=False).export(
        file_type=extension
    )
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    cloud = read(path, points=1000)
    check_square(cloud, 1000)
    np.testing.assert_array_equal(read(path, points=1000).positions, cloud.positions)
    assert not np.array_equal(read(path, points=1000, seed=1).positions, cloud.positions)


@pytest.mark.parametrize("end", [*readable_extensions(), ".ply.gz", ".label", ".npy"])
def test_pointers_of_git_lfs_are_named(tmp_path, end):
    path = tmp_path / f"a{end}"
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 12\n")
    with fails("pointer of Git LFS to the file: fetch it with `git lfs pull`"):
        read_labels(path) if end == ".label" else read(path)


def test_obj_with_quads_and_missing_material(tmp_path):
    lines = ["mtllib nowhere.mtl", "usemtl paint"]
    lines += ["v {} {} {}".format(*row) for row in SQUARE] + ["f 1 2 3 4"]
    (tmp_path / "square.obj").write_text("\n".join(lines) + "\n")
    check_square(read(tmp_path / "square.obj", points=1000), 1000)


def test_glb_scene_is_placed(tmp_path):
    trimesh = pytest.importorskip("trimesh")
    square = trimesh.Trimesh(SQUARE, [[0, 1, 2], [0, 2, 3]], process=False)
    scene = trimesh.Scene()
    scene.add_geometry(square)
    scene.add_geometry(square, transform=trimesh.transformations.translation_matrix([10, 0, 5]))
    (tmp_path / "scene.glb").write_bytes(scene.export(file_type="glb"))
    cloud = read(tmp_path / "scene.glb", points=1000)
    far = cloud.positions[:, 0] > 5
    assert far.sum() == pytest.approx(500, abs=2)
    np.testing.assert_allclose(cloud.positions[:, 2], np.where(far, 5, 0), atol=1e-12)


def test_sampling_is_in_proportion_to_area():
    vertices = np.array([[0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 9], [3, 0, 9], [0, 3, 9]])
    triangles = np.array([[0, 0, 1], [0, 1, 2], [3, 4, 5]])
    cloud = sample_surface(PointCloud(vertices), triangles, ReadOptions(points=1000))
    assert np.bincount(cloud.attributes["face"]).tolist() == pytest.approx([0, 100, 900], abs=1)
    assert np.isfinite(cloud.attributes["normals"]).all()


def test_fan_triangles_keep_the_order_of_polygons():
    triangles = fan_triangles([np.array([0, 1, 2, 3]), np.array([0, 1]), np.array([4, 5, 6])])
    assert triangles.tolist() == [[0, 1, 2], [0, 2, 3], [4, 5, 6]]
    assert fan_triangles([]).shape == (0, 3)


def write_pcd(path, rows: np.ndarray, encoding: str):
    pypcd4 = pytest.importorskip("pypcd4")
    names = rows.dtype.names
    cloud = pypcd4.PointCloud.from_points(
        [rows[name] for name in names], names, [rows.dtype[name] for name in names]
    )
    cloud.save(path, encoding=pypcd4.Encoding(encoding))


@pytest.mark.parametrize("color", ["f4", "u4"])
@pytest.mark.parametrize("encoding", ["ascii", "binary", "binary_compressed"])
def test_pcd(tmp_path, rng, encoding, color):
    rows = np.zeros(
        40, [("x", "f4"), ("y", "f4"), ("z", "f4"), ("rgb", color), ("label", "u2"), ("ring", "u1")]
    )
    for name in "xyz":
        rows[name] = rng.integers(-100, 100, 40) / 4
    colors = rng.integers(0, 256, (40, 3), dtype=np.uint32)
    packed = colors[:, 0] << 16 | colors[:, 1] << 8 | colors[:, 2]
    # As text, a float32 this small would need more digits than PCL itself writes.
    if encoding == "ascii" and color == "f4":
        packed[:] = 0x40C08020
        colors[:] = [0xC0, 0x80, 0x20]
    rows["rgb"] = packed.view("f4") if color == "f4" else packed
    rows["label"], rows["ring"] = np.arange(40), 7
    rows["y"][[3, 5]] = np.nan
    write_pcd(tmp_path / "scan.pcd", rows, encoding)
    kept = np.setdiff1d(np.arange(40), [3, 5])
    cloud = read(tmp_path / "scan.pcd")
    np.testing.assert_array_equal(cloud.positions, np.stack([rows[n] for n in "xyz"], 1)[kept])
    np.testing.assert_array_equal(cloud.labels, kept)
    np.testing.assert_array_equal(cloud.attributes["rgb"], colors[kept])
    assert cloud.attributes["rgb"].dtype == np.uint8
    assert set(cloud.attributes) == {"rgb", "ring"}


def write_las(path, classes, colors=None) -> np.ndarray:
    laspy = pytest.importorskip("laspy")
    pytest.importorskip("lazrs")
    count = len(classes)
    header = laspy.LasHeader(point_format=1 if colors is None else 3, version="1.2")
    header.scales, header.offsets = [0.001] * 3, [85_000.0, 447_000.0, 0.0]
    data = laspy.LasData(header)
    positions = np.stack([np.arange(count) * axis + 85_000.25 for axis in (1, 2, 3)], axis=1)
    data.x, data.y, data.z = positions.T
    data.classification = np.asarray(classes, np.uint8)
    data.intensity = np.arange(count, dtype=np.uint16) * 100
    data.return_number = np.ones(count, np.uint8)
    data.gps_time = np.arange(count) / 8
    if colors is not None:
        data.red, data.green, data.blue = np.asarray(colors, np.uint16).T
    with path.open("wb") as stream:
        data.write(stream, do_compress=path.suffix == ".laz")
        if not stream.closed:
            stream.flush()
    return positions


@pytest.mark.parametrize("extension", ["las", "laz"])
def test_las(tmp_path, extension):
    path = tmp_path / f"scan.{extension}"
    colors = np.arange(30).reshape(10, 3) * 256
    positions = write_las(path, np.arange(10), colors)
    cloud = read(path)
    np.testing.assert_allclose(cloud.positions, positions, atol=1e-9)
    np.testing.assert_array_equal(cloud.labels, np.arange(10))
    np.testing.assert_array_equal(cloud.attributes["rgb"], np.arange(30).reshape(10, 3))
    assert cloud.attributes["intensity"].tolist() == [100 * row for row in range(10)]
    assert cloud.attributes["return_number"].tolist() == [1] * 10
    assert cloud.attributes["time"].dtype == np.float64


def test_las_never_classified_has_no_labels(tmp_path):
    write_las(tmp_path / "scan.las", np.zeros(5))
    cloud = read(tmp_path / "scan.las")
    assert cloud.labels is None
    assert "rgb" not in cloud.attributes


@pytest.mark.parametrize("name", ["xyz", "positions", "points"])
def test_npz(tmp_path, sweep, name):
    arrays = {
        name: sweep[:, :3],
        "origin": np.array([85_000.1, 447_412.8, -0.6]),
        "intensity": sweep[:, 3],
        "label": np.arange(50, dtype=np.uint8),
        "pose": np.eye(4),
    }
    np.savez(tmp_path / "scan.npz", **arrays)
    cloud = read(tmp_path / "scan.npz")
    np.testing.assert_array_equal(
        cloud.positions, sweep[:, :3].astype(np.float64) + arrays["origin"]
    )
    np.testing.assert_array_equal(cloud.labels, np.arange(50))
    assert set(cloud.attributes) == {"intensity"}


def test_labels_from_numpy_files(tmp_path, sweep):
    sweep.tofile(tmp_path / "scan.bin")
    labels = np.arange(50)
    np.save(tmp_path / "a.npy", labels)
    np.savez(tmp_path / "b.npz", whatever=labels)
    np.savez(tmp_path / "c.npz", other=labels[:3], labels=labels, instance=labels * 2)
    for name in ("a.npy", "b.npz", "c.npz"):
        np.testing.assert_array_equal(read_labels(tmp_path / name), labels)
        cloud = read(tmp_path / "scan.bin", tmp_path / name)
        np.testing.assert_array_equal(cloud.labels, labels)
        assert ("instance" in cloud.attributes) == (name == "c.npz")


def test_rows_without_a_position_are_dropped_with_their_labels(tmp_path, sweep):
    sweep[[2, 9], 1] = [np.nan, np.inf]
    sweep.tofile(tmp_path / "scan.bin")
    kept = np.setdiff1d(np.arange(50), [2, 9])
    np.save(tmp_path / "all.npy", np.arange(50))
    np.save(tmp_path / "kept.npy", kept)
    for labels in ("all.npy", "kept.npy"):
        cloud = read(tmp_path / "scan.bin", tmp_path / labels)
        np.testing.assert_array_equal(cloud.labels, kept)
        np.testing.assert_array_equal(cloud.attributes["intensity"], sweep[kept, 3])
    np.save(tmp_path / "49.npy", np.arange(49))
    with pytest.raises(FileFormatError, match=r"49 labels in .*49\.npy for 50 rows \(48 points"):
        read(tmp_path / "scan.bin", tmp_path / "49.npy")


def test_extension_ignores_case(tmp_path, sweep):
    sweep.tofile(tmp_path / "SCAN.BIN")
    assert len(read(tmp_path / "SCAN.BIN")) == 50


# --- what is wrong with a file -----------------------------------------------------------


def fails(message: str):
    return pytest.raises(FileFormatError, match=message)


def test_file_not_found(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no such file: .*gone\.bin") as caught:
        read(tmp_path / "gone.bin")
    assert isinstance(caught.value, (VoxaxError, MissingFileError))
    with fails("no such file: .*gone.label"):
        read_labels(tmp_path / "gone.label")
    with fails("is not a file: give the path of one scan"):
        read(tmp_path)


def test_unknown_extension_lists_the_known_ones(tmp_path):
    (tmp_path / "scan.doc").write_text("1 2 3")
    with fails(r"ends in \.doc, known are .*") as caught:
        read(tmp_path / "scan.doc")
    for extension in readable_extensions():
        assert extension in str(caught.value)
    (tmp_path / "scan").write_text("1 2 3")
    with fails("ends in nothing"):
        read(tmp_path / "scan")
    assert " ".join(readable_extensions()) == (
        ".asc .bin .csv .e57 .feather .glb .h5 .hdf5 .las .laz .npy .npz .obj .off .parquet .pcd "
        ".pcd.bin .ply .pt .pth .pts .ptx .stl .txt .xyz .xyzn .xyzrgb"
    )


def test_labels_given_as_the_scan_and_the_other_way_round(tmp_path, sweep):
    sweep.tofile(tmp_path / "scan.bin")
    (tmp_path / "scan.label").write_bytes(bytes(200))
    with fails(r"scan\.label holds labels, not points: .* pass this as labels="):
        read(tmp_path / "scan.label")
    with fails(r"cannot read labels from .*scan\.bin: .* labels come from \.label, \.npy, \.npz"):
        read(tmp_path / "scan.bin", tmp_path / "scan.bin")


@pytest.mark.parametrize("name", ["a" + extension for extension in readable_extensions()])
def test_empty_file(tmp_path, name):
    (tmp_path / name).touch()
    with fails(re.escape(f"{name} is empty (0 bytes)")):
        read(tmp_path / name)


@pytest.mark.parametrize(
    # Bare numbers are never wrong, and PyTorch is not installed.
    "extension",
    sorted(set(readable_extensions()) - {".bin", ".pcd.bin", ".pt", ".pth"}),
)
def test_rubbish_is_named_with_its_path(tmp_path, extension):
    if extension == ".e57":
        pytest.importorskip("pye57")
    path = tmp_path / f"rubbish{extension}"
    path.write_bytes(bytes(range(256)) * 9)
    with fails(re.escape(str(path))):
        read(path)


def test_sizes_that_are_not_whole_records(tmp_path):
    path = tmp_path / "a.bin"
    path.write_bytes(bytes(35))
    with fails(r"35 bytes are 2 records of 16 bytes and 3 bytes left over$"):
        read(path)
    path.write_bytes(bytes(60))
    with fails(r"records of 16 bytes and 12 bytes left over; .* nuScenes, .* \.pcd\.bin"):
        read(path)
    (tmp_path / "a.pcd.bin").write_bytes(bytes(32))
    with fails("32 bytes are 1 records of 20 bytes and 12 bytes left over"):
        read(tmp_path / "a.pcd.bin")
    (tmp_path / "a.label").write_bytes(bytes(6))
    with fails("6 bytes are 1 records of 4 bytes and 2 bytes left over"):
        read_labels(tmp_path / "a.label")


def cut(path, part: float):
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * part)])


@pytest.mark.parametrize("part", [0.3, 0.6, 0.95])
@pytest.mark.parametrize("extension", [".las", ".laz"])
def test_las_cut_short(tmp_path, extension, part):
    path = tmp_path / f"scan{extension}"
    write_las(path, np.arange(200) % 30)
    cut(path, part)
    with fails(re.escape(str(path))):
        read(path)


def test_las_cut_between_two_points(tmp_path):
    write_las(tmp_path / "scan.las", np.arange(100) % 30)
    content = (tmp_path / "scan.las").read_bytes()
    (tmp_path / "scan.las").write_bytes(content[: -10 * 28])
    with fails("header says 100 points, 90 are there"):
        read(tmp_path / "scan.las")


@pytest.mark.parametrize("part", [0.1, 0.5, 0.98])
@pytest.mark.parametrize("layout", ["ascii", "binary_little_endian"])
def test_ply_cut_short(tmp_path, layout, part):
    path = tmp_path / "scan.ply"
    row = (1.0, 2.0, 3.0, 0.25, 255, 128, 1, 0.0, 0.0, 1.0, 6)
    body = (" ".join(map(str, row)) + "\n").encode()
    if layout != "ascii":
        body = struct.pack("<3dfBBB3fh", *row)
    path.write_bytes(PLY_HEADER.format(format=layout, count=200).encode() + body * 200)
    cut(path, part)
    with fails("cut short: .* (no end_header|rows of vertex, .* there)|the rows of vertex: .*"):
        read(path)


def test_ply_without_positions_or_vertices(tmp_path):
    path = tmp_path / "scan.ply"
    header = "ply\nformat ascii 1.0\nelement {} 1\nproperty float x\nend_header\n0\n"
    path.write_text(header.format("vertex"))
    with fails("has no column y, z; its columns are x"):
        read(path)
    path.write_text(header.format("edge"))
    with fails("has no vertices; it holds edge"):
        read(path)
    path.write_text("ply\nformat ascii 1.0\nelement vertex 0\nproperty float x\nend_header\n")
    with fails("has no column y, z"):
        read(path)


@pytest.mark.parametrize(
    ("faces", "message"),
    [("3 0 1 9", r"name vertices 0\.\.9, but it has 4"), ("3 0 1 1", "1 faces .* total area of 0")],
)
def test_ply_with_impossible_faces(tmp_path, faces, message):
    vertices = "\n".join(" ".join(map(str, row)) for row in SQUARE)
    (tmp_path / "mesh.ply").write_text(
        "ply\nformat ascii 1.0\nelement vertex 4\nproperty float x\nproperty float y\n"
        "property float z\nelement face 1\nproperty list uchar int vertex_indices\nend_header\n"
        f"{vertices}\n{faces}\n"
    )
    with fails(message):
        read(tmp_path / "mesh.ply")


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"points": 0}, "points=0 must be at least 1"),
        ({"points": 10**12}, "points 1000000000000 must be at most 134,217,728"),
        ({"points": 1.5}, "points=1.5: give an integer"),
        ({"seed": -1}, "seed=-1 must be at least 0"),
        ({"columns": 4.0}, "columns must be names, or their number, got 4.0"),
        ({"item": 0.0}, "item=0.0: give an integer"),
    ],
)
def test_options_out_of_range(tmp_path, option, message):
    (tmp_path / "a.obj").write_text("v 0 0 0\nv 1 0 0\nv 0 1 0\nf 1 2 3\n")
    with pytest.raises(InputError, match=message):
        read(tmp_path / "a.obj", **option)


def test_item_of_a_file_of_one_cloud(tmp_path):
    (tmp_path / "a.txt").write_text("1 2 3\n")
    assert len(read(tmp_path / "a.txt", item=0)) == 1
    with pytest.raises(FileFormatError, match="item 7 is none"):
        read(tmp_path / "a.txt", item=7)


@pytest.mark.parametrize("path", ["a" * 5000 + ".ply", "a\0.ply"])
def test_path_that_no_file_can_have(path):
    with pytest.raises((InputError, MissingFileError), match=r"characters: |no such file"):
        read(path)


def test_mesh_without_faces(tmp_path):
    (tmp_path / "a.obj").write_text("v 0 0 0\nv 1 0 0\n")
    assert read(tmp_path / "a.obj").positions.tolist() == [[0, 0, 0], [1, 0, 0]]
    (tmp_path / "a.obj").write_text("# nothing\n")
    with fails(r"a\.obj has no faces: it is empty, cut short, or holds only points"):
        read(tmp_path / "a.obj")


def test_mesh_with_flat_vertices(tmp_path):
    (tmp_path / "a.obj").write_text("v 0 0\nv 1 0\nv 0 1\nf 1 2 3\n")
    with fails(re.escape(str(tmp_path / "a.obj"))):
        read(tmp_path / "a.obj")


def test_files_without_points(tmp_path):
    write_las(tmp_path / "a.las", [])
    np.savez(tmp_path / "a.npz", xyz=np.zeros((0, 3)))
    np.full((2, 4), np.nan, np.float32).tofile(tmp_path / "a.bin")
    for name in ("a.las", "a.npz"):
        with fails(f"{name} holds no points$"):
            read(tmp_path / name)
    np.savez(tmp_path / "far.npz", xyz=[[0, 0, np.nan], [0, -1e39, 0], [1, 2, 3]])
    with fails(r"has a position of 1e\+39, beyond all numbers of float32: are its columns"):
        read(tmp_path / "far.npz")
    with fails("holds no points: 2 rows, none with a finite position"):
        read(tmp_path / "a.bin")


def test_npz_errors(tmp_path, sweep):
    path = tmp_path / "a.npz"
    np.savez(path, cloud=sweep)
    with fails("has no xyz, positions, points, .*; its arrays are cloud"):
        read(path)
    np.savez(path, xyz=sweep[:, :2])
    with fails(r"shape \[N, 3\], got shape \[50, 2\]"):
        read(path)
    np.savez(path, xyz=sweep[:, :3], label=np.zeros(49, int))
    with fails("49 labels for 50 points"):
        read(path)
    np.savez(path, xyz=np.array([None, {}]))
    with fails("allow_pickle"):
        read(path)
    np.savez(path, a=np.zeros(3), b=np.zeros(3))
    with fails("has no .*label, .*; its arrays are a, b"):
        read_labels(path)
    np.savez(path, xyz=sweep[:, :3])
    cut(path, 0.7)
    with fails(r"\(\d+ bytes\) is not a complete zip archive"):
        read(path)


def test_npz_with_a_flipped_bit(tmp_path, sweep):
    path = tmp_path / "a.npz"
    np.savez(path, xyz=sweep[:, :3])
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with fails(f"cannot read {re.escape(str(path))} as NPZ: BadZipFile: Bad CRC-32"):
        read(path)


def test_npy_label_errors(tmp_path):
    np.save(tmp_path / "a.npy", np.zeros((3, 2), int))
    with fails(r"shape \[N\], got shape \[3, 2\]"):
        read_labels(tmp_path / "a.npy")
    np.save(tmp_path / "a.npy", np.array([1.0, 2.5]))
    with fails("1 of 2 are not, the first is 2.5 at row 1"):
        read_labels(tmp_path / "a.npy")
    np.save(tmp_path / "a.npy", np.arange(9))
    cut(tmp_path / "a.npy", 0.9)
    with fails("a.npy is cut short: its header says 9 numbers, 6 are there"):
        read_labels(tmp_path / "a.npy")


def test_label_count_unlike_point_count(tmp_path, sweep):
    sweep.tofile(tmp_path / "a.bin")
    (tmp_path / "a.label").write_bytes(bytes(4 * 49))
    with fails(r"49 labels in .*a\.label for 50 points in .*a\.bin"):
        read(tmp_path / "a.bin", tmp_path / "a.label")


def test_out_of_memory_and_no_permission_are_not_blamed_on_the_file(tmp_path):
    for error in (MemoryError("much"), PermissionError("yours")):
        with pytest.raises(type(error)), reading(tmp_path, "PLY"):
            raise error


def test_panic_of_a_decoder_is_blamed_on_the_file_and_an_interrupt_is_not(tmp_path):
    # PyO3 derives the panic of a Rust library from BaseException.
    panic = type("PanicException", (BaseException,), {"__module__": "pyo3_runtime"})
    with fails("as LAZ: PanicException: index out of bounds"), reading(tmp_path, "LAZ"):
        raise panic("index out of bounds")
    for error in (KeyboardInterrupt(), SystemExit(3), GeneratorExit()):
        with pytest.raises(type(error)), reading(tmp_path, "LAZ"):
            raise error


@pytest.mark.parametrize("count", [-1, 3, 10**12])
def test_count_that_the_file_cannot_hold(tmp_path, count):
    check_count(tmp_path, "points", 2, smallest=12, available=35)
    with fails(f"its header says {count} points"):
        check_count(tmp_path, "points", count, smallest=12, available=35)
    with fails("says 1 points, 0 are there"):
        check_count(tmp_path, "points", 1, smallest=12, available=-5)


def test_import_loads_no_decoder():
    script = (
        "import sys; import voxax.io, voxax.io.augment, voxax.io.dataset;"
        "print([m for m in ('laspy', 'lazrs', 'lzf', 'plyfile', 'trimesh') if m in sys.modules])"
    )
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "[]"


# --- classes -----------------------------------------------------------------------------


def test_semantic_kitti_classes():
    assert len(SEMANTIC_KITTI_CLASS_NAMES) == 19
    assert set(SEMANTIC_KITTI_LEARNING_MAP.values()) == set(range(-1, 19))
    common = to_common_classes([0, 10, 252, 40, 60, 70, 81, 99, 254, 10])
    names = ["-" if c < 0 else SEMANTIC_KITTI_CLASS_NAMES[c] for c in common]
    assert " ".join(names) == "- car car road road vegetation traffic-sign - person car"
    assert common.dtype == np.int32
    assert to_common_classes(np.zeros(0, int)).shape == (0,)
    with pytest.raises(InputError, match=r"2 ids are not SemanticKITTI's: \[7, 65546\]"):
        to_common_classes([7, 10, 65546])


# --- real scans --------------------------------------------------------------------------

POINTS = {
    "lidar_hdl32e_target.ply": 69_088,
    "lidar_os0_128.npz": 97_299,
    "air_autzen_trim.las": 110_000,
    "air_ahn3_delft.laz": 208_432,
    "air_ahn3_delft.npz": 208_432,
    "tls_lone_star.laz": 518_862,
    "tls_lone_star.npz": 518_862,
    "rgbd_office1.pcd": 254_456,
    "room_scan1.pcd": 112_586,
    "mesh_spot.obj": 200_000,
    "mesh_cycloidal.ply": 200_000,
    "nc/mesh_stanford_bunny.obj": 200_000,
    "nc/semantickitti_00_000000.bin": 123_389,
    "nc/nuscenes_n015_lidar_top.pcd.bin": 34_688,
}
# Meters (feet for Autzen), to the digits of the table that came with the scans.
EXTENTS = {
    "lidar_hdl32e_target.ply": (42.4, 83.6, 13.8),
    "lidar_os0_128.npz": (209.7, 66.5, 24.1),
    "air_autzen_trim.las": (359 / 0.3048, 172 / 0.3048, 34.8 / 0.3048),
    "air_ahn3_delft.laz": (72.3, 228.5, 26.9),
    "tls_lone_star.laz": (32.4, 40.8, 15.7),
    "rgbd_office1.pcd": (4.15, 3.78, 3.53),
    "room_scan1.pcd": (29.2, 14.5, 3.06),
    "mesh_spot.obj": (0.943, 1.69, 1.72),
    "mesh_cycloidal.ply": (1.88, 1.87, 1.11),
    "nc/mesh_stanford_bunny.obj": (0.156, 0.154, 0.121),
    "nc/semantickitti_00_000000.bin": (159, 158, 30.6),
    "nc/nuscenes_n015_lidar_top.pcd.bin": (155, 195, 22.4),
}


def real(scans, name):
    if not (scans / name).exists():
        pytest.skip(f"{scans} has no {name}")
    return scans / name


@pytest.mark.parametrize("name", POINTS)
def test_real_scan(scans, name):
    cloud = read(real(scans, name))
    assert len(cloud) == POINTS[name]
    assert np.isfinite(cloud.positions).all()
    if name in EXTENTS:
        extent = np.ptp(cloud.positions, axis=0)
        np.testing.assert_allclose(extent, EXTENTS[name], rtol=6e-3)


@pytest.mark.parametrize("name", ["air_ahn3_delft", "tls_lone_star"])
def test_real_archive_is_the_real_laz(scans, name):
    laz, npz = (read(real(scans, name + extension)) for extension in (".laz", ".npz"))
    np.testing.assert_allclose(npz.positions, laz.positions, atol=1e-4, rtol=0)
    if laz.labels is not None:
        np.testing.assert_array_equal(npz.labels, laz.labels)


def test_real_labels(scans):
    name = "nc/semantickitti_00_000000"
    cloud = read(real(scans, name + ".bin"), real(scans, name + ".label"))
    assert len(np.unique(cloud.labels)) == 19
    assert cloud.attributes["instance"].max() > 0
    common = to_common_classes(cloud.labels)
    assert common.min() == -1
    road = common == SEMANTIC_KITTI_CLASS_NAMES.index("road")
    assert 0.05 < road.mean() < 0.6
    assert np.median(cloud.positions[road, 2]) == pytest.approx(-1.7, abs=0.3)
    delft = read(real(scans, "air_ahn3_delft.laz"))
    assert np.unique(delft.labels).tolist() == [1, 2, 6, 9, 26]
    autzen = read(real(scans, "air_autzen_trim.las"))
    assert np.unique(autzen.labels).tolist() == [1, 2]
    assert autzen.attributes["rgb"].max() == 236
