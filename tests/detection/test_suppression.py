"""Suppression selects what the greedy loop over a matrix of polygon areas selects."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from box_samples import random_boxes

from oracle import boxes as oracle
from voxax.detection import circle_nms, iou_3d, nms
from voxax.errors import InputError

SCENES, NUMBER = 200, 24


@pytest.fixture(scope="module")
def scenes():
    rng = np.random.default_rng(1)
    boxes = random_boxes(rng, SCENES * NUMBER, 6.0).astype(np.float32)
    boxes = boxes.reshape(SCENES, NUMBER, 7)
    boxes[:, 1::4, :6] = boxes[:, ::4, :6]  # doubles, some turned by a quarter
    quarters = rng.integers(0, 2, (SCENES, NUMBER // 4)) * np.float32(np.pi / 2)
    boxes[:, 1::4, 6] = boxes[:, ::4, 6] + quarters
    scores = rng.random((SCENES, NUMBER)).astype(np.float32).round(2)  # some equal
    classes = rng.integers(0, 3, (SCENES, NUMBER))
    valid = rng.random((SCENES, NUMBER)) < 0.9
    wide = boxes.astype(np.float64)
    return boxes, scores, classes, valid, [oracle.among(oracle.bev_iou, b) for b in wide]


@pytest.mark.parametrize("by_class", [False, True])
@pytest.mark.parametrize("most", [NUMBER, 7])
def test_200_scenes(scenes, by_class, most):
    boxes, scores, classes, valid, ious = scenes
    poisoned = np.where(valid[..., None], boxes, np.nan)

    @jax.jit
    @jax.vmap
    def select(boxes, scores, classes, valid):
        given = classes if by_class else None
        return nms(boxes, scores, iou_threshold=0.15, max_selected=most, classes=given, valid=valid)

    found = select(poisoned, np.where(valid, scores, np.nan), classes, valid)
    for i in range(SCENES):
        given = classes[i] if by_class else None
        right = oracle.greedy(scores[i], ious[i] > 0.15, given, valid[i])
        kept = right[:most]
        assert found.indices[i, : len(kept)].tolist() == kept
        assert found.num_selected[i] == len(kept)
        assert (found.indices[i, len(kept) :] == -1).all()
        assert (found.num_remaining[i] > 0) == (len(right) > most)


def test_volumes(scenes):
    boxes, scores, *_ = scenes
    for i in range(10):
        matrix = oracle.among(oracle.iou_3d, boxes[i].astype(np.float64))
        found = nms(boxes[i], scores[i], iou_threshold=0.1, max_selected=NUMBER, overlap="3d")
        right = oracle.greedy(scores[i], matrix > 0.1)
        assert found.indices[: found.num_selected].tolist() == right


@pytest.mark.parametrize("by_class", [False, True])
def test_circles(scenes, by_class):
    boxes, scores, classes, valid, _ = scenes
    for i in range(20):
        centers = boxes[i, :, :2].astype(np.float64)
        near = np.linalg.norm(centers[:, None] - centers[None], axis=-1) <= 1.7
        given = classes[i] if by_class else None
        found = circle_nms(
            boxes[i], scores[i], radius=1.7, max_selected=NUMBER, classes=given, valid=valid[i]
        )
        right = oracle.greedy(scores[i], near, given, valid[i])
        assert found.indices[: found.num_selected].tolist() == right


def test_circles_of_their_own_size(scenes):
    """The better box tells how near is too near."""
    boxes, scores, *_ = scenes
    rng = np.random.default_rng(4)
    for i in range(10):
        radii = rng.choice([0.4, 1.7, 3.0], NUMBER).astype(np.float32)
        centers = boxes[i, :, :2].astype(np.float64)
        near = np.linalg.norm(centers[:, None] - centers[None], axis=-1) <= radii[:, None]
        select = jax.jit(lambda b, s, r: circle_nms(b, s, radius=r, max_selected=NUMBER))
        found = select(boxes[i], scores[i], radii)
        right = oracle.greedy(scores[i], near)
        assert found.indices[: found.num_selected].tolist() == right


def test_memory_grows_with_the_number_not_its_square():
    def needed(number):
        shapes = (
            jax.ShapeDtypeStruct((number, 7), jnp.float32),
            jax.ShapeDtypeStruct((number,), jnp.float32),
        )
        program = jax.jit(lambda b, s: nms(b, s, iou_threshold=0.2, max_selected=50))
        return program.lower(*shapes).compile().memory_analysis().temp_size_in_bytes

    small, large = needed(1000), needed(8000)
    assert large < 16 * small  # 64 if it were the square
    assert large < 400 * 8000


def test_no_boxes_and_no_valid_ones():
    nothing = nms(np.zeros((0, 7)), np.zeros(0), iou_threshold=0.5, max_selected=3)
    assert nothing.indices.tolist() == [-1, -1, -1]
    boxes, scores = np.ones((4, 7)), np.full(4, -np.inf)
    assert nms(boxes, scores, iou_threshold=0.5, max_selected=3).num_selected == 0
    found = nms(boxes, np.ones(4), iou_threshold=0.5, max_selected=3, valid=np.zeros(4, bool))
    assert found.num_selected == 0


def test_a_loss_of_selected_boxes_has_gradients(rng):
    boxes = jnp.asarray(random_boxes(rng, 12))
    scores = jnp.asarray(rng.random(12).astype(np.float32))

    def loss(boxes):
        kept = nms(boxes, scores, iou_threshold=0.1, max_selected=4)
        return jnp.sum(iou_3d(boxes[kept.indices], boxes[:4] + 0.1))

    assert jnp.isfinite(jax.jit(jax.grad(loss))(boxes)).all()


def test_a_traced_threshold():
    boxes = jnp.array([[0, 0, 0, 4, 2, 1, 0], [2, 0, 0, 4, 2, 1, 0]], jnp.float32)
    scores = jnp.array([0.9, 0.8])
    kept = jax.jit(lambda t: nms(boxes, scores, iou_threshold=t, max_selected=2).num_selected)
    assert [int(kept(limit)) for limit in (0.3, 0.4)] == [1, 2]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"boxes": -np.ones((3, 7))}, r"boxes\[0\] has length=-1.0.*at least 0"),
        ({"boxes": np.ones((3, 7)) * [1, np.nan, 1, 1, 1, 1, 1]}, r"boxes\[0\] has y=nan"),
        ({"boxes": np.ones((3, 6))}, r"boxes of shape \[3, 6\]"),
        ({"boxes": np.ones((2, 3, 7))}, r"boxes of shape \[2, 3, 7\].*jax.vmap"),
        ({"scores": np.ones(2)}, r"scores of shape \[2\] for 3 boxes: give \[3\]"),
        ({"scores": np.full(3, np.nan)}, r"scores\[0\] is NaN.*valid="),
        ({"classes": np.ones(4, int)}, r"classes of shape \[4\] for 3 boxes"),
        ({"classes": ["car"] * 3}, "classes of <U3: give integers"),
        ({"valid": np.ones(1, bool)}, r"valid of shape \[1\] for 3 boxes"),
        ({"valid": np.ones(3)}, r"valid of float32: give bool\[3\]"),
        ({"iou_threshold": 1.5}, r"iou_threshold=1.5 must lie in 0\.\.1"),
        ({"max_selected": 0}, "max_selected=0 must be at least 1"),
        ({"overlap": "area"}, "unknown overlap 'area'; known: bev, 3d"),
    ],
)
def test_bad_input(options, message):
    given = {
        "boxes": np.ones((3, 7)),
        "scores": np.ones(3),
        "iou_threshold": 0.5,
        "max_selected": 2,
        **options,
    }
    with pytest.raises(InputError, match=message):
        nms(given.pop("boxes"), given.pop("scores"), **given)


@pytest.mark.parametrize(
    ("centers", "radius", "message"),
    [
        (np.ones((3, 1)), 1.0, r"centers of shape \[3, 1\]"),
        (np.ones((3, 2)), 0.0, "radius=0.0 must be positive"),
        (np.ones((3, 2)), np.ones(2), r"radius of shape \[2\] for 3 centers"),
        (np.full((3, 2), np.nan), 1.0, r"centers\[0\] is \[nan, nan\].*valid="),
    ],
)
def test_bad_circles(centers, radius, message):
    with pytest.raises(InputError, match=message):
        circle_nms(centers, np.ones(3), radius=radius, max_selected=2)
