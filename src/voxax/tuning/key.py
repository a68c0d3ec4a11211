"""What a tuned choice is filed under: everything that may change which algorithm is fastest."""

from __future__ import annotations

import math

from voxax.algorithms import Problem

_MOST_SPEC = 200


def key_of(problem: Problem) -> str:
    """Plain text, the same in every process: product, kind, dtype, precision, taps, channels,
    groups, rows by powers of two, the map's relation, and its occupancy.

    The occupancy is the bucketed pairs per output row where the map was at hand. Where it was
    traced, it is ``traced`` with the level (coarser levels are denser). The device has a file of
    its own, and each entry names the jaxlib and the revisions it was measured with.
    """
    occupancy = (
        f"traced level {_extent(problem.level)}"
        if problem.density is None
        else f"pairs/row {problem.density:.3g}"
    )
    relation = "unknown map" if problem.spec is None else str(problem.spec)
    words = (
        f"C{problem.in_channels}-{problem.out_channels}",
        f"G{problem.groups}",
        f"rows {_power(problem.in_capacity)}-{_power(problem.out_capacity)}",
        f"[{relation[:_MOST_SPEC]}]" + (" self-adjoint" if problem.symmetric else ""),
        occupancy,
    )
    return family_of(problem) + " ".join((*words, *_of_grid(problem)))


def _of_grid(problem: Problem) -> tuple[str, ...]:
    """The grid by powers of two, how smooth its sizes are, and how many positions have each."""
    if not problem.grid:
        return ()
    words = ["grid " + "x".join(map(_power, problem.grid))]
    if problem.tile_density is not None:
        words.append(f"by tiles {problem.tile_density:.3g}")
    if problem.prefix:
        words.append("prefix " + "-".join(map(str, problem.prefix)))
    return tuple(words)


def family_of(problem: Problem) -> str:
    """What the keys of similar problems begin with."""
    words = (problem.product, problem.kind, problem.dtype, problem.precision)
    return " ".join((*words, f"K{problem.num_offsets} "))


def density_bucket(pairs: int, out_rows: int) -> float:
    """Pairs per output row, rounded to a power of sqrt(2); 0 where there are none."""
    if pairs <= 0 or out_rows <= 0:
        return 0.0
    return 2 ** (round(2 * math.log2(pairs / out_rows)) / 2)


def _power(rows: int) -> str:
    return f"2^{max(rows - 1, 0).bit_length()}" if rows else "0"


def _extent(level: tuple[int, ...]) -> str:
    return "x".join(map(str, level)) or "?"
