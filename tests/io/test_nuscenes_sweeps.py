"""Several sweeps of nuScenes in the frame of the key frame, as its development kit joins them."""

import json
import os
import pickle
import subprocess
import sys

import numpy as np
import pytest

import folders
from voxax.errors import FileFormatError, InputError
from voxax.io.dataset import dataset, layout_of

SCENES = {"scene-0103": 4, "scene-0916": 2}


@pytest.fixture
def made(tmp_path, rng):
    folders.nuscenes(tmp_path, rng, SCENES, points=60)
    return folders.nuscenes_sweeps(tmp_path, rng)


def joined(folder, sweeps):
    tasks = layout_of("nuscenes", folder, sweeps=sweeps).scans(list(SCENES))
    return [task().cloud for task in tasks]


def matrix(row):
    w, x, y, z = np.asarray(row["rotation"]) / np.linalg.norm(row["rotation"])
    whole = np.eye(4)
    whole[:3, :3] = np.eye(3) + 2 * np.array(
        [
            [-y * y - z * z, x * y - w * z, x * z + w * y],
            [x * y + w * z, -x * x - z * z, y * z - w * x],
            [x * z - w * y, y * z + w * x, -x * x - y * y],
        ]
    )
    whole[:3, 3] = row["translation"]
    return whole


@pytest.mark.parametrize("sweeps", [2, 10])
def test_points_of_earlier_sweeps(made, sweeps):
    """Each point through four matrices, on its own."""
    tables = {}
    for name in ("sample_data", "ego_pose", "calibrated_sensor"):
        rows = json.loads((made / f"v1.0-mini/{name}.json").read_text())
        tables[name] = {row["token"]: row for row in rows}

    def world(row):
        mounted = tables["calibrated_sensor"][row["calibrated_sensor_token"]]
        return matrix(tables["ego_pose"][row["ego_pose_token"]]) @ matrix(mounted)

    samples = [f"{scene} sample {i}" for scene, number in SCENES.items() for i in range(number)]
    for sample, cloud in zip(samples, joined(made, sweeps), strict=True):
        key = row = tables["sample_data"][f"lidar True {sample}"]
        positions, times = [], []
        for _ in range(sweeps):
            points = np.fromfile(made / row["filename"], "<f4").reshape(-1, 5)
            points = points[~((np.abs(points[:, 0]) < 1) & (np.abs(points[:, 1]) < 1))]
            there = np.column_stack([points[:, :3], np.ones(len(points))])
            positions.append((there @ (np.linalg.inv(world(key)) @ world(row)).T)[:, :3])
            times.append(np.full(len(points), (key["timestamp"] - row["timestamp"]) / 1e6))
            if not row["prev"]:
                break
            row = tables["sample_data"][row["prev"]]
        np.testing.assert_allclose(cloud.positions, np.concatenate(positions), atol=1e-9)
        np.testing.assert_allclose(cloud.attributes["time"], np.concatenate(times), atol=1e-6)
    assert len(times) > 1


KIT = """
import sys
import numpy as np
from nuscenes import NuScenes
from nuscenes.utils.data_classes import LidarPointCloud
nusc = NuScenes(version="v1.0-mini", dataroot=sys.argv[1], verbose=False)
found = {}
for sample in nusc.sample:
    cloud, times = LidarPointCloud.from_file_multisweep(nusc, sample, "LIDAR_TOP", "LIDAR_TOP", 10)
    found[sample["token"]] = np.concatenate([cloud.points, times]).T
np.savez(sys.argv[2], **found)
"""


def test_the_development_kits_points(made, tmp_path):
    kit = os.environ.get("VOXAX_TEST_NUSCENES_DEVKIT")
    if not kit:
        pytest.skip("set VOXAX_TEST_NUSCENES_DEVKIT to folders to import nuScenes' kit from")
    folders.nuscenes_other_tables(made)
    command = [sys.executable, "-c", KIT, str(made), str(tmp_path / "found.npz")]
    environment = os.environ | {"PYTHONPATH": kit, "MPLBACKEND": "agg"}
    ran = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert ran.returncode == 0, ran.stderr
    expected = np.load(tmp_path / "found.npz")
    for task in layout_of("nuscenes", made, sweeps=10).scans(list(SCENES)):
        cloud, points = task().cloud, expected[task.token]
        assert len(cloud) == len(points) > 100
        # The kit keeps float32.
        np.testing.assert_allclose(cloud.positions, points[:, :3], atol=1e-5)
        np.testing.assert_array_equal(cloud.attributes["intensity"], points[:, 3].astype("f4"))
        np.testing.assert_allclose(cloud.attributes["time"], points[:, 4], atol=1e-6)


def test_one_sweep_is_the_key_frame_alone(made):
    for cloud in joined(made, 1):
        assert len(cloud) == 60
        assert "time" not in cloud.attributes
    task = layout_of("nuscenes", made, sweeps=3).scans(["scene-0916"])[0]
    assert "time" in pickle.loads(pickle.dumps(task))().cloud.attributes


def test_splits_are_the_official_ones(made):
    found = dataset("nuscenes", made, ["scene-0916"], ["scene-0103"], sweeps=2)
    assert [len(found.train), len(found.validation)] == [2, 4]
    layout = layout_of("nuscenes", made)
    assert layout.split("validation") == ["scene-0103", "scene-0916"]
    assert list(layout.split("train")) == list(layout.split("test")) == []
    assert layout.set_name("validation") == "mini_val"


def test_what_is_missing(made):
    with pytest.raises(InputError, match="sweeps = 101 must be from 1 to 100"):
        layout_of("nuscenes", made, sweeps=101)
    with pytest.raises(InputError, match="sweeps = 2 is for format 'nuscenes'"):
        layout_of("scannet", made, sweeps=2)
    next((made / "sweeps/LIDAR_TOP").iterdir()).unlink()
    with pytest.raises(FileFormatError, match=r"no file .*, one of the 10 sweeps of the sample"):
        layout_of("nuscenes", made, sweeps=10).scans(list(SCENES))
