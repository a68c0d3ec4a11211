"""Voxels that occur several times: spconv's rule on one thread of a CPU, a warning, or an error."""

import importlib.util
import warnings

import pytest
import several_rows
import torch

import voxax.torch.spconv as spconv
from own_process import run_python
from voxax.torch.core import products
from voxax.torch.spconv import core, functional, ops, utils

pytestmark = pytest.mark.torch


@pytest.fixture(autouse=True)
def warned(monkeypatch):
    monkeypatch.setattr(core, "_warned", True)
    yield
    spconv.strict(False)


def cloud(ndim=2):
    return spconv.SparseConvTensor(*several_rows.cloud(ndim), 2)


@pytest.mark.skipif(
    importlib.util.find_spec("cumm") is None, reason="spconv itself is not installed"
)
def test_the_rule_is_that_of_spconv(tmp_path):
    results = tmp_path / "results.pt"
    run_python(several_rows.__file__, results, "spconv", OMP_NUM_THREADS="1")
    expected = torch.load(results, weights_only=True)
    found = several_rows.results(spconv, functional, ops, utils)
    assert list(found) == list(expected)
    for name, value in expected.items():
        torch.testing.assert_close(
            found[name], value, rtol=0, atol=1e-9, msg=lambda m, n=name: f"{n}: {m}"
        )


def test_layers_as_written_out():
    """The same rule without spconv: sums over rows, cell by cell."""
    x = cloud(1)
    rows, values = x.indices.tolist(), x.features
    layer = spconv.SubMConv1d(3, 4, 3, bias=False).double()
    first = {tuple(row): number for number, row in reversed(list(enumerate(rows)))}
    expected = values @ layer.weight[:, 1].T
    for number, (scene, place) in enumerate(rows):
        at = first.get((scene, place + 1))
        if at is not None:
            expected[at] = expected[at] + values[number] @ layer.weight[:, 0].T
            expected[number] = expected[number] + values[at] @ layer.weight[:, 2].T
    torch.testing.assert_close(layer(x).features, expected)
    down = spconv.SparseConv1d(3, 4, 2, 2, bias=False).double()
    merged, inverse = torch.unique(x.indices, dim=0, return_inverse=True)
    total = values.new_zeros((len(merged), 3)).index_add(0, inverse, values)
    distinct = down(spconv.SparseConvTensor(total, merged, x.spatial_shape, 2))
    torch.testing.assert_close(down(x).dense(), distinct.dense())
    mean = spconv.SparseAvgPool1d(2, 2)(x)
    ones = values.new_zeros((len(merged), 1)).index_add(0, inverse, values.new_ones(len(values), 1))
    both = spconv.SparseConvTensor(torch.cat([total, ones], 1), merged, x.spatial_shape, 2).dense()
    cells = torch.nn.functional.avg_pool1d(both, 2)
    at = mean.indices.long().T
    torch.testing.assert_close(mean.features, (cells[:, :3] / cells[:, 3:])[at[0], :, at[1]])


def test_points_to_voxels_fill_with_the_mean_of_their_cell():
    """Of the first cell only is spconv's on a CPU the same: the others contain the one before."""
    points = torch.tensor([[0.5, 0.5], [0.7, 1.5], [2.5, 9.0], [0.3, 4.0]])
    made = utils.PointToVoxel([1.0], [0, 4], 2, 9, 4)
    voxels, _, numbers = made(points, empty_mean=True)
    assert numbers.tolist() == [3, 1]
    torch.testing.assert_close(voxels[0, 3], torch.tensor([0.5, 2.0]))
    torch.testing.assert_close(voxels[1], points[2:3].expand(4, 2))


def test_gradients():
    x = cloud()
    relation = x.sites().submanifold([3, 3], [1, 1])
    features = x.features[:, :2].detach().requires_grad_()
    weight = torch.randn(9, 2, 2, dtype=torch.float64, requires_grad=True)

    def out(features, weight):
        return products.convolve(features, weight, relation)

    assert torch.autograd.gradcheck(out, (features, weight), fast_mode=True)
    assert torch.autograd.gradgradcheck(out, (features, weight), fast_mode=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_dtypes(dtype):
    x = cloud()
    net = spconv.SparseSequential(
        spconv.SubMConv2d(3, 4, 3), torch.nn.ReLU(), spconv.SparseMaxPool2d(2, 2)
    )
    expected = net.double()(x)
    with torch.no_grad():
        found = net.to(dtype)(x.replace_feature(x.features.to(dtype)))
    assert found.features.dtype is dtype
    torch.testing.assert_close(found.features.double(), expected.features, rtol=0.05, atol=0.05)


def test_dense_keeps_the_last_with_any_number_of_threads():
    rows = torch.zeros(40_000, 2, dtype=torch.int32)
    x = spconv.SparseConvTensor(torch.arange(40_000.0)[:, None], rows, [1], 1)
    assert x.dense().item() == 39_999


def test_one_warning_a_process(monkeypatch):
    monkeypatch.setattr(core, "_warned", False)
    layer = spconv.SubMConv2d(3, 4, 3).double()
    with pytest.warns(UserWarning, match=r"rows of indices occur twice, the first is \[.*strict"):
        layer(cloud())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        layer(cloud())
        spconv.SparseConv2d(3, 4, 2).double()(cloud())


def test_strict_refuses_what_was_convolved_already():
    x, layer = cloud(), spconv.SubMConv2d(3, 4, 3).double()
    expected = layer(x).features
    spconv.strict(True)
    with pytest.raises(spconv.SpconvError, match="occur twice"):
        layer(x)
    spconv.strict(False)
    assert torch.equal(layer(x).features, expected)


def test_tables_of_pairs_are_refused():
    y = spconv.SubMConv2d(3, 4, 3, indice_key="a").double()(cloud())
    with pytest.raises(spconv.SpconvError, match=r"algo=ConvAlgo\.Native"):
        _ = y.find_indice_pair("a").pair_fwd
