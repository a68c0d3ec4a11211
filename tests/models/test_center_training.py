"""Training of detectors of centers: which cells learn which boxes, and one step of it."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from voxax.detection import BevGrid, Region, center_targets, decode_boxes
from voxax.errors import InputError
from voxax.geometry import Plan, host
from voxax.models import ColumnBackbone, SmallCenterPoint
from voxax.models.center_training import CenterTrainer, boxed_cells

GRID = BevGrid((-4.0, -4.0), (1.0, 1.0), (8, 8))
BOXES = jnp.asarray(
    [[0.3, 0.6, 0, 4, 2, 1.5, 0.5], [-3.8, 3.9, 0, 0.4, 0.4, 1.7, 0], [np.nan] * 7], jnp.float32
)
CLASSES = jnp.asarray([0, 1, -1])


def test_cells_in_a_box_learn_it():
    targets = center_targets(BOXES, CLASSES, GRID, 2)
    cells = boxed_cells(BOXES, CLASSES, targets, GRID)
    mask = np.asarray(cells.mask).reshape(3, 9)
    middles = GRID.cells() + 0.5 + np.array(GRID.low)
    away = middles - np.array([0.3, 0.6])
    turn = np.array([[np.cos(0.5), -np.sin(0.5)], [np.sin(0.5), np.cos(0.5)]])
    inside = (np.abs(away @ turn) <= [2.0, 1.0]).all(axis=1)
    around = (np.abs(GRID.cells() - [4, 4]) <= 1).all(axis=1)
    wanted = set(np.flatnonzero(inside & around).tolist()) | {4 * 8 + 4}
    assert set(np.asarray(cells.rows).reshape(3, 9)[0][mask[0]].tolist()) == wanted
    assert len(wanted) > 3
    assert np.asarray(cells.rows).reshape(3, 9)[1][mask[1]].tolist() == [0 * 8 + 7]
    assert not mask[2].any()
    rows = np.asarray(cells.rows)[mask.reshape(-1)]
    codes = np.asarray(cells.codes)[mask.reshape(-1)]
    found = decode_boxes(codes, GRID.cells()[rows], GRID)
    boxes = np.repeat(np.asarray(BOXES), 9, axis=0)[mask.reshape(-1)]
    np.testing.assert_allclose(found, boxes, atol=1e-5)


REGION = Region((-3.2, -3.2, -1.0), (3.2, 3.2, 0.6), 0.4)


@pytest.fixture
def scene(rng):
    positions = rng.uniform(-3, 3, (200, 3)) * [1, 1, 0.2]
    local = positions - np.array(REGION.low)
    voxels, _ = host.voxelize_on_host(local, np.ones((200, 3), np.float32), 0.4)
    boxes = np.zeros((1, 2, 7), np.float32)
    boxes[0, 0] = [1.0, -1.0, 0, 2, 1, 1, 0.3]
    return voxels, (boxes, np.array([[0, -1]], np.int32))


@pytest.mark.lax_promotion  # optax promotes step counts
def test_a_box_is_learned_and_found(scene):
    voxels, labels = scene
    model = SmallCenterPoint(3, 2, REGION.grid, width=0.25, groups=((0,), (1,)), rngs=nnx.Rngs(0))
    voxels = Plan.record(model, voxels).attach(voxels)
    trainer = CenterTrainer(
        model, optax.adam(1e-2), REGION, ((0,), (1,)), 2, box_weight=1.0, max_boxes=8
    )
    losses = [float(trainer.step(voxels, labels)[0]) for _ in range(60)]
    assert losses[-1] < 0.2 * losses[0]
    found = trainer.detect(voxels)
    assert found.boxes.shape == (1, 16, 7)
    assert found.classes[0, 0] == 0
    assert found.scores[0, 0] > 0.3
    np.testing.assert_allclose(found.boxes[0, 0, :2], [1.0, -1.0], atol=0.5)
    assert trainer.programs == 2
    # What stands in empty rows of boxes changes nothing.
    spoilt = np.where(labels[1][..., None] < 0, np.float32(np.nan), labels[0])
    again = CenterTrainer(
        SmallCenterPoint(3, 2, REGION.grid, width=0.25, groups=((0,), (1,)), rngs=nnx.Rngs(0)),
        optax.adam(1e-2),
        REGION,
        ((0,), (1,)),
        2,
        box_weight=1.0,
        max_boxes=8,
    )
    assert float(again.step(voxels, (spoilt, labels[1]))[0]) == losses[0]


@pytest.mark.lax_promotion
def test_only_the_own_cell_learns_a_box_unless_its_neighbors_do_too(scene):
    voxels, labels = scene
    labels[0][0, 0, 3:5] = 5, 4  # over the middles of other cells
    losses = {}
    for neighbors in (False, True):
        model = SmallCenterPoint(3, 2, REGION.grid, width=0.25, rngs=nnx.Rngs(0))
        planned = Plan.record(model, voxels).attach(voxels)
        options = {} if not neighbors else {"neighbor_cells": True}
        trainer = CenterTrainer(model, optax.sgd(0.0), REGION, None, 2, **options)
        _, (heat, box), _ = trainer.step(planned, labels)
        losses[neighbors] = float(heat), float(box)
        encoded = model.encode(planned)
        (maps,) = model.predictions(encoded)
        grid = REGION.bev(maps["hm"].shape[1:3])
        boxes, classes = labels[0][0], labels[1][0]
        targets = center_targets(jnp.asarray(boxes), jnp.asarray(classes), grid, 2)
        codes = maps["code"][0].reshape(-1, 8)
        if neighbors:
            cells = boxed_cells(jnp.asarray(boxes), jnp.asarray(classes), targets, grid)
            rows, wanted, mask = cells.rows, cells.codes, cells.mask
        else:
            rows, wanted, mask = targets.rows, targets.codes, targets.mask
        away = np.abs(np.asarray(codes)[np.asarray(rows)] - np.asarray(wanted))[np.asarray(mask)]
        assert len(away) == 1 or neighbors
        np.testing.assert_allclose(box, away.mean(axis=0).sum(), rtol=1e-3)
    assert losses[False][0] == losses[True][0]
    assert losses[False][1] != losses[True][1]


def test_sizes_that_do_not_fit():
    with pytest.raises(InputError, match=r"grid=\(10, 16, 4\) must be three multiples of 4"):
        ColumnBackbone(3, (10, 16, 4))
    with pytest.raises(InputError, match="must have each of the 2 classes"):
        SmallCenterPoint(3, 2, (16, 16, 4), groups=((0,),))
