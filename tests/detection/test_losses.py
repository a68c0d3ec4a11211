"""Losses against loops in float64; padding that is NaN changes no bit."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from box_samples import random_boxes

from oracle import boxes as oracle
from voxax.detection import code_loss, gaussian_focal_loss, iou_loss
from voxax.errors import InputError


def test_focal_loss(rng):
    logits = rng.normal(0, 4, (6, 5, 3))
    targets = rng.random((6, 5, 3)) * 0.9
    targets[1, 2, 0] = targets[3, 3, 2] = 1.0
    valid = rng.random((6, 5)) < 0.7
    valid[1, 2] = valid[3, 3] = True
    total = 0.0
    for (i, j, k), z in np.ndenumerate(logits):
        if not valid[i, j]:
            continue
        p, t = 1 / (1 + math.exp(-z)), targets[i, j, k]
        total -= (1 - p) ** 2 * math.log(p) if t == 1 else (
            (1 - t) ** 4 * p**2 * math.log(1 - p)
        )  # fmt: skip
    found = gaussian_focal_loss(logits, targets, valid)
    np.testing.assert_allclose(found, total / 2, rtol=1e-5)


def test_focal_loss_of_sure_mistakes_and_of_no_center():
    logits = jnp.array([[200.0], [-200.0]])
    value, slope = jax.value_and_grad(gaussian_focal_loss)(logits, jnp.array([[0.0], [1.0]]))
    assert value == 400
    assert jnp.isfinite(slope).all()
    assert gaussian_focal_loss(-logits, jnp.zeros((2, 1))) == 200  # a sum over one, not over none


def test_codes(rng):
    codes, targets = rng.normal(size=(2, 4, 6, 10))
    mask = rng.random((4, 6)) < 0.5
    targets[0, 1, 8:] = np.nan
    mask[0, 1] = True
    right = []
    for d in range(10):
        away = [
            abs(codes[i, j, d] - targets[i, j, d])
            for i, j in np.argwhere(mask)
            if not math.isnan(targets[i, j, d])
        ]
        right.append(sum(away) / len(away))
    np.testing.assert_allclose(code_loss(codes, targets, mask), right, rtol=1e-5)
    weights = np.arange(10)
    np.testing.assert_allclose(
        code_loss(codes, targets, mask, weights), np.array(right) * weights, rtol=1e-5
    )
    assert (code_loss(codes, targets, np.zeros((4, 6), bool)) == 0).all()


@pytest.mark.parametrize("kind", ["3d", "bev", "distance"])
def test_iou(rng, kind):
    a, b = random_boxes(rng, 30), random_boxes(rng, 30)
    mask = rng.random(30) < 0.6
    right = 1 - (oracle.bev_iou if kind == "bev" else oracle.iou_3d)(a, b)
    if kind == "distance":
        for i in range(30):
            flat = np.concatenate(
                [np.array(p.exterior.coords) for p in oracle.polygons(np.stack([a[i], b[i]]))]
            )
            z = np.array([[x[2] - x[5] / 2, x[2] + x[5] / 2] for x in (a[i], b[i])])
            diagonal = np.sum(np.ptp(flat, axis=0) ** 2) + np.ptp(z) ** 2
            right[i] += np.sum((a[i, :3] - b[i, :3]) ** 2) / diagonal
    found = iou_loss(a, b, mask, kind)
    np.testing.assert_allclose(found, right[mask].mean(), rtol=1e-5)


def test_the_distance_leads_boxes_together():
    boxes = jnp.array([[0.0, 0, 0, 1, 1, 1, 0]])
    far = boxes.at[0, 0].set(9.0)
    mask = jnp.ones(1, bool)
    for kind, leads in (("3d", False), ("distance", True)):
        slope = jax.jit(jax.grad(lambda b, k=kind: iou_loss(b, far, mask, k)))(boxes)[0, 0]
        assert (slope < 0) == leads
        assert leads or slope == 0


def test_descent_finds_the_box():
    right = jnp.array([[1.0, 2.0, 0.5, 4.0, 2.0, 1.5, 0.6]])
    box = right + jnp.array([[0.8, -0.5, 0.3, 0.8, -0.4, 0.3, 0.4]])
    mask = jnp.ones(1, bool)
    slope = jax.jit(jax.grad(lambda b: iou_loss(b, right, mask, "distance")))
    for rate in np.geomspace(0.3, 0.002, 400):
        box = box - jnp.float32(rate) * slope(box)
    assert iou_loss(box, right, mask) < 0.02


def test_padding_changes_no_bit(rng):
    boxes = jnp.asarray(random_boxes(rng, 8))
    mask = jnp.arange(8) < 5
    logits = jnp.asarray(rng.normal(size=(8, 3)).astype(np.float32))
    heat = jnp.eye(8, 3)

    def all_losses(boxes, logits, others):
        return (
            gaussian_focal_loss(logits, heat, mask)
            + jnp.sum(code_loss(boxes, others, mask))
            + iou_loss(boxes, others, mask, "distance")
        )

    program = jax.jit(jax.value_and_grad(all_losses, (0, 1, 2)))
    others = boxes * 1.1
    poison = [jnp.where(mask[:, None], x, jnp.nan) for x in (boxes, logits, others)]
    clean, dirty = program(boxes, logits, others), program(*poison)
    jax.tree.map(np.testing.assert_array_equal, clean, dirty)
    assert all(bool((slope[5:] == 0).all()) for slope in dirty[1])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: gaussian_focal_loss(np.zeros((2, 3)), np.zeros((2, 2))), r"targets of shape"),
        (lambda: gaussian_focal_loss(np.zeros((2, 3)), np.zeros((2, 3)), [True]), r"give \[2\]"),
        (lambda: code_loss(np.zeros((2, 8)), np.zeros((2, 8)), np.ones(3, bool)), r"give \[2\]"),
        (
            lambda: code_loss(np.zeros((2, 8)), np.zeros((2, 8)), np.ones(2, bool), np.ones(3)),
            r"weights of shape \[3\] for 8 columns",
        ),
        (lambda: iou_loss(-np.ones((1, 7)), np.ones((1, 7)), [True]), r"boxes\[0\] has length"),
        (lambda: iou_loss(np.ones((1, 7)), np.ones((1, 7)), [True], "giou"), "known: 3d, bev"),
        (lambda: iou_loss(np.ones((3, 7)), np.ones((3, 7)), np.ones(4, bool)), r"give \[3\]"),
        (lambda: iou_loss(np.ones((3, 7)), np.ones((4, 7)), np.ones(3, bool)), "targets of shape"),
    ],
)
def test_bad_input(make, message):
    with pytest.raises(InputError, match=message):
        make()
