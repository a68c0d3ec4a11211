"""The picture of a confusion matrix."""

import struct

import numpy as np
import pytest

from voxax.errors import InputError
from voxax.plot import confusion_png


def size(path):
    return struct.unpack(">II", path.read_bytes()[16:24])


def test_many_classes_are_small_and_without_text(tmp_path, rng):
    """Cells of 44 pixels with a number each would take minutes and gigabytes for 200 classes."""
    sides = {}
    for classes in (40, 41):
        matrix = rng.integers(0, 2, (classes, classes)) + np.eye(classes, dtype=int)
        names = [f"class {k}" for k in range(classes)]
        sides[classes] = size(confusion_png(tmp_path / "a.png", matrix, names))[0]
    assert sides[40] > 40 * 44
    assert 41 * 16 < sides[41] < 41 * 16 + 500


def test_wrong_shapes(tmp_path):
    with pytest.raises(InputError, match=r"matrix of float64 \[2, 2\] for 3 classes"):
        confusion_png(tmp_path / "a.png", np.zeros((2, 2)), ["a", "b", "c"])
    with pytest.raises(InputError, match="finite counts of at least 0"):
        confusion_png(tmp_path / "a.png", np.full((1, 1), np.nan), ["a"])
