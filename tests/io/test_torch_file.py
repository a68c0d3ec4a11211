"""``.pt`` and ``.pth``: tensors and arrays, and nothing that would run code."""

import os

import numpy as np
import pytest

from voxax.errors import FileFormatError
from voxax.io import read

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")


@pytest.fixture
def points(rng) -> np.ndarray:
    return rng.uniform(-40, 40, (20, 3)).astype(np.float32)


@pytest.mark.parametrize("zipped", [True, False])
def test_a_tensor(tmp_path, points, zipped):
    tensor = torch.from_numpy(points).requires_grad_()
    torch.save(tensor, tmp_path / "a.pt", _use_new_zipfile_serialization=zipped)
    np.testing.assert_array_equal(read(tmp_path / "a.pt").positions, points)
    torch.save(tensor.bfloat16(), tmp_path / "a.pt")
    np.testing.assert_allclose(read(tmp_path / "a.pt").positions, points, rtol=1e-2)


def test_arrays_by_name(tmp_path, points):
    scene = {
        "coord": points,
        "color": np.arange(60, dtype=np.uint8).reshape(20, 3),
        "semantic_gt20": np.arange(20, dtype=np.int64),
        "scene_id": "scene0000_00",
    }
    torch.save(scene, tmp_path / "a.pth")
    cloud = read(tmp_path / "a.pth")
    np.testing.assert_array_equal(cloud.positions, points)
    np.testing.assert_array_equal(cloud.attributes["rgb"], scene["color"])
    np.testing.assert_array_equal(cloud.labels, np.arange(20))


def test_axes_of_their_own(tmp_path, points):
    torch.save(dict(zip("xyz", torch.from_numpy(points.T), strict=True)), tmp_path / "a.pth")
    np.testing.assert_array_equal(read(tmp_path / "a.pth").positions, points)


def test_a_tuple_of_arrays(tmp_path, points):
    content = (
        points,
        points * 0 + np.float32([-1, 0.2, 1]),
        np.arange(20.0),
        np.asfortranarray(points, ">f8"),
    )
    torch.save(content, tmp_path / "a.pth")
    cloud = read(tmp_path / "a.pth")
    np.testing.assert_array_equal(cloud.positions, points)
    assert set(cloud.attributes) == {"array_1", "array_2", "array_3"}
    np.testing.assert_array_equal(cloud.attributes["array_3"], points)
    cloud = read(tmp_path / "a.pth", columns=("coord", "color", "label", "other"))
    np.testing.assert_array_equal(cloud.attributes["rgb"], [[0, 153, 255]] * 20)
    np.testing.assert_array_equal(cloud.labels, np.arange(20))


class Ran:
    def __reduce__(self):
        return os.mkdir, ("ran",)


def test_code_is_not_run(tmp_path, monkeypatch, points):
    monkeypatch.chdir(tmp_path)
    for other, name in ((Ran(), "posix.mkdir"), (torch.nn.Linear(3, 3), "Linear")):
        torch.save({"coord": points, "other": other}, tmp_path / "a.pth")
        with pytest.raises(FileFormatError, match=f"tensors, arrays and plain values.*{name}"):
            read(tmp_path / "a.pth")
    assert not (tmp_path / "ran").exists()


def test_a_tensor_larger_than_its_storage(tmp_path):
    torch.save(torch.zeros(1, 3).expand(10**12, 3), tmp_path / "a.pth")
    with pytest.raises(FileFormatError, match="says that it holds 12000000000000 bytes"):
        read(tmp_path / "a.pth")
    torch.save(torch.zeros(5, 3).to_sparse(), tmp_path / "a.pth")
    with pytest.raises(FileFormatError, match="sparse"):
        read(tmp_path / "a.pth")


def test_rubbish(tmp_path):
    (tmp_path / "a.pth").write_bytes(bytes(range(256)) * 9)
    with pytest.raises(FileFormatError, match=r"a\.pth"):
        read(tmp_path / "a.pth")
