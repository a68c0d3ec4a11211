"""Checks of the input, and the numbers of the legends."""

import numpy as np
import pytest

from voxax.errors import InputError
from voxax.plot.labels import RIGHT, SKIPPED, WRONG, labeled, percent

CUBE = np.eye(3)


def test_verdict_ignores_what_the_truth_ignores():
    cloud = labeled(np.zeros((4, 3)), [0, 1, 0, -1], [0, 0, -1, 1], ["a", "b"])
    assert cloud.verdict().tolist() == [RIGHT, WRONG, SKIPPED, WRONG]
    assert cloud.counts().tolist() == [2, 1]
    assert cloud.error_sentence() == "66.7 % of 3 labeled points wrong"


def test_mismatched_lengths_name_both_numbers():
    with pytest.raises(InputError, match="prediction has 2 labels, but positions has 3 points"):
        labeled(CUBE, [0, 0], None, ["a"])
    with pytest.raises(InputError, match="truth has 4 labels, but positions has 3 points"):
        labeled(CUBE, [0, 0, 0], [0, 0, 0, 0], ["a"])


@pytest.mark.parametrize(
    ("positions", "prediction", "names", "message"),
    [
        (np.zeros((3, 2)), [0, 0, 0], ["a"], r"\[N, 3\]"),
        (CUBE, [[0, 0, 0]], ["a"], r"\[N\]"),
        (CUBE, [0.0, 0.5, 1.0], ["a"], "integers"),
        (CUBE, [0, 1, 2], ["a", "b"], "class 2, but class_names has 2 names"),
        (CUBE, [0, 0, 0], "abc", "sequence of names"),
        (CUBE.astype(complex), [0, 0, 0], ["a"], "real numbers"),
    ],
)
def test_wrong_input(positions, prediction, names, message):
    with pytest.raises(InputError, match=message):
        labeled(positions, prediction, None, names)


def test_points_without_a_position_are_dropped():
    positions = np.array([[0, 0, 0], [np.nan, 0, 0], [0, np.inf, 0]])
    cloud = labeled(positions, [0, 1, 1], [0, 0, 0], ["a", "b"])
    assert (len(cloud.positions), cloud.dropped, cloud.prediction.tolist()) == (1, 2, [0])


def test_percent_never_rounds_to_all_or_nothing():
    assert percent(0, 10) == "0.0 %"
    assert percent(10, 10) == "100.0 %"
    assert percent(1, 100_000) == "0.001 %"
    assert percent(99_999, 100_000) == "99.999 %"
