"""Detectors: their grids, sites and padding, and what they refuse."""

import dataclasses

import jax
import numpy as np
import pytest
from flax import nnx

import voxax as vx
from voxax.interop.peer import find_layers
from voxax.interop.spconv import Spconv
from voxax.models import (
    SECOND,
    AnchorHead,
    BEVBackbone,
    CenterPoint,
    SmallCenterPoint,
    VoxelBackBone8x,
    VoxelNeXt,
    VoxelNeXtBackbone,
)
from voxax.models.bev_backbone import DenseConvNormAct, ground_grid
from voxax.models.voxelnext import fold_levels

GRID = (32, 16, 24)
BEV = {"layers": (1, 1), "channels": (4, 6), "up_channels": (5, 3)}
SPARSE = {"channels": (4, 4, 4, 4)}


def make_voxels(rng, capacity=None, low=0):
    """Sites of two scenes in the grid, with a ``low`` below 0 also outside of it."""
    coords = np.concatenate([rng.integers(0, 2, (300, 1)), rng.integers(low, GRID, (300, 3))], 1)
    coords = np.unique(coords, axis=0).astype(np.int32)
    features = rng.normal(size=(len(coords), 3)).astype(np.float32)
    return vx.Voxels.from_coords(coords, features, batch_size=2, capacity=capacity)


def run(model, voxels):
    graph, state = nnx.split(model)
    return jax.jit(lambda state, v: nnx.merge(graph, state, copy=True)(v))(state, voxels)


def test_grids_and_shapes(rng):
    voxels = make_voxels(rng)
    second = SECOND(3, 2, GRID, bev=BEV)
    out = run(second, vx.plan(second, voxels))
    assert second.backbone_3d.grid == (4, 2, 1)
    assert out.classes.shape == (2, 4, 2, 8)
    assert out.boxes.shape == (2, 4, 2, 28)
    assert out.directions.shape == (2, 4, 2, 8)
    point = CenterPoint(3, 3, GRID, groups=[[0, 2], [1]], bev=BEV, residual=False, **SPARSE)
    groups = run(point, vx.plan(point, voxels))
    assert [group["hm"].shape for group in groups] == [(2, 4, 2, 2), (2, 4, 2, 1)]
    assert {k: v.shape[3] for k, v in groups[1].items()} == {
        "center": 2, "center_z": 1, "dim": 3, "rot": 2, "vel": 2, "hm": 1
    }  # fmt: skip


def test_sparse_heads_are_at_the_columns_of_the_levels(rng):
    voxels = make_voxels(rng)
    model = VoxelNeXt(3, 2, GRID, channels=(4,) * 5, out_channels=4)
    model.eval()
    eager, traced = model(voxels), run(model, vx.plan(model, voxels))
    assert int(traced.voxels.num_dropped) == 0
    levels = model.backbone_3d.levels(voxels)
    columns = {
        (b, x * 2**n, y * 2**n)
        for n, level in enumerate(levels[3:6])
        for b, x, y, _ in level.valid_coords().tolist()
    }
    reached = {(b, x + i, y + j) for b, x, y in columns for i in (-1, 0, 1) for j in (-1, 0, 1)}
    inside = {site for site in reached if 0 <= site[1] < 4 and 0 <= site[2] < 2}
    assert {tuple(site) for site in eager.voxels.valid_coords().tolist()} == inside
    np.testing.assert_array_equal(eager.voxels.valid_coords(), traced.voxels.valid_coords())
    for name, value in traced.groups[0].items():
        count = int(traced.voxels.count)
        np.testing.assert_allclose(value[:count], eager.groups[0][name][:count], atol=2e-5)
        assert not np.asarray(value)[count:].any()


def test_scattered_voxels_reach_all_ground_that_they_reach_eagerly(rng):
    grid = (256, 256, 24)
    sites = np.concatenate([np.zeros((12, 1), int), rng.integers(0, grid, (12, 3))], 1)
    voxels = vx.Voxels.from_coords(sites.astype(np.int32), np.ones((12, 3), np.float32))
    model = VoxelNeXtBackbone(3, grid, channels=(2,) * 5, out_channels=2)
    eager, traced = model(voxels), run(model, vx.plan(model, voxels))
    assert int(traced.num_dropped) == 0
    assert int(eager.count) > 128  # more than one bucket of columns
    np.testing.assert_array_equal(eager.valid_coords(), traced.valid_coords())


BACKBONES = {
    "8x": lambda: VoxelBackBone8x(3, GRID, **SPARSE),
    "voxelnext": lambda: VoxelNeXtBackbone(3, GRID, channels=(2,) * 5, out_channels=2),
}


@pytest.mark.parametrize("name", BACKBONES)
def test_voxels_outside_of_the_grid(rng, name):
    """An error eagerly; counted once in a trace, in every level."""
    model, voxels = BACKBONES[name](), make_voxels(rng, low=-2)
    outside = int((voxels.valid_coords()[:, 1:] < 0).any(1).sum())
    with pytest.raises(vx.InputError, match=rf"{outside} of \d+ voxels lie outside .*-2\.\.31"):
        model(voxels)
    graph, state = nnx.split(model)
    levels = jax.jit(lambda state, v: nnx.merge(graph, state, copy=True).levels(v))
    for given, number in ((voxels, outside), (vx.crop(voxels, 0, GRID), 0)):
        found = levels(state, vx.plan(model, given))
        assert [int(level.num_dropped) for level in found] == [number] * len(found)


def test_folded_levels_add_up(rng):
    fine, coarse = make_voxels(rng), make_voxels(rng)
    coarse = dataclasses.replace(
        coarse, geometry=dataclasses.replace(coarse.geometry, stride=(2, 2, 2))
    )
    folded = fold_levels([fine, coarse])
    expected = {}
    for step, level in ((1, fine), (2, coarse)):
        for (b, x, y, _), row in zip(
            level.valid_coords().tolist(), level.valid_features(), strict=True
        ):
            site = b, x * step, y * step
            expected[site] = expected.get(site, 0) + row
    assert folded.stride == (1, 1)
    assert [tuple(s) for s in folded.valid_coords().tolist()] == sorted(expected)
    rows = np.stack([expected[site] for site in sorted(expected)])
    np.testing.assert_allclose(folded.valid_features(), rows, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("make", [
    lambda: SECOND(3, 2, GRID, bev=BEV),
    lambda: VoxelNeXt(3, 2, GRID, channels=(4,) * 5, out_channels=4),
])  # fmt: skip
def test_padding_is_inert(rng, make):
    model = make()
    voxels = vx.plan(model, make_voxels(rng, 512))
    poisoned = dataclasses.replace(
        voxels, features=voxels.features.at[int(voxels.count) :].set(np.nan)
    )
    graph, params, rest = nnx.split(model, nnx.Param, ...)

    @jax.jit
    def step(params, voxels):
        def loss(params):
            out = jax.tree.leaves(nnx.merge(graph, params, rest, copy=True)(voxels))
            floats = [leaf for leaf in out if leaf.dtype == np.float32]
            return sum((leaf**2).mean() for leaf in floats), floats

        return jax.grad(loss, has_aux=True)(params)

    for a, b in zip(*(jax.tree.leaves(step(params, v)) for v in (voxels, poisoned)), strict=True):
        np.testing.assert_array_equal(a, b)


def test_the_ground_has_heights_as_channels(rng):
    coords = np.int32([[0, 1, 2, 0], [0, 1, 2, 1], [1, 0, 0, 1]])
    features = rng.normal(size=(3, 2)).astype(np.float32)
    grid = np.asarray(ground_grid(vx.Voxels.from_coords(coords, features, batch_size=2), (2, 3, 2)))
    assert grid.shape == (2, 2, 3, 4)
    np.testing.assert_array_equal(grid[0, 1, 2], features[:2].T.ravel())
    np.testing.assert_array_equal(grid[1, 0, 0], [0, features[2, 0], 0, features[2, 1]])
    with pytest.raises(vx.InputError, match="2 of 3 voxels lie outside of the grid of 2x2x2 cells"):
        ground_grid(vx.Voxels.from_coords(coords, features, batch_size=2), (2, 2, 2))


@pytest.mark.parametrize("axes", [None, "reversed"])
@pytest.mark.parametrize("transposed", [False, True])
def test_dense_layers_are_pytorch_s(rng, transposed, axes):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    size, stride = (2, 2) if transposed else (3, 2)
    layer = DenseConvNormAct(3, 5, size, stride, 0, transposed=transposed, rngs=nnx.Rngs(0))
    x = rng.normal(size=(2, 6, 4, 3)).astype(np.float32)
    found = np.asarray(layer.conv(x)).transpose(0, 3, 1, 2)
    (convolution, _) = find_layers(layer)
    form = Spconv(axes).forms(convolution)["weight"][0]
    weight = form.write(np.asarray(layer.conv.kernel[...]))
    assert weight.shape == form.shape
    np.testing.assert_array_equal(form.read(weight), layer.conv.kernel[...])
    theirs = torch.conv_transpose2d if transposed else torch.conv2d
    given = torch.from_numpy(x.transpose(0, 3, 1, 2))
    if axes == "reversed":
        given = given.swapaxes(2, 3)
    expected = theirs(given, torch.from_numpy(weight.copy()), stride=stride)
    if axes == "reversed":
        expected = expected.swapaxes(2, 3)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_bad_arguments():
    with pytest.raises(
        vx.InputError, match=r"grid=\(32, 16\) must be at least one cell along each"
    ):
        VoxelBackBone8x(3, (32, 16))
    with pytest.raises(vx.InputError, match=r"a grid of 4x2x1 cells is too small for a kernel"):
        VoxelBackBone8x(3, (32, 16, 8))
    with pytest.raises(vx.InputError, match=r"channels=\(4, 4\) must have one entry for each of 4"):
        VoxelBackBone8x(3, GRID, channels=(4, 4))
    with pytest.raises(vx.InputError, match=r"groups=\(\(0,\), \(0, 1\)\) must have each of the 2"):
        CenterPoint(3, 2, GRID, groups=[[0], [0, 1]], bev=BEV, **SPARSE)
    with pytest.raises(vx.InputError, match="the last two equal"):
        VoxelNeXt(3, 2, GRID, channels=(4, 4, 4, 4, 8))
    with pytest.raises(vx.InputError, match="2 layers, 1 strides, 2 channels"):
        BEVBackbone(4, strides=(1,))
    with pytest.raises(vx.InputError, match="lead to grids of 2 sizes"):
        BEVBackbone(4, strides=(1, 2), up_strides=(1, 1))
    with pytest.raises(vx.InputError, match="anchors=0 must be at least 1"):
        SECOND(3, 2, GRID, anchors=0)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"up_strides": (0, 2)}, r"up_strides has 0: each must be a positive integer, or one over"),
        ({"up_strides": (1.5, 3)}, "up_strides has 1.5: "),
        ({"up_strides": (float("nan"), 2)}, "up_strides has nan: "),
        ({"up_strides": ("1", 2)}, "up_strides has '1': "),
        ({"strides": (0, 2)}, r"strides=\(0, 2\) must be integers of at least 1"),
        ({"layers": (-1, 2)}, r"layers=\(-1, 2\) must be integers of at least 0"),
        ({"channels": (8.5, 8)}, r"channels=\(8.5, 8\) must be integers of at least 1"),
        ({"stride": (1, 2)}, r"unknown option of BEVBackbone 'stride'; known: .*'strides'\?"),
    ],
)
def test_bad_levels_of_the_ground(options, match):
    with pytest.raises(vx.InputError, match=match):
        BEVBackbone(4, **options)


def test_options_of_dense_layers_are_known():
    with pytest.raises(vx.InputError, match="unknown option 'dtyp'; known: dtype, "):
        AnchorHead(4, 2, 2, dtyp=np.float32)


def test_grids_that_the_levels_do_not_divide():
    match = r"levels of 25x25 and 26x26 cells cannot be joined: .* must be multiples of 16 cells"
    with pytest.raises(vx.InputError, match=match):
        CenterPoint(3, 2, (200, 200, 40), bev=BEV, residual=False, **SPARSE)
    with pytest.raises(vx.InputError, match=match):
        SECOND(3, 2, (200, 200, 40), bev=BEV)
    with pytest.raises(vx.InputError, match=r"3x4 and 4x4 cells .* multiples of 8 cells"):
        SmallCenterPoint(3, 2, (12, 16, 8), width=0.1)
    down = {"strides": (1, 2), "up_strides": (0.5, 1), "layers": (0, 0)}
    model = BEVBackbone(2, **down, channels=(2, 3), up_channels=(2, 3))
    assert model(np.zeros((1, 4, 6, 2), np.float32)).shape == (1, 2, 3, 5)
    with pytest.raises(vx.InputError, match=r"levels of 2x2 and 3x3 cells .* multiples of 2 cells"):
        model(np.zeros((1, 5, 5, 2), np.float32))


def test_without_a_plan_the_error_names_it(rng):
    model = VoxelBackBone8x(3, GRID, **SPARSE)
    with pytest.raises(vx.InputError, match=r"vx\.plan\(model, voxels\) counts them ahead"):
        run(model, make_voxels(rng))
