"""Draw random sparse data and compare arrays, like ``spconv.test_utils``."""

from __future__ import annotations

import itertools
import unittest
from collections.abc import Sequence
from typing import Any

import numpy as np

from voxax.torch.core.errors import whole


class TestCase(unittest.TestCase):
    """``unittest.TestCase`` with two assertions that compare arrays."""

    def assertAllEqual(self, a: Any, b: Any) -> None:
        """Fail unless all elements are equal; NaN equals NaN."""
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))

    def assertAllClose(
        self, a: Any, b: Any, rtol: float = 1e-6, atol: float = 1e-6, msg: str = ""
    ) -> None:
        """Fail unless ``|a - b| <= atol + rtol |b|`` for all elements; compare dicts by key."""
        pairs = [(a[key], b[key]) for key in a | b] if isinstance(a, dict) else [(a, b)]
        for one, other in pairs:
            np.testing.assert_allclose(one, other, rtol=rtol, atol=atol, err_msg=msg)


def params_grid(*params: Sequence[Any]) -> list[list[Any]]:
    """Return all combinations of one value of each parameter; the last varies fastest."""
    return [list(row) for row in itertools.product(*params)]


def generate_sparse_data(
    shape: Sequence[int],
    num_points: Sequence[int],
    num_channels: int,
    integer: bool = False,
    data_range: tuple[float, float] = (-1, 1),
    with_dense: bool = True,
    dtype: Any = np.float32,
    shape_scale: int = 1,
) -> dict[str, np.ndarray]:
    """Draw distinct random voxels and features as spconv does, from NumPy's global generator.

    Args:
      shape: D sizes of the grid; coordinates are multiples of ``shape_scale``.
      num_points: number of voxels of each of the B scenes.
      num_channels: number of feature channels C.
      integer: whether features are integers.
      data_range: lowest value of the features, and the bound that they stay below.
      with_dense: whether to return ``features_dense`` too.
      dtype: dtype of the features.
      shape_scale: step between neighboring coordinates.

    Returns:
      A dict with ``features [N, C]``, ``indices int32[N, D + 1]`` with the scene in the last
      column, and, if ``with_dense``, the dense tensor ``features_dense [B, C, *shape]``.
    """
    shape = [whole("shape", size) for size in shape]
    channels, scale = whole("num_channels", num_channels), whole("shape_scale", shape_scale)
    axes = [np.arange(size // scale) for size in shape]
    cells, rows = np.stack(np.meshgrid(*axes), axis=-1).reshape(-1, len(shape)) * scale, []
    for scene, number in enumerate(num_points):
        np.random.shuffle(cells)  # noqa: NPY002 (the same numbers as spconv's)
        picked = cells[: whole("num_points", number)]
        rows.append(np.pad(picked, ((0, 0), (0, 1)), constant_values=scene))
    indices = np.concatenate(rows).astype(np.int32)
    draw: Any = np.random.randint if integer else np.random.uniform
    features = draw(*data_range, size=(len(indices), channels)).astype(dtype)
    made = {"features": features, "indices": indices}
    if with_dense:
        dense = np.zeros((len(num_points), *shape, channels), dtype)
        dense[tuple(np.roll(indices, 1, axis=1).T)] = features
        made["features_dense"] = np.ascontiguousarray(np.moveaxis(dense, -1, 1))
    return made
