"""Names of spconv beside its layers: the same results as spconv's, and what it does not do."""

import importlib
import importlib.util
import pickle

import numpy as np
import pytest
import rare_names
import torch

import voxax.torch.spconv as spconv
from own_process import run_python
from voxax.torch.spconv import SpconvError, cppcore
from voxax.torch.spconv import tensorview as tv
from voxax.torch.spconv import voxel_generators as boxes
from voxax.torch.spconv.spatial import RemoveDuplicate

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    if importlib.util.find_spec("spconv") is None:
        pytest.skip("spconv is not installed: pip install spconv==2.3.8")
    found = {}
    for by in ("spconv", "voxax"):
        file = tmp_path_factory.mktemp(by) / "results.pkl"
        run_python(rare_names.__file__, file, by)
        found[by] = pickle.loads(file.read_bytes())
    return found


def same(ours, theirs, limit, name):
    if isinstance(theirs, list):
        assert len(ours) == len(theirs), name
        for place, (one, other) in enumerate(zip(ours, theirs, strict=True)):
            same(one, other, limit, f"{name} {place}")
    elif isinstance(theirs, np.ndarray):
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape), name
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=limit, err_msg=name)
    else:
        assert ours == theirs, name


@pytest.mark.slow
def test_same_as_spconv(results):
    ours, theirs = results["voxax"], results["spconv"]
    assert set(ours) == set(theirs)
    for name, expected in theirs.items():
        if name.startswith("kept"):
            expected = expected[30:]  # behind as many zeros as there are boxes
        # spconv's areas have 7 digits in float64 too: Boost rounds corners to a grid.
        limit = 1e-12 if name in ("outputs", "gradients") else 1e-6
        scale = 10 if name.startswith("shared") else 1
        same(ours[name], expected, limit * scale, name)


def test_overlaps_of_turned_boxes():
    shapely = pytest.importorskip("shapely")
    rng = np.random.default_rng(1)
    a, b = (rare_names.random_boxes(rng, 12) for _ in range(2))
    b[0] = a[0]
    b[1] = a[1, ::-1]  # the other way around
    b[2] = (a[2] + a[2].mean(0)) / 2  # inside
    b[3] = a[3] + (a[3, 3] - a[3, 0])  # an edge in common
    ones = np.ones((12, 12))
    iou, shared = (of(a, b, ones, 0.0) for of in (boxes.rbbox_iou, boxes.rbbox_intersection))
    for n, k in np.ndindex(12, 12):
        first, second = shapely.Polygon(a[n]), shapely.Polygon(b[k])
        common = first.intersection(second).area
        assert shared[n, k] == pytest.approx(common, abs=1e-12)
        assert iou[n, k] == pytest.approx(common / first.union(second).area, abs=1e-12)
    far = np.array([4e5, 5e6])  # as in maps
    np.testing.assert_allclose(boxes.rbbox_iou(a + far, b + far, ones, 0.0), iou, atol=1e-6)
    assert not boxes.rbbox_iou(a, b, ones, 1.0).any()
    assert boxes.rbbox_iou(a[:0], b, ones[:0], 0.0).shape == (0, 12)
    flat = a[:1] * 0
    assert boxes.rbbox_iou(flat, flat, ones[:1, :1], 0.0) == 0


def test_suppression():
    low_high = np.array([[0, 0, 2, 2], [0.1, 0, 2.1, 2], [5, 5, 6, 6], [0, 0, 2, 2.0]])
    order = np.array([1, 0, 2, 3])
    assert boxes.non_max_suppression_cpu(low_high, order, 0.5) == [1, 2]
    assert boxes.non_max_suppression_cpu(low_high, order, 0.95) == [1, 0, 2]
    x0, y0, x1, y1 = low_high.T
    corners = np.stack([x0, y0, x0, y1, x1, y1, x1, y0], 1).reshape(4, 4, 2)
    ones = np.ones((4, 4))
    assert boxes.rotate_non_max_suppression_cpu(corners, order, ones, 0.5) == [1, 2]
    assert boxes.rotate_non_max_suppression_cpu(corners, order, 0 * ones, 0.5) == [1, 0, 2, 3]
    assert boxes.rotate_non_max_suppression_cpu(corners[:0], order[:0], ones[:0], 0.5) == []


def test_one_row_of_each_voxel():
    indices = [[1, 0, 0, 2], [0, 3, 1, 0], [1, 0, 0, 2], [0, 0, 0, 1], [0, 3, 1, 0]]
    indices = torch.tensor(indices, dtype=torch.int32)
    x = spconv.SparseConvTensor(torch.arange(10.0).reshape(5, 2), indices, [4, 4, 4], 2)
    out = RemoveDuplicate()(x)
    assert out.indices.tolist() == [[0, 0, 0, 1], [0, 3, 1, 0], [1, 0, 0, 2]]
    assert out.features.tolist() == [[6, 7], [2, 3], [0, 1]]
    assert x.indices.tolist() == indices.tolist()
    none = spconv.SparseConvTensor(torch.ones(0, 2), indices[:0], [4, 4, 4], 2)
    assert RemoveDuplicate()(none).indices.shape == (0, 4)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: boxes.rbbox_iou(np.ones((2, 7)), np.ones((2, 4, 2)), np.ones((2, 2)), 0.0),
            "4, 2",
        ),
        (lambda: boxes.rbbox_iou(np.ones((2, 4, 2)), np.ones((1, 4, 2)), np.ones(2), 0), "N, K"),
        (lambda: boxes.rbbox_iou_loss(np.ones((2, 4, 2)), np.ones((1, 4, 2))), "2 boxes and 1"),
        (lambda: tv.zeros([2], tv.float32, 0), "-1"),
        (lambda: tv.zeros([2], tv.bfloat16), "dtype number 12"),
        (lambda: tv.zeros([2])[5], "index 5"),
        (lambda: cppcore.torch_tensor_to_tv(torch.ones(2, dtype=torch.bfloat16)), "bfloat16"),
        (cppcore.get_arch, "CPU"),
    ],
)
def test_errors(call, message):
    with pytest.raises(SpconvError, match=message):
        call()


def test_other_methods_of_tensors_say_where_the_array_is():
    with pytest.raises(AttributeError, match=r"Tensor\.transpose: .*numpy_view"):
        tv.zeros([2, 3]).transpose(0, 1)
