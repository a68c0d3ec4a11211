"""Boxes in pictures: where they project, how true and found ones are told apart."""

import json
import re

import numpy as np
import pytest

from voxax.detection import Objects
from voxax.errors import InputError
from voxax.plot import class_colors, detection_html, detection_png, rgb
from voxax.plot.boxed import EDGES, TRUE, box_kinds, dashed
from voxax.plot.camera import compose, from_above, in_perspective
from voxax.plot.figure import box_pixels, fit_view

NAMES = ("car", "person")
BOXES = np.array([[4.0, 1, 1, 4, 2, 1.5, 0.4], [-6, -3, 0.9, 0.6, 0.6, 1.8, 0]])


def objects(scores=None, boxes=BOXES):
    return Objects(boxes, np.array(NAMES)[: len(boxes)], scores)


@pytest.fixture
def positions(rng):
    ground = np.column_stack([rng.uniform(-10, 10, (4000, 2)), np.zeros(4000)])
    return np.concatenate([ground, [[4.0, 1.0, 1.75]]])


@pytest.mark.parametrize("perspective", [False, True])
def test_boxes_lie_where_their_points_do(positions, perspective):
    """The corners of a box, given as points, land on the pixels of the box's corners."""
    (kind, _) = box_kinds(objects([0.9, 0.8]), None, NAMES)
    scene = compose(np.concatenate([positions, kind.corners[0]]))
    project = in_perspective if perspective else from_above
    view = fit_view(*project(scene), 500, 1.0, perspective)
    pixels = box_pixels(scene, view, kind.corners, perspective)[0]
    rows = [np.flatnonzero(scene.index == len(positions) + i)[0] for i in range(8)]
    np.testing.assert_allclose(pixels, view.pixels(project(scene)[0][rows]), atol=0.05)
    assert ((pixels > 0) & (pixels < [view.width, view.height])).all()
    # Upright: the top is above the bottom in perspective, and the same place from above.
    rise = pixels[:4, 1] - pixels[4:, 1]
    assert (rise > 5).all() if perspective else np.abs(rise).max() < 1e-3


def test_kinds():
    kinds = box_kinds(objects([0.9, 0.2]), objects(), NAMES, min_score=0.3)
    assert [(kind.name, kind.is_true, len(kind.labels)) for kind in kinds] == [
        ("found car", False, 1),
        ("true", True, 2),
    ]
    assert kinds[0].color == class_colors(NAMES)[0] != kinds[1].color == TRUE
    with pytest.raises(InputError, match="boxes of the class 'person'; the names are car"):
        box_kinds(objects([0.9, 0.2]), None, ("car",))
    lines = kinds[0].corners[:, EDGES].reshape(-1, 2, 3)
    pieces = dashed(lines)
    total = np.linalg.norm(pieces[:, 1] - pieces[:, 0], axis=1).sum()
    whole = np.linalg.norm(lines[:, 1] - lines[:, 0], axis=1).sum()
    assert 0.45 * whole < total < 0.6 * whole


def colored(path, color):
    """Number of pixels near a color."""
    image = pytest.importorskip("PIL.Image")
    pixels = np.asarray(image.open(path).convert("RGB")).astype(int)
    return int((np.abs(pixels - rgb(color)).max(axis=2) < 40).sum())


def test_png(tmp_path, positions):
    pytest.importorskip("matplotlib")
    found, truth = objects([0.9, 0.1]), objects()
    both = detection_png(tmp_path / "a.png", positions, found, truth, NAMES, ap={"car": "AP 0.5"})
    bare = detection_png(tmp_path / "b.png", positions, None, None, NAMES)
    car, person = class_colors(NAMES)
    assert colored(both, car) > colored(bare, car) + 300
    assert colored(both, person) == colored(bare, person)  # its score is too low
    assert colored(both, TRUE) > colored(bare, TRUE) + 200
    again = detection_png(tmp_path / "c.png", positions, found, truth, NAMES, ap={"car": "AP 0.5"})
    assert again.read_bytes() == both.read_bytes()
    empty = detection_png(tmp_path / "d.png", np.zeros((0, 3)), found, None, NAMES)
    assert colored(empty, car) > 300
    none = detection_png(tmp_path / "e.png", np.zeros((0, 3)), None, None, NAMES)
    assert none.stat().st_size > 1000


def test_page(tmp_path, positions):
    pytest.importorskip("plotly")
    shift = np.array([5e5, 4e6, 0])
    moved = BOXES + np.array([*shift, 0, 0, 0, 0])
    path = detection_html(
        tmp_path / "a.html",
        positions + shift,
        objects([0.9, 0.2], moved),
        objects(None, moved),
        NAMES,
        title="<boxes>",
    )
    text = path.read_text()
    assert "<title>&lt;boxes&gt;</title>" in text
    data = json.loads(re.search(r'id="data">(.*?)</script>', text, re.DOTALL)[1])
    assert [(kind["name"], kind["dash"]) for kind in data["boxes"]] == [
        ("found car", "solid"),
        ("found person", "solid"),
        ("true", "dash"),
    ]
    assert data["boxes"][0]["scores"] == [0.9]
    assert data["boxes"][2]["scores"] == [None, None]
    middle = np.mean(data["boxes"][0]["corners"][0], axis=0) + data["origin"]
    np.testing.assert_allclose(middle, moved[0, :3], atol=2e-3)
    assert np.abs(data["boxes"][0]["corners"]).max() < 10_000
