"""Folders of clouds with a class each."""

import pickle

import numpy as np
import pytest

import folders
from voxax.errors import FileFormatError, InputError
from voxax.io.dataset import dataset


def test_meshes_in_folders(tmp_path, rng):
    folders.modelnet(tmp_path, rng)
    found = dataset("modelnet", tmp_path, None, None)
    assert found.class_names == ("flat", "tall")
    assert [len(found.train), len(found.validation)] == [4, 2]
    cloud = pickle.loads(pickle.dumps(found.train[-1]))()
    assert str(found.train[-1]).endswith("tall/train/tall_0002.off")
    assert len(cloud) == 10_000
    assert set(cloud.labels.tolist()) == {1}
    assert np.linalg.norm(cloud.positions, axis=1).max() == pytest.approx(1)
    assert np.abs(cloud.positions).max(0).argmax() == 2  # on the surface of a tall box
    np.testing.assert_allclose(cloud.positions.mean(0), 0, atol=1e-9)


def test_the_resampled_clouds_in_text(tmp_path, rng):
    """Six numbers a row with commas between, and lists of names, of 10 and of 40 classes."""
    for name in ("night_stand", "tv"):
        (tmp_path / name).mkdir()
        for index in (1, 2):
            normals = rng.normal(size=(50, 3))
            normals /= np.linalg.norm(normals, axis=1, keepdims=True)
            rows = np.column_stack([rng.uniform(-1, 1, (50, 3)), normals])
            np.savetxt(tmp_path / name / f"{name}_{index:04d}.txt", rows, "%.6f", delimiter=",")
    (tmp_path / "modelnet10_shape_names.txt").write_text("tv\n")
    (tmp_path / "modelnet40_shape_names.txt").write_text("tv\nnight_stand\n")
    (tmp_path / "modelnet10_train.txt").write_text("tv_0001\n")
    (tmp_path / "modelnet40_train.txt").write_text("night_stand_0001\ntv_0001\n")
    (tmp_path / "modelnet40_test.txt").write_text("tv_0002\n")
    found = dataset("modelnet", tmp_path, None, None)
    assert found.class_names == ("tv", "night_stand")
    assert [scan.label for scan in found.train] == [1, 0]
    cloud = found.train[0]()
    assert set(cloud.labels.tolist()) == {1}
    assert cloud.attributes["normals"].shape == (50, 3)
    chosen = dataset("modelnet", tmp_path, ["tv_0001"], ["night_stand_0002", "tv_0002"])
    assert [scan.label for scan in chosen.validation] == [1, 0]
    with pytest.raises(InputError, match="'sofa_0001' begins with none of the 2 classes"):
        dataset("modelnet", tmp_path, ["sofa_0001"], None)
    with pytest.raises(FileFormatError, match="has no file tv_0007"):
        dataset("modelnet", tmp_path, ["tv_0007"], None)


def test_hdf5(tmp_path, rng):
    found = dataset("modelnet", folders.modelnet_hdf5(tmp_path, rng), None, None)
    assert found.class_names == ("airplane", "bathtub")
    assert [scan.label for scan in found.train] == [0, 1, 1]
    assert str(found.train[2]).endswith("ply_data_train0.h5[2]")
    clouds = [scan() for scan in found.train]
    assert [len(cloud) for cloud in clouds] == [40] * 3
    assert [cloud.labels[0] for cloud in clouds] == [0, 1, 1]
    assert not np.array_equal(clouds[1].positions, clouds[2].positions)


def test_broken_hdf5(tmp_path, rng):
    folders.modelnet_hdf5(tmp_path, rng, labels=(0, 7))
    with pytest.raises(FileFormatError, match="cloud 1 has the label 7, outside the 2 classes"):
        dataset("modelnet", tmp_path, None, None)
    folders.modelnet_hdf5(tmp_path, rng, label=np.zeros(5, np.uint8))
    with pytest.raises(FileFormatError, match=r"has 3 clouds, and label of shape \(5,\)"):
        dataset("modelnet", tmp_path, None, None)
    folders.modelnet_hdf5(tmp_path, rng, data=np.zeros((3, 40)))
    with pytest.raises(FileFormatError, match=r"data of shape \(3, 40\)"):
        dataset("modelnet", tmp_path, None, None)
    path = tmp_path / "ply_data_train0.h5"
    path.write_bytes(path.read_bytes()[:900])
    with pytest.raises(FileFormatError, match=r"cannot read .*ply_data_train0\.h5 as HDF5"):
        dataset("modelnet", tmp_path, None, None)
    path.unlink()
    with pytest.raises(FileFormatError, match=r"train_files\.txt:1: no file .*train0\.h5"):
        dataset("modelnet", tmp_path, None, None)


def test_broken_folders(tmp_path, rng):
    with pytest.raises(FileFormatError, match="has no folders of classes"):
        dataset("modelnet", tmp_path, None, None)
    folders.modelnet(tmp_path, rng)
    path = tmp_path / "flat/train/flat_0001.off"
    path.write_text(path.read_text().replace("OFF8 6", "OFF8 60000000"))
    scan = dataset("modelnet", tmp_path, None, None).train[0]
    with pytest.raises(FileFormatError, match=r"flat_0001\.off is cut short: .* 60000000 faces"):
        scan()
    (tmp_path / "sofa/test").mkdir(parents=True)
    with pytest.raises(FileFormatError, match=r"class 'sofa' has no clouds in .*sofa/train"):
        dataset("modelnet", tmp_path, None, None)
