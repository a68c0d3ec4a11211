"""STL in text: all solids, or an error."""

import numpy as np
import pytest

from voxax.errors import FileFormatError
from voxax.io import read

FACET = "  facet normal 0 0 1\n    outer loop\n{}    endloop\n  endfacet\n"
SQUARE = [[(0, 0, 0), (1, 0, 0), (0, 1, 0)], [(1, 0, 0), (1, 1, 0), (0, 1, 0)]]


def solid(name="a part", shift=0.0):
    facets = "".join(
        FACET.format("".join(f"      vertex {x + shift} {y:.2e} {z}\n" for x, y, z in corners))
        for corners in SQUARE
    )
    return f"solid {name}\n{facets}endsolid {name}\n"


@pytest.mark.parametrize("name", ["", "a", "vertex 1 2 3", "facet endsolid", "b\u00f6"])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("upper", [True, False])
def test_all_solids_are_read(tmp_path, name, end, upper):
    text = (solid(name) + solid(name, 5)).replace("\n", end)
    (tmp_path / "a.stl").write_bytes((text.upper() if upper else text).encode())
    cloud = read(tmp_path / "a.stl", points=400)
    assert np.bincount(cloud.attributes["face"]).tolist() == [100] * 4
    assert (cloud.positions[:, 0] > 4).sum() == 200
    np.testing.assert_allclose(cloud.positions.max(0), [6, 1, 0], atol=0.1)


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text[: text.rindex("endsolid")],  # after the last facet
        lambda text: text[: text.rindex("outer")],
        lambda text: text[: text.rindex("vertex")],
        lambda text: text.replace("vertex 5.0", "vortex 5.0", 1),
        lambda text: text.replace("vertex 5.0", "vertex x", 1),
        lambda text: text.replace("vertex 5.0 ", "vertex ", 1),
        lambda text: text.replace("endloop", "vertex 9 9 9\nendloop", 1),
        lambda text: text.replace("  endfacet\n", "", 1),
    ],
)
def test_no_part_is_left_out_in_silence(tmp_path, change):
    (tmp_path / "a.stl").write_text(change(solid() + solid("b", 5.0)))
    with pytest.raises(FileFormatError, match="broken"):
        read(tmp_path / "a.stl")
