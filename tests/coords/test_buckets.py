"""Buckets: few sizes, little waste."""

import pytest

import voxax as vx
from voxax import InputError
from voxax.coords import ladder_capacity


def test_a_bucket_holds_its_rows_and_wastes_at_most_a_fifth():
    for n in range(17, 20000, 7):
        bucket = vx.bucket_capacity(n)
        assert n <= bucket
        assert bucket - n <= 0.2 * bucket


@pytest.mark.parametrize("exponent", range(4, 20))
def test_at_most_four_buckets_per_octave(exponent):
    low = 2**exponent
    sizes = {vx.bucket_capacity(n) for n in range(low + 1, 2 * low + 1, max(1, low // 500))}
    assert len(sizes) <= 4
    assert all(vx.bucket_capacity(size) == size for size in sizes)


def test_buckets_never_shrink():
    sizes = [vx.bucket_capacity(n) for n in range(3000)]
    assert sizes == sorted(sizes)
    assert sizes[0] == 16


def test_a_negative_count_is_an_error():
    with pytest.raises(vx.InputError, match="-3"):
        vx.bucket_capacity(-3)


def test_a_fractional_count_is_an_error():
    with pytest.raises(InputError, match=r"n=3\.5"):
        vx.bucket_capacity(3.5)


def test_rungs_of_the_ladder_are_few():
    sizes = {ladder_capacity(n) for n in range(1, 70_000, 7)}
    assert sizes == {16, 64, 256, 1024, 4096, 16_384, 65_536, 131_072}
    assert all(ladder_capacity(size) == size for size in sizes)
    assert [ladder_capacity(n) for n in (0, 17, 65_537, 131_073)] == [16, 64, 131_072, 262_144]
    assert len({ladder_capacity(n) for n in range(1800, 58_001)}) == 3
    with pytest.raises(vx.InputError, match="n=-1"):
        ladder_capacity(-1)
