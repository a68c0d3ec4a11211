"""Layers onto the plane of two axes, of both versions, against loops over voxels."""

import itertools

import pytest

torch = pytest.importorskip("torch")

from sparse_scenes import same, scene  # noqa: E402

import voxax.torch.torchsparse as ts  # noqa: E402
import voxax.torch.torchsparse.version_1_4 as ts_1_4  # noqa: E402
from voxax.errors import InputError  # noqa: E402

pytestmark = pytest.mark.torch

LAST = [1, 2, 3, 0]
VERSIONS = {"2.1": ts, "1.4": ts_1_4}
SHAPE, STRIDE = (7, 6, 5), (2, 1, 3)


@pytest.fixture(params=VERSIONS)
def version(request):
    return request.param


def tensor(version, low=0):
    """Two scenes of a stride, and their voxels ``(scene, x, y, z)`` in units of it."""
    x = scene(low=low, spatial_range=None)
    feats = x.feats.detach().requires_grad_()
    if version == "2.1":
        return ts.SparseTensor(feats, x.coords, STRIDE), x.coords.tolist()
    steps = torch.tensor([1, *STRIDE], dtype=torch.int32)
    return ts_1_4.SparseTensor(feats, (x.coords * steps)[:, LAST], STRIDE), x.coords.tolist()


def rows_of(version, out):
    """Return the features of the voxels ``(scene, x, y, z)``, and the voxels in the rows' order."""
    rows = out.coords.tolist()
    assert rows == sorted(rows)
    if version == "1.4":
        rows = [
            [b, *(at // s for at, s in zip(cell, out.stride, strict=True))] for *cell, b in rows
        ]
    return [tuple(row) for row in rows]


def filled(layer):
    torch.manual_seed(1)
    for parameter in layer.double().parameters():
        torch.nn.init.normal_(parameter)
    return layer


@pytest.mark.parametrize("dim", [0, 1, 2])
def test_reduction_is_the_mean_along_an_axis(version, dim):
    x, cells = tensor(version, low=-3)
    out = VERSIONS[version].nn.ToBEVReduction(dim)(x)
    groups = {}
    for cell, feat in zip(cells, x.feats, strict=True):
        groups.setdefault(tuple(0 if a == 1 + dim else c for a, c in enumerate(cell)), []).append(
            feat
        )
    rows = rows_of(version, out)
    assert set(rows) == set(groups)
    assert out.stride == x.stride
    assert type(out) is type(x)
    same(out.feats, torch.stack([torch.stack(groups[row]).mean(0) for row in rows]), x.feats)


@pytest.mark.parametrize(("dim", "stride", "bias"), [(0, 1, True), (1, 2, False), (2, 3, True)])
def test_convolution_has_a_matrix_for_each_coordinate(version, dim, stride, bias):
    x, cells = tensor(version)
    layer = filled(VERSIONS[version].nn.ToBEVConvolution(3, 4, SHAPE[dim], stride, dim, bias))
    groups = {}
    for cell, feat in zip(cells, x.feats, strict=True):
        product = feat @ layer.kernel[cell[1 + dim]] + (layer.bias[0] if bias else 0)
        place = [cell[0], *(c // stride for c in cell[1:])]
        place[1 + dim] = 0
        groups[tuple(place)] = groups.get(tuple(place), 0) + product
    out = layer(x)
    rows = rows_of(version, out)
    assert set(rows) == set(groups)
    assert out.stride == tuple(n * stride for n in STRIDE)
    same(out.feats, torch.stack([groups[row] for row in rows]), x.feats, *layer.parameters())


@pytest.mark.parametrize("dim", [0, 1, 2])
@pytest.mark.parametrize("offset", [(0, 0, 0), (-4, -1, -5)])
def test_dense_layers(version, dim, offset):
    x, cells = tensor(version)
    shape = tuple(n + 3 for n in SHAPE)
    plane = [shape[axis] for axis in range(3) if axis != dim]
    nn = VERSIONS[version].nn
    layer = filled(nn.ToDenseBEVConvolution(3, 4, shape, offset, dim, bias=True))
    tall = nn.ToBEVHeightCompression(3, shape, offset, dim)
    dense = torch.zeros(2, 4, *plane).double()
    high = torch.zeros(2, shape[dim], 3, *plane).double()
    for (b, *cell), feat in zip(cells, x.feats, strict=True):
        at = [(c * s - o) // s for c, s, o in zip(cell, STRIDE, offset, strict=True)]
        along = at.pop(dim)
        grid = torch.zeros_like(dense)
        grid[b, :, at[0], at[1]] = 1
        dense = dense + grid * (feat @ layer.kernel[cell[dim]] + layer.bias[0])[None, :, None, None]
        grid = torch.zeros_like(high)
        grid[b, min(max(along, 0), shape[dim] - 1), :, at[0], at[1]] = 1
        high = high + grid * feat[None, None, :, None, None]
    same(layer(x), dense, x.feats, *layer.parameters())
    same(tall(x), high.flatten(1, 2), x.feats)


def test_height_beyond_the_ends_is_in_the_last_cells(version):
    x, _ = tensor(version)
    tall = VERSIONS[version].nn.ToBEVHeightCompression(3, (7, 2, 5), (0, 3, 0))
    out = tall(x).view(2, 2, 3, 7, 5)
    torch.testing.assert_close(out.sum((0, 1, 3, 4)), x.feats.sum(0))
    assert (out != 0).any(-1).any(-1).any(-1).all()


def test_the_range_follows():
    x = scene()
    assert ts.nn.ToBEVReduction(2)(x).spatial_range == (2, 7, 6, 1)
    layer = ts.nn.ToBEVConvolution(3, 4, 6, stride=2).double()
    assert layer(x).spatial_range == (2, 4, 1, 3)
    conv = ts.nn.Conv3d(4, 4, (3, 1, 3)).double()
    assert len(conv(layer(x)).feats)


def test_parameters_and_names():
    layer = ts.nn.ToDenseBEVConvolution(3, 4, (7, 6, 5), (1, 2, 3), bias=True)
    shapes = {name: tuple(value.shape) for name, value in layer.state_dict().items()}
    assert shapes == {"kernel": (6, 3, 4), "bias": (1, 4), "offset": (1, 4), "shape": (3,)}
    assert layer.kernel.abs().max() <= 3**-0.5
    assert repr(layer) == "ToDenseBEVConvolution(in_channels=3, out_channels=4, n_kernels=6)"
    assert repr(ts.nn.ToBEVReduction()) == "ToBEVReduction(dim = 1)"
    assert ts.nn.ToBEVConvolution(3, 4, 2).bias == 0
    for version in VERSIONS.values():
        version.install()
        try:
            from torchsparse.nn import modules
            from torchsparse.nn.modules.bev import ToBEVHeightCompression

            assert modules.ToBEVHeightCompression is ToBEVHeightCompression
        finally:
            version.uninstall()


def test_no_voxels_and_half_precision(version):
    x, _ = tensor(version)
    layer = VERSIONS[version].nn.ToBEVConvolution(3, 4, 6, bias=True)
    half = type(x)(x.feats.detach().bfloat16(), x.coords, x.stride)
    assert layer(half).feats.dtype is torch.bfloat16
    none = type(x)(x.feats[:0].detach().float(), x.coords[:0], x.stride)
    assert layer(none).feats.shape == (0, 4)
    assert VERSIONS[version].nn.ToBEVReduction()(none).feats.shape == (0, 3)
    dense = VERSIONS[version].nn.ToDenseBEVConvolution(3, 4, (7, 6, 5))
    assert dense(none).shape == (0, 4, 7, 5)


ERRORS = {
    "dim": (lambda nn, x: nn.ToBEVReduction(3), "dim=3: expected 0, 1 or 2"),
    "channels": (lambda nn, x: nn.ToBEVConvolution(0, 4, 5), "in_channels=0: expected 1"),
    "kernels": (lambda nn, x: nn.ToBEVConvolution(3, 4, 5)(x), "0 to 5 .*expected 0 to 4"),
    "features": (lambda nn, x: nn.ToBEVConvolution(4, 4, 6)(x), "3 channels, the layer takes 4"),
    "shape": (lambda nn, x: nn.ToDenseBEVConvolution(3, 4, (7, 6)), "for 3 axes"),
    "plane": (
        lambda nn, x: nn.ToBEVHeightCompression(3, (7, 6, 4))(x),
        r"outside the grid of shape \[7, 6, 4\].*enlarge it",
    ),
    "offset": (
        lambda nn, x: nn.ToDenseBEVConvolution(3, 4, (9, 9, 9), (2, 0, 0))(x),
        r"from \[2, 0, 0, 0\] on",
    ),
    "no tensor": (lambda nn, x: nn.ToBEVReduction()(x.feats), "expected a SparseTensor"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors_name_value_and_fix(version, name):
    call, text = ERRORS[name]
    x, _ = tensor(version)
    x.feats = x.feats.float()
    with pytest.raises(InputError, match=text):
        call(VERSIONS[version].nn, x)


def test_cells_are_taken_apart():
    """Every voxel of a full block lands in the cell that its coordinates name."""
    cells = list(itertools.product([0], range(3), range(2), range(4)))
    feats = torch.arange(len(cells)).double()[:, None]
    x = ts.SparseTensor(feats, torch.tensor(cells, dtype=torch.int32))
    for dim in range(3):
        out = ts.nn.ToBEVHeightCompression(1, (3, 2, 4), dim=dim)(x)[0]
        assert torch.equal(out, feats.view(3, 2, 4).movedim(dim, 0))
