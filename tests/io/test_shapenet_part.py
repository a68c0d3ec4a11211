"""ShapeNet's parts as they are published."""

import pickle

import numpy as np
import pytest

import folders
from voxax.errors import FileFormatError
from voxax.io.dataset import dataset, layout_of, recognized


@pytest.fixture
def made(tmp_path, rng):
    return folders.shapenet_part(tmp_path, rng)


def test_parts(made):
    assert recognized(made) == "shapenet_part"
    found = dataset("shapenet_part", made, None, None)
    assert len(found.class_names) == 50
    assert found.class_names[47:] == ("table 0", "table 1", "table 2")
    assert [len(found.train), len(found.validation)] == [2, 1]
    cloud = pickle.loads(pickle.dumps(found.train[1]))()
    rows = np.loadtxt(made / "04379243/b.txt")
    np.testing.assert_allclose(cloud.positions, rows[:, :3])
    np.testing.assert_allclose(cloud.attributes["normals"], rows[:, 3:6], rtol=1e-6)
    np.testing.assert_array_equal(cloud.labels, rows[:, 6])
    (bare,) = layout_of("shapenet_part", made).scans(["04379243/d"], labeled=False)
    assert bare().labels is None


def test_broken(made):
    layout = layout_of("shapenet_part", made)
    with pytest.raises(FileFormatError, match=r"cloud '1/x' has no file"):
        layout.scans(["1/x"])
    (scan,) = layout.scans(["04379243/a"])
    np.savetxt(made / "04379243/a.txt", np.full((4, 7), 50.0))
    with pytest.raises(FileFormatError, match=r"must be a part from 0 to 49"):
        scan()
    (made / "train_test_split/shuffled_val_file_list.json").write_text("3")
    with pytest.raises(FileFormatError, match="is no list of names in JSON"):
        layout.split("validation")
