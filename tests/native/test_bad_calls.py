"""Calls that no layer of voxax makes: each is an error or has the right result."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import voxax as vx
from problems import needs_native
from voxax.coords import find_neighbors
from voxax.nn.functional import spatially_sparse_conv

pytestmark = needs_native
ATTRIBUTES = {
    "voxax_product": {"groups": 1, "tile": 8, "transposed": False, "reversed": False},
    "voxax_weight_product": {"tile": 8},
    "voxax_depthwise": {"tile": 8, "wgrad": False, "reversed": False},
    "voxax_find_neighbors": {},
    "voxax_search_points": {},
}
# Shapes of operands and result that are right: 6 input rows, 5 output rows, 3 taps.
SHAPES = {
    "voxax_product": ((6, 4), (3, 1, 4, 8), (5, 3), (5, 8)),
    "voxax_weight_product": ((6, 4), (5, 8), (5, 3), (3, 1, 4, 8)),
    "voxax_depthwise": ((6, 4), (3, 4), (5, 3), (5, 4)),
}
FEATURES = "float32"


def call(target, operands, result, **attributes):
    typed = {
        name: np.bool_(value) if isinstance(value, bool) else np.int64(value)
        for name, value in {**ATTRIBUTES[target], **attributes}.items()
    }
    out = jax.jit(lambda *operands: jax.ffi.ffi_call(target, result)(*operands, **typed))(*operands)
    return np.asarray(out)


def multiply(target, shapes, dtypes=(FEATURES,) * 4, fill=0, **attributes):
    """Features of ones, weights of ones and a map that is ``fill`` throughout."""
    a, b, table, result = shapes
    operands = (
        jnp.ones(a, dtypes[0]),
        jnp.ones(b, dtypes[1]),
        jnp.full(table, fill, jnp.int32 if dtypes[2] == FEATURES else dtypes[2]),
    )
    return call(target, operands, jax.ShapeDtypeStruct(result, dtypes[3]), **attributes)


@pytest.mark.parametrize("target", SHAPES)
def test_the_shapes_here_are_right(target):
    assert (multiply(target, SHAPES[target]) > 0).all()


@pytest.mark.parametrize("target", SHAPES)
@pytest.mark.parametrize("place", range(4))
@pytest.mark.parametrize(
    "change", ["one axis less", "one axis more", "last longer", "first longer"]
)
def test_shapes_that_do_not_fit(target, place, change):
    shapes = list(SHAPES[target])
    shape = shapes[place]
    shapes[place] = {
        "one axis less": shape[1:],
        "one axis more": (1, *shape),
        "last longer": (*shape[:-1], shape[-1] + 1),
        "first longer": (shape[0] + 1, *shape[1:]),
    }[change]
    if place == 0 and change == "first longer":  # more input rows are no contradiction
        assert (multiply(target, shapes) > 0).all()
        return
    with pytest.raises(jax.errors.JaxRuntimeError, match="voxax: "):
        multiply(target, shapes)


@pytest.mark.parametrize("target", SHAPES)
@pytest.mark.parametrize("place", range(4))
@pytest.mark.parametrize("dtype", ["int32", "float16", "bfloat16"])
def test_dtypes_that_do_not_fit(target, place, dtype):
    if place == 2 and dtype == "int32":
        pytest.skip("this is what it should be")
    dtypes = [FEATURES] * 4
    dtypes[place] = dtype
    with pytest.raises(jax.errors.JaxRuntimeError, match=r"of one dtype|expected S32|Wrong"):
        multiply(target, SHAPES[target], dtypes)


@pytest.mark.parametrize("dtype", ["float16", "int8", "complex64"])
def test_dtypes_without_a_kernel(dtype):
    shapes = SHAPES["voxax_product"]
    with pytest.raises(jax.errors.JaxRuntimeError, match="float32, float64 or bfloat16"):
        multiply("voxax_product", shapes, (dtype, dtype, FEATURES, dtype))


@pytest.mark.parametrize("target", SHAPES)
@pytest.mark.parametrize("tile", [0, -1, -(2**63)])
def test_tiles_of_no_rows(target, tile):
    with pytest.raises(jax.errors.JaxRuntimeError, match="voxax: "):
        multiply(target, SHAPES[target], tile=tile)


@pytest.mark.parametrize("target", SHAPES)
def test_tiles_of_more_rows_than_there_are(target):
    wanted = multiply(target, SHAPES[target])
    for tile in (2**31, 2**63 - 1):
        np.testing.assert_array_equal(multiply(target, SHAPES[target], tile=tile), wanted)


@pytest.mark.parametrize("groups", [0, -1, 3, 8, 2**62])
def test_groups_that_do_not_divide(groups):
    with pytest.raises(jax.errors.JaxRuntimeError, match="voxax: "):
        multiply("voxax_product", SHAPES["voxax_product"], groups=groups)


@pytest.mark.parametrize("target", SHAPES)
@pytest.mark.parametrize("wgrad", [False, True])
@pytest.mark.parametrize("row", [6, 2**31 - 1, -2, -(2**31)])
def test_maps_of_rows_that_do_not_exist(target, wgrad, row):
    shapes, attributes = SHAPES[target], {}
    if wgrad and target == "voxax_depthwise":
        shapes, attributes = ((6, 4), (5, 4), (5, 3), (3, 4)), {"wgrad": True}
    with pytest.raises(jax.errors.JaxRuntimeError, match=f"names input row {row} of 6"):
        multiply(target, shapes, fill=row, **attributes)


@pytest.mark.parametrize("target", SHAPES)
def test_no_neighbor_anywhere(target):
    assert not multiply(target, SHAPES[target], fill=-1).any()


@pytest.mark.parametrize("target", SHAPES)
def test_without_input_rows(target):
    """Nothing to name: a map of -1 gives zeros, any other is an error."""
    shapes = ((0, 4), *SHAPES[target][1:])
    assert not multiply(target, shapes, fill=-1).any()
    with pytest.raises(jax.errors.JaxRuntimeError, match="names input row 0 of 0"):
        multiply(target, shapes)


@pytest.mark.parametrize("target", SHAPES)
def test_without_output_rows_taps_or_channels(target):
    a, b, table, result = SHAPES[target]
    product, wgrad = target == "voxax_product", target == "voxax_weight_product"
    no_rows = (a, (0, b[1]) if wgrad else b, (0, 3), result if wgrad else (0, result[1]))
    no_taps = (a, b if wgrad else (0, *b[1:]), (5, 0), (0, *result[1:]) if wgrad else result)
    for shapes in (no_rows, no_taps):
        out = multiply(target, shapes)
        assert out.shape == shapes[3]
        assert not out.any()
    if product:
        no_depth = (6, 0), (3, 1, 0, 8), table, result
    elif wgrad:
        no_depth = (6, 0), b, table, (3, 1, 0, 8)
    else:
        no_depth = (6, 0), (3, 0), table, (5, 0)
    assert not multiply(target, no_depth).any()


def gradients(shapes=(), dtypes=(), fill=0, reversed=False):
    """5 output rows, 6 input rows, 3 taps, 4 channels; but for what is given by place."""
    shape = {0: (5, 4), 1: (6, 4), 2: (3, 4), 3: (6, 3), 4: (6, 4), 5: (3, 4), **dict(shapes)}
    dtype = {i: "int32" if i == 3 else FEATURES for i in range(6)} | dict(dtypes)
    operands = [jnp.full(shape[i], fill if i == 3 else 1, dtype[i]) for i in range(4)]
    results = tuple(jax.ShapeDtypeStruct(shape[i], dtype[i]) for i in (4, 5))
    run = jax.ffi.ffi_call("voxax_depthwise_gradients", results)
    out = jax.jit(lambda *operands: run(*operands, reversed=np.bool_(reversed)))(*operands)
    return [np.asarray(value) for value in out]


@pytest.mark.parametrize("reversed", [False, True])
def test_gradients_of_shapes_and_dtypes_that_fit(reversed):
    dx, dw = gradients(reversed=reversed)  # every tap of every input row names output row 0
    np.testing.assert_array_equal(dx, np.full((6, 4), 3))
    np.testing.assert_array_equal(dw, np.full((3, 4), 6))


@pytest.mark.parametrize("place", range(6))
def test_gradients_of_shapes_that_do_not_fit(place):
    right = {0: (5, 4), 1: (6, 4), 2: (3, 4), 3: (6, 3), 4: (6, 4), 5: (3, 4)}[place]
    longer = () if place == 0 else ((right[0] + 1, right[1]),)  # any number of output rows
    for bad in (right[1:], (1, *right), (right[0], right[1] + 1), *longer):
        with pytest.raises(jax.errors.JaxRuntimeError, match="voxax: "):
            gradients({place: bad})


@pytest.mark.parametrize("place", range(6))
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_gradients_of_dtypes_that_do_not_fit(place, dtype):
    with pytest.raises(jax.errors.JaxRuntimeError, match=r"of one dtype|expected S32|Wrong"):
        gradients(dtypes={place: dtype})


@pytest.mark.parametrize("row", [5, 2**31 - 1, -2, -(2**31)])
def test_gradients_on_maps_of_rows_that_do_not_exist(row):
    with pytest.raises(jax.errors.JaxRuntimeError, match=f"names output row {row} of 5"):
        gradients(fill=row)


def test_gradients_of_nothing():
    assert not any(value.any() for value in gradients(fill=-1))
    assert not any(value.any() for value in gradients({0: (0, 4)}, fill=-1))
    dx, dw = gradients({1: (0, 4), 3: (0, 3), 4: (0, 4)})
    assert dx.shape == (0, 4)
    assert not dw.any()
    dx, dw = gradients({2: (0, 4), 3: (6, 0), 5: (0, 4)})
    assert dw.shape == (0, 4)
    assert not dx.any()


def neighbors(rows, centers, offsets, width=None):
    shape = jax.ShapeDtypeStruct(width or (len(centers), len(offsets)), jnp.int32)
    valid = jnp.ones(len(centers), bool)
    operands = (*(jnp.asarray(v, jnp.int32) for v in (rows, centers)), valid)
    return call("voxax_find_neighbors", (*operands, jnp.asarray(offsets, jnp.int32)), shape)


def test_neighbors_of_shapes_that_do_not_fit():
    rows, offsets = np.zeros((4, 3)), np.zeros((2, 2))
    assert neighbors(rows, rows, offsets).shape == (4, 2)
    for bad in (
        (rows[0], rows, offsets),
        (rows, rows[:, :2], offsets),
        (rows, rows, offsets[:, :1]),
        (rows, rows, offsets[0]),
        (rows, rows, offsets, (4, 3)),
        (rows, rows, offsets, (3, 2)),
        (rows, rows, offsets, (4,)),
    ):
        with pytest.raises(jax.errors.JaxRuntimeError, match="voxax: coordinates"):
            neighbors(*bad)
    for axes in (0, 5):
        with pytest.raises(jax.errors.JaxRuntimeError, match="1 to 4 axes"):
            neighbors(np.zeros((4, 1 + axes)), np.zeros((4, 1 + axes)), np.zeros((2, axes)))


def search(points, scene, queries, own, radius, rows, found, dtype="float32"):
    """Points that all lie in the origin."""
    floats = (jnp.zeros(shape, dtype) for shape in (points, queries, radius))
    p, q, r = floats
    operands = (p, jnp.zeros(scene, jnp.int32), q, jnp.zeros(own, jnp.int32), r)
    results = [jax.ShapeDtypeStruct(shape, jnp.int32) for shape in (rows, found)]
    call = jax.jit(lambda *operands: jax.ffi.ffi_call("voxax_search_points", results)(*operands))
    return [np.asarray(result) for result in call(*operands)]


def test_points_of_shapes_that_do_not_fit():
    right = ((6, 3), (6,), (5, 3), (5,), (), (5, 2), (5,))
    rows, found = search(*right)
    np.testing.assert_array_equal(rows, [[0, 1]] * 5)
    np.testing.assert_array_equal(found, 6)
    wrong = {
        0: [(6,), (6, 2), (6, 0), (7, 3)],
        1: [(5,), (6, 1)],
        2: [(5,), (5, 4), (4, 3)],
        3: [(6,), ()],
        4: [(1,)],
        5: [(5,), (4, 2), (5, 0)],
        6: [(4,), ()],
    }
    for place, shapes in wrong.items():
        for shape in shapes:
            with pytest.raises(jax.errors.JaxRuntimeError, match="voxax: points"):
                search(*right[:place], shape, *right[place + 1 :])
    with pytest.raises(jax.errors.JaxRuntimeError, match="float32 or float64"):
        search(*right, dtype="float16")


def test_neighbors_at_the_ends_of_32_bits():
    """Beyond them nothing is found, on no other end and in no other row of the lattice."""
    low, high = -(2**31), 2**31 - 1
    rows = np.array([[0, low, low], [0, low, high], [0, 5, low], [0, 6, low], [0, high, high]])
    offsets = np.array([[0, 0], [0, 1], [0, -1], [1, 0], [-1, 0], [low, 1], [0, high]])
    known = {tuple(row): i for i, row in enumerate(rows.tolist())}
    wanted = [
        [known.get((b, y + int(dy), x + int(dx)), -1) for dy, dx in offsets]
        for b, y, x in rows.tolist()
    ]
    np.testing.assert_array_equal(neighbors(rows, rows, offsets), wanted)


@pytest.mark.parametrize("ndim", [1, 3, 4])
def test_neighbors_in_a_list_out_of_order(ndim, rng):
    """Rows may be missed, but one that is named holds the coordinates that were asked for."""
    rows = rng.integers(-3, 4, (5000, 1 + ndim))
    offsets = rng.integers(-2, 3, (20, ndim))
    found = neighbors(rows, rows, offsets)
    m, k = np.nonzero(found >= 0)
    asked = rows[m] + np.concatenate([np.zeros((len(k), 1), int), offsets[k]], axis=1)
    assert found.min() >= -1
    assert found.max() < len(rows)
    np.testing.assert_array_equal(rows[found[m, k]], asked)


def test_equal_rows_and_equal_taps():
    rows = np.array([[0, 1], [0, 1], [0, 2], [0, 2]])
    found = neighbors(rows, rows, [[0], [0], [1]])
    np.testing.assert_array_equal(found, [[0, 0, 2], [0, 0, 2], [2, 2, -1], [2, 2, -1]])


@pytest.mark.parametrize("shape", [(0, 4, 2), (4, 0, 2), (4, 4, 0)])
def test_neighbors_of_nothing(shape):
    rows, centers, taps = shape
    found = neighbors(np.ones((rows, 3)), np.ones((centers, 3)), np.ones((taps, 2)))
    assert found.shape == (centers, taps)
    assert (found == -1).all()


def test_a_count_beyond_the_capacity(rng):
    """Every row is taken for a voxel then, and no row behind the last one."""
    coords = np.unique(rng.integers(0, 4, (60, 4)), axis=0)[:30].astype(np.int32)
    features = rng.normal(size=(30, 5)).astype(np.float32)
    voxels = vx.Voxels.from_coords(coords, features, batch_size=4, capacity=30)
    geometry = dataclasses.replace(voxels.geometry, count=jnp.int32(2**31 - 1))
    weight = jnp.asarray(rng.normal(size=(27, 5, 6)), jnp.float32)
    found, wanted = (
        jax.jit(lambda v: spatially_sparse_conv(v, weight, kernel_size=3).features)(v)
        for v in (dataclasses.replace(voxels, geometry=geometry), voxels)
    )
    np.testing.assert_array_equal(found, wanted)
    rows = jnp.asarray(coords)
    table = find_neighbors(rows, rows, jnp.arange(30) < geometry.count, np.zeros((1, 3), int))
    np.testing.assert_array_equal(table[:, 0], np.arange(30))
