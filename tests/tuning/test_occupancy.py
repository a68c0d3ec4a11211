"""Representative maps: as full and as sparse as real ones, and true to their coordinates."""

import importlib.resources
import itertools

import numpy as np
import pytest
from benchmarks.record_occupancies import pack

from voxax.errors import InputError
from voxax.geometry import KernelSpec
from voxax.tuning.occupancy import (
    KINDS,
    TIME_STEPS,
    recorded,
    sample_map,
    unpack,
)

ONE = (1, 1, 1)
SUBMANIFOLD = KernelSpec.make(3, 3)

# Mean occupied cells of 27 at levels 1 and 4. Real LiDAR sweeps have 3 to 7 at voxels of 0.05 to
# 0.2 m, surfaces 8 to 15.
BANDS = {
    "lidar": ((4.2, 5.5), (6.5, 10.0)),
    "indoor": ((7.0, 12.0), (9.0, 15.0)),
    "airborne": ((8.0, 11.0), (14.0, 16.0)),
    "surface": ((11.0, 15.0), (13.0, 15.5)),
}


def density(sample):
    """Mean number of neighbors of an output row."""
    return np.count_nonzero(sample.neighbors >= 0) / len(sample.out_rows)


def check_against_dictionary(sample, spec, in_capacity, out_capacity):
    """Every entry of the table, from coordinates alone."""
    assert sample.neighbors.shape == (out_capacity, spec.num_offsets)
    assert sample.neighbors.dtype == np.int32
    assert len(sample.in_rows) <= in_capacity
    assert len(sample.out_rows) <= out_capacity
    for rows in (sample.in_rows, sample.out_rows):
        listed = [tuple(row) for row in rows.tolist()]
        assert listed == sorted(set(listed))
    inputs = {tuple(row): i for i, row in enumerate(sample.in_rows.tolist())}
    expected = np.full((out_capacity, spec.num_offsets), -1)
    taps = [
        tuple(o * d for o, d in zip(offset, spec.dilation, strict=True)) for offset in spec.offsets
    ]
    for j, (batch, *out) in enumerate(sample.out_rows.tolist()):
        for k, tap in enumerate(taps):
            if not spec.transposed:
                site = [o * s + t for o, s, t in zip(out, spec.stride, tap, strict=True)]
            else:  # out = in * stride + tap
                steps = [o - t for o, t in zip(out, tap, strict=True)]
                if any(n % s for n, s in zip(steps, spec.stride, strict=True)):
                    continue
                site = [n // s for n, s in zip(steps, spec.stride, strict=True)]
            expected[j, k] = inputs.get((batch, *site), -1)
    np.testing.assert_array_equal(sample.neighbors, expected)


@pytest.mark.parametrize("kind", KINDS)
def test_records_are_small_sorted_and_as_sparse_as_real_scans(kind):
    rows = recorded(kind)
    assert rows.dtype == np.int32
    assert 20_000 <= len(rows) <= 60_000
    assert not rows.flags.writeable
    steps = np.diff(np.ravel_multi_index((rows - rows.min(0)).T, np.ptp(rows, axis=0) + 1))
    assert (steps > 0).all()
    for level, (low, high) in zip((1, 4), BANDS[kind], strict=True):
        sample = sample_map(kind, SUBMANIFOLD, (level,) * 3, 8192, 8192)
        assert low < density(sample) < high


def test_records_take_little_space():
    folder = importlib.resources.files("voxax") / "tuning" / "occupancies"
    sizes = [len((folder / f"{kind}.npz").read_bytes()) for kind in KINDS]
    assert max(sizes) < 60_000
    assert sum(sizes) < 200_000
    readme = (folder / "README.md").read_text()
    assert all(f"**{kind}**" in readme for kind in KINDS)


def test_pack_and_unpack_are_inverse(rng):
    rows = np.unique(rng.integers(-900, 900, (500, 3)).astype(np.int32), axis=0)
    packed = pack(rows[rng.permutation(len(rows))])
    np.testing.assert_array_equal(unpack(**packed), rows)


@pytest.mark.parametrize("capacity", [0, 1, 7, 1000, 100_000])
def test_fill(capacity):
    sample = sample_map("lidar", SUBMANIFOLD, ONE, capacity, capacity)
    assert sample.neighbors.shape == (capacity, 27)
    assert len(sample.in_rows) == len(sample.out_rows)
    wanted = {0: 0, 1: 1, 7: 6}.get(capacity, 0.88 * capacity)
    assert len(sample.in_rows) == wanted
    assert (sample.neighbors[len(sample.out_rows) :] == -1).all()
    assert sample.neighbors.max(initial=-1) < max(len(sample.in_rows), 1)
    # The center sees itself.
    np.testing.assert_array_equal(
        sample.neighbors[: len(sample.out_rows), 13], np.arange(len(sample.out_rows))
    )


@pytest.mark.parametrize("capacities", [(0, 50), (50, 0)])
def test_without_room_on_a_side_there_are_no_rows(capacities):
    for transposed in (False, True):
        sample = sample_map(
            "lidar", KernelSpec.make(3, 2, 2, transposed=transposed), ONE, *capacities
        )
        assert sample.neighbors.shape == (capacities[1], 8)
        assert len(sample.in_rows) == len(sample.out_rows) == 0


SPECS = {
    "submanifold": (KernelSpec.make(3, 3), 300, 300),
    "even": (KernelSpec.make(3, 2), 300, 300),
    "cross": (KernelSpec.make(3, 3, kernel_shape="cross"), 300, 300),
    "custom": (KernelSpec.make(3, kernel_shape=[(2, 0, -1), (0, 0, 0), (-1, 1, 0)]), 300, 300),
    "dilated": (KernelSpec.make(3, 3, dilation=(1, 2, 3)), 300, 300),
    "partition": (KernelSpec.make(3, 2, 2), 300, 300),
    "partition, little capacity": (KernelSpec.make(3, 2, 2), 300, 100),
    "strided": (KernelSpec.make(3, 3, (2, 1, 2)), 300, 200),
    "generative": (KernelSpec.make(3, 3, generative=True), 300, 600),
    "generative, strided": (KernelSpec.make(3, 3, 2, generative=True), 300, 600),
    "generative, custom": (
        KernelSpec.make(3, generative=True, kernel_shape=[(2, 0, -1), (0, 3, 0)]),
        300,
        600,
    ),
    "generative, clipped": (
        KernelSpec.make(3, 3, 2, generative=True, spatial_shape=(60, 70, 30)),
        300,
        300,
    ),
    "generative, transposed": (
        KernelSpec.make(3, 2, 2, transposed=True, generative=True),
        300,
        600,
    ),
    "transposed": (KernelSpec.make(3, 2, 2, transposed=True), 200, 300),
    "transposed, little capacity": (KernelSpec.make(3, 3, 2, transposed=True), 50, 300),
    "transposed, stride 1": (KernelSpec.make(3, 3, transposed=True), 300, 300),
    "onto a smaller set": (KernelSpec.make(3, 3), 300, 100),
    "onto a larger set": (KernelSpec.make(3, 3), 100, 300),
}


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("level", [(2, 2, 2), (64, 64, 64)], ids=["part", "repeated"])
def test_tables_are_true_to_the_coordinates(name, level):
    spec, in_capacity, out_capacity = SPECS[name]
    sample = sample_map("indoor", spec, level, in_capacity, out_capacity)
    check_against_dictionary(sample, spec, in_capacity, out_capacity)
    fullest = max(len(sample.in_rows) / in_capacity, len(sample.out_rows) / out_capacity)
    assert 0.78 < fullest <= 0.88
    assert np.count_nonzero(sample.neighbors >= 0) >= len(sample.out_rows) // 4
    # At the coarse level the whole scene is a few voxels, and is repeated.
    assert (sample.in_rows[:, 0].max() > 0) == (level[0] == 64)


@pytest.mark.parametrize("ndim", [1, 2, 3, 4])
@pytest.mark.parametrize("kind", KINDS)
def test_any_number_of_axes(kind, ndim):
    for spec in (KernelSpec.make(ndim, 3), KernelSpec.make(ndim, 2, 2)):
        sample = sample_map(kind, spec, (2,) * ndim, 250, 250)
        check_against_dictionary(sample, spec, 250, 250)
        assert len(sample.in_rows) == 220
        # Neighborhoods, not scattered points.
        assert density(sample) > 1.2


def test_time_is_the_fourth_axis():
    sample = sample_map("lidar", KernelSpec.make(4, 3), (1, 1, 1, 1), 4096, 4096)
    assert set(sample.in_rows[:, 4]) == set(range(TIME_STEPS))
    assert 8 < density(sample) < 20


def test_levels_get_denser_as_networks_see_them():
    densities = [
        density(sample_map("lidar", SUBMANIFOLD, (level,) * 3, 20_000, 20_000))
        for level in (1, 2, 4, 8)
    ]
    assert densities == sorted(densities)


def test_absurd_reach_stays_inside_the_coordinate_range():
    far = 2**28
    for transposed, generative in itertools.product([False, True], repeat=2):
        spec = KernelSpec.make(3, 3, far, far, transposed, generative)
        sample = sample_map("lidar", spec, (far,) * 3, 300, 300)
        check_against_dictionary(sample, spec, 300, 300)
        assert np.abs(sample.out_rows[:, 1:].astype(np.int64)).max(initial=0) < 2**30


def test_maps_are_remembered_and_cannot_be_changed():
    sample = sample_map("lidar", SUBMANIFOLD, ONE, 100, 100)
    assert sample_map("lidar", SUBMANIFOLD, ONE, 100, 100) is sample
    for array in sample:
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0
    sample_map.cache_clear()
    again = sample_map("lidar", SUBMANIFOLD, ONE, 100, 100)
    np.testing.assert_array_equal(again.neighbors, sample.neighbors)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("forest", SUBMANIFOLD, ONE, 9, 9), "unknown occupancy 'forest'; known: lidar, indoor"),
        (("lidar", SUBMANIFOLD, (1, 1), 9, 9), r"level \(1, 1\) has 2 axes, the kernel has 3"),
    ],
)
def test_errors(arguments, message):
    with pytest.raises(InputError, match=message):
        sample_map(*arguments)
