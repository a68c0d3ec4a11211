"""Heat maps and codes against plain loops, and boxes that come back from them."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from box_samples import random_boxes

from voxax.detection import (
    BevGrid,
    center_targets,
    decode_boxes,
    decode_cells,
    decode_centers,
    encode_boxes,
    gaussian_radius,
    nms,
    sparse_center_targets,
)
from voxax.errors import InputError

GRID = BevGrid(low=(-8.0, -6.0), cell=(0.5, 0.4), shape=(32, 30))
CLASSES = 3


@pytest.fixture
def scene(rng):
    boxes = np.concatenate([random_boxes(rng, 20, 7.0), rng.normal(size=(20, 2))], axis=1)
    boxes[:5, 1] = 5.9 + np.arange(5) * 0.2  # beyond the edge, where cells end at 6
    boxes[6, 3:5] = 8.0  # a wide Gaussian
    boxes[7, 3] = 0.0
    boxes[8, 7:] = np.nan  # an unknown velocity
    classes = rng.integers(0, CLASSES, 20)
    classes[9:12] = -1
    boxes[9:12] = np.nan
    return boxes.astype(np.float32), classes


def radius(length: float, width: float, overlap: float) -> float:
    """Of CenterPoint's three quadratics."""
    b1 = length + width
    c1 = width * length * (1 - overlap) / (1 + overlap)
    r1 = (b1 + math.sqrt(b1**2 - 4 * c1)) / 2
    b2 = 2 * (length + width)
    c2 = (1 - overlap) * width * length
    r2 = (b2 + math.sqrt(b2**2 - 16 * c2)) / 2
    b3 = -2 * overlap * (length + width)
    c3 = (overlap - 1) * width * length
    r3 = (b3 + math.sqrt(b3**2 - 16 * overlap * c3)) / 2
    return min(r1, r2, r3)


def heat_by_loop(boxes, classes, least=2):
    """The heat map in float64, with a list of what is predicted: (box, cell)."""
    heat = np.zeros((*GRID.shape, CLASSES))
    kept = []
    for m, (box, which) in enumerate(zip(boxes.astype(np.float64), classes, strict=True)):
        if which < 0 or min(box[3:6]) <= 0:
            continue
        place = [(box[k] - GRID.low[k]) / GRID.cell[k] for k in (0, 1)]
        i, j = (math.floor(p) for p in place)
        if not (0 <= i < GRID.shape[0] and 0 <= j < GRID.shape[1]):
            continue
        kept.append((m, i, j))
        r = max(least, int(radius(box[3] / GRID.cell[0], box[4] / GRID.cell[1], 0.1)))
        spread = (2 * r + 1) / 6
        for x in range(max(0, i - r), min(GRID.shape[0], i + r + 1)):
            for y in range(max(0, j - r), min(GRID.shape[1], j + r + 1)):
                value = math.exp(-((x - i) ** 2 + (y - j) ** 2) / (2 * spread**2))
                heat[x, y, which] = max(heat[x, y, which], value)
    return heat, kept


def test_heat_maps_and_rows(scene):
    boxes, classes = scene
    found = jax.jit(lambda b, c: center_targets(b, c, GRID, CLASSES))(boxes, classes)
    heat, kept = heat_by_loop(boxes, classes)
    assert 5 < len(kept) < 17
    np.testing.assert_allclose(found.heatmap, heat, atol=1e-6)
    assert np.flatnonzero(found.mask).tolist() == [m for m, _, _ in kept]
    for m, i, j in kept:
        assert found.rows[m] == i * GRID.shape[1] + j
        assert found.heatmap[i, j, classes[m]] == 1
        right = encode_boxes(boxes[m], np.array([i, j]), GRID)
        np.testing.assert_allclose(found.codes[m], right, atol=1e-5)
    assert (np.asarray(found.codes)[~np.asarray(found.mask)] == 0).all()


def test_all_cells_give_the_sparse_map_the_dense_one(scene):
    boxes, classes = scene
    dense = center_targets(boxes, classes, GRID, CLASSES)
    sparse = sparse_center_targets(boxes, classes, GRID.cells(), GRID, CLASSES)
    for name in ("rows", "codes", "mask"):
        np.testing.assert_array_equal(getattr(dense, name), getattr(sparse, name))
    # Without an end: exp(-4.5) at most beyond it, for the largest radius.
    dense = np.asarray(dense.heatmap).reshape(-1, CLASSES)
    assert (np.asarray(sparse.heatmap) >= dense).all()
    assert np.abs(dense - np.asarray(sparse.heatmap)).max() < 0.0112


def test_sparse_cells_and_their_padding(scene, rng):
    boxes, classes = scene
    cells = GRID.cells()[rng.permutation(960)[:200]]
    cells[150:] = -(2**30)  # padding may hold anything
    valid = np.arange(200) < 150
    found = sparse_center_targets(boxes, classes, cells, GRID, CLASSES, valid=valid)
    for m in np.flatnonzero(found.mask):
        place = (boxes[m, :2] - np.array(GRID.low)) / np.array(GRID.cell)
        away = np.sum((cells[:150] + 0.5 - place) ** 2, axis=1)
        row = int(found.rows[m])
        assert away[row] <= away.min() + 1e-4
        assert found.heatmap[row, classes[m]] == 1
        back = decode_boxes(found.codes[m], cells[row], GRID)
        np.testing.assert_allclose(back[:6], boxes[m, :6], atol=1e-4)
    assert (found.heatmap[150:] == 0).all()
    none = sparse_center_targets(boxes, classes, cells, GRID, CLASSES, valid=np.zeros(200, bool))
    assert not none.mask.any()
    assert (none.heatmap == 0).all()


def test_radius(rng):
    sides = rng.uniform(0.5, 20.0, (100, 2))
    right = [radius(length, width, 0.3) for length, width in sides]
    np.testing.assert_allclose(gaussian_radius(*sides.T, 0.3), right, rtol=1e-5)
    with pytest.raises(InputError, match="min_overlap=0 must lie between 0 and 1"):
        gaussian_radius(1.0, 1.0, 0)


def test_codes_and_back(rng):
    boxes = np.concatenate([random_boxes(rng, 50), rng.normal(size=(50, 2))], axis=1)
    cells = rng.integers(0, 30, (50, 2))
    for columns in (7, 9):
        back = decode_boxes(encode_boxes(boxes[:, :columns], cells, GRID), cells, GRID)
        assert back.dtype == np.float64
        turn = (back[:, 6] - boxes[:, 6]) / (2 * np.pi)
        np.testing.assert_allclose(turn, np.round(turn), atol=1e-12)
        others = [c for c in range(columns) if c != 6]
        np.testing.assert_allclose(back[:, others], boxes[:, others], atol=1e-12)


def test_the_gradient_of_zero_codes_is_finite():
    slope = jax.grad(lambda c: jnp.sum(decode_boxes(c, jnp.zeros((1, 2), int), GRID)))
    assert jnp.isfinite(slope(jnp.zeros((1, 8)))).all()


def test_perfect_maps_decode_to_the_boxes(scene):
    boxes, classes = scene
    targets = center_targets(boxes, classes, GRID, CLASSES)
    codes = (
        jnp.zeros((960, 10))
        .at[targets.rows]
        .add(jnp.where(targets.mask[:, None], jnp.nan_to_num(targets.codes), 0.0))
    )
    logits = jnp.where(targets.heatmap == 1, 9.0, -9.0)

    @jax.jit
    def decode(logits, codes):
        found = decode_centers(logits, codes, GRID, max_boxes=25, min_score=0.5)
        kept = nms(
            found.boxes,
            found.scores,
            iou_threshold=1.0,
            max_selected=25,
            classes=found.classes,
            valid=found.valid,
        )
        return found.take(kept.indices)

    found = decode(logits, codes.reshape(*GRID.shape, 10))
    number = int(np.sum(targets.mask))
    assert int(found.valid.sum()) == number
    assert found.valid[:number].all()
    assert (found.classes[number:] == -1).all()
    assert (found.boxes[number:] == 0).all()
    right = np.nan_to_num(boxes[np.asarray(targets.mask)])
    right[:, 6] = (right[:, 6] + np.pi) % (2 * np.pi) - np.pi
    rows = np.asarray(found.boxes[:number])
    for row in right:
        assert np.abs(rows - row).max(axis=1).min() < 1e-4


def test_scores_and_classes_of_the_best(rng):
    logits = rng.normal(size=(*GRID.shape, CLASSES)).astype(np.float32)
    logits[3, 4, 1] = 7.0
    codes = np.zeros((*GRID.shape, 8), np.float32)
    found = decode_centers(logits, codes, GRID, max_boxes=10)
    right = np.sort(1 / (1 + np.exp(-logits.astype(np.float64).ravel())))[::-1][:10]
    np.testing.assert_allclose(found.scores, right, rtol=1e-5)
    assert found.classes[0] == 1
    np.testing.assert_allclose(found.boxes[0], [-6.5, -4.4, 0, 1, 1, 1, 0], atol=1e-6)


def test_fewer_candidates_than_rows():
    grid = BevGrid((0, 0), (1, 1), (2, 2))
    found = decode_centers(jnp.zeros((2, 2, 1)), jnp.zeros((2, 2, 8)), grid, max_boxes=6)
    assert found.valid.tolist() == [True] * 4 + [False] * 2
    assert found.boxes.shape == (6, 7)


@pytest.mark.parametrize("under_jit", [False, True])
@pytest.mark.parametrize("make", [
    lambda boxes, classes: center_targets(boxes, classes, GRID, 2),
    lambda boxes, classes: sparse_center_targets(boxes, classes, GRID.cells(), GRID, 2),
])  # fmt: skip
def test_a_scene_without_boxes(make, under_jit):
    targets = (jax.jit(make) if under_jit else make)(np.zeros((0, 7)), np.zeros(0, int))
    assert not targets.heatmap.any()
    assert targets.codes.shape == (0, 8)
    assert targets.rows.shape == targets.mask.shape == (0,)
    assert not make(np.zeros((0, 7)), []).heatmap.any()


def test_no_cells():
    found = decode_cells(
        np.zeros((0, 2)), np.zeros((0, 8)), np.zeros((0, 2), int), GRID, max_boxes=3
    )
    assert found.boxes.shape == (3, 7)
    assert not found.valid.any()


def test_boxes_that_are_not_finite_are_not_valid():
    """The first cell's length is e**100."""
    logits = jnp.asarray(np.float32([[3], [2]]))
    codes = jnp.zeros((2, 8)).at[0, 3].set(100)

    def lengths(codes):
        found = decode_cells(logits, codes, GRID.cells()[:2], GRID, max_boxes=2)
        return jnp.sum(found.boxes[:, 3]), found

    (total, found), slope = jax.value_and_grad(lengths, has_aux=True)(codes)
    assert found.valid.tolist() == [False, True]
    assert found.classes.tolist() == [-1, 0]
    assert total == 1
    np.testing.assert_array_equal(slope, np.zeros((2, 8)) + np.eye(2, 8, 2) * [[0], [1]])
    kept = nms(found.boxes, found.scores, iou_threshold=0.2, max_selected=2, valid=found.valid)
    assert int(kept.num_selected) == 1


def test_targets_of_a_batch(scene):
    boxes, classes = scene
    mapped = jax.vmap(lambda b, c: center_targets(b, c, GRID, CLASSES))(
        np.stack([boxes, boxes[::-1]]), np.stack([classes, classes[::-1]])
    )
    one = center_targets(boxes[::-1].copy(), classes[::-1].copy(), GRID, CLASSES)
    np.testing.assert_allclose(mapped.heatmap[1], one.heatmap, atol=1e-6)
    np.testing.assert_allclose(mapped.codes[1], one.codes, atol=1e-5)
    np.testing.assert_array_equal(mapped.rows[1], one.rows)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: BevGrid((0, 0), (0.1, -0.1), (4, 4)), "sides must be positive"),
        (lambda: BevGrid((0, 0), (0.1, 0.1), (4, 0)), "at least 1"),
        (lambda: BevGrid((0, 0), (0.1, 0.1), (4.0, 4)), "shape=.*give 2 integers"),
        (lambda: center_targets(np.ones((1, 7)), ["car"], GRID, 3), "classes of <U3: give int"),
        (lambda: BevGrid((0, 0, 0), (0.1, 0.1), (4, 4)), "low=.*give 2 finite numbers"),
        (
            lambda: center_targets(-np.ones((2, 7)), np.zeros(2, int), GRID, 1),
            r"boxes\[0\] has length=-1",
        ),
        (
            lambda: center_targets(np.ones((2, 7)), np.full(2, 5), GRID, 3),
            "classes go up to 5, outside the 3 classes",
        ),
        (lambda: center_targets(np.ones((2, 7)), np.zeros(2), GRID, 3), "give integers"),
        (lambda: center_targets(np.ones((2, 7)), np.zeros(3, int), GRID, 3), r"give \[2\]"),
        (
            lambda: decode_centers(np.zeros((3, 3, 1)), np.zeros((3, 3, 8)), GRID, max_boxes=1),
            r"logits of shape \[3, 3, 1\]: give \[32, 30\]",
        ),
        (
            lambda: decode_centers(np.zeros((32, 30, 1)), np.zeros((32, 30, 7)), GRID, max_boxes=1),
            r"codes of shape .*8\] \(offset",
        ),
        (
            lambda: decode_centers(np.zeros((32, 30, 1)), np.zeros((32, 30, 8)), GRID, max_boxes=0),
            "max_boxes=0 must be at least 1",
        ),
    ],
)
def test_bad_input(make, message):
    with pytest.raises(InputError, match=message):
        make()
