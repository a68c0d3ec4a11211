"""The packages of voxax.torch without JAX: run by a test, and by .ci/run where none is installed.

``python without_jax.py`` needs an environment without it; with ``--hide``, imports of it fail.
"""

import importlib.util
import pickle
import sys

HIDDEN = ("jax", "jaxlib", "flax")

if "--hide" in sys.argv:
    sys.modules.update(dict.fromkeys(HIDDEN))
else:
    assert importlib.util.find_spec("jax") is None, "JAX is installed: give --hide"

import pytest  # noqa: E402
import torch  # noqa: E402
from torch import nn  # noqa: E402

import voxax as vx  # noqa: E402
import voxax.torch  # noqa: E402
import voxax.torch.minkowski as ME  # noqa: E402
import voxax.torch.spconv as spconv  # noqa: E402
import voxax.torch.torchsparse as torchsparse  # noqa: E402
import voxax.torch.torchsparse.nn as spnn  # noqa: E402

SHAPE = [12, 11, 10]


def scene(rows=200):
    """Distinct voxels of two scenes, and their features."""
    places = torch.randperm(2 * 12 * 11 * 10)[:rows]
    axes = [places // 1320, places // 110 % 12, places // 10 % 11, places % 10]
    return torch.randn(rows, 4), torch.stack(axes, 1).int()


def check_habits(net, x, features):
    """Training, autocast, copies and files. Returns what evaluation gives."""
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-2)
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        loss = features(net(x)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[0] > losses[1] > losses[2], losses
    assert all(p.grad.isfinite().all() and p.grad.any() for p in net.parameters())
    with torch.autocast("cpu", torch.bfloat16):
        assert features(net(x)).isfinite().all()
    other = pickle.loads(pickle.dumps(net))
    with torch.no_grad():
        expected = features(net.eval()(x))
        torch.testing.assert_close(features(other.eval()(x)), expected)
        other[0].reset_parameters()
        other.load_state_dict(net.state_dict())
        torch.testing.assert_close(features(other(x)), expected)
    return expected


def check_weights(kernel, found, expected):
    """Outputs and gradients of the weights beside those of PyTorch's dense layer."""
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
    grads = [torch.autograd.grad(y.square().sum(), kernel)[0] for y in (found, expected)]
    torch.testing.assert_close(*grads, atol=1e-3, rtol=1e-3)


def dense_rows(features, coords, kernel):
    """A layer that keeps the voxels, of 27 taps with the first axis fastest, by a dense one."""
    grid = features.new_zeros(2, *SHAPE, 4)
    places = coords.long().unbind(1)
    grid[places] = features
    weight = kernel.view(3, 3, 3, *kernel.shape[1:]).permute(4, 3, 2, 1, 0)
    return nn.functional.conv3d(grid.permute(0, 4, 1, 2, 3), weight, padding=1).permute(
        0, 2, 3, 4, 1
    )[places]


def check_spconv():
    features, indices = scene()
    net = spconv.SparseSequential(
        spconv.SubMConv3d(4, 8, 3, bias=False, indice_key="fine"),
        nn.BatchNorm1d(8),
        nn.ReLU(),
        spconv.SparseConv3d(8, 16, 3, 2, 1, indice_key="down"),
        spconv.SparseMaxPool3d(2, 1, 1),
        spconv.SparseAvgPool3d(3, 2, 1),
        spconv.SparseConvTranspose3d(16, 8, 3, 2, 1),
        spconv.SparseConv3d(8, 8, 2, 2, indice_key="again"),
        spconv.SparseInverseConv3d(8, 4, 2, indice_key="again"),
        spconv.ToDense(),
    )
    x = spconv.SparseConvTensor(features, indices, SHAPE, 2)
    out = check_habits(net, x, lambda y: getattr(y, "features", y))
    assert out.shape[:2] == (2, 4)
    conv = spconv.SparseConv3d(4, 5, 3, 2, 1, bias=False)
    weight = conv.weight.permute(0, 4, 1, 2, 3)
    dense = nn.functional.conv3d(x.dense(), weight, stride=2, padding=1)
    check_weights(conv.weight, conv(x).dense(), dense)


def check_minkowski():
    features, coordinates = scene()
    net = nn.Sequential(
        ME.MinkowskiConvolution(4, 8, kernel_size=3, dimension=3),
        ME.MinkowskiBatchNorm(8),
        ME.MinkowskiReLU(),
        ME.MinkowskiConvolution(8, 16, kernel_size=2, stride=2, dimension=3),
        ME.MinkowskiMaxPooling(kernel_size=2, stride=2, dimension=3),
        ME.MinkowskiGenerativeConvolutionTranspose(16, 8, kernel_size=2, stride=2, dimension=3),
        ME.MinkowskiConvolutionTranspose(8, 8, kernel_size=2, stride=2, dimension=3),
        ME.MinkowskiInstanceNorm(8),
        ME.MinkowskiLinear(8, 3),
    )
    x = ME.SparseTensor(features, coordinates=coordinates)
    assert check_habits(net, x, lambda y: y.F).shape[1] == 3
    conv = ME.MinkowskiConvolution(4, 5, kernel_size=3, dimension=3)
    check_weights(conv.kernel, conv(x).F, dense_rows(features, coordinates, conv.kernel))
    field = ME.TensorField(features, coordinates=coordinates.float() + 0.5)
    assert field.sparse().slice(field).F.shape == features.shape


def check_torchsparse():
    feats, coords = scene()
    net = nn.Sequential(
        spnn.Conv3d(4, 8, 3),
        spnn.BatchNorm(8),
        spnn.ReLU(True),
        spnn.Conv3d(8, 16, 2, stride=2),
        spnn.Conv3d(16, 16, 3),
        spnn.Conv3d(16, 8, 2, stride=2, transposed=True),
    )
    x = torchsparse.SparseTensor(feats, coords)
    assert check_habits(net, x, lambda y: y.feats).shape == (200, 8)
    conv = spnn.Conv3d(4, 5, 3)
    check_weights(conv.kernel, conv(x).feats, dense_rows(feats, coords, conv.kernel))
    cells, rows = torchsparse.quantize.sparse_quantize(torch.rand(50, 3) * 4, 1, return_index=True)
    assert len(cells) == len(rows) <= 64


def check_names():
    """What else needs no JAX: the libraries' own names, errors, limits, facts of the machine."""
    for package in (spconv, ME, torchsparse):
        package.install()
    import MinkowskiEngine
    import torchsparse as installed
    from spconv.pytorch.utils import PointToVoxel

    assert MinkowskiEngine is ME
    assert installed is torchsparse
    voxels, _, _ = PointToVoxel([0.5] * 3, [0, 0, 0, 4, 4, 4], 3, 100, 5)(torch.rand(50, 3) * 4)
    assert len(voxels)
    assert issubclass(spconv.SpconvError, vx.InputError)
    assert vx.CapacityError.__module__ == "voxax.errors"
    assert vx.PAD == 2**31 - 1
    assert vx.bucket_capacity(1000) >= 1000
    assert vx.hardware.peak_memory()["host"] > 0
    assert vx.hardware.cache_dir()
    assert {"voxelize", "torch", "errors"} <= set(dir(vx))


def check_refusals():
    """What needs JAX says so."""
    with pytest.raises(ImportError, match="jax"):
        _ = vx.voxelize
    for name in ("to_torch", "to_jax"):
        with pytest.raises(vx.MissingExtraError, match=rf"voxax\.torch\.{name} needs JAX"):
            getattr(voxax.torch, name)


def check_modules():
    """Nothing of it was imported on the way."""
    assert [name for name in HIDDEN if sys.modules.get(name)] == []


CHECKS = (
    check_spconv,
    check_minkowski,
    check_torchsparse,
    check_names,
    check_refusals,
    check_modules,
)

if __name__ == "__main__":
    torch.manual_seed(0)
    for check in CHECKS:
        check()
        print(check.__name__, "passed")
