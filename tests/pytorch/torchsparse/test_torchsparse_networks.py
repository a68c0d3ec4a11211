"""Public networks and TorchSparse's own Python, unmodified, over this package.

``VOXAX_TEST_SPVNAS`` and ``VOXAX_TEST_TORCHSPARSE`` name clones of mit-han-lab's repositories.
Of SPVNAS, ``torch_scatter`` is a stand-in, and packages' ``__init__`` files do not run.
"""

import importlib
import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from sparse_scenes import cloud, dense, grid, rows_at  # noqa: E402
from torchsparse_cases import filled, surface  # noqa: E402

import voxax.torch.torchsparse as ts  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.slow]


@pytest.fixture
def installed():
    before = set(sys.modules)
    ts.install()
    yield
    ts.uninstall()
    for name in set(sys.modules) - before:
        if name.split(".")[0] in ("core", "theirs", "torch_scatter"):
            del sys.modules[name]


def clone_of(variable):
    folder = os.environ.get(variable)
    if not folder:
        pytest.skip(f"set {variable} to a clone")
    return Path(folder)


def package(name, folder):
    module = ModuleType(name)
    module.__path__ = [str(folder)]
    sys.modules[name] = module


def scatter_mean(src, index, dim):
    assert dim == 0
    index = index.reshape(-1)
    number = int(index.max()) + 1
    total = src.new_zeros(number, src.shape[1]).index_add(0, index, src)
    return total / torch.bincount(index, minlength=number).clamp(min=1)[:, None]


def spvnas(module):
    root = clone_of("VOXAX_TEST_SPVNAS")
    for name in ("core", "core.models", "core.models.semantic_kitti"):
        package(name, root / name.replace(".", "/"))
    sys.modules["torch_scatter"] = ModuleType("torch_scatter")
    sys.modules["torch_scatter"].scatter_mean = scatter_mean
    return importlib.import_module(f"core.models.semantic_kitti.{module}")


def settled(net):
    """With statistics of the scene, so that no channel is of one value in evaluation mode."""
    torch.manual_seed(1)
    for module in net.modules():
        if isinstance(module, torch.nn.BatchNorm1d):
            torch.nn.init.uniform_(module.weight, 0.5, 1.5)
            torch.nn.init.normal_(module.bias)
    return net.double()


def dense_conv3d(
    x, weight, size, bias, stride, padding, dilation, config, transposed, generative, training
):
    """``conv3d`` by PyTorch's dense operators."""
    del dilation, config, generative, training
    weight = weight[None] if weight.ndim == 2 else weight
    known = x._caches.cmaps.setdefault(x.stride, (x.coords, (2, 32, 32, 32)))
    wide = dense(ts.SparseTensor(x.feats, x.coords, spatial_range=known[1]))
    if transposed:
        fine = tuple(n // s for n, s in zip(x.stride, stride, strict=True))
        coords = x._caches.cmaps[fine][0]
        weight = grid(weight, size).transpose(0, 1)
        wide = torch.nn.functional.conv_transpose3d(wide, weight, bias, stride)
    else:
        wide = torch.nn.functional.conv3d(wide, grid(weight, size), bias, stride, padding)
        fine = tuple(n * s for n, s in zip(x.stride, stride, strict=True))
        coords = x.coords
        if stride != (1, 1, 1):
            here = torch.zeros(known[1]).index_put(x.coords.long().unbind(1), torch.ones(()))
            reached = torch.nn.functional.conv3d(
                here[:, None], torch.ones(1, 1, *size), None, stride
            )
            coords = torch.nonzero(reached[:, 0]).int()
            x._caches.cmaps[fine] = coords, (2, *wide.shape[2:])
    out = ts.SparseTensor(rows_at(wide, coords), coords, fine)
    out._caches = x._caches
    return out


@pytest.mark.parametrize("kind", ["backbone", "SPVNAS"])
def test_minkunet_is_that_of_dense_operators(installed, kind, monkeypatch):
    torch.manual_seed(0)
    if kind == "SPVNAS":
        net = spvnas("minkunet").MinkUNet(num_classes=19, cr=0.25)
        del net.point_transforms  # of SPVCNN
    else:
        net = ts.backbones.SparseResUNet42(width_multiplier=0.25)
    settled(net)

    def run():
        x = cloud(size=32)
        x.coords[0] = 31  # no level drops a voxel at its border
        x.coords[0, 0] = 1
        x.feats.requires_grad_()
        out = net(x)
        out = out[-1].feats if isinstance(out, list) else out
        grads = torch.autograd.grad(out.square().mean(), [x.feats, *net.parameters()])
        return out, *grads

    found = run()
    monkeypatch.setattr("voxax.torch.torchsparse.nn.layers.conv3d", dense_conv3d)
    for one, other in zip(found, run(), strict=True):
        assert (one - other).abs().max() <= 1e-9 * other.abs().max() + 1e-12


def test_spvcnn(installed):
    torch.manual_seed(0)
    net = settled(spvnas("spvcnn").SPVCNN(num_classes=19, cr=0.25, pres=1, vres=1))
    net.dropout.p = 0
    x = cloud()
    out = net.train()(x)
    assert out.shape == (1500, 19)
    out.square().mean().backward()
    assert all(torch.isfinite(p.grad).all() for p in net.parameters())
    # Another order of points, likewise ordered results.
    order = torch.randperm(1500)
    other = ts.SparseTensor(x.feats[order], x.coords[order])
    torch.testing.assert_close(net(other), out[order], rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("name", ["SPVCNN", "MinkUNet"])
def test_spvnas_has_the_numbers_of_torchsparse_1_4(installed, name):
    """Of the same weights; without the border at which 2.1 drops voxels."""
    with np.load(Path(__file__).with_name("golden.npz")) as arrays:
        golden = dict(arrays)
    flags = {"num_classes": 5, "cr": 0.25, "pres": 1, "vres": 2}
    net = filled(getattr(spvnas(name.lower()), name)(**flags), 1).train()
    if name == "SPVCNN":
        net.dropout.p = 0
        assert "\n".join(net.state_dict()) == bytes(golden["SPVCNN.state"].tolist()).decode()
    coords, feats = surface()
    ts.nn.functional.set_global_conv_config({"kmap_mode": "hashmap"})
    try:
        out = net(ts.SparseTensor(feats, coords[:, [3, 0, 1, 2]])).detach().numpy()
    finally:
        ts.nn.functional.clear_global_conv_config()
    expected = golden[f"{name}.out"]
    assert np.abs(out - expected).max() <= 2e-5 * np.abs(expected).max()


def theirs(root, name):
    path = root / "torchsparse" / (name.replace(".", "/") + ".py")
    spec = importlib.util.spec_from_file_location(f"theirs.{name}", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["SparseResUNet42", "SparseResNet21D"])
def test_backbones_are_those_of_the_sources(installed, name):
    root = clone_of("VOXAX_TEST_TORCHSPARSE")
    package("theirs", root / "torchsparse")
    conv = theirs(root, "nn.modules.conv")
    package("theirs.backbones", root / "torchsparse/backbones")
    package("theirs.backbones.modules", root / "torchsparse/backbones/modules")
    blocks = theirs(root, "backbones.modules.blocks")
    vars(sys.modules["theirs.backbones.modules"]).update(vars(blocks))
    original = ts.nn.Conv3d
    ts.nn.Conv3d = conv.Conv3d
    try:
        module = theirs(root, "backbones.unet" if "UNet" in name else "backbones.resnet")
        torch.manual_seed(0)
        expected = getattr(module, name)(width_multiplier=0.5)
    finally:
        ts.nn.Conv3d = original
    torch.manual_seed(0)
    net = getattr(ts.backbones, name)(width_multiplier=0.5)
    state, other = net.state_dict(), expected.state_dict()
    assert list(state) == list(other)
    assert all(torch.equal(state[key], other[key]) for key in state)
    x = cloud(dtype=torch.float32)
    for one, two in zip(net(x), expected(cloud(dtype=torch.float32)), strict=True):
        assert torch.equal(one.coords, two.coords)
        assert torch.equal(one.feats, two.feats)


def test_helpers_equal_those_of_the_sources(installed):
    root = clone_of("VOXAX_TEST_TORCHSPARSE")
    package("theirs", root / "torchsparse")
    kernel, quantize = theirs(root, "nn.utils.kernel"), theirs(root, "utils.quantize")
    for size in (2, 3, 4, (1, 3, 5), (2, 3, 1)):
        for args in ((size,), (size, 2), (size, (1, 2, 4), 3)):
            assert torch.equal(
                kernel.get_kernel_offsets(*args), ts.nn.utils.get_kernel_offsets(*args)
            )
    points = np.random.default_rng(0).normal(size=(500, 3)) * 5
    flags = {"return_index": True, "return_inverse": True}
    found = ts.quantize.sparse_quantize(points, 0.7, **flags)
    for one, two in zip(found, quantize.sparse_quantize(points, 0.7, **flags), strict=True):
        assert np.array_equal(one, two)
    source = theirs(root, "nn.functional.devoxelize")
    coords, rows = torch.rand(50, 3) * 9, torch.randint(-1, 5, (50, 8))
    for scale in (1, 2):
        weights = source.calc_ti_weights(coords, rows, scale)
        found = ts.nn.functional.calc_ti_weights(coords, rows, scale)
        torch.testing.assert_close(found, weights, rtol=1e-4, atol=1e-6)
