"""Check that scenes of any sizes are packed evenly."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from voxax.errors import CapacityError, InputError
from voxax.parallel import pack_scenes

SIZES = st.lists(st.integers(0, 1000), max_size=30)


@settings(deadline=None)
@given(SIZES, st.integers(1, 9))
def test_every_scene_is_in_one_shard(counts, shards):
    packing = pack_scenes(counts, shards)
    assert len(packing.scenes) == len(packing.loads) == shards
    assert sorted(i for shard in packing.scenes for i in shard) == list(range(len(counts)))
    assert packing.loads == tuple(sum(counts[i] for i in shard) for shard in packing.scenes)
    assert max(packing.loads) <= packing.capacity
    assert 0 <= packing.padding <= 1
    assert 0 <= packing.waiting <= 1


@settings(deadline=None, max_examples=40)
@given(st.lists(st.integers(1, 50), min_size=1, max_size=7), st.integers(1, 3))
def test_at_most_four_thirds_of_the_best(counts, shards):
    best = min(
        max(sum(c for c, s in zip(counts, places, strict=True) if s == k) for k in range(shards))
        for places in itertools.product(range(shards), repeat=len(counts))
    )
    assert 3 * max(pack_scenes(counts, shards).loads) <= 4 * best


def test_shares():
    packing = pack_scenes([60, 20, 40], 2, capacity=100)
    assert packing.scenes == ((0,), (1, 2))
    assert packing.padding == pytest.approx(0.4)
    assert packing.waiting == 0
    assert str(packing) == (
        "3 scenes in 2 shards of 60 to 60 voxels, capacity 100: 40% padding, 0% waiting"
    )
    assert pack_scenes([60, 20], 2).waiting == pytest.approx(1 / 3)


def test_part_of_a_process():
    packing = pack_scenes([5, 9, 1, 7, 3], 4)
    indices, part = packing.part([1, 3])
    assert indices == tuple(sorted(packing.scenes[1] + packing.scenes[3]))
    for place, own in zip([1, 3], part.scenes, strict=True):
        assert tuple(indices[i] for i in own) == packing.scenes[place]
    assert part.loads == (packing.loads[1], packing.loads[3])
    assert (part.capacity, part.scenes_per_shard) == (packing.capacity, packing.scenes_per_shard)


def test_counts_of_numpy():
    assert pack_scenes(np.asarray([0, 20, 60, 40], np.uint8), 2) == pack_scenes([0, 20, 60, 40], 2)


def test_no_scene():
    packing = pack_scenes([], 2)
    assert packing.scenes == ((), ())
    assert packing.scenes_per_shard == 1
    assert packing.waiting == 0


def test_refusals():
    with pytest.raises(InputError, match="at least one shard, got 0"):
        pack_scenes([1], 0)
    with pytest.raises(InputError, match="at least 0 voxels, got -1"):
        pack_scenes([1, -1], 2)
    with pytest.raises(CapacityError, match="fullest of 2 shards has 7 voxels, capacity is 5"):
        pack_scenes([7, 3], 2, capacity=5)


def test_as_many_scenes_in_each_shard():
    counts = [90, 10, 10, 10, 10, 10]
    assert [len(shard) for shard in pack_scenes(counts, 2).scenes] == [1, 5]
    packing = pack_scenes(counts, 2, most=3)
    assert [len(shard) for shard in packing.scenes] == [3, 3]
    assert packing.loads == (110, 30)
    assert pack_scenes(counts[:3], 2, most=2).scenes == ((0,), (1, 2))
    with pytest.raises(InputError, match="6 scenes for 2 shards of at most 2"):
        pack_scenes(counts, 2, most=2)
