"""Every bad input is an error that names the value and says what to do."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from benchmarks.workloads import random_cube

import voxax as vx
from samples import complains, make_voxels, make_weight
from voxax.geometry import host
from voxax.nn.functional import max_pool
from voxax.nn.functional import spatially_sparse_conv as conv
from voxax.nn.functional import spatially_sparse_depthwise_conv as depthwise
from voxax.nn.modules import Linear

ROWS = np.array([[0, 0, 0, 0], [0, 1, 2, 3]])
ONES = np.ones((2, 1), np.float32)
POSITIONS = np.zeros((2, 3), np.float32)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (np.zeros(3, int), r"int\[N, 1 \+ D\].*shape \(3,\)"),
        (np.zeros((3, 1), int), r"D from 1 to 4.*shape \(3, 1\)"),
        (np.zeros((3, 6), int), r"D from 1 to 4.*shape \(3, 6\)"),
        (np.zeros((2, 4), np.float32), r"float32.*vx\.voxelize"),
        (ROWS - [-1, 0, 0, 0], r"batch indices span 1 to 1.*batch_size=2"),
        (ROWS - [1, 0, 0, 0], r"batch indices span -1 to -1"),
        (ROWS - [0, -(2**40), 0, 0], r"1099511627777.*shift"),
        (ROWS - [0, 0, 2**30 + 3, 0], r"-1073741827.*shift"),
    ],
)
def test_bad_coordinates(rows, message):
    complains(message, vx.Voxels.from_coords, rows, np.ones((len(rows), 1), np.float32))


def test_features_of_another_length():
    complains(r"\(3, 1\).*expected \[2, C\]", vx.Voxels.from_coords, ROWS, np.ones((3, 1)))
    voxels = make_voxels(random_cube(50))
    complains(r"\(7, 3\).*\[384, C\]", voxels.replace_features, jnp.ones((7, 3)))
    complains(r"\(3,\).*\[2, C\]", vx.voxelize, POSITIONS, np.ones(3, np.float32), 0.1)
    complains("3 features for 2", host.voxelize_on_host, POSITIONS, np.ones((3, 1)), 0.1)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("on", ["host", "numpy", "device"])
def test_positions_that_are_no_numbers(bad, on):
    positions = np.array([[0, 0, 0], [1, bad, 2]], np.float32)
    message = r"1 of 2 positions are NaN or infinite, first at row 1.*isfinite"
    if on == "host":
        complains(message, host.voxelize_on_host, positions, ONES, 0.1)
    else:
        given = positions if on == "numpy" else jnp.asarray(positions)
        complains(message, vx.voxelize, given, ONES, 0.1)


@pytest.mark.parametrize("size", [0, -0.1, np.nan, (0.1, 0.1, 0)])
def test_voxel_size_that_is_no_length(size):
    complains("voxel_size=.*positive", vx.voxelize, POSITIONS, ONES, size)
    complains("voxel_size=.*positive", host.voxelize_on_host, POSITIONS, ONES, size)


@pytest.mark.parametrize("size", ["0.1", ("0.1",) * 3, 1j, [[1], [2, 3]]])
def test_lengths_that_are_no_numbers(size):
    complains("voxel_size=.*must be a number", vx.voxelize, POSITIONS, ONES, size)
    complains("origin=.*must be a number", vx.voxelize, POSITIONS, ONES, 0.1, origin=size)


def test_positions_too_far_away():
    far = np.array([[0, 0, 0], [1e10, 0, 0]], np.float32)
    complains(r"row 1 .*voxel_size", vx.voxelize, far, ONES, 0.1)
    complains("enlarge voxel_size", host.voxelize_on_host, far, ONES, 0.1)


def test_positions_of_wrong_rank_or_dtype():
    complains(r"float\[N, D\].*\(3,\)", vx.voxelize, np.zeros(3, np.float32), None, 0.1)
    complains(r"int64|int32.*from_coords", vx.voxelize, np.zeros((2, 3), np.int32), None, 0.1)
    complains(r"batch_index must be int\[2\]", vx.voxelize, POSITIONS, ONES, 0.1, np.zeros(3, int))


def test_capacity_too_small():
    complains("capacity 1", vx.Voxels.from_coords, ROWS, ONES, capacity=1, error=vx.CapacityError)
    positions = np.array([[0, 0, 0], [1, 1, 1]], np.float32)
    complains(
        "2 voxels", host.voxelize_on_host, positions, ONES, 0.1, capacity=1, error=vx.CapacityError
    )
    complains("capacity=0", vx.Voxels.from_coords, ROWS, ONES, capacity=0)
    traced = jax.jit(lambda r: vx.Voxels.from_coords(r, ONES, capacity=1))(ROWS)
    complains("1 rows lost.*capacity=", traced.raise_if_overflowed, error=vx.CapacityError)


def test_unknown_reduction():
    complains("'median'.*known: mean", vx.Voxels.from_coords, ROWS, ONES, reduction="median")


def different_pair():
    return make_voxels(random_cube(50)), make_voxels(random_cube(50, seed=1))


def test_adding_over_different_coordinates():
    a, b = different_pair()
    mismatch = vx.GeometryMismatchError
    complains(r"vx\.union", lambda: a + b, error=mismatch)
    complains(r"vx\.union", vx.cat, [a, b], error=mismatch)
    lost = jax.jit(lambda a, b: a + b)(a, b)
    complains(r"vx\.union", lost.raise_if_overflowed, error=vx.CapacityError)


def test_equal_coordinates_are_compared_in_a_trace():
    a, b = make_voxels(random_cube(50)), make_voxels(random_cube(50), seed=1)
    for add in (lambda a, b: a + b, jax.jit(lambda a, b: a + b)):
        out = add(a, b).raise_if_overflowed()
        np.testing.assert_array_equal(out.features, a.features + b.features)


def test_wrong_weight_shape():
    voxels = make_voxels(random_cube(50))
    complains(r"\(8, 3, 4\).*27 taps.*expected \[27, 3, C_out\]", conv, voxels, make_weight(2, 3))
    complains(r"expected \[27, 3, 1,", conv, voxels, make_weight(3, 3), groups=3)
    complains("groups=0", conv, voxels, make_weight(3, 3), groups=0)
    complains(r"bias of shape \(3,\).*\[4\]", conv, voxels, make_weight(3, 3), bias=jnp.zeros(3))


def test_wrong_kernel_arguments():
    voxels, weight = make_voxels(random_cube(50)), make_weight(3, 3)
    complains("kernel_size=.*2 entries for 3", conv, voxels, weight, (3, 3))
    complains("stride=.*at least 1", conv, voxels, weight, 3, 0)


def test_a_map_excludes_what_it_fixes():
    voxels, weight = make_voxels(random_cube(50)), make_weight(3, 3)
    kmap = vx.kernel_map(voxels)
    complains("already fixes stride", conv, voxels, weight, stride=2, kernel_map=kmap)
    complains("already fixes capacity", conv, voxels, weight, capacity=64, kernel_map=kmap)


def test_a_map_of_other_voxels():
    a, b = different_pair()
    kmap = vx.kernel_map(b)
    complains("was built for", conv, a, make_weight(3, 3), kernel_map=kmap, error=vx.VoxaxError)


def test_depthwise_shapes():
    voxels = make_voxels(random_cube(50))
    kmap = vx.kernel_map(voxels)
    complains(r"expected \[27, 3\]", depthwise, voxels.features, jnp.ones((8, 3)), kmap)
    complains(r"expects \[384, C\]", depthwise, jnp.ones((7, 3)), jnp.ones((27, 3)), kmap)
    complains("num_out_coords=5.*384", depthwise, voxels.features, jnp.ones((27, 3)), kmap, 5)


@pytest.mark.parametrize("where", ["fwd_algo", "bwd_algo", "dgrad_algo", "wgrad_algo"])
def test_unknown_algorithms(where):
    voxels, weight = make_voxels(random_cube(50)), make_weight(3, 3)
    for request in ("explicit_gem", ["explicit_gemm", "explicit_gem"]):
        complains(
            "'explicit_gem'; known: .*explicit_gemm",
            conv, voxels, weight, **{where: request}, error=vx.AlgorithmError,
        )  # fmt: skip
    complains("empty list", conv, voxels, weight, **{where: []}, error=vx.AlgorithmError)


def test_transposed_needs_a_target():
    voxels = make_voxels(random_cube(50))
    complains("out_voxels=.*generative", conv, voxels, make_weight(2, 3), 2, 2, transposed=True)


VOXELS = vx.Voxels.from_coords(ROWS, ONES)
EDGE = np.ones((8, 1, 1), np.float32)
WITH_A_CAPACITY = {
    "from_coords": lambda n: vx.Voxels.from_coords(ROWS, ONES, capacity=n),
    "voxelize": lambda n: vx.voxelize(POSITIONS, None, 0.1, capacity=n),
    "voxelize on the host": lambda n: host.voxelize_on_host(POSITIONS, ONES, 1.0, capacity=n)[0],
    "Points": lambda n: vx.Points.make(POSITIONS, capacity=n),
    "strided": lambda n: conv(VOXELS, EDGE, 2, 2, capacity=n),
    "generative": lambda n: conv(VOXELS, EDGE, 2, generative=True, capacity=n),
    "pool": lambda n: max_pool(VOXELS, 2, capacity=n),
    "coarsen": lambda n: vx.coarsen(VOXELS, 2, capacity=n),
    "union": lambda n: vx.union(VOXELS, VOXELS, capacity=n),
    "batch": lambda n: vx.batch([VOXELS, VOXELS], capacity=n),
    "crop": lambda n: vx.crop(VOXELS, -9, 9, capacity=n),
}


@pytest.mark.parametrize("call", WITH_A_CAPACITY)
def test_capacities_that_are_none(call):
    make = WITH_A_CAPACITY[call]
    for bad in (32.0, "32", [32], np.float32(32)):
        complains("capacity=.*integer", make, bad)
    for few in (0, -3):
        complains(f"capacity={few} must be at least 1", make, few)
    complains("static", jax.jit(make), 32)
    for good in (np.int64(32), np.uint8(32), np.asarray(32), jnp.asarray(32)):
        assert make(good).capacity == 32


def test_generative_under_jit_needs_a_capacity():
    layer = jax.jit(lambda v: conv(v, make_weight(3, 3), generative=True))
    complains("capacity=", layer, make_voxels(random_cube(50)))


def test_a_kernel_smaller_than_its_stride_warns():
    with pytest.warns(UserWarning, match="leaves inputs unused"):
        conv(make_voxels(random_cube(50)), make_weight((1, 1, 1), 3), (1, 1, 1), (7, 7, 7))


def test_host_access_needs_concrete_values():
    voxels = make_voxels(random_cube(50))
    for read in (lambda v: v.valid_coords(), lambda v: v.valid_features()):
        complains("static", jax.jit(read), voxels, error=TypeError)


def test_out_voxels_of_another_batch_size():
    rows = np.array([[0, 0, 0, 0], [0, 2, 1, 1]], np.int32)
    features = np.ones((2, 1), np.float32)
    one = vx.Voxels.from_coords(rows, features, batch_size=1)
    two = vx.Voxels.from_coords(rows, features, batch_size=2)
    with pytest.raises(vx.InputError, match="out_voxels hold 2 scenes, the input 1"):
        vx.kernel_map(one, out_voxels=two)
    with pytest.raises(vx.GeometryMismatchError):
        one + two


@pytest.mark.parametrize("index", [2, -1, 1.0, "1", None, np.float32(0), [0]])
def test_a_scene_that_is_none(index):
    voxels = make_voxels(random_cube(50))  # two scenes
    complains(r"scene .*0 to 1", voxels.scene, index)


def test_a_traced_scene():
    voxels = make_voxels(random_cube(50))
    complains("not traced", jax.jit(lambda i: voxels.scene(i).features), jnp.int32(0))
    assert voxels.scene(np.int64(1)).batch_size == 1


def test_features_of_other_channels_for_a_linear_layer():
    layer = Linear(5, 2)
    complains("Linear expects 5 channels, the voxels have 3", layer, make_voxels(random_cube(50)))


def test_a_grid_of_too_many_cells():
    complains(r"\(10000, 10000, 10000\).*give shape=", make_voxels(ROWS).to_dense, (10**4,) * 3)
    complains("shape=3.5", make_voxels(ROWS).to_dense, (3, 3, 3.5))


@pytest.mark.parametrize("call", [vx.dilate, lambda v: max_pool(v, 2), Linear(3, 4)])
def test_stacked_voxels_need_vmap(call):
    stack = jax.tree.map(lambda x: jnp.stack([x, x]), make_voxels(ROWS))
    complains("leading axis.*jax.vmap", call, stack)
