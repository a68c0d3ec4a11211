"""Kernel maps: the traceable builder, the host builder and a dictionary agree."""

import jax
import numpy as np
import pytest
from benchmarks.workloads import WORKLOADS, lidar_like, random_cube

import voxax as vx
from oracle import (
    box_offsets,
    coarse_rows,
    neighbor_dictionary,
    per_axis,
    reached_rows,
    sorted_rows,
)
from samples import make_voxels
from voxax.geometry import host

pytestmark = pytest.mark.filterwarnings("ignore:a kernel of extent")


def wide_lidar():
    """5 cm cells over 100 m, in scene 15 of 16: the keys of this grid need more than 32 bits."""
    rows = lidar_like(250) * [1, 4, 4, 4]
    rows[:, 0] = rows[:, 1] % 16
    return rows.astype(np.int32)


def far_apart():
    rows = random_cube(250)
    rows[:, 1:] += np.where(rows[:, 1:] < 0, -(2**30) + 50, 2**30 - 50)
    return rows


GRIDS = {**WORKLOADS, "wide lidar": wide_lidar, "far apart": far_apart}
SPECS = [(3, 1, 1), (2, 1, 1), (3, 2, 1), (2, 2, 1), ((1, 2, 3), (2, 1, 3), (3, 2, 1))]


def valid(geometry):
    return np.asarray(geometry.coords)[: int(geometry.count)]


def offsets_of(kernel, stride):
    return box_offsets(per_axis(kernel, 3), per_axis(stride, 3))


def check_neighbors(kmap, rows, out_rows, kernel, stride, dilation, transposed=False):
    """Device, host and dictionary; then the transposed table by reading it backwards."""
    offsets = offsets_of(kernel, stride)
    expected = neighbor_dictionary(rows, out_rows, offsets, stride, dilation, transposed)
    neighbors = np.asarray(kmap.neighbors)
    np.testing.assert_array_equal(neighbors[: len(out_rows)], expected)
    assert (neighbors[len(out_rows) :] == -1).all()
    on_host = host.neighbor_table(rows, out_rows, kmap.spec, kmap.out_capacity)
    np.testing.assert_array_equal(on_host, neighbors)
    backwards = host.invert_table(neighbors, kmap.in_capacity)
    np.testing.assert_array_equal(kmap.view("transposed_neighbors"), backwards)
    np.testing.assert_array_equal(kmap.transpose().neighbors, backwards)


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize(("kernel", "stride", "dilation"), SPECS)
def test_three_builders_agree(grid, kernel, stride, dilation):
    voxels = make_voxels(GRIDS[grid]())
    kmap = vx.kernel_map(voxels, kernel, stride, dilation)
    rows, out_rows = voxels.valid_coords(), valid(kmap.out_geometry)
    np.testing.assert_array_equal(out_rows, coarse_rows(rows, stride))
    np.testing.assert_array_equal(out_rows, host.output_rows(rows, kmap.spec))
    check_neighbors(kmap, rows, out_rows, kernel, stride, dilation)


@pytest.mark.parametrize("grid", ["random_cube", "wide lidar", "far apart", "no_voxel"])
@pytest.mark.parametrize(("kernel", "stride"), [(3, 1), (3, 2), (2, 2)])
def test_transposed_builders_agree(grid, kernel, stride):
    skip = make_voxels(GRIDS[grid]())
    # A fresh geometry, so that no forward map is remembered: this one is built by itself.
    coarse = vx.kernel_map(make_voxels(GRIDS[grid]()), kernel, stride).out_geometry
    down = vx.Voxels(coarse, np.zeros((coarse.capacity, 1), np.float32))
    kmap = vx.kernel_map(down, kernel, stride, transposed=True, out_voxels=skip)
    check_neighbors(kmap, valid(coarse), skip.valid_coords(), kernel, stride, 1, transposed=True)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(("kernel", "stride"), [(3, 1), (3, 2)])
def test_generative_builders_agree(kernel, stride, transposed):
    voxels = make_voxels(WORKLOADS["surface"](60), capacity=64)
    if transposed:  # onto the lattice that a strided layer came from
        coarse = vx.kernel_map(voxels, kernel, stride).out_geometry
        voxels = vx.Voxels(coarse, np.zeros((coarse.capacity, 1), np.float32))
    kmap = vx.kernel_map(voxels, kernel, stride, transposed=transposed, generative=True)
    rows, out_rows = voxels.valid_coords(), valid(kmap.out_geometry)
    np.testing.assert_array_equal(
        out_rows, reached_rows(rows, kernel, stride, transposed=transposed)
    )
    np.testing.assert_array_equal(out_rows, host.output_rows(rows, kmap.spec))
    check_neighbors(kmap, rows, out_rows, kernel, stride, 1, transposed)


def test_jit_builds_the_same_maps():
    voxels = make_voxels(random_cube())
    eager = vx.kernel_map(voxels, 3, 2)
    traced = jax.jit(lambda v: vx.kernel_map(v, 3, 2))(voxels)
    np.testing.assert_array_equal(eager.neighbors, traced.neighbors)
    np.testing.assert_array_equal(eager.out_geometry.coords, traced.out_geometry.coords)


def test_only_a_centered_box_on_one_set_is_symmetric():
    voxels = make_voxels(random_cube())
    assert vx.kernel_map(voxels, 3).symmetric
    assert not vx.kernel_map(voxels, 2).symmetric
    assert not vx.kernel_map(voxels, 3, 2).symmetric


def test_a_map_does_not_hold_the_geometry_that_remembers_it():
    """A cycle would keep device memory until the next garbage collection."""
    voxels = make_voxels(random_cube())
    kmap = vx.kernel_map(voxels, 3)
    assert voxels.geometry.memo.values() == (kmap,)
    assert kmap.in_geometry.memo.values() == ()


def test_rows_in_any_order_give_the_same_map(rng):
    rows = random_cube()
    maps = [
        vx.kernel_map(vx.Voxels.from_coords(r, np.ones((len(r), 1), np.float32), 2), 3)
        for r in (rows, rows[rng.permutation(len(rows))], sorted_rows(map(tuple, rows), 4))
    ]
    for other in maps[1:]:
        np.testing.assert_array_equal(maps[0].neighbors, other.neighbors)
