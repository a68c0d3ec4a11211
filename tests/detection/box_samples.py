"""Random boxes, and pairs that are hard to clip."""

import numpy as np


def random_boxes(rng: np.random.Generator, number: int, reach: float = 3.0) -> np.ndarray:
    return np.concatenate(
        [
            rng.uniform(-reach, reach, (number, 3)),
            rng.uniform(0.1, 5.0, (number, 3)),
            rng.uniform(-7.0, 7.0, (number, 1)),
        ],
        axis=1,
    )


def hard_pairs(rng: np.random.Generator, number: int) -> tuple[np.ndarray, np.ndarray]:
    """Return pairs of ten kinds, in turn.

    Any; turned by quarters; equal; equal but for a quarter turn; touching; nested; nested in a
    corner; one without area; nearly equal; far apart.
    """
    a, b = random_boxes(rng, number), random_boxes(rng, number)
    part = np.arange(number) % 10
    quarters = rng.integers(-4, 5, number) * (np.pi / 2)

    def some(kind: int) -> np.ndarray:
        return np.flatnonzero(part == kind)

    a[some(1), 6] = rng.integers(-4, 5, len(some(1))) * (np.pi / 2)
    b[some(1), 6] = a[some(1), 6] + quarters[some(1)]
    b[some(2)] = a[some(2)]
    b[some(3)] = a[some(3)]
    b[some(3), 6] += quarters[some(3)]
    # Beside the other, along its length, sharing a part of a side.
    rows = some(4)
    b[rows, 6] = a[rows, 6]
    step = 0.5 * (a[rows, 3] + b[rows, 3])
    b[rows, 0] = a[rows, 0] + step * np.cos(a[rows, 6])
    b[rows, 1] = a[rows, 1] + step * np.sin(a[rows, 6])
    b[some(5), :3] = a[some(5), :3]
    b[some(5), 3:6] = 0.4 * a[some(5), 3:6]
    rows = some(6)
    b[rows, 6] = a[rows, 6]
    b[rows, 3:6] = 0.5 * a[rows, 3:6]
    cos, sin = np.cos(a[rows, 6]), np.sin(a[rows, 6])
    along, across = 0.25 * a[rows, 3], 0.25 * a[rows, 4]
    b[rows, 0] = a[rows, 0] + along * cos - across * sin
    b[rows, 1] = a[rows, 1] + along * sin + across * cos
    b[some(7), 3 + rng.integers(0, 2)] = 0.0
    b[some(8)] = a[some(8)] + rng.normal(0.0, 1e-9, (len(some(8)), 7))
    b[some(9), :2] += 40.0
    return a, b
