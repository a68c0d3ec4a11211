"""Colors: stable by name, and far enough apart."""

import numpy as np
import pytest

from voxax.plot import class_colors
from voxax.plot.palette import (
    ACCENT,
    CONFUSABLE,
    CORRECT,
    GENERIC,
    GROUPS,
    IGNORED,
    REMAINDER,
    WORDS,
    WRONG,
    Scale,
    color_gaps,
    rgb,
)


@pytest.mark.parametrize(
    ("name", "channel"), [("car", 2), ("tree", 1), ("vegetation", 1), ("person", 0), ("wall", 0)]
)
def test_expected_hue(name, channel):
    (color,) = class_colors([name])
    assert int(rgb(color).argmax()) == channel


@pytest.mark.parametrize(
    ("name", "same_as"),
    [
        ("Trees", "tree"),
        ("traffic-sign", "sign"),
        ("other_vehicle", "vehicle"),
        ("trafficSign", "sign"),
        ("vegetation and other", "vegetation"),
        ("bushes", "bush"),
    ],
)
def test_words_of_a_name(name, same_as):
    assert class_colors([name]) == class_colors([same_as])


def test_known_names_keep_their_color_in_any_company():
    alone = class_colors(["road"])[0]
    assert class_colors(["class_a", "car", "road", "class_b"])[2] == alone


def test_same_word_twice_gives_two_colors():
    assert len(set(class_colors(["car", "parked car", "vehicle"]))) == 3


def test_twenty_four_classes_differ():
    colors = class_colors([f"class {i}" for i in range(24)])
    assert len(set(colors)) == 24
    gaps = color_gaps(colors, colors) + 1e3 * np.eye(24)
    assert gaps.min() > CONFUSABLE


def test_more_classes_than_colors_still_work():
    assert len(class_colors([f"class {i}" for i in range(60)])) == 60


def test_no_classes():
    assert class_colors([]) == []


def test_error_colors_differ_for_red_green_blind_eyes():
    gaps = color_gaps([WRONG], [CORRECT, IGNORED])
    assert gaps.min() > 30
    assert rgb(IGNORED).min() > rgb(CORRECT).max()


def test_no_class_has_the_color_of_wrong_points():
    classes = sorted({*WORDS.values(), *REMAINDER.values(), *GENERIC})
    assert color_gaps([WRONG], classes).min() > 4 * CONFUSABLE


def test_groups_and_values_are_told_apart():
    gaps = color_gaps(GROUPS, GROUPS) + 1e3 * np.eye(len(GROUPS))
    assert gaps[:4, :4].min() > 15
    assert gaps.min() > 6
    rising, signed = Scale(np.array([0.0, 4.0])), Scale(np.array([-4.0, 4.0]))
    steps = [rising.color(v) for v in (0, 1, 2, 3, 4)]
    assert color_gaps(steps[:-1], steps[1:]).diagonal().min() > 10
    assert color_gaps([ACCENT], steps).min() > 25
    assert color_gaps([signed.color(-4)], [signed.color(4)]).min() > 50
