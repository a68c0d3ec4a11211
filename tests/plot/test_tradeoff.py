"""Gain over cost as a picture."""

import pytest

from voxax.errors import InputError
from voxax.plot import tradeoff_svg

pytest.importorskip("matplotlib")


def test_picture_names_its_series_points_and_axes(tmp_path):
    path = tmp_path / "a.svg"
    fixed = [(3.0, 0.2, 0.01, "one"), (30.0, 0.4, 0.02, "three")]
    series = {"fixed": fixed, "free": [(9.0, 0.3, 0.0, "x9")]}
    tradeoff_svg(path, series, title="T", x="cost", y="gain")
    text = path.read_text()
    for word in ("fixed", "free", "one", "three", "x9", "cost", "gain"):
        assert f">{word}<" in text
    again = tradeoff_svg(tmp_path / "b.svg", series, title="T", x="cost", y="gain")
    assert again.read_text() == text


def test_one_point_has_a_plane_too(tmp_path):
    assert tradeoff_svg(tmp_path / "a.png", {"s": [(1.0, 0.5, 0.0, "p")]}).stat().st_size > 1000


@pytest.mark.parametrize("points", [[], [(0.0, 1.0, 0.0, "p")]])
def test_what_has_no_logarithm(points, tmp_path):
    with pytest.raises(InputError, match="x above 0"):
        tradeoff_svg(tmp_path / "a.svg", {"s": points})
