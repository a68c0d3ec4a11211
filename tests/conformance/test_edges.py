"""Capacity one short, the end of the coordinate range, and arguments that contradict each other."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import voxax as vx
from oracle.convolution import make_offsets, output_grid, reached_sites
from samples import make_weight, slow_unless
from voxax.nn import functional as F

ROWS = np.array([[0, 0, 0], [0, 0, 1], [0, 4, 4], [1, -3, 2], [1, 5, 5]], np.int32)
LIMIT = vx.coords.COORD_LIMIT


def make(rows=ROWS, stride=1, capacity=8):
    features = np.arange(1.0, 1 + 2 * len(rows), dtype=np.float32).reshape(-1, 2)
    return vx.Voxels.from_coords(rows, features, 2, capacity=capacity, stride=stride)


# Operators that lead to a new coordinate set: `(run(voxels, capacity))`, all on ROWS.
LEADS_TO_NEW_SITES = {
    "conv_strided": lambda v, c: F.spatially_sparse_conv(
        v, make_weight(2, 2, 2, 2), 2, 2, capacity=c
    ),
    "conv_generative": lambda v, c: F.spatially_sparse_conv(
        v, make_weight(3, 2, 2, 2), generative=True, capacity=c
    ),
    "max_pool": lambda v, c: F.max_pool(v, 2, capacity=c),
    "space_to_channel": lambda v, c: F.space_to_channel(v, 2, capacity=c),
    "union": lambda v, c: vx.union(v, make(ROWS + np.int32([0, 0, 9])), capacity=c),
    "intersection": lambda v, c: vx.intersection(v, make(ROWS[1:]), capacity=c),
    "prune": lambda v, c: vx.prune(v, v.valid, capacity=c),
    "crop": lambda v, c: vx.crop(v, 0, 9, capacity=c),
    "dilate": lambda v, c: vx.dilate(v, 3, capacity=c),
    "refine": lambda v, c: vx.refine(v, 2, capacity=c),
    "coarsen": lambda v, c: vx.coarsen(v, 2, capacity=c),
    "to_bev": lambda v, c: vx.to_bev(v, capacity=c),
    "from_coords": lambda v, c: vx.Voxels.from_coords(v.coords, v.features, 2, capacity=c),
}


@pytest.mark.parametrize(
    "name",
    [slow_unless(name in ("conv_strided", "union", "prune"), name) for name in LEADS_TO_NEW_SITES],
)
def test_a_full_capacity_fits_and_one_short_is_never_silent(name):
    run, voxels = LEADS_TO_NEW_SITES[name], make()
    free = run(voxels, None)
    count = int(free.count)
    full = run(voxels, count)
    np.testing.assert_array_equal(full.coords, free.coords[:count])
    np.testing.assert_allclose(full.features, free.features[:count], rtol=1e-6)
    assert int(full.num_dropped) == 0

    with pytest.raises(vx.CapacityError, match=rf"{count} .*capacity {count - 1}"):
        run(voxels, count - 1)
    short = jax.jit(lambda v: run(v, count - 1))(voxels)
    assert int(short.num_dropped) == 1
    np.testing.assert_array_equal(short.coords, free.coords[: count - 1])
    with pytest.raises(vx.CapacityError, match="1 rows lost"):
        short.raise_if_overflowed()


@pytest.mark.parametrize("edge", [-LIMIT, LIMIT - 1])
@pytest.mark.parametrize("transposed", [False, True])
def test_a_generative_map_does_not_leave_the_coordinate_range(edge, transposed):
    rows = np.array([[0, edge, 3]], np.int32)
    voxels = make(rows, stride=2)

    def run(v):
        return vx.kernel_map(
            v, 3, 2 if transposed else 1, transposed=transposed, generative=True, capacity=16
        ).out_geometry

    with pytest.raises(vx.InputError, match="outside"):
        run(voxels)
    out = jax.jit(run)(voxels)
    assert int(out.num_dropped) > 0
    kept = np.asarray(out.coords)[: int(out.count), 1:]
    assert kept.size == 0 or (np.abs(kept) <= LIMIT).all()


def test_targets_far_outside_do_not_wrap_around():
    """Coarse coordinates whose fine ones exceed 32 bits must not hit a voxel on the other side."""
    voxels = make(np.array([[0, 0, 0]], np.int32))
    far = make(np.array([[0, 2**29, 0], [0, 0, 0]], np.int32), stride=8)
    weight = jnp.ones((64, 2, 2))
    out = F.spatially_sparse_conv(voxels, weight, 8, 8, out_voxels=far)
    np.testing.assert_array_equal(out.valid_features(), [[3, 3], [0, 0]])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"kernel_shape": "ring"}, "unknown kernel_shape 'ring'"),
        ({"kernel_shape": [[0, 0, 0]]}, r"int\[K, 2\]"),
        ({"kernel_shape": [[0.5, 0]]}, "must be integers"),
        ({"kernel_shape": [[0, 1], [0, 1]]}, r"\(0, 1\) is given twice"),
        ({"dilation": 2**29}, "limited to 2\\*\\*28"),
        ({"spatial_shape": 4}, "add generative=True"),
        ({"generative": True, "out_voxels": make()}, "use one of them"),
        ({"stride": 2, "out_voxels": make()}, r"leads from .* to stride \(2, 2\)"),
        ({"transposed": True, "stride": 2, "out_voxels": make()}, "finer lattice"),
        ({"out_voxels": make(stride=2)}, r"stride=\(1, 1\)"),
    ],
)
def test_contradictions_are_refused(arguments, message):
    with pytest.raises(vx.InputError, match=message):
        vx.kernel_map(make(), **arguments)


def test_weights_must_have_the_taps_of_the_shape():
    with pytest.raises(vx.InputError, match="kernel of 5 taps"):
        F.spatially_sparse_conv(make(), make_weight(3, 2, 2, 2), kernel_shape="cross")


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(
    ("kernel", "stride", "dilation"),
    [(3, 2, 1), slow_unless(False, 3, 1, 1), slow_unless(False, 2, 2, 1), (3, 2, 2)],
)
def test_the_output_grid_is_that_of_a_dense_convolution(kernel, stride, dilation, transposed):
    """A full grid reaches every site of the dense output and no other."""
    shape = (5, 4)
    cells = {(0, *cell) for cell in np.ndindex(*shape)}
    offsets = make_offsets(2, kernel, stride)
    options = {"stride": stride, "dilation": dilation, "transposed": transposed}
    grid = output_grid(shape, offsets, (stride,) * 2, (dilation,) * 2, transposed)
    expected = reached_sites(cells, offsets, spatial_shape=shape, **options)
    voxels = make(np.asarray(sorted(cells), np.int32), capacity=20, stride=4)
    out = vx.kernel_map(
        voxels, kernel, generative=True, spatial_shape=shape, **options
    ).out_geometry
    assert out.capacity >= int(out.count)
    assert {tuple(row) for row in np.asarray(out.coords)[: int(out.count)].tolist()} == expected
    if dilation == 1:
        assert expected == {(0, *cell) for cell in np.ndindex(*grid)}
