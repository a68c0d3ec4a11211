"""Pictures of sites: every kind of panel is drawn, from what the library says."""

import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest
from docs.drawings.panel import Panel
from docs.drawings.sites import draw_sites, reads

import voxax as vx
from voxax.errors import InputError

pytest.importorskip("matplotlib")
ROOT = Path(__file__).resolve().parents[1]
SITES = np.array([(0, 0, 1), (0, 1, 1), (0, 2, 2), (0, 3, 2), (1, 0, 0), (1, 3, 3)])


@pytest.fixture(scope="module")
def voxels():
    features = np.arange(1, 7, dtype=np.float32)[:, None]
    return vx.Voxels.from_coords(SITES, features, batch_size=2, capacity=8)


def texts(path):
    """All words of an SVG, which must be well-formed."""
    root = ET.parse(path).getroot()
    return [node.text for node in root.iter("{http://www.w3.org/2000/svg}text")]


def test_convolution(tmp_path, voxels):
    kmap = vx.kernel_map(voxels, kernel_size=3)
    sites, taps = reads(kmap, (1, 1))
    panels = [
        Panel("input", voxels, values="features", labels="values", highlight=sites),
        Panel("kernel", kernel=kmap, highlight=taps, sign="∗"),
        Panel("output", voxels, highlight=[(1, 1)], sign="→", note="two\nlines", axes=True),
    ]
    path = draw_sites(panels, tmp_path / "a.svg")
    words = texts(path)
    assert path == tmp_path / "a.svg"
    assert {"input", "kernel", "output", "∗", "→", "two", "lines", "scene 1"} <= set(words)
    assert all(str(tap) in words for tap in range(9))
    assert path.stat().st_size < 20_000
    assert draw_sites(panels, tmp_path / "b.svg").read_bytes() == path.read_bytes()


def test_reads_by_hand(voxels):
    sites, taps = reads(vx.kernel_map(voxels, kernel_size=3), (0, 2, 2))
    assert sites.tolist() == [[0, 1, 1], [0, 2, 2], [0, 3, 2]]
    assert taps.tolist() == [0, 4, 7]
    sites, taps = reads(vx.kernel_map(voxels, 2, 2), (1, 1, 1))
    assert sites.tolist() == [[1, 3, 3]]
    assert taps.tolist() == [3]
    with pytest.raises(InputError, match=r"\(9, 9\) is none of the 6 output sites"):
        reads(vx.kernel_map(voxels, kernel_size=3), (9, 9))


@pytest.mark.parametrize(
    "panel",
    [
        Panel("arrays", [(0, 0), (-3, 2)], labels=["a", "long label"], groups=[0, 9]),
        Panel("one axis", [[0], [5]], values=[-1.0, np.nan], labels="values"),
        Panel("points", points=[[0.5, 0.5]], point_values=[2.0], point_labels="values"),
        Panel("points on a line", points=[[0.5]], point_labels=["<a & b>"]),
        Panel("arrows", [(0, 0)], arrows=[[(0.5, 0.5), (1, 1)], [(1, 1), (1, 1)]]),
        Panel("curve", [(0, 0), (0, 1)], curve=[(0, 0), (0, 1)], labels="rows"),
        Panel("short curve", [(0, 0)], curve=[(0, 0)]),
        Panel("offsets", kernel=np.array([(0, 0), (0, 2)]), highlight=[1]),
        Panel("kernel's weights", kernel=[(0,), (1,)], values=[1.0, -1.0], labels="values"),
        Panel("nothing", extent=((0, 2), (0, 2))),
        Panel("$x$ & <b>", [(0, 0)], note="$\\bad$"),
    ],
    ids=lambda panel: panel.title,
)
def test_every_kind_of_panel(tmp_path, panel):
    words = texts(draw_sites([panel, Panel("t", [(0, 0)])], tmp_path / "a.svg", columns=1))
    assert panel.title in words


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"voxels": [(0, 0)], "values": [1.0, 2.0][:0]}, "values of shape"),
        ({"voxels": [(0, 0)], "labels": "values"}, "labels='values'"),
        ({"voxels": [(0, 0)], "labels": ["a", "b"]}, "2 labels for 1 rows"),
        ({"voxels": [(0, 0)], "values": "features"}, "values='features'"),
        ({"voxels": [(0, 0, 0, 0)]}, "sites on one or two axes"),
        ({"voxels": [(0.5, 0.5)]}, "integers"),
        ({"voxels": [(0, 0)], "kernel": [(0, 0)]}, "two panels"),
        ({"kernel": [(0, 0)], "highlight": [3]}, "kernel of 1 taps"),
        ({"points": [[0.0, 0.0, 0.0]]}, "points of shape"),
        ({"voxels": [(0, 0)], "arrows": [[(0, 0), (1, 1)]][0]}, "arrows of shape"),
    ],
)
def test_errors_name_the_panel(tmp_path, options, message):
    with pytest.raises(InputError, match=rf"panel 'title'.*{message}"):
        draw_sites([Panel("title", **options)], tmp_path / "a.svg")
    assert list(tmp_path.iterdir()) == []
