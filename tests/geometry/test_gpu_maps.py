"""Maps as GPUs build them: the same on a CPU, and the programs that GPUs would run.

XLA compiles for an H100 that is not present, if JAX's plugin for CUDA is installed; nothing runs.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from benchmarks.gpu import launches
from benchmarks.gpu.lowered import CHIPS, custom_calls, lower

import voxax as vx
from oracle import PAD
from problems import needs_compiler
from samples import make_voxels
from voxax.coords import COORD_LIMIT, coarsen, ordering, sort_rows, unique_rows
from voxax.geometry import KernelSpec, build
from voxax.kernels.implicit_gemm.tap_order import sort_by_taps

ROWS = 98_304


def scattered(ndim, number, limit, seed=0):
    """Distinct rows in canonical order; half of them are close to others."""
    rng = np.random.default_rng(seed)
    far = rng.integers(-limit, limit, (number, 1 + ndim))
    near = far + rng.integers(0, 3, far.shape)
    rows = np.concatenate([far, np.clip(near, -limit, limit - 1)])
    rows[:, 0] = rng.integers(0, 3, len(rows))
    return np.unique(rows, axis=0).astype(np.int32)


@pytest.mark.parametrize("capacity", [900, 300])
@pytest.mark.parametrize("limit", [6, COORD_LIMIT])
@pytest.mark.parametrize("stride", [(2,), (3, 2), (2, 2, 2), (1, 4, 3), (2, 1, 2, 3)])
def test_members_of_cells_are_those_that_a_search_finds(stride, limit, capacity):
    rows = scattered(len(stride), 250, limit)
    padded = np.concatenate([rows, np.full((9, rows.shape[1]), PAD, np.int32)])
    spec = KernelSpec.make(len(stride), stride, stride)
    assert spec.partitions
    cells = unique_rows(coarsen(jnp.asarray(padded), stride), capacity)
    arguments = padded, cells.coords, cells.inverse
    (found,) = build._listed_members(*map(jnp.asarray, arguments), spec)
    (expected,) = build._searched_members(*map(jnp.asarray, arguments), spec)
    np.testing.assert_array_equal(found, expected)
    assert (np.asarray(found) >= 0).sum() == (np.asarray(cells.inverse) >= 0).sum()


def test_only_boxes_of_the_stride_partition():
    for kernel, options in ((3, {"stride": 2}), (2, {}), (2, {"stride": 2, "dilation": 2})):
        assert not KernelSpec.make(3, kernel, **options).partitions
    assert not KernelSpec.make(3, 2, 2, transposed=True).partitions
    assert not KernelSpec.make(2, stride=2, kernel_shape=[[0, 0], [1, 1]]).partitions
    assert not KernelSpec.make(3, 1, 2**20).partitions  # a box of 2**60 taps


@pytest.mark.parametrize("width", [1, 2, 3, 4, 5])
def test_rows_sorted_by_radix_are_in_order(width):
    """Of the whole range of int32, with equal rows, whose order stays."""
    rng = np.random.default_rng(width)
    rows = rng.integers(-(2**31), 2**31, (3000, width)).astype(np.int32)
    rows[1::3, : width - 1] = rows[::3, : width - 1]
    rows[2::3] = rows[::3]
    rows[-5:] = PAD
    ordered, order = jax.jit(ordering._sort_by_radix)(jnp.asarray(rows))
    expected = np.lexsort(rows.T[::-1])
    assert (ordered.dtype, order.dtype) == (jnp.int32, jnp.int32)
    np.testing.assert_array_equal(order, expected)
    np.testing.assert_array_equal(ordered, rows[expected])


def maps():
    """Functions of voxels, and how many sorts each may have."""

    def table(kernel, stride=1):
        return lambda v: vx.kernel_map(v, kernel, stride=stride).neighbors

    return {
        "submanifold": (table(3), 0),
        "strided": (table(3, 2), 0),
        "cells": (table(2, 2), 0),
        "cells and back": (launches.way_back, 0),
        "large cells": (table(4, 4), 1),
    }


@pytest.mark.parametrize("name", maps())
def test_a_map_has_one_sort_at_most_and_never_asks_the_host(name):
    function, sorts = maps()[name]
    voxels = make_voxels(scattered(3, 100, 20))
    text = (lowered := lower(CHIPS["cuda"], function, voxels)).as_text()
    assert text.count("stablehlo.sort") == sorts
    assert custom_calls(lowered) == []
    for word in ("while", "infeed", "outfeed", "send", "recv"):
        assert f"stablehlo.{word}" not in text


# Kernels that a program starts where a map has 98,304 rows; a sort by comparing is 28. With a sort
# for each stride, and searches in steps of two bits, the first four were 12, 48, 37 and 38. The
# fourth is 14 on JAX 0.12, and 13 on 0.10.2.
LAUNCHES = {"submanifold": 6, "strided": 19, "cells": 12, "cells and back": 14, "large cells": 38}


@needs_compiler
@pytest.mark.parametrize("name", maps())
def test_a_map_starts_few_kernels(name):
    function, sorts = maps()[name]
    given = jax.eval_shape(
        lambda c: vx.Voxels.from_coords(c, jnp.zeros((ROWS, 1)), 1, capacity=ROWS),
        jax.ShapeDtypeStruct((ROWS, 4), jnp.int32),
    )
    text = launches.compiled(function, given)
    assert len(launches.sorts(text)) == sorts
    assert sum(launches.launches(text).values()) <= LAUNCHES[name]
    assert "conditional(" not in text
    assert "while(" not in text


@needs_compiler
@pytest.mark.parametrize(
    ("function", "shape", "key"),
    [(sort_by_taps, (ROWS, 27), 4), (sort_rows, (ordering.RADIX_ROWS, 4), 8)],
)
def test_long_sorts_are_by_radix(function, shape, key):
    """XLA knows how much memory CUB needs on a GPU that is there only, and says what it asked."""
    given = jax.ShapeDtypeStruct(shape, jnp.int32)
    with pytest.raises(jax.errors.JaxRuntimeError, match=f"key_type_size={key}, value_type_size=4"):
        launches.compiled(function, given, options=launches.RADIX_MODE)
    assert len(launches.sorts(launches.compiled(function, given))) == key // 4


def test_kernels_of_a_sort_by_comparing():
    """The PTX that XLA wrote for an H100 had as many."""
    five = "(s32[{0}]{{0}}, s32[{0}]{{0}}, s32[{0}]{{0}}, s32[{0}]{{0}}, s32[{0}]{{0}})"
    assert [launches.sort_kernels(five.format(n)) for n in (1000, 20480, ROWS)] == [1, 15, 28]
    assert launches.sort_kernels("(u32[98304]{0}, s32[98304]{0}, s32[98304]{0})") == 21
