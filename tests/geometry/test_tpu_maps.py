"""Maps and their views through the real TPU compiler: how many sorts the programs hold.

Rows are in canonical order already, so a submanifold map needs no sort, nor does a map between two
given voxel sets: neighbors are found by search, windows by minima and maxima of tiles. A strided
map needs one, for the canonical order of its output voxels. It is none of XLA's, which did not
compile for 7x in half an hour, but a kernel in Pallas (voxax.coords.tile_sort).
"""

import re

import jax
import jax.numpy as jnp
import pytest
from benchmarks.tpu.program import TOPOLOGIES, compile_for

import voxax as vx
from problems import needs_libtpu
from voxax.coords import tile_sort
from voxax.geometry import VoxelGeometry
from voxax.kernels.implicit_gemm import windows

pytestmark = [pytest.mark.tpu_compile, needs_libtpu]

ROWS = 4096
VIEWS = ("neighbors", "transposed_neighbors", *windows.VIEWS)


def voxels_of(coords, stride=(1, 1, 1)):
    """Rows that are in canonical order already, as those inside of a network are."""
    count = jnp.sum(coords[:, 0] != vx.PAD, dtype=jnp.int32)
    lost = {stride: jnp.zeros((), jnp.int32)}
    geometry = VoxelGeometry(coords, count, lost, None, stride, 1, -1, ())
    return vx.Voxels(geometry, jnp.zeros((ROWS, 1)))


def submanifold(coords):
    return vx.kernel_map(voxels_of(coords), 3)


def strided(coords):
    return vx.kernel_map(voxels_of(coords), 3, 2)


def transposed(coords):
    """Back onto the voxels that a strided map came from."""
    fine = voxels_of(coords)
    down = vx.kernel_map(fine, 3, 2)
    coarse = vx.Voxels(down.out_geometry, jnp.zeros((down.out_capacity, 1)))
    return vx.kernel_map(coarse, 3, 2, transposed=True, out_voxels=fine)


def onto_given(coords):
    fine, coarse = voxels_of(coords), voxels_of(coords // 2, (2, 2, 2))
    return vx.kernel_map(coarse, 3, 2, transposed=True, out_voxels=fine)


SORTS = {submanifold: 0, strided: 1, transposed: 1, onto_given: 0}


def sorts_of(topology, build, shape=(ROWS, 4)):
    """Count sorts in Pallas kernels and XLA's own."""
    program = compile_for(topology, build, jax.ShapeDtypeStruct(shape, "int32")).as_text()
    kernels = re.findall(rf"%\S*{tile_sort.NAME}\S* = ", program)
    return len(kernels), len(re.findall(r"= [^=]* sort\(", program))


@pytest.mark.parametrize("topology", TOPOLOGIES)
@pytest.mark.parametrize("relation", SORTS)
def test_maps_sort_no_more_than_their_new_voxels(relation, topology):
    def build(coords):
        kmap = relation(coords)
        return [kmap.view(name, windows.VIEWS.get(name)) for name in VIEWS]

    assert sorts_of(topology, build) == (SORTS[relation], 0)


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_rows_of_several_blocks_are_sorted_and_merged(topology):
    """Check two scenes at once, and 64-bit integers."""
    with jax.enable_x64(True):
        sorts = sorts_of(topology, jax.vmap(vx.coords.sort_rows), (2, 140_000, 4))
    assert sorts == (3, 0)


def test_xlas_sort_would_be_counted():
    assert sorts_of("v5e:2x2", lambda coords: jnp.argsort(coords[:, 0])) == (0, 1)
