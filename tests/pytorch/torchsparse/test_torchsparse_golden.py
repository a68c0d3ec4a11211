"""Against TorchSparse 1.4.0's CPU code: ``golden.npz``, which ``record.py`` wrote."""

import sys
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import voxax.torch.torchsparse as ts  # noqa: E402
import voxax.torch.torchsparse.version_1_4 as ts_1_4  # noqa: E402

HERE = Path(__file__).parent
pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def golden():
    with np.load(HERE / "golden.npz") as arrays:
        return dict(arrays)


@pytest.fixture
def cases():
    before = set(sys.modules)
    ts_1_4.install()
    import torchsparse_cases

    yield torchsparse_cases
    ts_1_4.uninstall()
    for name in set(sys.modules) - before:
        if name.split(".")[0] in ("core", "mmengine", "mmcv", "mmdet3d"):
            del sys.modules[name]


def same(found, golden, tolerance):
    assert found
    for name, value in found.items():
        one, two = value.detach().numpy(), golden[name]
        assert (one.dtype, one.shape) == (two.dtype, two.shape), name
        if one.dtype.kind == "f":
            assert np.abs(one - two).max() <= tolerance * np.abs(two).max(), name
        else:
            assert np.array_equal(one, two), name


@pytest.mark.parametrize("group", ["layers", "points"])
def test_layers_and_points_are_those_of_torchsparse(cases, golden, group):
    found = {}
    getattr(cases, group)(found)
    same(found, golden, 1e-5)
    starts = ("conv",) if group == "layers" else ("hash", "quer", "downs", "vox", "devox", "wei")
    assert {name for name in golden if name.startswith(starts)} <= set(found)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["SPVCNN", "MinkUNet", "mmdet3d MinkUNet", "mmdet3d SPVCNN", "mmdet3d MinkUNetV2"]
)
def test_networks_are_those_of_torchsparse(cases, golden, name):
    found = {}
    try:
        cases.network(found, name)
    except LookupError as missing:
        pytest.skip(str(missing))
    same(found, golden, 2e-5)


def test_layers_of_2_1_have_the_same_numbers(golden):
    import torchsparse_cases as cases

    coords, feats = cases.scene()
    config = {"kmap_mode": "hashmap", "downsample_mode": "1.4"}
    for size, stride in cases.LAYERS:
        x = ts.SparseTensor(feats.clone().requires_grad_(), coords[:, [3, 0, 1, 2]])
        conv = cases.filled(ts.nn.Conv3d(3, 5, size, stride, bias=True, config=config))
        out = conv(x)
        found, name = {}, f"conv {size} {stride}"
        steps = torch.tensor([*out.stride, 1], dtype=torch.int32)
        found[f"{name}.coords"] = out.coords[:, [1, 2, 3, 0]] * steps
        found[f"{name}.feats"] = out.feats
        inputs = {"x": x.feats, "kernel": conv.kernel, "bias": conv.bias}
        cases.gradients(found, name, out.feats, inputs)
        same(found, golden, 1e-5)
