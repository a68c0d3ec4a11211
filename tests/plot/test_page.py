"""The HTML page: self-contained, escaped, and true to the cloud."""

import base64
import json
import re
import sys

import numpy as np
import pytest

from voxax.errors import InputError, MissingExtraError
from voxax.plot import segmentation_html
from voxax.plot.page import MOST_POINTS

pytest.importorskip("plotly")
NAMES = ["ground", "car"]


def data_of(path):
    text = path.read_text()
    return json.loads(re.search(r'id="data">(.*?)</script>', text, re.DOTALL)[1])


def shorts(text):
    return np.frombuffer(base64.b64decode(text), "<i2").astype(int)


def frame_of(path):
    """The page without plotly.js, which has addresses and braces of its own."""
    return re.sub(r"<script>\s*/\*\*\n\* plotly\.js.*?</script>", "", path.read_text(), flags=re.S)


@pytest.mark.parametrize("shift", [0.0, 447_000.0])
@pytest.mark.parametrize("up", ["z", "y", "-y"])
def test_coordinates_survive(tmp_path, rng, shift, up):
    positions = rng.uniform(-20, 20, (500, 3)) * [1, 1, 0.2] + shift
    labels = rng.integers(0, 2, 500)
    data = data_of(segmentation_html(tmp_path / "a.html", positions, labels, None, NAMES, up=up))
    local = np.array(data["offset"]) + shorts(data["cells"]).reshape(-1, 3) * data["step"]
    np.testing.assert_allclose(local + data["origin"], positions, atol=40 / 65_000)
    assert (shorts(data["prediction"]) == labels).all()
    assert np.abs(local).max() < 1000  # small enough for float32
    low, high = np.array(data["range"]).T
    assert (local >= low - 1e-3).all()
    assert (local <= high + 1e-3).all()


def test_thinning_is_seeded_and_said(tmp_path, rng):
    positions = rng.random((MOST_POINTS + 5000, 3))
    labels = rng.integers(-1, 2, len(positions))
    first = segmentation_html(tmp_path / "a.html", positions, labels, labels, NAMES)
    second = segmentation_html(tmp_path / "b.html", positions, labels, labels, NAMES)
    assert first.read_bytes() == second.read_bytes()
    assert "60,000 of them shown, chosen at random" in first.read_text()
    data = data_of(first)
    assert data["count"] == MOST_POINTS
    assert data["classes"][1]["points"] == int((labels == 1).sum())


def test_everything_is_escaped(tmp_path):
    bad = "</script><script>alert(1)</script>"
    path = segmentation_html(
        tmp_path / "a.html", np.eye(3), [0, 0, 0], [0, 0, -1], [bad],
        title=bad + "{{data}}", summary={bad: bad, "points": 123456, "share": 0.123456, "x": True},
    )  # fmt: skip
    text = frame_of(path)
    assert "alert(1)</script>" not in text
    assert data_of(path)["classes"][0]["name"] == bad
    assert "<td>123,456</td>" in text
    assert "<td>0.1235</td>" in text
    assert "<td>yes</td>" in text
    assert "{{data}}" in text  # as a title, not filled in


def test_needs_and_tells_nobody(tmp_path):
    text = frame_of(segmentation_html(tmp_path / "a.html", np.eye(3), [0, 0, 0], None, NAMES))
    assert "http" not in text
    assert "src=" not in text
    assert "showSendToCloud: false" in text


def test_page_is_written_as_utf8(tmp_path):
    path = segmentation_html(tmp_path / "a.html", np.eye(3), [0, 0, 0], None, ["Bäume"], title="木")
    assert "木" in path.read_text(encoding="utf-8")


@pytest.mark.parametrize("count", [0, 1])
def test_hardly_any_points(tmp_path, count):
    labels = np.full(count, -1)
    path = segmentation_html(tmp_path / "a.html", np.ones((count, 3)), labels, labels, NAMES)
    data = data_of(path)
    assert data["count"] == count
    assert data["present"] == []
    assert ("no points" in re.search("<header>.*</header>", path.read_text())[0]) == (count == 0)


def test_ceiling_starts_hidden(tmp_path):
    names = ["floor", "ceiling"]
    path = segmentation_html(tmp_path / "a.html", np.eye(3), [0, 1, 1], None, names)
    assert data_of(path)["hidden"] == [1]
    assert "the ceiling is switched off at first" in path.read_text()


def test_iou_is_shown(tmp_path):
    path = segmentation_html(
        tmp_path / "a.html", np.eye(3), [0, 1, 1], None, NAMES, iou={"car": np.float32(0.5)}
    )
    assert [kind["iou"] for kind in data_of(path)["classes"]] == [None, 0.5]


def test_mismatch(tmp_path):
    with pytest.raises(InputError, match="2 labels, but positions has 3 points"):
        segmentation_html(tmp_path / "a.html", np.eye(3), [0, 0], None, NAMES)


def test_missing_plotly(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "plotly", None)
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    with pytest.raises(MissingExtraError, match=r'pip install "voxax\[plot\]"'):
        segmentation_html(tmp_path / "a.html", np.eye(3), [0, 0, 0], None, NAMES)
