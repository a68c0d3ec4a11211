"""Where the points of a kernel point convolution are: spread evenly in a ball."""

from __future__ import annotations

import functools

import numpy as np

from voxax.errors import InputError

_STEPS = 2000


def kernel_point_positions(number: int, ndim: int = 3, *, radius: float = 1.0) -> np.ndarray:
    """``float64[number, ndim]``: one point in the centre, the others as far apart as they can.

    They minimise the sum over pairs of ``1 / distance`` plus the sum of squared norms, and are then
    scaled so that the mean norm of those not in the centre is ``radius``. The same on every call:
    it starts from fixed random places, on the host.

    Args:
      number: static, at least 1; 15 is usual in three axes.
      ndim: axes, 1 to 4.
      radius: in the unit of the positions; the source takes 1.5 times the extent.

    Raises:
      InputError: a number below 1, other axes.

    Source: supplement of Thomas et al., "KPConv", ICCV 2019.
    """
    if number < 1 or not 1 <= ndim <= 4:
        raise InputError(f"{number} kernel points in {ndim} axes: give 1 or more, in 1 to 4 axes")
    places = np.array(_spread(int(number), int(ndim)))
    if number > 1:
        places *= radius / np.linalg.norm(places[1:], axis=1).mean()
    return places


@functools.lru_cache(maxsize=32)
def _spread(number: int, ndim: int) -> np.ndarray:
    places = np.random.default_rng(number).standard_normal((number, ndim))
    places[0] = 0
    if ndim == 1:
        # On a line points cannot pass each other: they start in order.
        places[1:, 0] = np.arange(1, number) // 2 + 1
        places[1::2, 0] *= -1
    for turn in range(_STEPS):
        between = places[:, None] - places[None]
        apart = np.maximum(np.linalg.norm(between, axis=-1), 1e-3) + np.eye(number)
        force = np.sum(between / apart[..., None] ** 3, axis=1) - 2 * places
        # Steps of bounded length that shrink: no overshoot where two points start together.
        size = np.maximum(np.linalg.norm(force, axis=1, keepdims=True), 1e-12)
        step = np.minimum(0.1 * size, 0.3 * (1 - turn / _STEPS))
        places[1:] += (step * force / size)[1:]
    return places
