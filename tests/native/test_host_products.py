"""Products, pooling and strided maps of the native library on NumPy arrays, against loops."""

import itertools
import os
import signal

import numpy as np
import pytest

from problems import needs_native
from voxax._native import host, host_products

pytestmark = needs_native

TOLERANCE = {np.float32: 1e-5, np.float64: 1e-13}


def problem(rng, rows=700, outs=500, taps=27, depth=12, columns=20, dtype=np.float32):
    """Features, weights, gradients and a map in which half the entries are absent."""
    neighbors = rng.integers(-rows, rows, (outs, taps)).clip(-1).astype(np.int32)
    x = rng.normal(size=(rows, depth)).astype(dtype)
    weight = rng.normal(size=(taps, depth, columns)).astype(dtype)
    return x, weight, rng.normal(size=(outs, columns)).astype(dtype), neighbors


def gathered(x, neighbors):
    """``float64[M, K, C]``, zero where there is no row."""
    found = x.astype(np.float64)[neighbors]
    return np.where(neighbors[:, :, None] >= 0, found, 0)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("threads", [1, 3])
def test_products(dtype, threads, rng):
    for taps, depth, columns in ((1, 1, 1), (8, 3, 5), (27, 12, 20), (125, 4, 33)):
        x, weight, dy, neighbors = problem(rng, 300, 260, taps, depth, columns, dtype)
        y, dw = np.empty_like(dy), np.empty_like(weight)
        host_products.product(x, weight, neighbors, y, threads=threads)
        expected = np.einsum("mkc,kcd->md", gathered(x, neighbors), weight)
        limit = TOLERANCE[dtype] * np.abs(expected).max()
        np.testing.assert_allclose(y, expected, rtol=0, atol=limit)
        for axes in itertools.permutations(range(3)):  # the same weights in other memory
            moved = np.ascontiguousarray(weight[::-1].transpose(axes)).transpose(np.argsort(axes))
            again = np.empty_like(y)
            host_products.product(x, moved, neighbors, again, reverse=True, threads=threads)
            np.testing.assert_array_equal(again, y)
        host_products.weight_product(x, dy, neighbors, dw, threads=threads)
        expected = np.einsum("mkc,md->kcd", gathered(x, neighbors), dy)
        limit = TOLERANCE[dtype] * np.abs(expected).max()
        np.testing.assert_allclose(dw, expected, rtol=0, atol=limit)


def test_bfloat16_is_summed_in_float32(rng):
    x, weight, dy, neighbors = problem(rng)
    bits = [(array.view(np.uint32) >> 16).astype(np.uint16) for array in (x, weight)]
    y = np.empty(dy.shape, np.uint16)
    host_products.product(*bits, neighbors, y)
    wide = [(array.astype(np.uint32) << 16).view(np.float32) for array in (*bits, y)]
    expected = np.einsum("mkc,kcd->md", gathered(wide[0], neighbors), wide[1])
    np.testing.assert_allclose(wide[2], expected, rtol=2**-8, atol=1e-3)


def test_threads_change_no_bit(rng):
    x, weight, dy, neighbors = problem(rng, rows=20_000, outs=20_000)
    found = []
    for threads in (1, 2, 7):
        y, dw = np.empty_like(dy), np.empty_like(weight)
        host_products.product(x, weight, neighbors, y, threads=threads)
        host_products.weight_product(x, dy, neighbors, dw, threads=threads)
        best = host_products.extreme_rows(x, neighbors, threads=threads)
        found.append((y, dw, best))
    for one in found[1:]:
        for array, first in zip(one, found[0], strict=True):
            np.testing.assert_array_equal(array, first)


@pytest.mark.parametrize("largest", [True, False])
def test_extreme_rows(largest, rng):
    x, _, _, neighbors = problem(rng, taps=8)
    neighbors[::7] = -1
    found = host_products.extreme_rows(x, neighbors, largest=largest)
    worst = -np.inf if largest else np.inf
    values = np.where(neighbors[:, :, None] >= 0, x[neighbors], worst)
    tap = values.argmax(1) if largest else values.argmin(1)
    expected = np.take_along_axis(neighbors, tap, 1)
    expected[(neighbors < 0).all(1)] = -1
    np.testing.assert_array_equal(found, expected)


def test_maps_that_name_other_rows(rng):
    x, weight, dy, neighbors = problem(rng)
    y, dw = np.empty_like(dy), np.empty_like(weight)
    for row in (len(x), 2**31 - 1, -2):
        bad = neighbors.copy()
        bad[17, 5] = row
        with pytest.raises(ValueError, match="rows that do not exist"):
            host_products.product(x, weight, bad, y)
        with pytest.raises(ValueError, match="rows that do not exist"):
            host_products.weight_product(x, dy, bad, dw)


def test_shapes_that_do_not_fit(rng):
    x, weight, dy, neighbors = problem(rng)
    y, dw = np.empty_like(dy), np.empty_like(weight)
    calls = [
        lambda: host_products.product(x[:, 1:], weight, neighbors, y),
        lambda: host_products.product(x, weight[1:], neighbors, y),
        lambda: host_products.product(x, weight, neighbors[1:], y),
        lambda: host_products.product(x, weight.astype(np.float64), neighbors, y),
        lambda: host_products.weight_product(x, dy[1:], neighbors, dw),
        lambda: host_products.weight_product(x, dy, neighbors, dw[:, 1:]),
        lambda: host_products.weight_product(x, dy.astype(np.float64), neighbors, dw),
    ]
    for call in calls:
        with pytest.raises(ValueError, match="do not fit"):
            call()


def reached_by_loops(rows, sizes, transposed):
    """Outputs in the order of a loop over taps and inside it over rows, and the map."""
    kernel, stride, padding, dilation, shape = sizes
    places, entries = {}, []
    for tap, steps in enumerate(itertools.product(*map(range, kernel))):
        for row, (scene, *center) in enumerate(rows.tolist()):
            if transposed:
                axes = zip(center, stride, padding, steps, dilation, strict=True)
                at = [c * s - p + k * d for c, s, p, k, d in axes]
            else:
                axes = zip(center, stride, padding, steps, dilation, strict=True)
                split = [divmod(c + p - k * d, s) for c, s, p, k, d in axes]
                if any(rest for _, rest in split):
                    continue
                at = [quotient for quotient, _ in split]
            if all(0 <= a < n for a, n in zip(at, shape, strict=True)):
                place = places.setdefault((scene, *at), len(places))
                entries.append((place, tap, row))
    neighbors = np.full((len(places), np.prod(kernel)), -1)
    for place, tap, row in entries:
        neighbors[place, tap] = row
    return np.asarray(list(places), int).reshape(-1, rows.shape[1]), neighbors


@pytest.mark.parametrize("ndim", [1, 2, 3, 4])
@pytest.mark.parametrize("transposed", [False, True])
def test_reached_rows(ndim, transposed, rng):
    shape = {1: 60, 2: 14, 3: 8, 4: 5}[ndim]
    rows = np.unique(rng.integers(0, shape, (80, 1 + ndim)) % [3, *[shape] * ndim], axis=0)
    rows = rng.permutation(rows).astype(np.int32)
    for k, s, p, d in ((3, 2, 1, 1), (2, 2, 0, 1), (3, 1, 1, 2), (3, 3, 0, 1), (1, 2, 0, 1)):
        if transposed:
            out = (shape - 1) * s - 2 * p + k
        else:
            out = (shape + 2 * p - d * (k - 1) - 1) // s + 1
        # Axes of unlike sizes: the first one's are its own.
        sizes = [
            [value + (axis == 0 and extra)] + [value] * (ndim - 1)
            for axis, value, extra in ((0, k, 0), (0, s, 1), (1, p, 0), (1, d, 0), (1, out, 0))
        ]
        found = host_products.reached_rows(rows, sizes, transposed)
        expected = reached_by_loops(rows, sizes, transposed)
        for array, other in zip(found, expected, strict=True):
            assert array.dtype == np.int32
            np.testing.assert_array_equal(array, other)


def test_reached_rows_far_away():
    last = 2**31 - 2
    rows = np.asarray([[0, last, 0], [0, 0, last]], np.int32)
    sizes = [[3, 3], [2, 2], [1, 1], [1, 1], [2**30, 2**30]]
    found = host_products.reached_rows(rows, sizes, False)
    for array, other in zip(found, reached_by_loops(rows, sizes, False), strict=True):
        np.testing.assert_array_equal(array, other)
    with pytest.raises(ValueError, match=r"at most 2\^63"):
        host_products.reached_rows(rows, [*sizes[:4], [2**32, 2**32]], False)


def test_no_rows():
    rows = np.empty((0, 4), np.int32)
    out, neighbors = host_products.reached_rows(rows, [[3] * 3] + [[1] * 3] * 3 + [[9] * 3], False)
    assert out.shape == (0, 4)
    assert neighbors.shape == (0, 27)
    y = np.empty((0, 5), np.float32)
    weight = np.ones((27, 2, 5), np.float32)
    host_products.product(np.ones((3, 2), np.float32), weight, neighbors, y, threads=4)


def test_a_table_of_other_places(rng):
    order = rng.permutation(90_000).astype(np.int32)
    table = rng.integers(-90_000, 90_000, (90_000, 3)).clip(-1).astype(np.int32)
    found = table.copy()
    host_products.renumber_table(found, order, threads=3)
    np.testing.assert_array_equal(found, np.where(table >= 0, order[table], -1))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("columns", [5, 64])
def test_rows_of_the_table_in_an_order(dtype, columns, rng):
    x, weight, dy, neighbors = problem(rng, 900, 700, columns=columns, dtype=dtype)
    order = rng.permutation(len(dy)).astype(np.int32)
    found, expected = np.empty_like(dy), np.empty_like(dy)
    host_products.product(x, weight, neighbors, expected)
    host_products.product(x, weight, neighbors[order], found, order=order, threads=2)
    np.testing.assert_array_equal(found, expected)
    dw, again = np.empty_like(weight), np.empty_like(weight)
    host_products.weight_product(x, dy[order], neighbors[order], dw)
    host_products.weight_product(x, dy, neighbors[order], again, order=order, threads=2)
    np.testing.assert_array_equal(again, dw)
    for bad in (order - 1, order + 1, order // 2):
        with pytest.raises(ValueError, match="rows that do not exist"):
            host_products.product(x, weight, neighbors, found, order=bad)
        with pytest.raises(ValueError, match="rows that do not exist"):
            host_products.weight_product(x, dy, neighbors, dw, order=bad)
    with pytest.raises(ValueError, match="do not fit"):
        host_products.product(x, weight, neighbors, found, order=order[1:])


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.uint16])
@pytest.mark.parametrize("columns", [5, 64])
def test_bias_and_relu(dtype, columns, rng):
    x, weight, dy, neighbors = problem(rng, columns=columns)
    bias = rng.normal(size=columns).astype(np.float32)
    x[:40, 0] = np.nan
    if dtype == np.uint16:  # bfloat16's bits
        cast = lambda a: (a.view(np.uint32) >> 16).astype(np.uint16)  # noqa: E731
        wide = lambda a: (a.astype(np.uint32) << 16).view(np.float32)  # noqa: E731
    else:
        cast, wide = lambda a: a.astype(dtype), lambda a: a
    x, weight, bias = map(cast, (x, weight, bias))
    plain = np.empty(dy.shape, dtype)
    host_products.product(x, weight, neighbors, plain)
    for added in (None, bias):
        for relu in (False, True):
            y = np.empty(dy.shape, dtype)
            host_products.product(x, weight, neighbors, y, bias=added, relu=relu)
            expected = wide(plain) if added is None else wide(plain) + wide(added)
            expected = np.where(expected < 0, 0, expected) if relu else expected
            limit = 2**-6 if dtype == np.uint16 else 0
            np.testing.assert_allclose(wide(y), expected, rtol=limit, atol=2 * limit)
    with pytest.raises(ValueError, match="do not fit"):
        host_products.product(x, weight, neighbors, plain, bias=bias[1:])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
# JAX warns of the fork: the child does not use it.
@pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")
def test_a_forked_process_has_threads_of_its_own(rng):
    x, weight, dy, neighbors = problem(rng, rows=9000, outs=9000)
    y, again = np.empty_like(dy), np.empty_like(dy)
    host_products.product(x, weight, neighbors, y, threads=4)
    child = os.fork()
    if child == 0:
        signal.alarm(60)  # ends a child that waits for threads it does not have
        host_products.product(x, weight, neighbors, again, threads=4)
        places = host.unique_rows(neighbors[:, :3].copy(), 4)[1]
        os._exit(0 if np.array_equal(again, y) and len(places) == 9000 else 1)
    assert os.waitpid(child, 0)[1] == 0
