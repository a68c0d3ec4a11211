"""Metrics against plain loops on made results; nuScenes' also against its development kit."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from detection.anchor_scenes import openpcdet
from oracle import boxes as polygons
from oracle import detection as oracle
from voxax.detection import (
    KittiObjects,
    NuscenesObjects,
    Objects,
    average_precision,
    center_distance_ap,
    kitti_aos,
    kitti_ap,
    nuscenes_score,
)
from voxax.detection.nuscenes_metric import NUSCENES_RANGES
from voxax.errors import InputError

__all__ = ["openpcdet"]  # a fixture
RECORDED = Path(__file__).parent / "nuscenes_devkit.json"


def made_boxes(rng, number):
    """True boxes, and found ones of which most lie near a true one, some double, some anywhere."""
    true = np.concatenate(
        [
            rng.uniform(-30, 30, (number, 2)),
            rng.uniform(-1, 1, (number, 1)),
            rng.uniform(1.0, 5.0, (number, 3)),
            rng.uniform(-3, 3, (number, 1)),
        ],
        axis=1,
    )
    near = true[rng.integers(0, number, 2 * number)] if number else true
    noise = rng.normal(0, 1, near.shape) * [0.3, 0.3, 0.1, 0.2, 0.1, 0.1, 0.2]
    near = near + noise * rng.choice([0.3, 1.0, 6.0], (len(near), 1))
    near[:, 3:6] = np.abs(near[:, 3:6]) + 0.05
    return true, near


def wrong_sometimes(rng, names, classes):
    return np.where(rng.random(len(names)) < 0.1, rng.choice(classes, len(names)), names)


@pytest.fixture(scope="module")
def indoor():
    rng = np.random.default_rng(3)
    truth, found = [], []
    for number in [5, 0, 8, 3, 1, 12]:
        boxes, near = made_boxes(rng, number)
        truth.append(Objects(boxes, rng.integers(0, 3, number)))
        found.append(Objects(near, rng.integers(0, 3, len(near)), rng.random(len(near)).round(2)))
    # Many of the right class.
    for true, guess in zip(truth, found, strict=True):
        if len(true):
            iou = polygons.all_pairs(polygons.bev_iou, guess.boxes, true.boxes)
            right = true.classes[iou.argmax(axis=1)]
            guess.classes[:] = np.where(np.arange(len(guess)) % 5 == 0, guess.classes, right)
    return truth, found


def as_rows(scene, **more):
    rows = []
    for i in range(len(scene)):
        row = {"box": scene.boxes[i], "class": scene.classes[i]}
        if scene.scores is not None:
            row["score"] = float(scene.scores[i])
        rows.append(row | {name: values[i] for name, values in more.items()})
    return rows


def polygon_iou(function):
    remembered = {}

    def iou(a, b):
        key = (a["box"].tobytes(), b["box"].tobytes())
        if key not in remembered:
            remembered[key] = float(function(a["box"][None], b["box"][None])[0])
        return remembered[key]

    return iou


@pytest.mark.parametrize("overlap", ["3d", "bev"])
@pytest.mark.parametrize("threshold", [0.25, 0.5])
def test_average_precision(indoor, overlap, threshold):
    truth, found = indoor
    values = average_precision(truth, found, iou_threshold=threshold, overlap=overlap)
    iou = polygon_iou(polygons.iou_3d if overlap == "3d" else polygons.bev_iou)
    rows = [[as_rows(scene) for scene in scenes] for scenes in (truth, found)]
    assert sorted(values) == [0, 1, 2]
    for name, value in values.items():
        right = oracle.voc_ap(*rows, name, threshold, iou)
        assert 0.01 < right < 0.99
        assert abs(value - right) < 1e-6


def test_average_precision_of_axis_aligned_boxes(rng):
    """ScanNet's: without turns it is the product of three overlaps."""
    boxes, near = made_boxes(rng, 20)
    boxes[:, 6] = near[:, 6] = 0

    def iou(a, b):
        a, b = a["box"], b["box"]
        sides = [
            min(a[k] + a[k + 3] / 2, b[k] + b[k + 3] / 2)
            - max(a[k] - a[k + 3] / 2, b[k] - b[k + 3] / 2)
            for k in range(3)
        ]
        shared = math.prod(max(side, 0.0) for side in sides)
        return shared / (math.prod(a[3:6]) + math.prod(b[3:6]) - shared)

    truth = [Objects(boxes, np.full(20, "chair"))]
    found = [Objects(near, np.full(40, "chair"), rng.random(40))]
    for threshold in (0.25, 0.5):
        right = oracle.voc_ap(as_rows_of(truth), as_rows_of(found), "chair", threshold, iou)
        value = average_precision(truth, found, iou_threshold=threshold)["chair"]
        assert abs(value - right) < 1e-9


def as_rows_of(scenes):
    return [as_rows(scene) for scene in scenes]


def test_classes_without_truth_and_without_results(indoor):
    truth, _ = indoor
    nothing = [Objects(np.zeros((0, 7)), [], []) for _ in truth]
    values = average_precision(truth, nothing, classes=[0, 7])
    assert values[0] == 0
    assert math.isnan(values[7])
    perfect = [Objects(t.boxes, t.classes, np.ones(len(t))) for t in truth]
    assert set(average_precision(truth, perfect).values()) == {1.0}


NAMES = list(NUSCENES_RANGES)
ATTRIBUTES = {"car": ["vehicle.moving", "vehicle.parked"], "pedestrian": ["pedestrian.moving", ""]}


def nuscenes_samples(seed, samples=12):
    """True and found samples in the frame of the vehicle."""
    rng = np.random.default_rng(seed)
    truth, found = [], []
    for _ in range(samples):
        boxes, near = made_boxes(rng, 30)
        classes = np.array(NAMES)[rng.integers(0, 10, 30)]
        order = np.linalg.norm(near[:, None, :2] - boxes[None, :, :2], axis=-1).argmin(axis=1)
        guessed = wrong_sometimes(rng, classes[order], NAMES)
        speed = rng.normal(0, 3, (30, 2))
        speed[::7] = np.nan
        near_speed = np.nan_to_num(speed[order]) + rng.normal(0, 0.5, (60, 2))
        attributes = [rng.choice(ATTRIBUTES.get(name, [""])) for name in classes]
        near_attributes = [rng.choice(ATTRIBUTES.get(name, [""])) for name in guessed]
        points = rng.integers(0, 5, 30)
        truth.append(
            NuscenesObjects(
                np.concatenate([boxes, speed], axis=1),
                classes,
                attributes=attributes,
                num_points=points,
            )
        )
        found.append(
            NuscenesObjects(
                np.concatenate([near, near_speed], axis=1),
                guessed,
                rng.random(60).round(2),
                near_attributes,
            )
        )
    return truth, found


def as_nuscenes_rows(samples):
    rows = []
    for sample in samples:
        mine = []
        for i, box in enumerate(sample.boxes):
            name = sample.classes[i]
            if math.hypot(box[0], box[1]) >= NUSCENES_RANGES[name] or sample.num_points[i] == 0:
                continue
            row = {
                "class": name,
                "center": (box[0], box[1]),
                "size": tuple(box[3:6]),
                "yaw": box[6],
                "velocity": (box[7], box[8]),
                "attribute": sample.attributes[i],
            }
            if sample.scores is not None:
                row["score"] = float(sample.scores[i])
            mine.append(row)
        rows.append(mine)
    return rows


@pytest.mark.parametrize("seed", [5, 6])
def test_nuscenes_against_loops(seed):
    truth, found = nuscenes_samples(seed)
    score = nuscenes_score(truth, found)
    rows = as_nuscenes_rows(truth), as_nuscenes_rows(found)
    total = 0.0
    for name in NAMES:
        for distance in (0.5, 1.0, 2.0, 4.0):
            right, errors = oracle.nuscenes_curve(*rows, name, distance)
            assert abs(score.class_ap[name][distance] - right) < 1e-9
            total += right / 40
            if distance != 2.0:
                continue
            for key, value in errors.items():
                mine = score.class_errors[name][key]
                if not math.isnan(mine):
                    assert abs(mine - value) < 1e-9, (name, key)
    assert abs(score.mean_ap - total) < 1e-9
    means = {
        key: np.nanmean([by[key] for by in score.class_errors.values()]) for key in score.errors
    }
    nds = (5 * total + sum(max(0.0, 1 - value) for value in means.values())) / 10
    assert abs(score.nds - nds) < 1e-9
    assert math.isnan(score.class_errors["traffic_cone"]["orientation"])


def test_nuscenes_against_its_development_kit():
    """Numbers that nuscenes-devkit 1.2 gave for the same made samples; see record_nuscenes.py."""
    recorded = json.loads(RECORDED.read_text())
    for case in recorded["cases"]:
        truth, found = nuscenes_samples(case["seed"])
        score = nuscenes_score(truth, found)
        assert abs(score.mean_ap - case["mean_ap"]) < 1e-6
        assert abs(score.nds - case["nd_score"]) < 1e-6
        for name in NAMES:
            for distance, value in case["label_aps"][name].items():
                assert abs(score.class_ap[name][float(distance)] - value) < 1e-6
            for mine, theirs in {
                "translation": "trans_err",
                "scale": "scale_err",
                "orientation": "orient_err",
                "velocity": "vel_err",
                "attribute": "attr_err",
            }.items():
                value = case["label_tp_errors"][name][theirs]
                found_error = score.class_errors[name][mine]
                if value is None:
                    assert math.isnan(found_error)
                else:
                    assert abs(found_error - value) < 1e-6, (name, mine)


def test_center_distance(indoor):
    truth, found = indoor
    rows = [
        [
            [
                row | {"center": tuple(row["box"][:2]), "yaw": 0.0, "size": (1, 1, 1)}
                | {"velocity": (0, 0), "attribute": ""}
                for row in as_rows(scene)
            ]
            for scene in scenes
        ]
        for scenes in (truth, found)
    ]  # fmt: skip
    for name in (0, 1, 2):
        right = oracle.nuscenes_ap(*rows, name, 0.5)
        assert right > 0.01
        assert abs(center_distance_ap(truth, found, name, 0.5) - right) < 1e-9
    assert center_distance_ap(truth, found, 9, 0.5) == 0


def kitti_frames(seed, frames=30):
    rng = np.random.default_rng(seed)
    known = ["Car", "Van", "Pedestrian", "Person_sitting", "Cyclist", "Misc"]
    truth, found = [], []
    for _ in range(frames):
        boxes, near = made_boxes(rng, 8)
        order = np.linalg.norm(near[:, None, :2] - boxes[None, :, :2], axis=-1).argmin(axis=1)
        names = rng.choice(known, 8, p=[0.4, 0.1, 0.2, 0.1, 0.15, 0.05])
        guessed = wrong_sometimes(rng, names[order], ["Car", "Pedestrian", "Cyclist"])
        corner = rng.uniform(0, 400, (8, 2))
        rectangles = np.concatenate([corner, corner + rng.uniform(15, 90, (8, 2))], axis=1)
        near_rectangles = rectangles[order] + rng.normal(0, 3, (len(near), 4))
        # Areas that nobody labeled, with the sizes that KITTI's files give them.
        blank = np.full((2, 7), -1.0)
        corner = rng.uniform(0, 400, (2, 2))
        areas = np.concatenate([corner, corner + 120], axis=1)
        truth.append(
            KittiObjects(
                np.concatenate([boxes, blank]),
                [*names, "DontCare", "DontCare"],
                rectangles=np.concatenate([rectangles, areas]),
                truncation=np.concatenate([rng.choice([0.0, 0.1, 0.2, 0.4], 8), [-1, -1]]),
                occlusion=np.concatenate([rng.choice([0, 0, 1, 2], 8), [-1, -1]]),
                alphas=np.concatenate([boxes[:, 6], [-10, -10]]),
            )
        )
        found.append(
            KittiObjects(
                near,
                guessed,
                rng.random(len(near)).round(2),
                rectangles=near_rectangles,
                alphas=near[:, 6] + np.pi * (np.arange(len(near)) % 3 == 0),
            )
        )
    return truth, found


def kitti_rows(*sides):
    more = ("rectangles", "truncation", "occlusion", "alphas")
    return [
        [
            as_rows(frame, **{name.removesuffix("s"): getattr(frame, name) for name in more})
            for frame in frames
        ]
        for frames in sides
    ]


@pytest.mark.parametrize("recalls", [40, 11])
@pytest.mark.parametrize("overlap", ["3d", "bev", "image"])
def test_kitti(overlap, recalls):
    truth, found = kitti_frames(8)
    rows = kitti_rows(truth, found)
    boxes = polygon_iou(polygons.iou_3d if overlap == "3d" else polygons.bev_iou)

    def iou(f, t):
        if overlap == "image":
            return oracle.rectangle_iou(f["rectangle"], t["rectangle"])
        return 0.0 if t["class"] == "DontCare" else boxes(f, t)

    needed = {"Car": 0.5, "Pedestrian": 0.3, "Cyclist": 0.3}
    values = kitti_ap(truth, found, overlap=overlap, overlaps=needed, recalls=recalls)
    for name, levels in values.items():
        for level, value in levels.items():
            right = oracle.kitti_ap(
                *rows, name, level, needed[name], iou, overlap == "image", recalls
            )
            assert 0.001 < right < 0.99
            assert abs(value - right) < 1e-6, (name, level)


@pytest.mark.parametrize("recalls", [40, 11])
def test_kitti_orientation(recalls):
    truth, found = kitti_frames(12)
    rows = kitti_rows(truth, found)

    def iou(f, t):
        return oracle.rectangle_iou(f["rectangle"], t["rectangle"])

    needed = {"Car": 0.7, "Pedestrian": 0.5, "Cyclist": 0.5}
    values = kitti_aos(truth, found, recalls=recalls)
    precisions = kitti_ap(truth, found, overlap="image", recalls=recalls)
    for name, levels in values.items():
        for level, value in levels.items():
            right = oracle.kitti_ap(
                *rows, name, level, needed[name], iou, True, recalls, oriented=True
            )
            assert abs(value - right) < 1e-6, (name, level)
            assert 0 < value < precisions[name][level]
    turned = [replace(frame, alphas=frame.alphas + np.pi) for frame in truth]
    perfect = [replace(frame, scores=np.ones(len(frame))) for frame in truth]
    exact = kitti_ap(truth, perfect, overlap="image")["Car"]["hard"]
    assert kitti_aos(truth, perfect)["Car"]["hard"] == pytest.approx(exact)
    assert kitti_aos(turned, perfect)["Car"]["hard"] == pytest.approx(0)


def test_openpcdet_has_the_same_precision_and_orientation(openpcdet):
    """Of rectangles in the image; its overlaps of boxes need CUDA."""
    truth, found = kitti_frames(13)

    def annotations(frames):
        return [
            {
                "name": np.array(frame.classes),
                "bbox": frame.rectangles,
                "alpha": frame.alphas,
                "occluded": frame.occlusion,
                "truncated": frame.truncation,
                "score": frame.scores,
            }
            for frame in frames
        ]

    needed = {"Car": 0.7, "Pedestrian": 0.5, "Cyclist": 0.5}
    theirs = openpcdet.evaluation.eval_class(
        annotations(truth),
        annotations(found),
        [0, 1, 2],
        [0, 1, 2],
        0,
        np.array([[list(needed.values())] * 3]),
        compute_aos=True,
        num_parts=5,
    )
    for recalls in (40, 11):
        mean = {40: openpcdet.evaluation.get_mAP_R40, 11: openpcdet.evaluation.get_mAP}[recalls]
        for values, key in (
            (kitti_ap(truth, found, overlap="image", recalls=recalls), "precision"),
            (kitti_aos(truth, found, recalls=recalls), "orientation"),
        ):
            mine = [[own[level] for level in LIMITS] for own in values.values()]
            np.testing.assert_allclose(np.array(mine) * 100, mean(theirs[key])[..., 0], atol=1e-6)


LIMITS = {"easy": (40, 0, 0.15), "moderate": (25, 1, 0.30), "hard": (25, 2, 0.50)}


@pytest.mark.parametrize("level", LIMITS)
@pytest.mark.parametrize("beyond", [None, "height", "occlusion", "truncation"])
def test_a_true_box_at_the_limits_of_a_level_counts(level, beyond):
    """As in KITTI's own program: `height < limit`, `occlusion > limit`, `truncation > limit`."""
    height, occlusion, truncation = LIMITS[level]
    height = np.nextafter(height, 0) if beyond == "height" else height
    occlusion += beyond == "occlusion"
    truncation = np.nextafter(truncation, 1) if beyond == "truncation" else truncation
    true = KittiObjects(
        [[0, 0, 0, 4, 2, 2, 0]],
        ["Car"],
        rectangles=[[0, 0, 50, height]],
        truncation=[truncation],
        occlusion=[occlusion],
    )
    # A false one of a higher score shows whether anything counts.
    found = KittiObjects(
        [[0, 0, 0, 4, 2, 2, 0], [20, 0, 0, 4, 2, 2, 0]],
        ["Car", "Car"],
        [0.5, 0.9],
        rectangles=[[0, 0, 50, 60], [60, 0, 99, 60]],
    )
    value = kitti_ap([true] * 40, [found] * 40)["Car"][level]
    # With 40 boxes the last recall is not reached.
    assert math.isnan(value) if beyond else abs(value - 0.5 * 39 / 40) < 1e-9


@pytest.mark.parametrize("at", [True, False])
def test_a_found_box_at_the_limit_of_height_counts(at):
    height = 40 if at else np.nextafter(40, 0)
    box = [[0, 0, 0, 4, 2, 2, 0]]
    true = KittiObjects(box, ["Car"], rectangles=[[0, 0, 50, 60]])
    small = KittiObjects(box, ["Car"], [0.5], rectangles=[[0, height, 50, 0]])  # upside down too
    assert (kitti_ap([true] * 40, [small] * 40)["Car"]["easy"] > 0.9) == at


@pytest.mark.parametrize(("needed", "right"), [(0.5, False), (np.nextafter(0.5, 0), True)])
def test_an_overlap_at_its_limit_is_too_small(needed, right):
    true = KittiObjects([[0, 0, 0, 4, 2, 2, 0]], ["Car"], rectangles=[[0, 0, 50, 60]])
    half = KittiObjects([[0, 0, 0, 4, 2, 2, 0]], ["Car"], [0.5], rectangles=[[0, 0, 25, 60]])
    values = kitti_ap([true] * 40, [half] * 40, overlap="image", overlaps={"Car": needed})
    assert (values["Car"]["easy"] > 0.9) == right


KITTI = KittiObjects(np.ones((1, 7)), ["Car"], [0.5], rectangles=np.ones((1, 4)))
NUMBERED = Objects(np.ones((1, 7)), [1], [0.5])


@pytest.mark.parametrize("scores", [None, []])
@pytest.mark.parametrize("scenes", [
    lambda scores: (kitti_ap, KittiObjects([], []), KittiObjects([], [], scores)),
    lambda scores: (nuscenes_score, NuscenesObjects([], []), NuscenesObjects([], [], scores)),
    lambda scores: (average_precision, Objects([], []), Objects(np.zeros((0, 7)), [], scores)),
])  # fmt: skip
def test_nothing_found_needs_no_scores(scenes, scores):
    metric, truth, found = scenes(scores)
    metric([truth], [found])


def test_kitti_of_perfect_results_and_of_none():
    truth, _ = kitti_frames(9, frames=20)
    perfect = [
        KittiObjects(
            np.where(t.boxes[:, 3:4] < 0, 1.0, t.boxes),
            t.classes,
            np.ones(len(t)),
            rectangles=t.rectangles,
        )
        for t in truth
    ]
    values = kitti_ap(truth, perfect)
    # The first of the 41 recalls is left out; with few boxes the last is not reached.
    assert values["Car"]["hard"] > 0.97
    empty = [KittiObjects([], [], []) for _ in truth]
    assert kitti_ap(truth, empty)["Car"]["easy"] == 0
    assert math.isnan(kitti_ap([KittiObjects([], [])], [KittiObjects([], [], [])])["Car"]["easy"])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Objects(-np.ones((2, 7)), [0, 0]), r"boxes\[0\] has length=-1"),
        (lambda: Objects(np.ones((2, 7)), [0]), r"classes of shape \[1\] for 2 boxes"),
        (lambda: Objects(np.ones((1, 7)), [0], [np.nan]), r"scores\[0\]=nan"),
        (lambda: Objects(np.ones((1, 8)), [0]), r"boxes of shape \[1, 8\]"),
        (lambda: NuscenesObjects(np.ones((1, 7)), ["car"]), r"give \[N, 9\].*velocity"),
        (lambda: KittiObjects(np.ones((1, 7)), ["Car"]), "0 rectangles for 1 boxes"),
        (
            lambda: average_precision([], [Objects([], [], [])]),
            "1 scenes were found and 0 are true",
        ),
        (
            lambda: average_precision([Objects([], [])], [Objects(np.ones((1, 7)), [0])]),
            r"found\[0\] has no scores",
        ),
        (
            lambda: average_precision([Objects(np.ones((1, 7)), ["a"]), NUMBERED], [NUMBERED] * 2),
            "classes are names in some scenes and numbers in others",
        ),
        (lambda: average_precision([], [], iou_threshold=1.0), "iou_threshold=1.0"),
        (lambda: center_distance_ap([], [], "car", 0.0), "distance=0.0 must be positive"),
        (
            lambda: nuscenes_score([Objects([], [])], [Objects([], [], [])]),
            r"truth\[0\] is Objects: give NuscenesObjects",
        ),
        (lambda: kitti_ap([], [], overlaps={"Car": 70}), r"overlaps\['Car'\]=70"),
        (lambda: kitti_ap([], [], overlap="2d"), "known: 3d, bev, image"),
        (lambda: kitti_ap([], [], recalls=41), "recalls=41 must be 40 or 11"),
        (lambda: kitti_aos([KITTI], [KITTI]), r"truth\[0\] has no alphas"),
        (
            lambda: nuscenes_score(
                [NuscenesObjects([], [])],
                [NuscenesObjects(np.ones((501, 9)), ["car"] * 501, np.ones(501))],
            ),
            r"found\[0\] has 501 boxes",
        ),
    ],
)
def test_bad_input(make, message):
    with pytest.raises(InputError, match=message):
        make()
