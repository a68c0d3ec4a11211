"""The PNG: it is written, whole, for every kind of cloud."""

import subprocess
import sys

import numpy as np
import pytest

from voxax.errors import InputError, MissingExtraError
from voxax.plot import CORRECT, IGNORED, WRONG, class_colors, segmentation_png
from voxax.plot.figure import height_text, length_text, nice_length
from voxax.plot.palette import rgb

pytest.importorskip("matplotlib")
NAMES = ["ground", "car", "tree"]


@pytest.fixture
def cloud(rng):
    positions = rng.uniform(-1, 1, (3000, 3)) * [20, 15, 2]
    truth = rng.integers(-1, 3, 3000)
    return positions, np.where(rng.random(3000) < 0.2, 1, np.maximum(truth, 0)), truth


def pixels(path):
    from matplotlib.image import imread

    return (imread(path)[..., :3] * 255).round().astype(int)


def count(picture, color):
    """Pixels of a color; the dot of an entry in the legend has 261 of them."""
    return int((np.abs(picture - rgb(color)).max(axis=-1) <= 2).sum())


LEGEND = 400


def test_with_truth_shows_errors(tmp_path, cloud):
    path = segmentation_png(tmp_path / "a.png", *cloud, NAMES, title="T", subtitle="S")
    assert path == tmp_path / "a.png"
    picture = pixels(path)
    assert picture.shape[1] == 2000
    assert count(picture, WRONG) > LEGEND
    assert count(picture, CORRECT) > LEGEND
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.png"]


def test_without_truth(tmp_path, cloud):
    positions, prediction, _ = cloud
    path = segmentation_png(tmp_path / "a.png", positions, prediction, None, NAMES)
    assert count(pixels(path), WRONG) == 0


def test_same_input_same_bytes(tmp_path, cloud):
    first = segmentation_png(tmp_path / "a.png", *cloud, NAMES).read_bytes()
    assert segmentation_png(tmp_path / "b.png", *cloud, NAMES).read_bytes() == first


@pytest.mark.parametrize("up", ["z", "y", "-y"])
@pytest.mark.parametrize("size", [1e-4, 0.15, 1e4])
def test_any_size_and_axis(tmp_path, cloud, up, size):
    positions, prediction, truth = cloud
    path = tmp_path / "a.png"
    segmentation_png(path, positions * size / 40, prediction, truth, NAMES, up=up)
    drawn = [count(pixels(path), color) for color in class_colors(NAMES)]
    assert min(drawn) > 10 * LEGEND, drawn


@pytest.mark.parametrize("count", [0, 1, 2])
@pytest.mark.parametrize("known", [True, False])
def test_hardly_any_points(tmp_path, count, known):
    labels = np.zeros(count, int)
    path = segmentation_png(
        tmp_path / "a.png", np.ones((count, 3)), labels, labels if known else None, NAMES
    )
    assert path.stat().st_size > 1000


def test_all_ignored(tmp_path, cloud):
    positions, prediction, _ = cloud
    ignored = np.full(len(positions), -1)
    picture = pixels(segmentation_png(tmp_path / "a.png", positions, prediction, ignored, NAMES))
    assert max(count(picture, WRONG), count(picture, CORRECT)) < LEGEND
    assert count(picture, IGNORED) > 100 * LEGEND
    picture = pixels(segmentation_png(tmp_path / "b.png", positions, ignored, None, NAMES))
    assert [count(picture, color) for color in class_colors(NAMES)] == [0, 0, 0]
    assert count(picture, IGNORED) > 100 * LEGEND


def test_ceiling_is_left_out(tmp_path, cloud):
    positions, prediction, truth = cloud
    roof = ["ceiling", "floor", "wall"]
    color, *others = class_colors(roof)
    picture = pixels(segmentation_png(tmp_path / "a.png", positions, prediction, truth, roof))
    assert count(picture, color) < LEGEND
    assert min(count(picture, other) for other in others) > 10 * LEGEND
    picture = pixels(segmentation_png(tmp_path / "b.png", positions, prediction * 0, None, roof))
    assert 0 < count(picture, color) < LEGEND
    background = count(picture, "#f7f8f9") + count(picture, "#ffffff")
    assert background > 0.98 * picture[..., 0].size


def test_iou_and_awkward_text(tmp_path, cloud):
    names = ["$x$ & <b>", "a\\frac{", "日本"]
    with pytest.warns(UserWarning, match="Glyph"):
        segmentation_png(
            tmp_path / "a.png", *cloud, names,
            title="long " * 80, subtitle="$\\bad$", iou={"日本": 0.5, 1: float("nan")},
        )  # fmt: skip


def test_failure_leaves_the_old_file(tmp_path, cloud):
    path = tmp_path / "a.png"
    path.write_bytes(b"old")
    positions, prediction, truth = cloud
    with pytest.raises(InputError, match=r"2999 .* 3000"):
        segmentation_png(path, positions, prediction[1:], truth, NAMES)
    assert path.read_bytes() == b"old"
    with pytest.raises(FileNotFoundError):
        segmentation_png(tmp_path / "none" / "a.png", *cloud, NAMES)
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.png"]


def test_missing_matplotlib(tmp_path, cloud, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtraError, match=r'pip install "voxax\[plot\]"'):
        segmentation_png(tmp_path / "a.png", *cloud, NAMES)


def test_no_global_state(tmp_path):
    script = (
        "import sys, numpy as np, voxax.plot\n"
        "assert 'matplotlib' not in sys.modules and 'plotly' not in sys.modules\n"
        "voxax.plot.segmentation_png(sys.argv[1], np.eye(3), [0, 0, 0], None, ['a'])\n"
        "assert 'matplotlib.pyplot' not in sys.modules\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "a.png")]
    subprocess.run(command, check=True, timeout=120)


def test_scale_bar_lengths():
    assert [nice_length(length) for length in (0.0123, 1.99, 7.0, 99.0)] == [0.01, 1, 5, 50]
    assert [length_text(x) for x in (2000, 50, 0.5, 0.01, 0.002, 5e-6)] == [
        "2 km", "50 m", "50 cm", "1 cm", "2 mm", "5 µm",
    ]  # fmt: skip
    assert height_text(0.01, 0.16) == ("0.01 m", "0.16 m")
    assert height_text(-1.6, 26.0) == ("-2 m", "26 m")


def test_real_sweep(tmp_path, scans):
    file = scans / "lidar_os0_128.npz"
    if not file.is_file():
        pytest.skip("this folder of scans has no Ouster sweep")
    positions = np.load(file)["xyz"]
    prediction = (positions[:, 2] > -1).astype(int)
    path = segmentation_png(tmp_path / "a.png", positions, prediction, None, ["road", "building"])
    assert path.stat().st_size > 100_000
