"""Targets and losses at anchors, against NumPy and against OpenPCDet's own code."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

from detection.anchor_scenes import (
    BINS,
    NAMES,
    REGION,
    SHAPE,
    openpcdet,
    openpcdet_config,
    predictions,
    scene,
)
from oracle import anchors as oracle
from voxax import detection as vd
from voxax.errors import InputError

__all__ = ["openpcdet"]  # a fixture
SEEDS = range(20)
ANCHORS = vd.KITTI_ANCHORS
WEIGHTS = 1.0, 2.0, 0.2


@functools.cache
def places():
    return vd.anchor_boxes(ANCHORS, REGION[:2], REGION[3:5], SHAPE).astype(np.float32)


assign = jax.jit(functools.partial(vd.anchor_targets, anchors=ANCHORS))


@jax.jit
def losses_of(tables, targets):
    return vd.anchor_losses(*tables, targets)


@pytest.mark.parametrize("seed", SEEDS)
def test_targets(seed):
    boxes, classes = scene(seed)
    found = assign(boxes, classes, places())
    flat = places().reshape(-1, 7)
    kinds, codes, directions = oracle.targets(
        boxes, classes, flat, ANCHORS, BINS, vd.anchors.DIRECTION_OFFSET
    )
    np.testing.assert_array_equal(np.asarray(found.classes).reshape(-1), kinds)
    np.testing.assert_allclose(np.asarray(found.codes).reshape(-1, 7), codes, atol=1e-5)
    np.testing.assert_array_equal(np.asarray(found.directions).reshape(-1), directions)
    if (classes >= 0).any():  # each has an anchor, however small it is
        assert (kinds >= 0).sum() >= (classes >= 0).sum() / 2


@pytest.mark.parametrize("seed", [0, 3, 4])
def test_losses(seed):
    boxes, classes = scene(seed)
    tables = predictions(seed)
    targets = assign(boxes, classes, places())
    wanted = [np.asarray(part) for part in targets]

    def flat(table):
        return table.reshape(-1).astype(int)

    rows = (
        tables[0].reshape(-1, len(NAMES)),
        tables[1].reshape(-1, 7),
        tables[2].reshape(-1, BINS),
    )
    right = oracle.losses(
        *(table.astype(np.float64) for table in rows),
        (
            wanted[0].reshape(-1).astype(int),
            wanted[1].reshape(-1, 7),
            wanted[2].reshape(-1).astype(int),
        ),
    )
    np.testing.assert_allclose(np.stack(losses_of(tables, targets)), right, rtol=1e-5, atol=1e-5)


@pytest.fixture(scope="module")
def their_head(openpcdet):
    head = openpcdet.heads.AnchorHeadTemplate(
        model_cfg=openpcdet_config(),
        num_class=len(NAMES),
        class_names=list(NAMES),
        grid_size=np.array([*SHAPE, 0]) * 8,
        point_cloud_range=np.array(REGION),
        predict_boxes_when_training=False,
    )
    head.num_anchors_per_location = sum(head.num_anchors_per_location)
    return head


@pytest.mark.parametrize("seed", SEEDS)
def test_openpcdet_has_the_same_targets_losses_and_gradients(their_head, seed):
    """In float32, as it trains; targets at its own anchors, which are rounded in its own way."""
    torch, head = pytest.importorskip("torch"), their_head
    theirs = torch.cat(head.anchors, dim=-3)[0].reshape(SHAPE[1], SHAPE[0], -1, 7)
    theirs = theirs.numpy().swapaxes(0, 1)
    np.testing.assert_allclose(places(), theirs, atol=1e-5)

    boxes, classes = scene(seed)
    rows = torch.from_numpy(np.concatenate([boxes, classes[:, None] + 1.0], 1)[None]).float()
    rows[0, classes < 0] = 0
    wanted = head.assign_targets(rows)

    def mine(table):
        """An array ``[1, Y * X * A, ...]`` of OpenPCDet as one of ours."""
        table = np.asarray(table[0])
        return table.reshape(SHAPE[1], SHAPE[0], -1, *table.shape[1:]).swapaxes(0, 1)

    targets = assign(boxes, classes, np.ascontiguousarray(theirs))
    labels = mine(wanted["box_cls_labels"])
    expected = np.where(labels > 0, labels - 1, np.where(labels == 0, -1, -2))
    np.testing.assert_array_equal(np.asarray(targets.classes), expected)
    np.testing.assert_allclose(targets.codes, mine(wanted["box_reg_targets"]), atol=1e-5)
    # At our own only those may differ that are the best of their box by rounding alone.
    differ = np.argwhere(np.asarray(assign(boxes, classes, places()).classes) != expected)
    for i, j, a in differ:
        iou = oracle.overlap(places()[i, j, a], boxes[classes == a // 2]).max()
        assert iou < ANCHORS[a // 2].matched - 1e-5

    tables = predictions(seed)
    tensors = [
        torch.from_numpy(np.ascontiguousarray(table.swapaxes(0, 1)[None])).requires_grad_()
        for table in tables
    ]
    keys = "cls_preds", "box_preds", "dir_cls_preds"
    head.forward_ret_dict = {**wanted, **dict(zip(keys, tensors, strict=True))}
    total, parts = head.get_loss()
    total.backward()

    def loss(tables):
        found = vd.anchor_losses(*tables, targets)
        weighted = [w * part for w, part in zip(WEIGHTS, found, strict=True)]
        return sum(weighted), weighted

    (value, weighted), gradients = jax.jit(jax.value_and_grad(loss, has_aux=True))(tables)
    np.testing.assert_allclose(value, total.item(), rtol=1e-5)
    names = "rpn_loss_cls", "rpn_loss_loc", "rpn_loss_dir"
    for name, part in zip(names, weighted, strict=True):
        np.testing.assert_allclose(part, parts[name], rtol=1e-5, atol=1e-6)
    for ours, tensor in zip(gradients, tensors, strict=True):
        right = tensor.grad.numpy()[0].swapaxes(0, 1)
        np.testing.assert_allclose(ours, right, atol=1e-5 * max(np.abs(right).max(), 1e-3))


def test_openpcdet_decodes_the_same_boxes(openpcdet):
    torch = pytest.importorskip("torch")
    coder = openpcdet.heads.box_coder_utils.ResidualCoder()
    flat, codes = places().reshape(-1, 7), predictions(1)[1].reshape(-1, 7)
    theirs = coder.decode_torch(torch.from_numpy(codes), torch.from_numpy(flat)).numpy()
    np.testing.assert_allclose(vd.decode_residuals(codes, flat), theirs, rtol=1e-5, atol=1e-5)
    back = coder.encode_torch(torch.from_numpy(theirs), torch.from_numpy(flat)).numpy()
    np.testing.assert_allclose(vd.encode_residuals(theirs, flat), back, atol=1e-5)


def test_scenes_of_a_batch_and_rows_without_a_box():
    """Rows of a negative class may hold anything, also for gradients."""
    scenes = [scene(seed) for seed in (1, 3)]
    boxes, classes = (np.stack(part) for part in zip(*scenes, strict=True))
    spoilt = np.where(classes[..., None] < 0, np.float32(np.nan), boxes)
    tables = tuple(np.stack(part) for part in zip(predictions(1), predictions(3), strict=True))

    @jax.jit
    def loss(tables, boxes):
        targets = jax.vmap(lambda b, c: assign(b, c, places()))(boxes, classes)
        return sum(part.mean() for part in jax.vmap(vd.anchor_losses)(*tables, targets))

    value, gradients = jax.value_and_grad(loss)(tables, boxes)
    again, spoilt_gradients = jax.value_and_grad(loss)(tables, spoilt)
    assert value == again
    jax.tree.map(np.testing.assert_array_equal, gradients, spoilt_gradients)
    alone = [sum(losses_of(predictions(seed), assign(*scene(seed), places()))) for seed in (1, 3)]
    np.testing.assert_allclose(value, np.mean(alone), rtol=1e-5)


def test_no_boxes_leave_the_background_alone():
    found = vd.anchor_targets(np.zeros((0, 7)), np.zeros(0, int), places(), ANCHORS)
    assert (np.asarray(found.classes) == -1).all()
    losses = losses_of(predictions(0), found)
    assert losses.classes > 0
    assert losses.boxes == losses.directions == 0


def test_rows_that_do_not_count():
    logits = np.array([[0.5, -1.0], [np.nan, np.nan], [2.0, 0.0]], np.float32)
    classes = np.array([1, -2, -1])

    def loss(logits):
        return vd.sigmoid_focal_loss(logits, classes).sum()

    value, gradient = jax.value_and_grad(loss)(logits)
    np.testing.assert_allclose(value, loss(np.where(np.isnan(logits), 9, logits)))
    assert np.isfinite(value)
    np.testing.assert_array_equal(gradient[1], 0)
    codes = np.full((3, 7), np.nan, np.float32)
    codes[0] = 0.3
    mask = np.array([True, False, False])
    targets = np.zeros((3, 7), np.float32)
    targets[0, 2] = np.nan
    value, gradient = jax.value_and_grad(lambda c: vd.residual_loss(c, targets, mask).sum())(codes)
    np.testing.assert_allclose(value, 5 * (0.3 - 1 / 18) + np.sin(0.3) - 1 / 18, rtol=1e-6)
    assert gradient[0, 2] == 0
    np.testing.assert_array_equal(gradient[1:], 0)


def test_gradients_of_any_order_and_of_sure_predictions():
    rng = np.random.default_rng(0)
    classes, mask = np.array([0, -1, 1, -2]), np.array([True, False, True, False])
    with jax.enable_x64(True):
        logits, codes = rng.normal(size=(4, 3)), rng.normal(size=(4, 7))
        check_grads(lambda x: vd.sigmoid_focal_loss(x, classes), (logits,), 2)
        goal = rng.normal(size=(4, 7))
        weights = rng.uniform(0.5, 2, 7)
        check_grads(lambda x: vd.residual_loss(x, goal, mask, weights), (codes,), 2)
        check_grads(lambda x: vd.direction_loss(x, np.abs(classes), mask), (logits,), 2)
    sure = jnp.asarray([[200.0, -200.0], [-200.0, 200.0]])
    gradient = jax.grad(lambda x: vd.sigmoid_focal_loss(x, np.array([0, 0])).sum())(sure)
    assert np.isfinite(gradient).all()
    assert gradient[1, 0] < 0


def test_mistakes():
    boxes, classes = scene(0)
    with pytest.raises(InputError, match=r"places of shape \[44, 40, 6, 7\] for 2 anchors of 4"):
        vd.anchor_targets(boxes, classes, places(), ANCHORS[:2])
    with pytest.raises(InputError, match="classes go up to 3, there are 3 anchors"):
        vd.anchor_targets(boxes, np.where(classes >= 0, 3, -1), places(), ANCHORS)
    with pytest.raises(InputError, match="direction_bins=0"):
        vd.anchor_targets(boxes, classes, places(), ANCHORS, direction_bins=0)
    with pytest.raises(InputError, match=r"unmatched=0.7 and matched=0.6"):
        vd.Anchor((1, 1, 1), 0, unmatched=0.7)
    targets = assign(boxes, classes, places())
    logits, codes, directions = predictions(0)
    with pytest.raises(InputError, match=r"logits of shape \[44, 40, 17\]: give \[44, 40\]"):
        vd.anchor_losses(logits[..., 1:], codes, directions, targets)
    with pytest.raises(InputError, match=r"targets of shape .* for codes of shape"):
        vd.anchor_losses(logits, codes[..., 6:], directions, targets)
    with pytest.raises(InputError, match="beta=0 must be positive"):
        vd.residual_loss(np.ones((2, 7)), np.ones((2, 7)), np.ones(2, bool), beta=0)
    with pytest.raises(InputError, match=r"weights of shape \[3\]: give \[7\]"):
        vd.residual_loss(np.ones((2, 7)), np.ones((2, 7)), np.ones(2, bool), np.ones(3))
    with pytest.raises(InputError, match=r"classes of shape \[3\] for logits of shape \[2, 2\]"):
        vd.sigmoid_focal_loss(np.ones((2, 2)), np.zeros(3, int))
    with pytest.raises(InputError, match=r"mask of shape \[3\] for logits of shape \[2, 2\]"):
        vd.direction_loss(np.ones((2, 2)), np.zeros(2, int), np.ones(3, bool))
