"""What a problem is measured on: operands, and a kernel map as its views."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping

import jax
import jax.numpy as jnp
import numpy as np

from voxax.algorithms import Problem
from voxax.geometry.host import invert_table, pair_lists, windows
from voxax.geometry.windows import columns_of
from voxax.tuning.occupancy import DEFAULT_KIND, sample_map

CALLERS_MAP = "caller's map"
"""Name of a sample on the map that the product runs on."""


@dataclasses.dataclass(frozen=True)
class Sample:
    """Concrete operands and views of one problem.

    Attributes:
      a, b: the operands of the product, normally distributed in every row.
      views: the map's arrays by name.
      name: ``"caller's map"``, or the recorded occupancy it stands on.
    """

    a: jax.Array
    b: jax.Array
    views: dict[str, jax.Array]
    name: str


def sample_of(
    problem: Problem, views: Mapping[str, jax.Array] | None, needed: Collection[str]
) -> Sample:
    """A sample on the caller's map where its ``views`` are concrete, else on a recorded one.

    Args:
      problem: what is measured.
      views: concrete arrays of the caller's map, or None.
      needed: names of the views that candidates read.
    """
    if views is None:
        recorded = sample_map(
            DEFAULT_KIND,
            problem.spec,
            problem.level,
            problem.in_capacity,
            problem.out_capacity,
            problem.num_offsets,
        )
        neighbors, name = _with_pairs(recorded.neighbors, problem), recorded.name
    elif "neighbors" in views:
        neighbors, name = np.asarray(views["neighbors"]), CALLERS_MAP
    else:
        transposed = np.asarray(views["transposed_neighbors"])
        neighbors, name = invert_table(transposed, problem.out_capacity), CALLERS_MAP
    # In NumPy: compiling the views' builders would take longer than measuring.
    have = {"neighbors": neighbors}
    if {"transposed_neighbors", "transposed_windows"} & set(needed):
        table = neighbors[:, ::-1] if problem.symmetric else None
        have["transposed_neighbors"] = (
            invert_table(neighbors, problem.in_capacity) if table is None else table
        )
    if "pairs" in needed:
        have["pairs"], have["pair_starts"] = pair_lists(neighbors)
    for view, side in (("windows", "neighbors"), ("transposed_windows", "transposed_neighbors")):
        if view in needed:
            have[view] = windows(have[side], columns_of(problem.spec, problem.num_offsets))
    arrays = {view: jnp.asarray(have[view]) for view in needed}
    rng = np.random.default_rng(0)
    x_shape = (problem.in_capacity, problem.in_channels)
    y_shape = (problem.out_capacity, problem.out_channels)
    shapes = {
        "forward": (x_shape, problem.weight_shape),
        "dgrad": (y_shape, problem.weight_shape),
        "wgrad": (x_shape, y_shape),
    }[problem.product]
    a, b = (jnp.asarray(_values(rng, shape, problem.dtype)) for shape in shapes)
    return Sample(a, b, arrays, name)


def _with_pairs(neighbors: np.ndarray, problem: Problem) -> np.ndarray:
    """The table; where it has no pair at all (huge strides), one for each row through one tap.

    On an empty map every candidate would be right, and the one that skips most the fastest.
    """
    if (neighbors >= 0).any() or not neighbors.size:
        return neighbors
    neighbors, rows = neighbors.copy(), min(problem.in_capacity, problem.out_capacity)
    neighbors[:rows, problem.num_offsets // 2] = np.arange(rows)
    return neighbors


def _values(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    kind = np.dtype(jnp.dtype(dtype))
    if np.issubdtype(kind, np.integer):
        return rng.integers(-3, 4, shape).astype(kind)
    values = rng.standard_normal(shape, np.float32)
    if np.issubdtype(kind, np.complexfloating):
        values = values + 1j * rng.standard_normal(shape, np.float32)
    return values.astype(kind)
