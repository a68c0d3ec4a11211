"""Maps and their views through the real TPU compiler: how many sorts the programs hold.

Rows are in canonical order already, so a submanifold map needs no sort, nor does a map between two
given voxel sets: neighbours are found by search, windows by minima and maxima of tiles. A strided
map needs one, for the canonical order of its output voxels.
"""

import re

import jax
import jax.numpy as jnp
import pytest
from benchmarks.tpu.program import TOPOLOGIES, compile_for

import voxax as vx
from voxax import _compat
from voxax.geometry import VoxelGeometry

pytestmark = [
    pytest.mark.tpu_compile,
    pytest.mark.skipif(not _compat.has_libtpu(), reason="libtpu is not installed"),
]

ROWS = 4096
VIEWS = ("neighbors", "windows", "transposed_neighbors", "transposed_windows")


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


def sorts_of(topology, relation):
    def build(coords):
        kmap = relation(coords)
        return [kmap.view(name) for name in VIEWS]

    program = compile_for(topology, build, jax.ShapeDtypeStruct((ROWS, 4), "int32"))
    return len(re.findall(r"= [^=]* sort\(", program.as_text()))


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_a_submanifold_map_is_compiled_without_a_sort(topology):
    assert sorts_of(topology, submanifold) == 0


@pytest.mark.parametrize("relation", [r for r in SORTS if r is not submanifold])
def test_other_maps_sort_no_more_than_their_new_voxels(relation):
    assert sorts_of("v5e:2x2", relation) == SORTS[relation]


def test_a_sort_would_be_counted():
    shape = jax.ShapeDtypeStruct((ROWS,), "int32")
    program = compile_for("v5e:2x2", jnp.argsort, shape)
    assert len(re.findall(r"= [^=]* sort\(", program.as_text())) == 1
