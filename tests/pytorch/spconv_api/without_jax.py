"""spconv's door in a process without JAX: run by a test, and by .ci/run where JAX is not installed.

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
import voxax.torch.spconv as spconv  # noqa: E402

SHAPE = [12, 11, 10]


def scene(channels=4, rows=200):
    places = torch.randperm(2 * 12 * 11 * 10)[:rows]
    axes = [places // 1320, places // 110 % 12, places // 10 % 11, places % 10]
    indices = torch.stack(axes, 1).int()
    return spconv.SparseConvTensor(torch.randn(rows, channels), indices, SHAPE, 2)


def network():
    return spconv.SparseSequential(
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


def check_training():
    """Every layer, forward and backward; a convolution against PyTorch's dense one."""
    net, x = network(), scene()
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-2)
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[0] > losses[1] > losses[2], losses
    assert all(p.grad.isfinite().all() and p.grad.any() for p in net.parameters())

    with torch.autocast("cpu", torch.bfloat16):
        assert net[0](x).features.dtype is torch.bfloat16

    conv = spconv.SparseConv3d(4, 5, 3, 2, 1)
    dense = nn.functional.conv3d(
        x.dense(), conv.weight.permute(0, 4, 1, 2, 3), None, stride=2, padding=1
    )
    conv.bias.data.zero_()
    torch.testing.assert_close(conv(x).dense(), dense, atol=1e-4, rtol=1e-4)
    grads = [torch.autograd.grad(y.square().sum(), conv.weight) for y in (conv(x).dense(), dense)]
    torch.testing.assert_close(*grads, atol=1e-3, rtol=1e-3)


def check_inference():
    """Evaluation, copies and files."""
    net, x = network().eval(), scene()
    with torch.no_grad():
        expected = net(x)
        torch.testing.assert_close(pickle.loads(pickle.dumps(net))(x), expected)
    assert expected.shape[:2] == (2, 4)
    other = network().eval()
    other.load_state_dict(net.state_dict())
    with torch.no_grad():
        torch.testing.assert_close(other(x), expected)


def check_names():
    """What else needs no JAX: spconv's own names, errors, limits, facts about the machine."""
    spconv.install()
    from spconv.pytorch.utils import PointToVoxel

    voxels, _, _ = PointToVoxel([0.5] * 3, [0, 0, 0, 4, 4, 4], 3, 100, 5)(torch.rand(50, 3) * 4)
    assert len(voxels)
    assert issubclass(spconv.SpconvError, vx.InputError)
    assert vx.CapacityError.__module__ == "voxax.errors"
    assert vx.PAD == 2**31 - 1
    assert vx.bucket_capacity(1000) >= 1000
    assert vx.hardware.peak_memory()["host"] > 0
    assert vx.hardware.known_gpus()
    assert vx.hardware.cache_dir()
    assert {"voxelize", "torch", "errors"} <= set(dir(vx))


def check_refusals():
    """What needs JAX says so."""
    with pytest.raises(ImportError, match="jax"):
        _ = vx.voxelize
    for name in ("MinkUNet", "to_jax"):
        with pytest.raises(vx.MissingExtraError, match=rf"voxax\.torch\.{name} needs JAX"):
            getattr(voxax.torch, name)


def check_modules():
    """Nothing of it was imported on the way."""
    assert [name for name in HIDDEN if sys.modules.get(name)] == []


if __name__ == "__main__":
    torch.manual_seed(0)
    for check in (check_training, check_inference, check_names, check_refusals, check_modules):
        check()
        print(check.__name__, "passed")
