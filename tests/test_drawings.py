"""Pictures of sites: every kind of panel is drawn, from what the library says."""

import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from docs.drawings.panel import Panel
from docs.drawings.site_content import content_of, number_text
from docs.drawings.site_frame import frames_of, ink_on, rows_of
from docs.drawings.sites import draw_sites, reads

import voxax as vx
from voxax.errors import InputError, MissingExtraError
from voxax.plot.palette import Scale

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


def test_png(tmp_path, voxels):
    from matplotlib.image import imread

    panel = Panel("x", voxels, values=np.asarray(voxels.features))
    path = draw_sites([panel], tmp_path / "a.png")
    assert imread(path).shape[2] == 4
    assert draw_sites([panel], tmp_path / "b.png").read_bytes() == path.read_bytes()


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


@pytest.mark.parametrize("ndim", [1, 2])
def test_levels_share_one_lattice(ndim):
    fine = vx.Voxels.from_coords(SITES[:4, : 1 + ndim], jnp.ones((4, 1)), capacity=8)
    coarse = vx.kernel_map(fine, 2, 2).out_geometry
    panel = Panel("coarse", vx.Voxels(coarse, jnp.ones((coarse.capacity, 1))))
    content = content_of(panel)
    assert content.step == (2, 2)[:ndim] + (1,) * (2 - ndim)
    assert content.extent()[0] == (0, 4)


@pytest.mark.parametrize(
    ("number", "columns", "lengths"),
    [(3, None, [3]), (4, None, [4]), (5, None, [3, 2]), (9, None, [3, 3, 3]), (3, 2, [2, 1])],
)
def test_rows_fit_a_page(number, columns, lengths):
    panels = [Panel("t", [(0, 0), (5, 5)])] * number
    frames = frames_of(panels, [content_of(panel) for panel in panels], cell=28)
    assert [len(row) for row in rows_of(frames, columns)] == lengths


def test_a_sign_before_the_first_panel_is_on_the_sheet(tmp_path):
    panels = [Panel("t", [(0, 0)], sign=sign) for sign in ("", "+")]
    bare, signed = (ET.parse(draw_sites([panel], tmp_path / "a.svg")).getroot() for panel in panels)
    assert float(signed.get("width")) > float(bare.get("width"))
    (sign,) = [n for n in signed.iter("{http://www.w3.org/2000/svg}text") if n.text == "+"]
    assert float(sign.get("x")) > 0


def test_large_cells_hold_the_labels_of_points(tmp_path):
    panel = Panel("t", points=[[0.5, 0.5]], point_values=[2.0], point_labels="values")
    sizes = []
    for cell in (20, 60):
        path = draw_sites([panel], tmp_path / "a.svg", cell=cell)
        assert "2" in texts(path)
        anchors = re.findall(r"text-anchor: (\w+)", path.read_text())
        sizes.append((ET.parse(path).getroot().get("width"), anchors[-1]))
    assert sizes == [("48", "start"), ("88", "middle")]


def test_empty_voxels(tmp_path):
    empty = vx.Voxels.from_coords(np.zeros((0, 3), np.int32), np.zeros((0, 1), np.float32))
    draw_sites([Panel("none", empty), Panel("one", [(0, 0)])], tmp_path / "a.svg")
    with pytest.raises(InputError, match=r"'none' is empty"):
        draw_sites([Panel("none", empty)], tmp_path / "b.svg")


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


def test_other_errors(tmp_path, monkeypatch):
    with pytest.raises(InputError, match="at least one Panel"):
        draw_sites([], tmp_path / "a.svg")
    with pytest.raises(InputError, match=r"\.svg or \.png"):
        draw_sites([Panel("t", [(0, 0)])], tmp_path / "a.pdf")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtraError, match=r'pip install "voxax\[plot\]"'):
        draw_sites([Panel("t", [(0, 0)])], tmp_path / "a.svg")


def test_no_global_state(tmp_path):
    script = (
        "import sys\n"
        "from docs.drawings.panel import Panel\n"
        "from docs.drawings.sites import draw_sites\n"
        "assert 'matplotlib' not in sys.modules\n"
        "import matplotlib\n"
        "before = dict(matplotlib.rcParams)\n"
        "draw_sites([Panel('t', [(0, 0)])], sys.argv[1])\n"
        "assert 'matplotlib.pyplot' not in sys.modules\n"
        "assert dict(matplotlib.rcParams) == before\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "a.svg")]
    subprocess.run(command, check=True, timeout=120, cwd=ROOT)


def test_ink_is_read_on_light_and_dark():
    rising = Scale(np.array([0.0, 4.0]))
    assert ink_on(rising.color(0)) != ink_on(rising.color(4))


def test_number_texts():
    given = (1.0, 0.5, -0.25, 6.66, 12.0, -3.0, 0.0, np.nan)
    assert [number_text(v) for v in given] == ["1", ".5", "−.2", "6.7", "12", "−3", "0", "?"]
