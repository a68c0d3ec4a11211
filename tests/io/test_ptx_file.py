"""PTX: grids of points in text, each with a pose."""

import gzip

import numpy as np
import pytest

from voxax.errors import FileFormatError
from voxax.io import numbers, read
from voxax.io.labeled_files import LabeledFile

TURN = np.array([[0.0, 1, 0], [-1, 0, 0], [0, 0, 1]])  # a row of it is where an axis goes


def scan(points, turn=TURN, shift=(1000.5, -3, 2), grid=None, more=(), end="\n"):
    """The text of one scan; `more` are words behind each position."""
    columns, rows = grid or (len(points), 1)
    lines = [f"{columns}", f"{rows}", " ".join(map(str, shift))]
    lines += [" ".join(map(str, row)) for row in turn]
    lines += [" ".join(map(str, [*row, 0])) for row in turn] + [" ".join(map(str, [*shift, 1]))]
    for number, point in enumerate(points):
        lines.append(" ".join([*map(str, point), *(word[number] for word in more)]))
    return end.join(lines) + end


def placed(points, shift=(1000.5, -3, 2)):
    """Where the points are: each number of the scanner's frame along its own axis."""
    return np.array(
        [sum(c * axis for c, axis in zip(p, TURN, strict=True)) + shift for p in points]
    )


POINTS = [[1, 2, 3], [0, 0, 0], [4.25, -5, 6], [0, 0, 7], [8e-3, 9, 10], [0, 0, 0]]
MEASURED = [0, 2, 3, 4]
INTENSITY = ["0.25", "0.5", "0.75", "1", "0", "0.5"]
COLORS = [[str(10 * k + c) for k in range(6)] for c in range(3)]


@pytest.mark.parametrize("end", ["\n", "\r\n", "\n\n"])
@pytest.mark.parametrize("grid", [(6, 1), (2, 3)])
@pytest.mark.parametrize("more", [(), (INTENSITY,), COLORS, (INTENSITY, *COLORS)])
def test_positions_intensity_and_colors(tmp_path, grid, more, end):
    (tmp_path / "a.ptx").write_text(scan(POINTS, grid=grid, more=more, end=end), newline="")
    cloud = read(tmp_path / "a.ptx")
    np.testing.assert_allclose(cloud.positions, placed(POINTS)[MEASURED], rtol=1e-12)
    assert ("intensity" in cloud.attributes) == (INTENSITY in more)
    assert ("rgb" in cloud.attributes) == (COLORS[0] in more)
    if INTENSITY in more:
        assert cloud.attributes["intensity"].tolist() == [0.25, 0.75, 1, 0]
    if COLORS[0] in more:
        assert cloud.attributes["rgb"].tolist() == [
            [10 * k, 10 * k + 1, 10 * k + 2] for k in (0, 2, 3, 4)
        ]
    assert "item" not in cloud.attributes


def test_several_scans(tmp_path, monkeypatch):
    shifts = [(0, 0, 0), (5e5, 4e6, 100), (-1, 2, 0.5)]
    colored = (INTENSITY, *COLORS)
    text = "".join(
        scan(POINTS, shift=shift, more=(INTENSITY,) if place == 1 else colored)
        for place, shift in enumerate(shifts)
    )
    (tmp_path / "a.ptx").write_text("\ufeff" + text)
    (tmp_path / "b.ptx.gz").write_bytes(gzip.compress(text.encode()))
    right = np.concatenate([placed(POINTS, shift)[MEASURED] for shift in shifts])
    monkeypatch.setattr(numbers, "_LINES", 4)  # a scan in several pieces
    for name in ("a.ptx", "b.ptx.gz"):
        cloud = read(tmp_path / name)
        np.testing.assert_allclose(cloud.positions, right, rtol=1e-12)
        assert cloud.attributes["item"].tolist() == [0] * 4 + [1] * 4 + [2] * 4
        assert set(cloud.attributes) == {"item", "intensity"}  # a scan has no colors
        one = read(tmp_path / name, item=2)
        np.testing.assert_allclose(one.positions, right[8:], rtol=1e-12)
        assert set(one.attributes) == {"rgb", "intensity"}
    with pytest.raises(FileFormatError, match=r"holds 3 clouds, 0\.\.2: item 3 is none"):
        read(tmp_path / "a.ptx", item=3)


def test_scans_of_one_file_are_one_place_of_a_data_set(tmp_path):
    text = scan(POINTS) + scan(POINTS, shift=(0, 0, 0))
    (tmp_path / "a.ptx").write_text(text)
    np.save(tmp_path / "a.npy", np.arange(8))
    ids = tuple((label, label) for label in range(8))
    cloud = LabeledFile(str(tmp_path / "a.ptx"), str(tmp_path / "a.npy"), ids)()
    assert cloud.labels.tolist() == list(range(8))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text[:-7], "is cut short: it says 6 x 1 points, 5 are there"),
        (lambda text: text[:-20], "is cut short: its header says 6 points, 4 are there"),
        (lambda text: text.replace("6\n1\n", "6000000000\n1000\n", 1), "says 6000000000000 points"),
        (lambda text: text.replace("6\n1\n", "6\n-1\n", 1), "columns and the rows of its grid"),
        (lambda text: text.replace("6\n1\n", "6\n", 1), "columns and the rows of its grid"),
        (lambda text: "x y z\n" + text, "not with 'x y z'"),
        (lambda text: text.replace("1000.5 -3 2 1", "1000.5 -3 2", 1), "has 3 numbers, not 4"),
        (lambda text: text.replace("1000.5 -3 2 1", "nan -3 2 1", 1), "line of the scanner's pose"),
        (lambda text: text.replace("1 2 3", "1 2 3 0 0", 1), "points of 5 numbers"),
        (lambda text: text.replace("4.25 -5 6", "4.25 -5", 1), "3 columns but 2 were found"),
        (lambda text: text.replace("4.25 -5 6", "4.25 b 6", 1), "is broken"),
        (lambda text: text + "12\n", "columns and the rows of its grid"),
        (lambda text: scan([[0, 0, 0]]), "holds no points"),
    ],
)
def test_broken_files(tmp_path, change, message):
    (tmp_path / "a.ptx").write_text(change(scan(POINTS)))
    with pytest.raises(FileFormatError, match=message):
        read(tmp_path / "a.ptx")
