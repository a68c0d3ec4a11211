"""What voxax.torch remembers of voxels is gone with what it was computed from."""

import copy
import dataclasses
import gc
import pickle
import weakref

import pytest
from benchmarks.workloads import random_cube

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
vxt = pytest.importorskip("voxax.torch")

pytestmark = pytest.mark.torch


def cloud(seed=0, number=100):
    rows = torch.from_numpy(random_cube(number, seed=seed))
    features = torch.randn(len(rows), 3, generator=torch.Generator().manual_seed(seed))
    return vxt.Voxels.from_coords(rows, features, 2, capacity=128)


def fresh(voxels):
    geometry = vxt.VoxelGeometry(voxels.coords.clone(), voxels.stride, voxels.batch_size)
    return voxels.on(geometry, voxels.features)


SAME = vxt.SubMConv3d(3, 3)
DOWN, DOWN_3 = vxt.SparseConv3d(3, 3, 2, 2), vxt.SparseConv3d(3, 3, 3, 2)
UP = vxt.SparseConvTranspose3d(3, 3, 2, 2)


def onto(voxels, target):
    return vxt.spatially_sparse_conv(voxels, SAME.weight, 3, out_voxels=target)


LAYERS = {
    "same": SAME,
    "strided": DOWN_3,
    "pooled": vxt.MaxPool(2),
    "unet": lambda v: UP(DOWN(v), v),
    "both_kernels": lambda v: UP(DOWN_3(v), v),
    "trained": lambda v: UP(DOWN_3(v), v).features.sum().backward() or v,
    "onto_each_other": lambda v: onto(onto(v, (w := cloud(1))), v) + onto(w, v),
    "planned": lambda v: vxt.plan(lambda v: UP(DOWN_3(v), v), v),
}


def same(got, want):
    assert torch.equal(got.valid_coords(), want.valid_coords())
    torch.testing.assert_close(got.valid_features(), want.valid_features())


@pytest.mark.parametrize("layer", LAYERS)
def test_reference_counting_alone_frees_voxels(layer):
    LAYERS[layer](cloud())
    gc.collect()
    gc.disable()
    try:
        voxels = cloud()
        LAYERS[layer](voxels)
        kept = weakref.ref(voxels.geometry)
        del voxels
        assert kept() is None
    finally:
        gc.enable()


def in_place(coords, rows, values):
    coords[:rows, 1:] = values


def through_data(coords, rows, values):
    coords.data[:rows, 1:] = values


def through_numpy(coords, rows, values):
    coords.numpy()[:rows, 1:] = values.numpy()


@pytest.mark.parametrize("write", [in_place, through_data, through_numpy])
@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize("layer", ["same", "strided", "pooled", "unet", "both_kernels"])
def test_coordinates_written_to_after_a_layer(layer, inference, write):
    """Whatever the way: PyTorch counts writes of the first kind only."""
    with torch.inference_mode(inference):
        for plan in (lambda f, v: v, vxt.plan):
            voxels = plan(LAYERS[layer], cloud())
            LAYERS[layer](voxels)
            rows = int(voxels.count)
            write(voxels.coords, rows, 2 * voxels.coords[:rows, 1:])
            same(LAYERS[layer](voxels), LAYERS[layer](fresh(voxels)))


def test_targets_written_to_after_a_layer():
    voxels, target = cloud(), cloud(1)
    onto(voxels, target)
    target.coords[: int(target.count), 1:] += 1
    same(onto(voxels, target), onto(voxels, fresh(target)))
    coarse = DOWN_3(voxels)
    UP(coarse, voxels)
    coarse.coords[: int(coarse.count), 1:] += 1
    same(UP(coarse, voxels), UP(fresh(coarse), voxels))


def test_maps_are_found_again():
    voxels = cloud()
    tables = [onto(voxels, voxels), SAME(voxels), DOWN_3(voxels), onto(voxels, cloud(1))]
    number = len(voxels.geometry.links)
    tables = [onto(voxels, voxels), SAME(voxels), DOWN_3(voxels)]
    assert len(tables) == 3
    assert len(voxels.geometry.links) == number


def test_replaced_coordinates_have_maps_of_their_own():
    voxels = vxt.plan(DOWN_3, cloud())
    coords = torch.where(voxels.valid[:, None], voxels.coords * 2, voxels.coords)
    coords[:, 0] = voxels.coords[:, 0]
    geometry = dataclasses.replace(voxels.geometry, coords=coords)
    other = voxels.on(geometry, voxels.features)
    for layer in (SAME, DOWN_3, DOWN):
        same(layer(other), layer(fresh(other)))


@pytest.mark.parametrize("way", [copy.deepcopy, lambda v: pickle.loads(pickle.dumps(v))])
def test_copies_carry_a_plan_and_nothing_else(way):
    voxels = cloud()
    bare = len(pickle.dumps(voxels))
    for layer in LAYERS.values():
        layer(voxels)
    assert len(pickle.dumps(voxels)) < 1.1 * bare
    assert not way(voxels).geometry.links
    planned = way(vxt.plan(LAYERS["both_kernels"], voxels))
    assert len(planned.geometry.links) == 1
    same(LAYERS["both_kernels"](planned), LAYERS["both_kernels"](voxels))
    assert len(planned.geometry.links) == 1
    planned.coords[: int(planned.count), 1:] *= 2
    same(DOWN_3(planned), DOWN_3(fresh(planned)))


def test_arrays_of_jax_are_not_written_to():
    voxels = cloud().to_jax()
    before = voxels.valid_coords().copy()
    vxt.Voxels.from_jax(voxels).coords[:] = 7
    assert (voxels.valid_coords() == before).all()
    ours = cloud()
    theirs = ours.to_jax()
    ours.coords[:] = 7
    assert (theirs.valid_coords() == before).all()
