"""Colors of points: every point the color of what it is, and the legend says which."""

import numpy as np
import pytest

from voxax.errors import InputError
from voxax.plot import CORRECT, IGNORED, WRONG, class_colors, rgb
from voxax.plot.coloring import by_error, by_feature, by_label, by_tile, by_window
from voxax.plot.palette import ACCENT, UNKNOWN


def legend_of(coloring):
    return {words.partition(":")[0]: tuple(rgb(color)) for words, color in coloring.legend}


def test_labels_have_the_colors_of_their_classes():
    labels = np.array([2, -1, 0, 2], np.int32)
    coloring = by_label(labels, ("ground", "car", "tree"))
    ground, _, tree = (tuple(rgb(c)) for c in class_colors(("ground", "car", "tree")))
    assert [tuple(c) for c in coloring.colors] == [tree, tuple(rgb(IGNORED)), ground, tree]
    assert legend_of(coloring) == {"no label": tuple(rgb(IGNORED)), "ground": ground, "tree": tree}
    assert ("tree: 2", class_colors(("ground", "car", "tree"))[2]) in coloring.legend


def test_labels_without_names_differ():
    coloring = by_label(np.array([40, 50, 252]))
    assert len(np.unique(coloring.colors, axis=0)) == 3
    assert list(legend_of(coloring)) == ["class 40", "class 50", "class 252"]
    with pytest.raises(InputError, match="label 2 has no name: 2 classes are known, 0 to 1"):
        by_label(np.array([0, 2]), ("a", "b"))


def test_errors():
    coloring = by_error(np.array([0, 1, 1, 5]), np.array([0, 1, 0, -1]))
    expected = [tuple(rgb(c)) for c in (CORRECT, CORRECT, WRONG, IGNORED)]
    assert [tuple(c) for c in coloring.colors] == expected
    assert coloring.note == "33.3 % of 3 labeled points wrong"


def test_legends_have_no_rows_of_nothing_and_name_each_points_entry():
    right = by_error(np.array([0, 1]), np.array([0, 1]))
    assert [words for words, _ in right.legend] == ["correct: 2"]
    assert right.entries.tolist() == [0, 0]
    labels = by_label(np.array([2, 0, 2]), ("ground", "car", "tree"))
    assert [words for words, _ in labels.legend] == ["ground: 1", "tree: 2"]
    assert labels.entries.tolist() == [1, 0, 1]
    assert by_feature(np.array([7, 7, 9])).entries.tolist() == [0, 0, 1]
    assert by_feature(np.linspace(0, 1, 50)).entries is None


def test_few_integers_are_told_apart_and_ordered(rng):
    sizes = rng.choice(np.array([1, 3, 5, 7], np.uint8), 200)
    coloring = by_feature(sizes)
    legend = legend_of(coloring)
    assert list(legend) == ["1", "3", "5", "7"]
    for size, color in zip(sizes, coloring.colors, strict=True):
        assert tuple(color) == legend[str(size)]
    lightness = [int(np.sum(color)) for color in legend.values()]
    assert lightness == sorted(lightness, reverse=True)


def test_numbers_run_along_a_ramp():
    values = np.append(np.linspace(100, 200, 101), [np.nan, 1e9])
    colors = by_feature(values).colors.astype(int).sum(axis=1)
    assert (np.diff(colors[:101]) <= 0).all()
    assert colors[0] > colors[100] + 100
    assert colors[102] == colors[100]  # an outlier does not stretch the ramp
    assert tuple(by_feature(values).colors[101]) == tuple(rgb(UNKNOWN))
    signed = by_feature(np.linspace(-1, 2, 50))
    assert signed.colors[0, 0] > signed.colors[0, 2]  # below zero: orange
    assert signed.colors[-1, 2] > signed.colors[-1, 0]  # above: blue


@pytest.mark.parametrize("values", [np.zeros(0), np.ones(3), np.full(2, np.nan), np.zeros(0, int)])
def test_degenerate_features(values):
    assert by_feature(values).colors.shape == (len(values), 3)
    assert by_feature(values).colors.dtype == np.uint8


def test_tiles_and_the_windows_of_one():
    rows = np.array([0, 127, 128, 300, -1])
    tiles = by_tile(rows, 128)
    assert (tiles.colors[0] == tiles.colors[1]).all()
    assert not (tiles.colors[1] == tiles.colors[2]).all()
    assert tuple(tiles.colors[4]) == tuple(rgb(UNKNOWN))
    windows = np.array([[[0, 0], [0, 288], [0, 0]], [[0, 0], [16, 400], [0, 0]]])
    window = by_window(rows, windows, 1, 128)
    kinds = [words for words, _ in window.legend]
    own = legend_of(window)
    read, others = own[kinds[1]], own[kinds[2]]
    assert [tuple(c) for c in window.colors] == [read, others, tuple(rgb(ACCENT)), read, others]
