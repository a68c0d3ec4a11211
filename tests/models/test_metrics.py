"""Confusion matrices and intersection over union against hand-made ones."""

import numpy as np
import pytest

from voxax.errors import InputError
from voxax.models.metrics import confusion, iou_by_class, iou_table, mean_iou

MATRIX = np.array([[3, 1, 0], [2, 4, 0], [0, 0, 0]])


def test_confusion_counts_truth_by_row():
    truth = np.array([0, 0, 1, 1, 2, -1, 2])
    prediction = np.array([0, 1, 1, 1, 0, 2, 2])
    expected = [[1, 1, 0], [0, 2, 0], [1, 0, 1]]
    assert confusion(truth, prediction, 3).tolist() == expected


def test_confusion_leaves_out_what_is_not_known():
    truth, prediction = np.array([-1, -1]), np.array([0, 2])
    assert confusion(truth, prediction, 3).sum() == 0
    assert confusion(np.array([7]), np.array([1]), 3).sum() == 0
    assert confusion(np.zeros(0, np.int32), np.zeros(0, np.int32), 2).tolist() == [[0, 0], [0, 0]]


def test_confusion_holds_many_points():
    rng = np.random.default_rng(0)
    truth, prediction = rng.integers(0, 5, 1000), rng.integers(0, 5, 1000)
    matrix = confusion(truth.astype(np.uint8), prediction, 5)
    for i in range(5):
        for j in range(5):
            assert matrix[i, j] == ((truth == i) & (prediction == j)).sum()


def test_iou_by_hand():
    values = iou_by_class(MATRIX)
    np.testing.assert_allclose(values[:2], [3 / 6, 4 / 7])
    assert np.isnan(values[2])


def test_absent_class_that_is_predicted_is_no_class_of_the_mean():
    matrix = np.array([[3, 0, 1], [0, 4, 0], [0, 0, 0]])
    np.testing.assert_allclose(iou_by_class(matrix)[:2], [3 / 4, 1])
    assert np.isnan(iou_by_class(matrix)[2])
    assert mean_iou(matrix) == pytest.approx(7 / 8)


def test_mean_iou():
    assert mean_iou(MATRIX) == pytest.approx((3 / 6 + 4 / 7) / 2)
    assert mean_iou(np.eye(4)) == 1.0
    assert mean_iou(np.zeros((3, 3))) == 0.0


def test_iou_table_is_plain():
    table = iou_table(MATRIX, ["ground", "building", "water"])
    assert table == {"ground": pytest.approx(0.5), "building": pytest.approx(4 / 7), "water": None}
    with pytest.raises(ValueError, match="1 names for 3 classes"):
        iou_table(MATRIX, ["ground"])


@pytest.mark.parametrize("prediction", [3, -1, 255])
@pytest.mark.parametrize("dtype", ["int32", "int64", "int16"])
def test_a_prediction_of_no_class_is_no_other_cell(prediction, dtype):
    truth = np.array([0, 0, -1], dtype)
    predicted = np.array([prediction, 1, prediction], dtype)
    message = f"1 of 2 predictions are outside the 3 classes 0 to 2, the first is {prediction}"
    with pytest.raises(InputError, match=message):
        confusion(truth, predicted, 3)


@pytest.mark.parametrize("dtype", ["float32", "float64", "bool"])
def test_classes_are_integers(dtype):
    labels = np.array([0, 1, 1])
    with pytest.raises(InputError, match=f"predictions of {dtype}"):
        confusion(labels, labels.astype(dtype), 3)
    with pytest.raises(InputError, match=f"truth of {dtype}"):
        confusion(labels.astype(dtype), labels, 3)


def test_predictions_without_truth_may_be_anything():
    assert confusion(np.array([-1, 5]), np.array([9, 9]), 3).sum() == 0


@pytest.mark.parametrize(("number", "limit"), [(10**6, "at most 4,096"), (2.0, "an integer")])
def test_numbers_of_classes_out_of_range(number, limit):
    with pytest.raises(InputError, match=f"num_classes.* {limit}"):
        confusion(np.zeros(1, int), np.zeros(1, int), number)
