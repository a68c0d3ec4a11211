"""Files of bare numbers: how many columns they have, and what only looks like them."""

import gzip
import pickle

import numpy as np
import pytest

from voxax.errors import FileFormatError, InputError
from voxax.io import read, read_labels


def sweep(rng, rows: int) -> np.ndarray:
    """float32 [rows, 5] in the order of a turning sensor: x, y, z, intensity, ring."""
    azimuth = np.linspace(0, 2 * np.pi, rows)
    distance = 20 + 10 * np.sin(3 * azimuth) + rng.normal(0, 0.1, rows)
    ring = np.arange(rows) % 32
    height = distance * np.tan(np.radians(ring - 25.0))
    intensity = rng.uniform(0, 1, rows)
    columns = distance * np.cos(azimuth), distance * np.sin(azimuth), height, intensity, ring
    return np.stack(columns, axis=1).astype(np.float32)


def room(rng, rows: int) -> np.ndarray:
    """float32 [rows, 6] of a room, in no order: x, y, z, red, green, blue."""
    return np.column_stack(
        [rng.uniform(0, 6, (rows, 2)), rng.uniform(0, 3, rows), rng.integers(0, 256, (rows, 3))]
    ).astype(np.float32)


def saved(path, rows: np.ndarray):
    rows.tofile(path)
    return path


@pytest.mark.parametrize("rows", [60, 600, 30_000])
@pytest.mark.parametrize("shuffled", [False, True])
def test_four_columns_need_no_word(tmp_path, rng, rows, shuffled):
    cloud = sweep(rng, rows)[:, :4]
    if shuffled:
        cloud = rng.permutation(cloud)
    found = read(saved(tmp_path / "a.bin", cloud))
    np.testing.assert_array_equal(found.positions, cloud[:, :3])
    np.testing.assert_array_equal(found.attributes["intensity"], cloud[:, 3])


@pytest.mark.parametrize("seed", range(5))
def test_beams_fired_in_turn_are_four_columns(tmp_path, seed):
    rng = np.random.default_rng(seed)
    firings = 1680
    azimuth = np.repeat(np.linspace(0, 2 * np.pi, firings), 16)
    beams = [-15, 1, -13, 3, -11, 5, -9, 7, -7, 9, -5, 11, -3, 13, -1, 15]
    elevation = np.radians(np.tile(beams, firings))
    wall = 30 + rng.normal(0, 5, 16 * firings)
    reach = np.where(elevation < 0, np.minimum(1.7 / np.sin(np.abs(elevation)), wall), wall)
    cloud = np.stack(
        [
            reach * np.cos(elevation) * np.cos(azimuth),
            reach * np.cos(elevation) * np.sin(azimuth),
            reach * np.sin(elevation),
            rng.uniform(0, 1, 16 * firings),
        ],
        axis=1,
    ).astype(np.float32)
    assert len(read(saved(tmp_path / "a.bin", cloud))) == 16 * firings


def with_normals(rng, rows: int) -> np.ndarray:
    return np.column_stack([sweep(rng, rows)[:, :4], rng.uniform(-1, 1, (rows, 4))]).astype("f4")


OTHERS = {
    "xyz": lambda rng, rows: sweep(rng, rows)[:, :3],
    "nuScenes, Lyft": sweep,
    "ScanNet, S3DIS, SUN RGB-D": room,
    "colors to 1": lambda rng, rows: room(rng, rows) / np.array([1, 1, 1, 255, 255, 255], "f4"),
    "Waymo": lambda rng, rows: np.column_stack([sweep(rng, rows), np.zeros(rows)]).astype("f4"),
    "normals": with_normals,
    "counted": lambda rng, rows: np.arange(5.0 * rows, dtype=np.float32).reshape(rows, 5),
    "counted by 8": lambda rng, rows: np.arange(7.0 * rows, dtype=np.float32).reshape(rows, 7),
}


@pytest.mark.parametrize("rows", [80, 800, 20_000])
@pytest.mark.parametrize("kind", OTHERS)
def test_other_numbers_of_columns_are_asked_for(tmp_path, rng, kind, rows):
    cloud = np.ascontiguousarray(OTHERS[kind](rng, rows))
    width = cloud.shape[1]
    path = saved(tmp_path / "a.bin", cloud)
    with pytest.raises(FileFormatError, match=r"how many columns .* give columns=\d+ or names"):
        read(path)
    found = read(path, columns=width)
    np.testing.assert_array_equal(found.positions, cloud[:, :3])
    assert set(found.attributes) == {f"column_{k}" for k in range(3, width)}


def test_columns_by_name(tmp_path, rng):
    cloud = room(rng, 50)
    path = saved(tmp_path / "a.bin", cloud)
    found = read(path, columns=("x", "y", "z", "red", "green", "blue"))
    np.testing.assert_array_equal(found.attributes["rgb"], cloud[:, 3:])
    found = read(path, columns=("_", "z", "x", "y", "label", "_"))
    np.testing.assert_array_equal(found.positions, cloud[:, [2, 3, 1]])
    np.testing.assert_array_equal(found.labels, cloud[:, 4])
    with pytest.raises(FileFormatError, match="1200 bytes are 42 records of 28 bytes"):
        read(path, columns=7)
    with pytest.raises(InputError, match="z stands twice"):
        read(path, columns=("x", "y", "z", "z"))
    for given in (2, 0, -4, np.int64(1), ("x", "y"), "x y", 4 * (1,)):
        with pytest.raises(InputError, match="columns"):
            read(path, columns=given)
    assert len(read(path, columns=np.int64(6))) == len(read(path, columns="x,y,z,a,b,c")) == 50
    with pytest.raises(FileFormatError, match="no column z"):
        read(path, columns=("x", "y", "_", "w"))


def test_names_of_files_say_it(tmp_path, rng):
    cloud = sweep(rng, 80)
    found = read(saved(tmp_path / "a.pcd.bin", cloud))
    assert found.attributes["ring"].tolist() == cloud[:, 4].tolist()
    other = read(tmp_path / "a.pcd.bin", columns=("x", "y", "z", "intensity", "time"))
    assert set(other.attributes) == {"intensity", "time"}
    # Labels of SemanticKITTI come with four columns, and their number is compared.
    rng.uniform(0, 9, (60, 4)).astype("f4").tofile(tmp_path / "b.bin")
    np.arange(60, dtype="<u4").tofile(tmp_path / "b.label")
    assert len(read(tmp_path / "b.bin", tmp_path / "b.label")) == 60
    np.arange(48, dtype="<u4").tofile(tmp_path / "b.label")
    with pytest.raises(FileFormatError, match=r"48 labels in .* for 60 points"):
        read(tmp_path / "b.bin", tmp_path / "b.label")


@pytest.mark.parametrize("name", ["a.bin", "a.pcd.bin", "a.label"])
@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (b"CCB2" + bytes(76), "CloudCompare"),
        (b"# .PCD v0.7\nVERSION 0.7\n" + b"\n" * 56, "a .pcd"),
        (b"ply\nformat binary_little_endian 1.0\n" + bytes(44), "a .ply"),
        (b"LASF" + bytes(76), "a .las or .laz"),
        (b"PK\x03\x04" + bytes(76), "a zip archive"),
        (b"\x93NUMPY\x01\0" + bytes(72), "a .npy"),
        (gzip.compress(b"1", mtime=0)[:8] + bytes(72), "gzip"),
        (b"\x89HDF\r\n\x1a\n" + bytes(72), "HDF5"),
        (pickle.dumps(list(range(200)))[:80], "a Python pickle"),
        (b"1.5 2.5 3.5\n" * 20, "text"),
        (b"x,y,z\r\n1,2,3\r\n" * 20, "text"),
    ],
)
def test_other_formats_are_named(tmp_path, name, content, kind):
    path = tmp_path / name
    path.write_bytes(content + bytes(-len(content) % 80))
    with pytest.raises(FileFormatError, match=rf"{name} holds no bare numbers.*{kind}"):
        read_labels(path) if name.endswith("label") else read(path)


@pytest.mark.parametrize(
    "numbers",
    [
        np.arange(400) % 20,  # masks, int64
        (np.arange(1600) % 30 + 1).astype(np.uint8),  # nuScenes' labels
        np.linspace(-50, 50, 400),  # float64
        np.linspace(-50, 50, 400).astype(np.float32).astype(np.float64),
        np.linspace(-50, 50, 400).astype(">f4"),
        np.random.default_rng(0).integers(0, 256, 1600).astype(np.uint8),
        np.arange(400, dtype=np.int32),
    ],
)
def test_numbers_of_another_type_are_refused(tmp_path, numbers):
    with pytest.raises(FileFormatError, match="does not hold float32 measurements"):
        read(saved(tmp_path / "a.bin", numbers))
