"""Outputs of every detector become the boxes that were coded in them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import voxax as vx
from voxax import detection as vd
from voxax.errors import InputError
from voxax.models import AnchorOutput, VoxelNeXtOutput, found_boxes

REGION = vd.Region((-8, -4, -2), (8, 4, 2), (0.25, 0.25, 0.5))
BOXES = np.array(
    [
        [-5.3, 1.2, 0.1, 4.0, 1.7, 1.5, 0.4, 1.0, -2.0],
        [3.1, -2.4, -0.5, 0.8, 0.6, 1.7, -2.1, 0.0, 0.5],
        [6.2, 2.9, 0.0, 8.0, 2.5, 3.0, 3.0, 0.0, 0.0],
    ]
)
CLASSES = np.array([0, 2, 1])
PARTS = {"center": 2, "center_z": 1, "dim": 3, "rot": 2, "vel": 2}


def heads(groups, cells, shape, grid, dtype=np.float32):
    """What heads say that find these boxes, one a scene, and a double of the first with less."""
    made = []
    for classes in groups:
        head = {name: np.zeros((*shape, width), dtype) for name, width in PARTS.items()}
        head["hm"] = np.full((*shape, len(classes)), -9.0, dtype)
        for row, (box, name) in enumerate(zip(BOXES, CLASSES, strict=True)):
            if name not in classes:
                continue
            code, begin = vd.encode_boxes(box, cells[row][1], grid), 0
            for part, width in PARTS.items():
                head[part][cells[row][0]] = code[begin : begin + width]
                begin += width
            head["hm"][(*cells[row][0], classes.index(name))] = 2.0 + row
        made.append({name: jnp.asarray(values) for name, values in head.items()})
    return tuple(made)


def check(found, scenes):
    for boxes, rows in zip(found, scenes, strict=True):
        assert int(boxes.valid.sum()) == len(rows)
        for place, row in enumerate(sorted(rows, reverse=True)):  # by score
            assert int(boxes.classes[place]) == CLASSES[row]
            np.testing.assert_allclose(boxes.boxes[place], BOXES[row], atol=1e-4)
            np.testing.assert_allclose(boxes.scores[place], 1 / (1 + np.exp(-2.0 - row)), rtol=1e-5)


@pytest.mark.parametrize("groups", [None, ((0, 1), (2,))])
def test_maps(groups):
    grid = REGION.bev((8, 4))
    np.testing.assert_allclose(grid.cell, [2, 2])
    places = np.floor(grid.places(BOXES)).astype(int)
    cells = [((row % 2, *place), place) for row, place in enumerate(places)]
    output = heads(groups or ((0, 1, 2),), cells, (2, 8, 4), grid)
    decode = jax.jit(
        lambda out: found_boxes(out, REGION, num_classes=3, batch_size=2, groups=groups)
    )
    check(decode(output), [[0, 2], [1]])
    with pytest.raises(InputError, match="the network has"):
        found_boxes(output, REGION, num_classes=3, groups=((0,), (1,), (2,)))


def test_boxes_around_one_pole_become_one():
    """Thin boxes that cross hardly overlap; their centers are near."""
    region = vd.Region((-8, -8, -2), (8, 8, 2), 0.5)
    grid = region.bev((16, 16))
    pole = np.array([0.9, 0.4, 0, 2.0, 0.1, 3.0, 0.0])
    boxes = np.array([pole, pole, [-4.2, 3.3, 0, 4, 2, 1.5, 0.2], pole])
    boxes[1, [0, 6]] = 1.1, np.pi / 2  # in the next cell, turned by a quarter
    boxes[3, 0] = 3.3  # another pole
    names = [1, 1, 0, 1]
    head = {"hm": np.full((1, 16, 16, 2), -9.0), "code": np.zeros((1, 16, 16, 8))}
    for score, (box, name) in enumerate(zip(boxes, names, strict=True)):
        cell = np.floor(grid.places(box[None])[0]).astype(int)
        head["code"][0, *cell] = vd.encode_boxes(box, cell, grid)
        head["hm"][0, *cell, name] = 1.0 + score
    output = ({name: jnp.asarray(values, jnp.float32) for name, values in head.items()},)

    def number(**options):
        (found,) = found_boxes(output, region, num_classes=2, **options)
        return int(found.valid.sum())

    assert number() == number(radii=(0, 0)) == 4
    assert number(radii=(1.5, 0.6)) == 3
    assert number(radii=(1.5, 0.1)) == 4
    assert number(radii=(0, 0.6)) == 4  # one head: by overlap
    both = tuple({"hm": output[0]["hm"][..., k : k + 1], "code": output[0]["code"]} for k in (0, 1))
    (found,) = found_boxes(both, region, num_classes=2, groups=((0,), (1,)), radii=(0, 0.6))
    assert found.classes[found.valid].tolist() == [1, 0, 1]
    with pytest.raises(InputError, match=r"radii=\(1.0,\) for 2 classes: give one of each"):
        number(radii=(1.0,))


@pytest.mark.parametrize("groups", [None, ((0, 1), (2,))])
def test_sparse_cells(groups):
    grid = REGION.bev((8, 4), 8)
    places = np.floor(grid.places(BOXES)).astype(int)
    sites = np.array([[row % 2, *place] for row, place in enumerate(places)], np.int32)
    voxels = vx.Voxels.from_coords(sites, np.zeros((3, 1), np.float32), batch_size=2, capacity=6)
    order = [int(np.flatnonzero((np.asarray(voxels.coords)[:3] == s).all(1))[0]) for s in sites]
    cells = [((order[row],), places[row]) for row in range(3)]
    output = heads(groups or ((0, 1, 2),), cells, (6,), grid)
    # Rows of padding may hold anything.
    poisoned = [{k: v.at[3:].set(jnp.nan) for k, v in head.items()} for head in output]
    region = vd.Region(REGION.low, REGION.high, (2, 2, 4))
    result = VoxelNeXtOutput(voxels, tuple(poisoned))
    check(found_boxes(result, region, num_classes=3, batch_size=2, groups=groups), [[0, 2], [1]])


def test_anchors():
    anchors = (
        vd.Anchor((4, 1.8, 1.6), -0.8),
        vd.Anchor((8, 2.5, 3), -1.5),
        vd.Anchor((1, 1, 2), -1),
    )
    places = vd.anchor_boxes(anchors, REGION.low[:2], REGION.high[:2], (8, 4))
    logits = np.full((1, 8, 4, 6 * 3), -9.0, np.float32)
    codes = np.zeros((1, 8, 4, 6 * 7), np.float32)
    turns = np.zeros((1, 8, 4, 6 * 2), np.float32)
    for row, (box, name) in enumerate(zip(BOXES[:, :7], CLASSES, strict=True)):
        near = np.linalg.norm(places[:, :, 0, :2] - box[:2], axis=-1)
        i, j = np.unravel_index(near.argmin(), near.shape)
        a = 2 * int(name) + 1
        codes[0, i, j, 7 * a : 7 * a + 7] = vd.encode_residuals(box, places[i, j, a])
        logits[0, i, j, 3 * a + name] = 2.0 + row
        turn = (box[6] - 0.78539) % (2 * np.pi)
        turns[0, i, j, 2 * a + int(turn // np.pi)] = 1
    output = AnchorOutput(*map(jnp.asarray, (logits, codes, turns)))
    (found,) = found_boxes(output, REGION, num_classes=3, anchors=anchors)
    assert int(found.valid.sum()) == 3
    expected = BOXES[::-1, :7]
    np.testing.assert_allclose(found.boxes[:3, :6], expected[:, :6], atol=1e-4)
    np.testing.assert_allclose(np.cos(found.boxes[:3, 6] - expected[:, 6]), 1, atol=1e-6)
    assert found.classes[:3].tolist() == CLASSES[::-1].tolist()
    with pytest.raises(InputError, match="2 anchors make 4 in each cell, the network has 6"):
        found_boxes(output, REGION, num_classes=3, anchors=anchors[:2])
