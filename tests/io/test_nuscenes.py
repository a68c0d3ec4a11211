"""nuScenes' boxes come into the frame of the LiDAR, as its development kit brings them there."""

import json
import pickle
from pathlib import Path

import numpy as np
import pytest

import folders
from voxax.detection import NuscenesObjects, nuscenes_score
from voxax.detection.nuscenes_metric import NUSCENES_RANGES
from voxax.errors import FileFormatError, InputError
from voxax.io.dataset import dataset

RECORDED = Path(__file__).with_name("nuscenes_boxes.json")
SCENES = {"scene-0001": 4, "scene-0002": 2, "scene-0003": 1}


@pytest.fixture
def made(tmp_path):
    return folders.nuscenes(tmp_path, np.random.default_rng(3), SCENES)


def test_boxes_are_the_development_kits(made):
    recorded = json.loads(RECORDED.read_text())["samples"]
    found = dataset("nuscenes", made, ["scene-0001", "scene-0003"], ["scene-0002"])
    samples = [*found.train[:4], *found.validation, *found.train[4:]]
    assert len(samples) == len(recorded) == 7
    for sample, expected in zip(samples, recorded, strict=True):
        objects = pickle.loads(pickle.dumps(sample))().objects
        assert objects.classes.tolist() == [row["class"] for row in expected]
        assert objects.num_points.tolist() == [row["points"] for row in expected]
        boxes = np.array([row["box"] for row in expected], np.float64)
        turns = objects.boxes[:, 6] - boxes[:, 6]
        np.testing.assert_allclose(np.cos(turns), 1, atol=1e-12)
        kept = [0, 1, 2, 3, 4, 5, 7, 8]
        np.testing.assert_allclose(objects.boxes[:, kept], boxes[:, kept], atol=1e-6)
        there = sample.vehicle.boxes(objects.boxes)
        np.testing.assert_allclose(there[:, :3], [row["vehicle"] for row in expected], atol=1e-6)


def test_samples(made):
    found = dataset("nuscenes", made / "v1.0-mini", ["scene-0001"], ["scene-0002"])
    assert set(found.class_names) == set(NUSCENES_RANGES)
    scan = found.train[0]()
    assert len(scan.cloud) == 500
    assert scan.cloud.attributes["ring"].dtype == np.int32
    assert isinstance(scan.objects, NuscenesObjects)
    assert scan.objects.classes.tolist() == ["car", "pedestrian", "barrier"]  # no animal
    assert scan.objects.attributes.tolist() == ["vehicle.parked", "", ""]
    alone = dataset("nuscenes", made, ["scene-0003"], ["scene-0002"]).train[0]
    assert np.isnan(alone.objects.boxes[:, 7:]).all()  # no neighbor in time
    truth = [scan.about.evaluated(scan.about.true)]
    sure = NuscenesObjects(
        scan.objects.boxes, scan.objects.classes, np.full(3, 0.9), scan.objects.attributes
    )
    found = scan.about.evaluated(scan.about.best_in_world(sure))
    score = nuscenes_score(truth, [found], ranges={"car": 50})
    assert score.mean_ap == pytest.approx(1)


def edit(folder, table, change):
    path = folder / "v1.0-mini" / f"{table}.json"
    rows = json.loads(path.read_text())
    change(rows)
    path.write_text(json.dumps(rows))


def test_categories_of_another_data_set_are_refused(made):
    """Its boxes would all be left out, as those of categories that nobody detects."""
    edit(made, "category", lambda rows: [row.update(name=f"own {i}") for i, row in enumerate(rows)])
    with pytest.raises(FileFormatError, match=r"category\.json has own 0, .* no category of nuSc"):
        dataset("nuscenes", made, ["scene-0001"], ["scene-0002"])


def test_what_is_broken_is_named(made):
    def read():
        return dataset("nuscenes", made, ["scene-0001"], ["scene-0002"])

    with pytest.raises(InputError, match=r"has no scene 'scene-9'; it has 3: scene-0001, scene"):
        dataset("nuscenes", made, ["scene-9"], ["scene-0002"])
    (made / "v1.0-test").mkdir()
    with pytest.raises(InputError, match=r"has v1.0-mini, v1.0-test: give one of these"):
        read()
    (made / "v1.0-test").rmdir()
    edit(made, "sample_annotation", lambda rows: rows[0]["size"].__setitem__(1, -2.0))
    with pytest.raises(FileFormatError, match=r"object 0 in .* has width, length, height \[.*-2"):
        read()
    edit(made, "sample_annotation", lambda rows: rows[0].pop("size"))
    with pytest.raises(FileFormatError, match=r"sample_annotation\.json: the row .* no field 'siz"):
        read()
    edit(made, "ego_pose", lambda rows: rows[0].update(rotation=[0, 0, 0, 0]))
    with pytest.raises(FileFormatError, match=r"ego_pose\.json: the row .* quaternion"):
        read()
    edit(made, "ego_pose", lambda rows: rows.pop(0))
    with pytest.raises(FileFormatError, match=r"ego_pose\.json has no row with the token 'ego "):
        read()
    edit(made, "sample", lambda rows: rows[1].update(next=rows[0]["token"]))
    edit(
        made, "ego_pose", lambda rows: rows.append({**rows[0], "token": "ego scene-0001 sample 0"})
    )
    edit(made, "sample_annotation", lambda rows: rows[0].update(size=[1, 1, 1]))
    with pytest.raises(FileFormatError, match="go round in a circle"):
        read()
    (made / "samples/LIDAR_TOP/scene-0001-0.pcd.bin").unlink()
    with pytest.raises(FileFormatError, match=r"no file .*scene-0001-0\.pcd\.bin"):
        read()
    (made / "v1.0-mini/scene.json").write_text("[{]")
    with pytest.raises(FileFormatError, match=r"scene\.json is no table of nuScenes"):
        read()
    (made / "v1.0-mini/scene.json").unlink()
    with pytest.raises(FileFormatError, match=r"no such file: .*scene\.json"):
        read()
