"""Sorted tables: the JAX builder, its NumPy twin, and what a sorted table promises."""

import jax.numpy as jnp
import numpy as np
import pytest
from benchmarks.gpu import clouds
from benchmarks.tpu.scans import neighbors as neighbors_of
from benchmarks.workloads import WORKLOADS, random_cube

import voxax as vx
from samples import make_voxels
from voxax.geometry.planning import Plan
from voxax.kernels.implicit_gemm.tap_order import VIEWS, bits_of_taps, sort_by_taps, tiles_of

THIN = random_cube(300)


@pytest.mark.parametrize(
    # The last has more taps than a mask has bits.
    ("rows", "taps", "present"),
    [(1, 27, 0.5), (200, 5, 0.4), (90, 27, 0.0), (300, 40, 0.1)],
)
def test_equal_masks_lie_together_and_nothing_is_lost(rows, taps, present, rng):
    table = np.where(rng.random((rows, taps)) < present, rng.integers(0, 99, (rows, taps)), -1)
    table = table.astype(np.int32)
    spec = None if taps == 5 else vx.KernelSpec.make(2, (1, taps))
    made = np.asarray(sort_by_taps(table, spec))
    np.testing.assert_array_equal(VIEWS["sorted_neighbors"].on_host(table, spec), made)
    order = made[-1]
    np.testing.assert_array_equal(np.sort(order), np.arange(rows))
    np.testing.assert_array_equal(made[:-1], table[order].T)
    masks = (made[:-1] >= 0) * bits_of_taps(taps, spec)[:, None].astype(np.int64)
    masks = np.bitwise_or.reduce(masks, axis=0)
    assert (np.diff(masks) <= 0).all(), "the largest mask first, none last"
    same = np.diff(masks) == 0
    assert (np.diff(order)[same] > 0).all(), "rows of one mask keep their order"


def test_no_rows():
    assert sort_by_taps(np.zeros((0, 3), np.int32)).shape == (4, 0)
    assert VIEWS["sorted_neighbors"].on_host(np.zeros((0, 3), np.int32), None).shape == (4, 0)


@pytest.mark.parametrize(("taps", "bits"), [(1, 1), (27, 27), (32, 32), (33, 17), (343, 32)])
def test_taps_share_bits_where_there_are_many(taps, bits):
    found = bits_of_taps(taps)
    assert found.dtype == np.uint32
    assert len(set(found.tolist())) == bits
    assert (np.diff(found.astype(np.int64)) >= 0).all()


def test_far_taps_have_the_high_bits():
    spec = vx.KernelSpec.make(3, 3)
    bits = dict(zip(spec.offsets, bits_of_taps(27, spec).tolist(), strict=True))
    assert bits[0, 0, 0] == 1
    near = sorted(bits, key=bits.__getitem__)[:7]
    assert {sum(map(abs, offset)) for offset in near} == {0, 1}
    assert {offset[2] == 0 for offset in near[:5]} == {True}
    assert {sum(map(abs, offset)) for offset, bit in bits.items() if bit >= 2**19} == {3}
    assert sorted(bits.values()) == [2**n for n in range(27)]


@pytest.mark.parametrize(("cloud", "rows", "most"), [("lidar", 64, 1.6), ("indoor", 64, 1.27)])
def test_padded_work_of_real_scans(cloud, rows, most, scans, tmp_path):
    """Rows times taps of tiles, over the pairs that exist."""
    with np.load(clouds.prepare(cloud, scans, tmp_path)) as file:
        neighbors, source = neighbors_of(file["coords"][:, 1:]), str(file["source"])
    assert "synthetic" not in source
    table = VIEWS["sorted_neighbors"].on_host(neighbors, vx.KernelSpec.make(3, 3))
    done = rows * int(np.asarray(tiles_of(jnp.asarray(table), rows).counts).sum())
    assert done <= most * (neighbors >= 0).sum()


@pytest.mark.slow
def test_the_transposed_map_has_the_views_of_the_other_side():
    kmap = vx.kernel_map(make_voxels(THIN), kernel_size=3, stride=2)
    known = {name: kmap.view(name, VIEWS.get(name)) for name in ("neighbors", *VIEWS)}
    made = type(kmap)(kmap.in_geometry, kmap.out_geometry, kmap.spec, known).transpose()
    for name, view in VIEWS.items():
        assert made.views[name] is known[view.opposite.name]


@pytest.mark.slow
def test_a_plan_attaches_them():
    voxels = make_voxels(WORKLOADS["surface"](120))

    def model(v):
        for name, view in VIEWS.items():
            vx.kernel_map(v, kernel_size=2, stride=2).view(name, view)
        return v.features

    ahead = vx.kernel_map(Plan.record(model, voxels).attach(voxels), kernel_size=2, stride=2)
    for name, view in VIEWS.items():
        assert name in ahead.views
        np.testing.assert_array_equal(
            ahead.views[name], sort_by_taps(ahead.view(view.table), ahead.spec)
        )
