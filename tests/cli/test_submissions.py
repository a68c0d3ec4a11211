"""Files for benchmarks: their own programs take them, and give the scores of ``voxax evaluate``.

The programs are read from where variables of the environment say, and stay as they were published:
``VOXAX_TEST_SEMANTIC_KITTI_API`` and ``VOXAX_TEST_SCANNET`` name clones,
``VOXAX_TEST_NUSCENES_DEVKIT`` the folders to import the kit and what it needs from, as in
``PYTHONPATH``, and ``VOXAX_TEST_KITTI_EVALUATION`` the program built of
``evaluate_object_3d_offline.cpp``. ScanNet's program is for Python 2, which
``VOXAX_TEST_PYTHON2`` names, with NumPy.
"""

import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

import folders
from cli.made_checkpoints import detector, segmenter
from cli.small_network import small
from voxax.cli import main
from voxax.cli.apply import Trained
from voxax.cli.segmentation_task import Segmentation
from voxax.detection import Objects
from voxax.io import read, read_labels
from voxax.io.dataset import layout_of
from voxax.io.kitti_objects import KITTI_CLASSES, read_calibration, read_kitti_objects
from voxax.io.nuscenes import LIDARSEG_CLASSES, NUSCENES_CLASSES
from voxax.io.scannet import SCANNET_CLASS_NAMES, SCANNET_CLASSES
from voxax.io.semantic_kitti import SEMANTIC_KITTI_CLASS_NAMES, to_common_classes
from voxax.io.submission import SEMANTIC_KITTI_IDS


def judge(variable):
    """What a variable names, or skip."""
    place = os.environ.get(variable)
    if not place:
        pytest.skip(f"set {variable} to run the benchmark's own program")
    return place


def run(*command, **options):
    ran = subprocess.run(command, capture_output=True, text=True, **options)
    assert ran.returncode == 0, ran.stdout[-3000:] + ran.stderr[-3000:]
    return ran.stdout


def guess(positions, classes):
    """A class for each point, right for most of what :func:`truth` makes."""
    moved = positions[:, 0] + 0.3 * np.sin(7 * positions[:, 1])
    return (np.floor(moved).astype(int) % classes).astype(np.int32)


def truth(positions, classes):
    """A class for each point; there are all."""
    return np.floor(positions[:, 0]).astype(int) % classes


@pytest.fixture
def guesses(monkeypatch):
    """Every network that segments gives :func:`guess`."""

    def logits(self, cloud):
        classes = len(self.class_names)
        return np.eye(classes, dtype=np.float32)[guess(cloud.positions, classes)]

    monkeypatch.setattr(Segmentation, "model", small)
    monkeypatch.setattr(Trained, "logits", logits)
    monkeypatch.setattr(
        Trained, "predict", lambda self, c: (c.labels, logits(self, c).argmax(-1).astype(np.int32))
    )


def evaluated(checkpoint, folder, out, *more):
    command = ["evaluate", str(checkpoint), str(folder), "--out", str(out / "scores"), *more]
    assert main([*command, "--workers", "0"]) == 0
    return json.loads((out / "scores/metrics.json").read_text())


def submitted(checkpoint, folder, out, command, *more):
    own = [command, str(folder), "--checkpoint", str(checkpoint), "--out", str(out / "files")]
    assert main([*own, *more, "--workers", "0"]) == 0
    return out / "files"


# One point of each sweep was not measured.
def sweeps(folder, rng, names, points=600):
    for name in names:
        own = folder / "sequences" / name
        for part in ("velodyne", "labels"):
            (own / part).mkdir(parents=True)
        for index in range(2):
            rows = rng.uniform(-30, 30, (points, 4)).astype("<f4")
            ids = SEMANTIC_KITTI_IDS[truth(rows, 19)]
            ids[rng.random(points) < 0.05] = 0  # unlabeled
            ids[ids == 10] = rng.choice([10, 252], (ids == 10).sum())  # moving cars are cars
            rows[7, 0], ids[7] = np.nan, 0
            rows.tofile(own / "velodyne" / f"{index:06d}.bin")
            (ids | rng.integers(0, 9, points) << 16).astype("<u4").tofile(
                own / "labels" / f"{index:06d}.label"
            )
    return folder


@pytest.fixture
def semantic_kitti(tmp_path, rng, guesses):
    """Folder, checkpoint, files of both splits and scores."""
    names = ["08", *(str(n) for n in range(11, 22))]
    folder = sweeps(tmp_path / "kitti", rng, names)
    checkpoint = segmenter(tmp_path / "checkpoint", SEMANTIC_KITTI_CLASS_NAMES)
    test = submitted(checkpoint, folder, tmp_path / "test", "segment")
    files = submitted(checkpoint, folder, tmp_path, "segment", "--split", "validation")
    return folder, test, files, evaluated(checkpoint, folder, tmp_path)


def test_semantic_kitti(semantic_kitti):
    folder, test, files, scores = semantic_kitti
    label = "sequences/13/predictions/000001.label"
    found = to_common_classes(read_labels(test / label))
    cloud = read(folder / "sequences/13/velodyne/000001.bin", columns=4)
    np.testing.assert_array_equal(np.delete(found, 7), guess(cloud.positions, 19))
    assert found[7] == -1
    with zipfile.ZipFile(test / "submission.zip") as archive:
        assert {label, "sequences/", "sequences/21/predictions/"} <= set(archive.namelist())
    assert len(list(files.glob("sequences/*/predictions/*"))) == 2
    assert 0.3 < scores["val_miou"] < 0.9


def test_semantic_kitti_api(semantic_kitti):
    clone = Path(judge("VOXAX_TEST_SEMANTIC_KITTI_API"))
    folder, test, files, scores = semantic_kitti
    said = run(sys.executable, clone / "validate_submission.py", test / "submission.zip", folder)
    assert "Everything ready for submission!" in said
    options = ["--dataset", folder, "--predictions", files, "--split", "valid"]
    options += ["--datacfg", clone / "config/semantic-kitti.yaml", "--backend", "numpy"]
    said = run(sys.executable, clone / "evaluate_semantics.py", *options, cwd=clone)
    assert f"IoU avg {scores['val_miou']:.3f}\n" in said
    assert f"Acc avg {scores['val_accuracy']:.3f}\n" in said
    classes = dict(re.findall(r"IoU class \d+ \[([\w-]+)\] = ([\d.]+)", said))
    assert classes == {name: f"{iou:.3f}" for name, iou in scores["val_iou"].items()}


@pytest.fixture
def scannet(tmp_path, rng, guesses):
    folder = tmp_path / "scannet"
    for name in ("scene0000_00", "scene0001_00"):
        own = folder / "scans" / name
        own.mkdir(parents=True)
        positions = rng.uniform(0, 40, (900, 3)).astype("f4")
        ids = np.asarray(tuple(SCANNET_CLASSES))[truth(positions, 20)]
        ids[::9] = 13  # a class that does not count
        folders.mesh(own / f"{name}_vh_clean_2.ply", positions)
        folders.mesh(own / f"{name}_vh_clean_2.labels.ply", positions, label=ids.astype("u2"))
    checkpoint = segmenter(tmp_path / "checkpoint", SCANNET_CLASS_NAMES)
    names = ["--split", "scene0000_00,scene0001_00"]
    files = submitted(checkpoint, folder, tmp_path, "segment", *names)
    return folder, files, evaluated(checkpoint, folder, tmp_path, *names)


def test_scannet(scannet):
    folder, files, _ = scannet
    found = np.loadtxt(files / "scene0001_00.txt", dtype=int)
    (scan,) = layout_of("scannet", folder).scans(["scene0001_00"], labeled=False)
    expected = np.asarray(tuple(SCANNET_CLASSES))[guess(scan().positions, 20)]
    np.testing.assert_array_equal(found, expected)


def test_scannet_evaluation(scannet, tmp_path):
    clone, python = Path(judge("VOXAX_TEST_SCANNET")), judge("VOXAX_TEST_PYTHON2")
    folder, files, scores = scannet
    (tmp_path / "gt").mkdir()
    for scan in layout_of("scannet", folder).scans(["scene0000_00", "scene0001_00"]):
        labels = scan().labels
        ids = np.where(labels < 0, 0, np.asarray(tuple(SCANNET_CLASSES))[labels])
        np.savetxt(tmp_path / "gt" / f"{Path(scan.mesh).parent.name}.txt", ids, fmt="%d")
    program = clone / "BenchmarkScripts/3d_evaluation/evaluate_semantic_label.py"
    places = ["--pred_path", files, "--gt_path", tmp_path / "gt"]
    said = run(*python.split(), program, *places, "--output_file", tmp_path / "scores.txt")
    found = re.findall(r"^([a-z ]+?) *: +([\d.]+) +\(", said, re.MULTILINE)
    expected = [f"{iou:.3f}" for iou in scores["val_iou"].values()]
    assert [iou for _, iou in found] == expected


@pytest.fixture
def lidarseg_files(tmp_path, rng, guesses):
    folder = folders.nuscenes(
        tmp_path / "nuscenes", rng, {"scene-0103": 2, "scene-0916": 1, "scene-0061": 1}
    )
    folders.lidarseg(folder, lambda points: truth(points, 16))
    checkpoint = segmenter(tmp_path / "checkpoint", LIDARSEG_CLASSES)
    kind = ["--format", "nuscenes_lidarseg", "--split", "validation"]
    files = submitted(checkpoint, folder, tmp_path, "segment", *kind)
    return folder, files, evaluated(checkpoint, folder, tmp_path, *kind)


def test_lidarseg(lidarseg_files):
    folder, files, scores = lidarseg_files
    (path,) = files.glob("lidarseg/mini_val/*scene-0916*")
    points = np.fromfile(folder / "samples/LIDAR_TOP/scene-0916-0.pcd.bin", "<f4").reshape(-1, 5)
    found = np.fromfile(path, np.uint8)
    np.testing.assert_array_equal(found, guess(points[:, :3].astype(float), 16) + 1)
    assert set(json.loads((files / "mini_val/submission.json").read_text())) == {"meta"}
    assert scores["scans"] == 3
    assert scores["val_points"] == 3 * 500 - 3 * 46


KIT = """
import json, sys
from nuscenes import NuScenes
nusc = NuScenes(version="v1.0-mini", dataroot=sys.argv[1], verbose=False)
if sys.argv[3] == "lidarseg":
    from nuscenes.eval.lidarseg.evaluate import LidarSegEval
    from nuscenes.eval.lidarseg.validate_submission import validate_submission
    validate_submission(nusc, sys.argv[2], "mini_val")
    found = LidarSegEval(nusc, sys.argv[2], "mini_val").evaluate()
else:
    from nuscenes.eval.common.config import config_factory
    from nuscenes.eval.detection.evaluate import DetectionEval
    judge = DetectionEval(nusc, config_factory("detection_cvpr_2019"), sys.argv[2], "mini_val",
                          sys.argv[2] + ".scores", verbose=False)
    found = judge.evaluate()[0].serialize()
print("\\n" + json.dumps(found))
"""


def devkit(folder, files, kind):
    place = judge("VOXAX_TEST_NUSCENES_DEVKIT")
    environment = os.environ | {"PYTHONPATH": place, "MPLBACKEND": "agg"}
    said = run(sys.executable, "-c", KIT, str(folder), str(files), kind, env=environment)
    return json.loads(said.splitlines()[-1])


def test_lidarseg_devkit(lidarseg_files):
    folder, files, scores = lidarseg_files
    found = devkit(folders.nuscenes_other_tables(folder), files, "lidarseg")
    assert found["miou"] == pytest.approx(scores["val_miou"], abs=1e-6)
    for name, iou in scores["val_iou"].items():
        assert found["iou_per_class"][name] == pytest.approx(iou, abs=1e-6)


def moved(objects, rng):
    """Boxes as a detector finds them: shifted, some missing, some too many, of ascending scores."""
    kept = rng.random(len(objects)) < 0.8
    boxes = np.nan_to_num(objects.boxes[kept])
    boxes = np.concatenate([boxes, boxes[:1]])
    boxes[:, :2] += rng.normal(0, 0.15, (len(boxes), 2))
    boxes[:, 3:6] *= rng.uniform(0.95, 1.05, (len(boxes), 3))
    boxes[:, 6] += rng.normal(0, 0.1, len(boxes))
    classes = np.concatenate([objects.classes[kept], objects.classes[kept][:1]])
    return Objects(boxes, classes, rng.random(len(boxes)))


@pytest.fixture
def detects(monkeypatch):
    """Every detector finds what was noted for a scan's first point."""
    noted = {}

    def predict(self, scan):
        return scan, noted[tuple(scan.cloud.positions[0])]

    monkeypatch.setattr(Trained, "predict", predict)
    monkeypatch.setattr("voxax.cli.detect._above", lambda objects, score: objects)
    return noted


@pytest.fixture
def kitti(tmp_path, rng, detects):
    frames = [f"{i:06d}" for i in range(12)]
    folder = tmp_path / "kitti"
    for frame in frames:
        lines = []
        for i, name in enumerate(rng.choice([*KITTI_CLASSES, "Van", "DontCare"], 9)):
            x, z, yaw = -8 + 2.2 * i + rng.normal(0, 0.1), rng.uniform(10, 30), rng.uniform(-3, 3)
            size = {"Car": (1.5, 1.7, 4.2), "Van": (2.1, 1.9, 5.0)}.get(name, (1.7, 0.6, 0.9))
            height = rng.uniform(30, 90)
            box = f"{100 + 100 * i} 150 {160 + 100 * i} {150 + height:.2f}"
            where = f"{' '.join(map(str, size))} {x:.2f} 1.65 {z:.2f} {yaw:.2f}"
            if name == "DontCare":
                where = "-1 -1 -1 -1000 -1000 -1000 -10"
            lines.append(f"{name} 0.00 {rng.integers(0, 3)} 0 {box} {where}\n")
        folders.kitti_objects(folder, rng, [frame], labels="".join(lines))
    folders.kitti_objects(folder, rng, [], split={"train": ["x"], "val": frames, "test": frames})
    for scan in layout_of("kitti", folder).scans(frames):
        read_scan = scan()
        real = read_scan.objects.classes != "DontCare"
        own = Objects(read_scan.objects.boxes[real], read_scan.objects.classes[real])
        detects[tuple(read_scan.cloud.positions[0])] = moved(own, rng)
    checkpoint = detector(
        tmp_path / "checkpoint", KITTI_CLASSES, "kitti", (0.0, -40.0, -3.0, 64.0, 40.0, 1.0)
    )
    files = submitted(checkpoint, folder, tmp_path, "detect", "--split", "validation")
    return folder, files, evaluated(checkpoint, folder, tmp_path), detects


def test_kitti(kitti):
    folder, files, _, noted = kitti
    calibration = read_calibration(folder / "training/calib/000003.txt")
    found = read_kitti_objects(files / "data/000003.txt", calibration)
    (scan,) = layout_of("kitti", folder).scans(["000003"])
    expected = noted[tuple(scan().cloud.positions[0])]
    seen = calibration.in_image(expected.boxes[:, :3])
    assert found.classes.tolist() == expected.classes[seen].tolist()
    np.testing.assert_allclose(found.boxes[:, :6], expected.boxes[seen, :6], atol=2e-6)
    np.testing.assert_allclose(np.cos(found.boxes[:, 6] - expected.boxes[seen, 6]), 1, atol=1e-6)
    np.testing.assert_allclose(found.scores, expected.scores[seen], atol=1e-6)
    with zipfile.ZipFile(files / "submission.zip") as archive:
        assert "000003.txt" in archive.namelist()


def test_kitti_evaluation(kitti):
    program = judge("VOXAX_TEST_KITTI_EVALUATION")
    folder, files, scores, _ = kitti
    ran = subprocess.run(
        [program, str(folder / "training/label_2"), str(files)], capture_output=True, text=True
    )
    found = {
        name: [float(v) for v in values.split()]
        for name, values in re.findall(r"^(\w+) : ([\d. ]+)$", ran.stdout, re.MULTILINE)
    }
    for part, key in (("3D", "val_ap_3d"), ("BEV", "val_ap_bev")):
        for name in KITTI_CLASSES:
            expected = [100 * v for v in scores[key][name].values()]
            assert max(expected) > 1
            official = found[f"{name.lower()}_detection_{part}_AP"]
            np.testing.assert_allclose(official, expected, atol=2e-4)


@pytest.fixture
def nuscenes(tmp_path, rng, detects):
    scenes = {"scene-0103": 8, "scene-0916": 5, "scene-0061": 1}
    folder = folders.nuscenes(tmp_path / "nuscenes", rng, scenes, points=50)
    tables = folder / "v1.0-mini"
    rows = json.loads((tables / "category.json").read_text())
    rows[0]["name"], rows[3]["name"] = "vehicle.bicycle", "static_object.bicycle_rack"
    (tables / "category.json").write_text(json.dumps(rows))
    boxes = json.loads((tables / "sample_annotation.json").read_text())
    for row in boxes:  # every second bicycle is in the rack
        row["num_lidar_pts"] = 3
        if "object 3" in row["token"]:
            row["size"] = [3.0, 3.0, 4.0]
        if "object 0" in row["token"] and "sample 1" in row["token"]:
            rack = next(r for r in boxes if r["token"] == row["token"].replace("ct 0", "ct 3"))
            row["translation"] = rack["translation"]
    (tables / "sample_annotation.json").write_text(json.dumps(boxes))
    for scan in layout_of("nuscenes", folder).scans(["scene-0103", "scene-0916"]):
        detects[tuple(scan().cloud.positions[0])] = moved(scan.objects, rng)
    checkpoint = detector(
        tmp_path / "checkpoint", NUSCENES_CLASSES, "nuscenes", (-32.0, -32, -5, 32, 32, 3)
    )
    split = ["--split", "validation"]
    files = submitted(checkpoint, folder, tmp_path, "detect", *split)
    return folder, files / "results_nusc.json", evaluated(checkpoint, folder, tmp_path, *split)


def test_nuscenes(nuscenes):
    folder, path, scores = nuscenes
    said = json.loads(path.read_text())
    assert len(said["results"]) == scores["val_samples"] == 13
    assert said["meta"]["use_lidar"]
    # The file's boxes are those of the tables but for their noise.
    truth = json.loads((folder / "v1.0-mini/sample_annotation.json").read_text())
    for token, rows in said["results"].items():
        centers = np.array([r["translation"] for r in truth if r["sample_token"] == token])
        for row in rows:
            away = np.linalg.norm(centers - row["translation"], axis=1)
            assert away.min() < 1


def test_nuscenes_devkit(nuscenes):
    folder, path, scores = nuscenes
    tables = folders.nuscenes_other_tables(folder) / "v1.0-mini"
    found = devkit(folder, path, "detection")
    assert tables.is_dir()
    assert found["nd_score"] == pytest.approx(scores["val_nds"], abs=1e-6)
    assert found["mean_ap"] == pytest.approx(scores["val_map"], abs=1e-6)
    assert found["mean_ap"] > 0.05
    names = {"translation": "trans_err", "scale": "scale_err", "orientation": "orient_err"}
    names |= {"velocity": "vel_err", "attribute": "attr_err"}
    for own, name in names.items():
        assert found["tp_errors"][name] == pytest.approx(scores["val_errors"][own], abs=1e-6)


def test_mistakes(tmp_path, rng, capsys, guesses):
    folder = sweeps(tmp_path / "kitti", rng, ["08"], points=20)
    checkpoint = segmenter(tmp_path / "checkpoint", SCANNET_CLASS_NAMES)
    usual = ["--checkpoint", str(checkpoint), "--out", str(tmp_path / "out"), "--workers", "0"]
    for words, message in (
        ([folder, "--split", "08"], "the network has the 20 classes wall,"),
        ([folder], "has no sequence '11'"),
        ([folder, "--columns", "4"], "fixes them; leave it out"),
        ([folder, "--scale", "2"], "are for one scan"),
        ([folder, "--format", "scans"], "format 'scans' is unknown"),
    ):
        assert main(["segment", *map(str, words), *usual]) == 2
        said = capsys.readouterr().err
        assert message in said, said
        assert said.count("\n") == 1


def test_a_folder_without_a_layout(tmp_path, rng, guesses):
    for name in ("a.npz", "b.ply"):
        folders.labeled(tmp_path / "scans", rng, [name], points=40)
    checkpoint = segmenter(tmp_path / "checkpoint", SCANNET_CLASS_NAMES)
    files = submitted(checkpoint, tmp_path / "scans", tmp_path, "segment")
    assert sorted(p.name for p in files.iterdir()) == ["a_npz_labeled.ply", "b_ply_labeled.ply"]
    cloud = read(files / "a_npz_labeled.ply")
    np.testing.assert_array_equal(cloud.labels, guess(cloud.positions, 20))
