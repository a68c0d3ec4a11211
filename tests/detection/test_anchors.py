"""Anchors and the boxes coded at them, against plain loops."""

import jax
import numpy as np
import pytest

from voxax import detection as vd
from voxax.errors import InputError

ANCHORS = (vd.Anchor((3.9, 1.6, 1.56), -1.78), vd.Anchor((0.8, 0.6, 1.73), -0.6, (0.0, 0.8, 1.57)))
LOW, HIGH, SHAPE = (0.0, -4.0), (12.0, 4.0), (4, 3)


def test_each_cell_has_each_anchor():
    boxes = vd.anchor_boxes(ANCHORS, LOW, HIGH, SHAPE)
    assert boxes.shape == (4, 3, 5, 7)
    for i in range(4):
        for j in range(3):
            rows = iter(boxes[i, j])
            for anchor in ANCHORS:
                for yaw in anchor.yaws:
                    center = [0 + i * 12 / 3, -4 + j * 8 / 2, anchor.bottom + anchor.size[2] / 2]
                    np.testing.assert_allclose(next(rows), [*center, *anchor.size, yaw])
    assert vd.anchor_boxes(ANCHORS, LOW, HIGH, (1, 1)).shape == (1, 1, 5, 7)


def decoded(code, anchor):
    """One box by the definition of the codes."""
    diagonal = np.hypot(anchor[3], anchor[4])
    center = [
        code[0] * diagonal + anchor[0],
        code[1] * diagonal + anchor[1],
        code[2] * anchor[5] + anchor[2],
    ]
    return [*center, *(np.exp(code[3 + k]) * anchor[3 + k] for k in range(3)), code[6] + anchor[6]]


def test_codes(rng):
    anchors = vd.anchor_boxes(ANCHORS, LOW, HIGH, SHAPE).reshape(-1, 7)
    codes = rng.normal(0, 0.4, anchors.shape)
    boxes = vd.decode_residuals(codes, anchors)
    expected = [decoded(code, anchor) for code, anchor in zip(codes, anchors, strict=True)]
    np.testing.assert_allclose(boxes, expected, atol=1e-12)
    np.testing.assert_allclose(vd.encode_residuals(boxes, anchors), codes, atol=1e-12)


@pytest.mark.parametrize("bins", [2, 3, None])
def test_the_best_boxes(bins, rng):
    anchors = vd.anchor_boxes(ANCHORS, LOW, HIGH, SHAPE)
    logits = rng.normal(0, 2, (4, 3, 5 * 2))
    codes = rng.normal(0, 0.3, (4, 3, 5 * 7))
    directions = None if bins is None else rng.normal(size=(4, 3, 5 * bins))
    logits[1, 1, 4] = np.nan

    def decode(*arrays):
        return vd.decode_anchors(*arrays, max_boxes=9, min_score=0.4, direction_offset=0.7)

    with jax.enable_x64(True):
        found = jax.device_get(jax.jit(decode)(logits, codes, directions, anchors))
    rows = []
    for i, j, a in np.ndindex(4, 3, 5):
        pair = logits[i, j, 2 * a : 2 * a + 2]
        if np.isnan(pair).any():
            continue
        box = decoded(codes[i, j, 7 * a : 7 * a + 7], anchors[i, j, a])
        if bins is not None:
            which = int(np.argmax(directions[i, j, bins * a : bins * a + bins]))
            period = 2 * np.pi / bins
            box[6] = (box[6] - 0.7) % period + 0.7 + period * which
        rows.append((1 / (1 + np.exp(-pair.max())), int(pair.argmax()), box))
    rows.sort(key=lambda row: -row[0])
    rows = [row for row in rows[:9] if row[0] >= 0.4]
    assert found.valid.sum() == len(rows) > 5
    for k, (score, name, box) in enumerate(rows):
        assert found.scores[k] == pytest.approx(score)
        assert found.classes[k] == name
        np.testing.assert_allclose(found.boxes[k], box, atol=1e-9)
    few = vd.decode_anchors(logits, codes, directions, anchors, max_boxes=200)
    assert int(few.valid.sum()) == 59


def test_kitti_anchors_are_boxes_of_cars_first():
    assert [anchor.size[0] for anchor in vd.KITTI_ANCHORS] == [3.9, 0.8, 1.76]


def test_bad_anchors(rng):
    with pytest.raises(InputError, match=r"an anchor of size \(1.0, -1.0, 1.0\)"):
        vd.Anchor((1, -1, 1), 0)
    with pytest.raises(InputError, match="0 anchors on a grid"):
        vd.anchor_boxes((), LOW, HIGH, SHAPE)
    with pytest.raises(InputError, match="a region begins below its end"):
        vd.anchor_boxes(ANCHORS, (0, 0), (-10, 5), SHAPE)
    anchors = vd.anchor_boxes(ANCHORS, LOW, HIGH, SHAPE)
    good = np.zeros((4, 3, 10)), np.zeros((4, 3, 35)), None, anchors
    with pytest.raises(InputError, match="max_boxes=0 must be at least 1"):
        vd.decode_anchors(*good, max_boxes=0)
    for place, shape, message in (
        (0, (4, 2, 10), r"logits of shape \[4, 2, 10\]"),
        (1, (4, 3, 30), "codes of 30 channels for 5 anchors: give 35"),
        (3, (4, 3, 7), r"anchors of shape \[4, 3, 7\]"),
    ):
        bad = list(good)
        bad[place] = np.zeros(shape)
        with pytest.raises(InputError, match=message):
            vd.decode_anchors(*bad, max_boxes=3)


def test_a_region():
    region = vd.Region((0, -40, -3), (70.4, 40, 1), (0.05, 0.05, 0.1))
    assert region.grid == (1408, 1600, 40)
    bev = region.bev((176, 200))
    assert (bev.low, bev.shape) == ((0, -40), (176, 200))
    np.testing.assert_allclose(bev.cell, [0.4, 0.4])
    assert vd.Region((0, 0, 0), (1, 1, 1), 0.25).grid == (4, 4, 4)
    ends = np.array([[0, -40, -3], [70.4 - 1e-6, 0, 0], [70.39, 39.99, 0.99], [-0.01, 0, 0]])
    assert region.holds(ends).tolist() == [True, False, True, False]
    # The grid has two of the two and a quarter voxels.
    part = vd.Region((0, 0, 0), (4.5, 4, 4), 2)
    assert part.holds([[3.9, 1, 1, 9], [4.2, 1, 1, 9]]).tolist() == [True, False]
    assert hash(region) == hash(vd.Region((0, -40, -3), (70.4, 40, 1), (0.05, 0.05, 0.1)))
    with pytest.raises(InputError, match="a region begins below its end"):
        vd.Region((0, 0, 0), (1, -1, 1), 0.1)
    with pytest.raises(InputError, match="sides must be positive"):
        vd.Region((0, 0, 0), (1, 1, 1), -0.1)
    with pytest.raises(InputError, match=r"more than 67108864: are all in meters"):
        vd.Region((0, 0, 0), (1e4, 1e4, 1), 0.1)
