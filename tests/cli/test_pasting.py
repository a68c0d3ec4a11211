"""Objects of training scans are kept beside a run, and pasted into other scans."""

import dataclasses
import os
import pickle
import re
from pathlib import Path

import numpy as np
import pytest

import folders
from cli.run_results import interrupted, losses
from voxax.cli import main, pasting
from voxax.cli.pasting import KeptObjects, Pasted
from voxax.cli.scenes import MakeTask, Near
from voxax.detection import Objects, bev_overlap, points_in_boxes
from voxax.errors import InputError
from voxax.io import PointCloud
from voxax.io.annotated import AnnotatedScan
from voxax.io.dataset import dataset
from voxax.io.steps import Steps
from voxax.models.center_training import CenterTrainer

CLASSES = ("car", "person")


@dataclasses.dataclass(frozen=True)
class Made:
    """A task that makes a scan of some boxes, with points in each and around them."""

    seed: int
    number: int = 6
    columns: int = 9

    def __call__(self):
        rng = np.random.default_rng(self.seed)
        center = rng.uniform(-20, 20, (self.number, 2))
        size = rng.uniform(0.5, 3, (self.number, 3))
        rest = rng.uniform(-3, 3, (self.number, 1 + self.columns - 7))
        boxes = np.column_stack([center, np.zeros(self.number), size, rest])
        if self.columns == 9:
            boxes[:1, 7:] = np.nan  # an unknown velocity
        near = boxes[:, None, :3] + rng.uniform(-0.2, 0.2, (self.number, 20, 3))
        ground = rng.uniform((-22, -22, -0.2), (22, 22, 0.2), (3000, 3))
        positions = np.concatenate([near.reshape(-1, 3), ground]).astype(np.float32)
        count = len(positions)
        attributes = {
            "intensity": rng.random(count).astype(np.float32),
            "rgb": rng.integers(0, 256, (count, 3)).astype(np.uint8),
            "ring": np.arange(count),
        }
        names = np.array(CLASSES, object)[np.arange(self.number) % 2]
        cloud = PointCloud(positions, attributes, None, "made")
        return AnnotatedScan(cloud, Objects(boxes, names), self.seed)


def unchanged(scan, rng):
    return scan


def kept(folder, scans, attributes=("intensity", "rgb"), **settings):
    objects = KeptObjects.of(folder, scans, CLASSES, attributes, **settings)
    if not objects.is_there():
        objects.write(task() for task in objects.tasks(scans))
    return objects


@pytest.fixture
def objects(tmp_path):
    return kept(tmp_path / "objects", [Made(seed) for seed in range(8)])


@pytest.mark.parametrize("seed", range(5))
def test_boxes_never_overlap_and_hold_their_points_only(objects, seed):
    scan = Made(100 + seed)()
    paste = pickle.loads(pickle.dumps(Pasted(objects, {"car": 15, "person": 10}, unchanged)))
    new = paste(scan, np.random.default_rng(seed))
    before, boxes = scan.objects.boxes, new.objects.boxes
    added = boxes[len(before) :]
    assert len(added) >= 5
    np.testing.assert_array_equal(boxes[: len(before)], before)
    assert new.about == scan.about
    assert np.sum(new.objects.classes == "car") <= 15
    shared = bev_overlap(boxes[:, None, :7], added[None, :, :7])
    own = np.arange(len(boxes))[:, None] == np.arange(len(before), len(boxes))
    assert (shared[~own] == 0).all()
    # The scan's own points outside stay, to the last bit; inside are those of the objects.
    inside = points_in_boxes(scan.cloud.positions, added).any(axis=1)
    left = (~inside).sum()
    assert inside.any()
    np.testing.assert_array_equal(new.cloud.positions[:left], scan.cloud.positions[~inside])
    for name in ("intensity", "rgb"):
        values = new.cloud.attributes[name]
        assert values.dtype == scan.cloud.attributes[name].dtype
        np.testing.assert_array_equal(values[:left], scan.cloud.attributes[name][~inside])
    assert set(new.cloud.attributes) == {"intensity", "rgb"}
    stock = [one for own in objects.bank().objects.values() for one in own]
    membership = points_in_boxes(new.cloud.positions, added)
    for box, mine in zip(added, membership.T, strict=True):
        (source,) = [one for one in stock if np.array_equal(one.box, box, equal_nan=True)]
        np.testing.assert_array_equal(new.cloud.positions[mine], source.points[:, :3])
        np.testing.assert_array_equal(new.cloud.attributes["rgb"][mine], source.points[:, 4:])


def test_a_seed_decides_and_scans_without_objects_get_some(objects):
    paste = Pasted(objects, {"car": 4}, unchanged)
    scan = dataclasses.replace(Made(50)(), objects=Objects([], []))
    first, second = (paste(scan, np.random.default_rng(3)) for _ in range(2))
    assert 1 <= len(first.objects) <= 4
    assert first.objects.boxes.shape[1] == 9
    np.testing.assert_array_equal(first.objects.boxes, second.objects.boxes)
    np.testing.assert_array_equal(first.cloud.positions, second.cloud.positions)
    assert not np.array_equal(
        first.objects.boxes, paste(scan, np.random.default_rng(4)).objects.boxes
    )
    empty = dataclasses.replace(scan, cloud=scan.cloud.select([]))
    assert len(paste(empty, np.random.default_rng(0)).cloud) >= 15
    none = Pasted(objects, {"car": 0}, unchanged)(scan, np.random.default_rng(0))
    assert len(none.objects) == 0


def test_files_are_kept_until_scans_or_settings_change(tmp_path):
    scans, folder = [Made(seed) for seed in range(4)], tmp_path / "objects"
    kept(folder, scans)
    (folder / "own.npy").write_bytes(b"mine")
    times = {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
    assert len(times) == 3
    again = kept(folder, scans)
    assert {path.name: path.stat().st_mtime_ns for path in folder.iterdir()} == times
    keys = {again.key}
    for given, attributes, settings in (
        (scans[:3], ("rgb",), {}),
        (scans, ("rgb",), {}),
        (scans, ("rgb",), {"radius": 3}),
    ):
        other = kept(folder, given, attributes, **settings)
        assert other.key not in keys
        keys.add(other.key)
        names = {path.name for path in folder.iterdir()}
        assert names == {f"{other.key}-points.npy", f"{other.key}-boxes.npy", "own.npy"}


@pytest.mark.parametrize("part", ["points", "boxes"])
@pytest.mark.parametrize("fault", ["missing", "empty", "short", "other", "text"])
def test_broken_files_are_made_again(tmp_path, part, fault):
    scans, folder = [Made(seed) for seed in range(2)], tmp_path / "objects"
    objects = kept(folder, scans)
    path = folder / f"{objects.key}-{part}.npy"
    whole = path.read_bytes()
    if fault == "missing":
        path.unlink()
    elif fault == "other":
        np.save(path, np.zeros((3, 9)))
    else:
        path.write_bytes({"empty": b"", "short": whole[:-9], "text": b"hello" * 99}[fault])
    objects.bank.cache_clear()
    assert not objects.is_there()
    kept(folder, scans)
    assert path.read_bytes() == whole


def test_bytes_are_bounded_and_the_sample_is_even(tmp_path, monkeypatch):
    scans = [Made(seed, 40) for seed in range(20)]
    all_of = kept(tmp_path / "all", scans).bank().objects["car"]
    size = np.mean([one.points.nbytes for one in all_of])
    monkeypatch.setattr(pasting, "MOST_BYTES", 2 * 100 * size)
    some = kept(tmp_path / "some", scans)
    for own in some.bank().objects.values():
        assert sum(one.points.nbytes for one in own) <= 100 * size
        assert 30 <= len(own) <= 130
    later = kept(tmp_path / "later", scans)
    assert (tmp_path / "later" / f"{later.key}-boxes.npy").read_bytes() == (
        tmp_path / "some" / f"{some.key}-boxes.npy"
    ).read_bytes()
    everything = [one.box.tolist() for one in all_of]
    places = [
        everything.index(one.box.tolist())
        for one in some.bank().objects["car"]
        if np.isfinite(one.box).all()
    ]
    assert min(places) < 0.3 * len(everything)
    assert max(places) > 0.7 * len(everything)


def test_what_is_missing_is_said(tmp_path):
    with pytest.raises(InputError, match=r"augment.paste has car, person, but .* with 5 points"):
        kept(tmp_path / "one", [Made(0, 0)])
    assert not list((tmp_path).rglob("*.npy"))
    with pytest.raises(InputError, match="made has no attribute 'gps'"):
        kept(tmp_path, [Made(0)], ("gps",))
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be written to"):
        kept(tmp_path / "file", [Made(0)])


def test_a_later_step_takes_the_other_change():
    make = MakeTask(None, 2, 1, "early")
    steps = Steps([1, 2, 3], make, 2, 10, seed=5)
    late = dataclasses.replace(make, late="late", late_seed=steps.first_seed(4))
    taken = dataclasses.replace(steps, make=late)
    assert [task.transform for task in taken] == ["early"] * 4 + ["late"] * 6
    resumed = dataclasses.replace(taken, begin=3)
    assert [task.transform for task in resumed] == ["early"] + ["late"] * 6
    assert late([1, 2], [None, None]).transform == "early"


RUN = """
task = "detect"
out = "runs"
[data]
format = "{kind}"
folder = "{kind}"
{split}
attributes = ["intensity"]
workers = 0
[augment]
rotate = false
flip = false
paste = {paste}
paste_until = 0.75
[model]
voxel_size = 0.5
width = 0.25
region = {region}
[training]
steps = 4
batch_size = 2
checkpoint_every = 2
samples = 2
"""
LABEL = "Car 0.00 0 1.85 387.63 181.54 423.81 203.12 1.67 1.87 3.69 {} 1.7 {} 1.57\n"


def kitti(folder, rng):
    """Four frames, each with a car of its own at another place."""
    frames = [f"{i:06d}" for i in range(4)]
    split = {"train": frames[:3], "val": frames[3:]}
    for frame, x, z in zip(frames, (-6, -2, 2, 6), (12, 20, 14, 18), strict=True):
        folders.kitti_objects(folder / "kitti", rng, [frame], labels=LABEL.format(x, z))
        path = folder / "kitti" / "training" / "velodyne" / f"{frame}.bin"
        car = rng.uniform(-0.4, 0.4, (40, 3)) + np.array([z, -x, -1.0])
        rows = np.column_stack([car, rng.random(40)]).astype("<f4")
        path.write_bytes(path.read_bytes() + rows.tobytes())
    (folder / "kitti" / "ImageSets").mkdir()
    for name, own in split.items():
        (folder / "kitti" / "ImageSets" / f"{name}.txt").write_text("\n".join(own))
    path = folder / "run.toml"
    region = "[8, -8, -3, 24, 8, 1]"
    path.write_text(
        RUN.format(kind="kitti", split="", paste="{ Car = 3, Cyclist = 2 }", region=region)
    )
    return path


@pytest.mark.slow
@pytest.mark.lax_promotion  # optax promotes step counts
def test_a_resumed_run_pastes_the_same(tmp_path, rng, capsys, monkeypatch):
    path, whole, parts = kitti(tmp_path, rng), tmp_path / "whole", tmp_path / "parts"
    step, boxes = CenterTrainer.step, []

    def counted(self, voxels, labels):
        boxes.append(int((np.asarray(labels[1]) >= 0).sum()))
        return step(self, voxels, labels)

    monkeypatch.setattr(CenterTrainer, "step", counted)
    assert main(["train", str(path), "--out", str(whole)]) == 0
    assert min(boxes[:3]) >= 4  # of two scans with a car each
    assert boxes[3] == 2  # paste_until
    said = capsys.readouterr().out
    assert "cutting objects out of the training scans" in said
    assert "none with 5 points to paste: Cyclist" in said
    assert len(list((whole / "paste-objects").iterdir())) == 2
    with interrupted(CenterTrainer, 2):
        assert main(["train", str(path), "--out", str(parts)]) == 130
    assert main(["train", str(path), "--out", str(parts), "--resume"]) == 0
    assert losses(parts) == losses(whole)
    assert capsys.readouterr().out.count("cutting objects out") == 1

    plain = path.read_text().replace("paste = { Car = 3, Cyclist = 2 }", "")
    path.write_text(plain)
    assert main(["train", str(path), "--out", str(parts), "--overwrite"]) == 0
    assert losses(parts) != losses(whole)
    assert list((parts / "paste-objects").iterdir()) == []


def test_objects_of_both_layouts_are_cut_out(tmp_path, rng):
    kitti(tmp_path, rng)
    folders.nuscenes(tmp_path / "nuscenes", rng, {"scene-0001": 3, "scene-0002": 1}, 50_000)
    for kind, split, name in (
        ("kitti", (None, None), "Car"),
        ("nuscenes", (["scene-0001"], ["scene-0002"]), "car"),
    ):
        scans = dataset(kind, tmp_path / kind, *split).train
        objects = KeptObjects.of(tmp_path / "out", scans, [name], ("intensity",))
        objects.write(task() for task in objects.tasks(scans))
        stock = objects.bank().objects[name]
        assert len(stock) >= 2
        for one in stock:
            assert points_in_boxes(one.points[:, :3].astype(np.float64), one.box[None]).mean() > 0.9


def test_a_scan_or_its_labels_that_change_are_cut_again(tmp_path, rng):
    kitti(tmp_path, rng)
    folders.nuscenes(tmp_path / "nuscenes", rng, {"scene-0001": 2, "scene-0002": 1})
    folders.waymo(tmp_path / "waymo", rng, ["0000000", "1000000"])
    for kind, split, labels in (
        ("kitti", (None, None), "000000.txt"),
        ("nuscenes", (["scene-0001"], ["scene-0002"]), "sample_annotation.json"),
        ("waymo", (None, None), "0000000.txt"),
    ):
        scans = dataset(kind, tmp_path / kind, *split).train
        if kind != "nuscenes":  # its tables also list the sweeps
            unlabeled = dataclasses.replace(scans[0], labeled=False)
            folders_read = {Path(path).parent.name for path in unlabeled.files}
            assert not any(name.startswith("label") for name in folders_read)
            assert len(unlabeled().cloud)
        scans = [scans[0], *(Near(scan, 50.0) for scan in scans[1:])]

        def key(scans=scans):
            return KeptObjects.of(tmp_path, scans, ["car"], ()).key

        keys = [key(), key()]
        assert keys[0] == keys[1]
        paths = [Path(path) for scan in scans for path in scan.files]
        there = dict.fromkeys(path for path in paths if path.is_file())
        assert any(path.name == labels for path in there)
        for path in there:
            before = path.stat()
            os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
            keys.append(key())
            with path.open("ab") as file:
                file.write(b" ")
            os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
            keys.append(key())
        assert len(set(keys)) == len(keys) - 1


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("Car = 3", "Truck = 3", "augment.paste has 'Truck': the classes are 'Car', 'Pedestrian"),
        (
            "Car = 3",
            "Car = 2.5",
            "augment.paste = {'Car': 2.5, 'Cyclist': 2}: it must be a table of whole",
        ),
        (
            "Car = 3",
            "Car = -1",
            "augment.paste = {'Car': -1, 'Cyclist': 2}: it must be a table of whole",
        ),
        ("Car = 3, ", "", "augment.paste has Cyclist, but the training scans have none"),
        ("paste_until = 0.75", "paste_until = 2", "augment.paste_until = 2: it must be a number"),
    ],
)
def test_mistakes(old, new, message, tmp_path, rng, capsys):
    path = kitti(tmp_path, rng)
    path.write_text(path.read_text().replace(old, new))
    assert main(["train", str(path)]) == 2
    assert message in re.sub(r"\s+", " ", capsys.readouterr().err)
