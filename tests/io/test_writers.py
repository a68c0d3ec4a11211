"""Writing PLY: what a reader finds, and that a file is never half there."""

import os

import numpy as np
import pytest

from voxax._atomic_file import replacing
from voxax.errors import InputError
from voxax.io import read, write_ply
from voxax.io.decoding import MissingFileError


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_round_trip(tmp_path, rng, dtype):
    path = tmp_path / "scan.ply"
    positions = rng.uniform([85_000, 447_000, -5], [85_100, 447_100, 40], (200, 3)).astype(dtype)
    labels = rng.integers(-1, 20, 200)
    colors = rng.integers(0, 256, (200, 3), dtype=np.uint8)
    write_ply(path, positions, labels, colors)
    cloud = read(path)
    np.testing.assert_array_equal(cloud.positions, positions)
    np.testing.assert_array_equal(cloud.labels, labels)
    np.testing.assert_array_equal(cloud.attributes["rgb"], colors)
    assert list(cloud.attributes) == ["rgb"]


def test_header_is_plain_binary_little_endian(tmp_path):
    path = tmp_path / "scan.PLY"
    write_ply(path, np.zeros((2, 3), np.float32), colors=np.full((2, 3), 0.5))
    header, body = path.read_bytes().split(b"end_header\n")
    assert header.decode().splitlines() == [
        "ply",
        "format binary_little_endian 1.0",
        "element vertex 2",
        "property float x",
        "property float y",
        "property float z",
        "property uchar red",
        "property uchar green",
        "property uchar blue",
    ]
    assert len(body) == 2 * (12 + 3)
    assert body[12:15] == bytes([128, 128, 128])


def test_positions_alone_and_none_at_all(tmp_path):
    path = tmp_path / "scan.ply"
    write_ply(path, [[1, 2, 3]])
    assert read(path).positions.tolist() == [[1.0, 2.0, 3.0]]
    assert read(path).labels is None
    write_ply(path, np.zeros((0, 3)))
    assert b"element vertex 0" in path.read_bytes()


def test_failure_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "scan.ply"
    path.write_text("old")

    def fill():
        with replacing(path) as stream:
            stream.write(b"half of the ne")
            raise RuntimeError("power cut")

    with pytest.raises(RuntimeError, match="power cut"):
        fill()
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["scan.ply"]


def test_success_replaces_the_old_file_and_leaves_nothing_else(tmp_path):
    path = tmp_path / "scan.ply"
    path.write_text("old")
    write_ply(path, np.ones((3, 3)))
    assert len(read(path)) == 3
    assert os.listdir(tmp_path) == ["scan.ply"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((np.zeros((4, 2)),), r"shape \[N, 3\], got shape \[4, 2\]"),
        ((np.zeros((4, 3)), np.zeros(3, int)), "3 labels for 4 points"),
        ((np.zeros((4, 3)), np.full(4, 0.5)), "4 of 4 are not, the first is 0.5 at row 0"),
        ((np.zeros((4, 3)), None, np.zeros((3, 3))), r"shape \[4, 3\], got shape \[3, 3\]"),
        ((np.zeros((1, 3)), None, [[0, 256, 1]]), r"in 0\.\.255: 1 do not, the first is 256"),
        ((np.zeros((1, 3)), None, [[0, -1, 1]]), "the first is -1"),
        ((np.zeros((1, 3)), None, [[0.5, -0.1, np.nan]]), r"in 0\.\.1: 2 do not, .* -0\.1"),
        ((np.zeros((1, 3)), None, [[0.5, np.nan, 1.0]]), "the first is nan"),
    ],
)
def test_wrong_arguments_write_nothing(tmp_path, arguments, message):
    with pytest.raises(InputError, match=message):
        write_ply(tmp_path / "scan.ply", *arguments)
    assert os.listdir(tmp_path) == []


def test_wrong_places(tmp_path):
    with pytest.raises(InputError, match=r"must end in \.ply, got .*scan\.pcd"):
        write_ply(tmp_path / "scan.pcd", np.zeros((1, 3)))
    with pytest.raises(MissingFileError, match=r"no such folder to write into: .*nowhere"):
        write_ply(tmp_path / "nowhere" / "scan.ply", np.zeros((1, 3)))
