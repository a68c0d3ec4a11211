"""Round row counts up to a few standard sizes, so that few programs are compiled."""

from __future__ import annotations

from voxax.errors import check_whole

MIN_CAPACITY = 16
_LAST_FOURFOLD = 16  # bits; memory matters more above
_ROUND = 8  # rows; small against any level, keeps the sizes of similar fits equal


def bucket_capacity(n: int) -> int:
    """Round a number of rows up to the next of a set of standard sizes, called buckets.

    Buckets are ``2**e * (1, 1.25, 1.5, 1.75)``, four per octave. Sizes that span a factor of ``f``
    use at most ``4 * log2(f) + 1`` buckets. At most 20 % of a bucket is padding, 10 % on average
    over evenly distributed sizes. The smallest bucket is 16.

    Args:
      n: number of rows, ``>= 0``.

    Raises:
      InputError: ``n`` is negative or no integer.

    Examples:
      >>> vx.bucket_capacity(1000)
      1024
    """
    n = check_whole("n", n, least=0)
    if n <= MIN_CAPACITY:
        return MIN_CAPACITY
    quarter = 1 << max((n - 1).bit_length() - 3, 0)
    return -(-n // quarter) * quarter


def ladder_capacity(n: int) -> int:
    """Round a number of rows up to the next of a set of coarse standard sizes, called rungs.

    Rungs are the powers of 4 from 16 to 65,536, and the powers of 2 above. They are for devices
    such as CPUs, where padding only costs memory, so few sizes are better than tight sizes.

    Args:
      n: number of rows, ``>= 0``.

    Raises:
      InputError: ``n`` is negative or no integer.
    """
    n = check_whole("n", n, least=0)
    bits = (max(n, MIN_CAPACITY) - 1).bit_length()
    return 1 << (bits + bits % 2 if bits <= _LAST_FOURFOLD else bits)


def round_up_rows(rows: int) -> int:
    """Round ``rows``, a capacity of a level or of a shard, up to a multiple of 8, at least 8."""
    return max(_ROUND, -(-rows // _ROUND) * _ROUND)
