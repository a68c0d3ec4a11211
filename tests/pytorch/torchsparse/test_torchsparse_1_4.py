"""TorchSparse 1.4's convention: the layers of 2.1 with other columns; names, errors, scenes."""

import copy
import pickle
import sys

import pytest

from own_process import run_python

torch = pytest.importorskip("torch")

from sparse_scenes import scene  # noqa: E402

import voxax.torch.torchsparse as ts  # noqa: E402
import voxax.torch.torchsparse.version_1_4 as ts_1_4  # noqa: E402
from voxax.errors import InputError, ModuleLoadedError  # noqa: E402
from voxax.torch.torchsparse.version_1_4 import nn as spnn  # noqa: E402

pytestmark = pytest.mark.torch
F, LAST = spnn.functional, [1, 2, 3, 0]

SCRIPT = """
import sys
import torchsparse, torchsparse.nn as spnn
import torchsparse.nn.functional as F
from torchsparse import PointTensor, SparseTensor
from torchsparse.nn.functional.devoxelize import calc_ti_weights
from torchsparse.nn.utils import fapply, get_kernel_offsets
from torchsparse.utils.collate import sparse_collate_fn
from torchsparse.utils.quantize import sparse_quantize
from torchsparse.tensor import SparseTensor as same
assert same is SparseTensor and F.calc_ti_weights is calc_ti_weights
assert not {"jax", "jaxlib", "flax", "torch._dynamo"} & set(sys.modules)
print(torchsparse.__name__, torchsparse.__version__, *sys.argv[1:])
"""


def pair(seed=0):
    """A batch of two scenes for each version, with features of their own."""
    x = scene(low=-4, spatial_range=None, seed=seed)
    feats = x.feats.detach().clone().requires_grad_()
    return x, ts_1_4.SparseTensor(feats, x.coords[:, LAST])


def layers(*args, **kwargs):
    torch.manual_seed(0)
    one = spnn.Conv3d(*args, **kwargs).double()
    config = {"kmap_mode": "hashmap", "downsample_mode": "1.4"}
    other = ts.nn.Conv3d(*args, **kwargs, config=config).double()
    other.load_state_dict(one.state_dict())
    return one, other


def same(one, other):
    steps = torch.tensor([1, *other.stride])
    assert one.stride == other.stride
    assert torch.equal(one.coords, (other.coords * steps)[:, LAST])
    assert torch.equal(one.feats, other.feats)


@pytest.mark.parametrize(("size", "stride"), [(2, 2), (3, 2), ((4, 3, 2), (2, 1, 2)), (3, 1)])
def test_layers_are_those_of_2_1_on_several_scenes(size, stride):
    (other, x), (down, down_2_1) = pair(), layers(3, 4, size, stride)
    mid, mid_2_1 = layers(4, 4, 3)
    up, up_2_1 = layers(4, 3, size, stride, transposed=True)
    coarse, coarse_2_1 = down(x), down_2_1(other)
    same(coarse, coarse_2_1)
    out, out_2_1 = up(mid(coarse)), up_2_1(mid_2_1(coarse_2_1))
    same(out, out_2_1)
    assert out.coords is x.coords
    assert out.kmaps is x.kmaps
    assert out.cmaps is x.cmaps
    out.feats.square().sum().backward()
    out_2_1.feats.square().sum().backward()
    assert torch.equal(x.feats.grad, other.feats.grad)
    assert torch.equal(down.kernel.grad, down_2_1.kernel.grad)


def test_norms_pools_and_crops_read_the_last_column():
    (other, x), (y_2_1, y) = pair(), pair()
    for name in ("GlobalAvgPool", "GlobalMaxPool"):
        assert torch.equal(getattr(spnn, name)()(x), getattr(ts.nn, name)()(other))
    norms = spnn.GroupNorm(1, 3).double(), ts.nn.GroupNorm(1, 3).double()
    same(norms[0](x), norms[1](other))
    crops = [of.SparseCrop((-3, -4, -2), (2, 1, 0)) for of in (spnn, ts.nn)]
    same(crops[0](x), crops[1](other))
    assert type(crops[0](x)) is ts_1_4.SparseTensor
    same(x + y, other + y_2_1)
    same(ts_1_4.cat([x, y]), ts.cat([other, y_2_1]))
    assert ts_1_4.cat([x, y]).cmaps is x.cmaps


def test_one_tap_of_a_stride_is_a_matrix():
    x, conv = pair()[1], spnn.Conv3d(3, 4, 1, 2).double()
    assert conv.kernel.shape == (3, 4)
    found = conv(x)
    inside = (x.coords[:, :3] % 2 == 0).all(1)
    at = {tuple(row): feat for row, feat in zip(found.coords.tolist(), found.feats, strict=True)}
    for row, feat in zip(x.coords[inside].tolist(), x.feats[inside], strict=True):
        torch.testing.assert_close(at[tuple(row)], feat @ conv.kernel)


def test_collated_batches_have_the_batch_index_last():
    x = pair()[1]
    alone = ts_1_4.SparseTensor(x.feats, x.coords[:, :3])
    batch = ts_1_4.utils.collate.sparse_collate([alone, alone])
    assert type(batch) is ts_1_4.SparseTensor
    assert torch.equal(batch.coords[:90, :3], x.coords[:, :3])
    assert batch.coords[:, 3].tolist() == [0] * 90 + [1] * 90


def test_maps_are_shared_as_networks_hand_them_on():
    x, conv = pair()[1], spnn.Conv3d(3, 3, 3).double()
    y = conv(x)
    z = ts_1_4.SparseTensor(2 * y.feats, y.coords, y.stride)
    z.cmaps, z.kmaps = y.cmaps, y.kmaps
    known = dict(y.kmaps)
    assert list(known) == [((1, 1, 1), (3, 3, 3), (1, 1, 1), (1, 1, 1))]
    conv(z)
    assert z.kmaps == known
    z.kmaps = {}
    assert torch.equal(conv(z).feats, conv(conv(x) + conv(x)).feats)
    x.coords[0] = torch.tensor([90, 90, 90, 0], dtype=torch.int32)
    assert torch.equal(conv(x).feats, conv(ts_1_4.SparseTensor(x.feats, x.coords)).feats)


def test_copies_and_pickles():
    x, conv = pair()[1], spnn.Conv3d(3, 4, 2, 2).double()
    x.feats = x.feats.detach()
    expected = conv(x).feats
    for other in (copy.deepcopy(x), pickle.loads(pickle.dumps(x))):
        assert torch.equal(copy.deepcopy(conv)(other).feats, expected)


def test_a_script_runs_unchanged(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    said = run_python("-m", "voxax.torch.torchsparse.version_1_4", script, "--lr", timeout=300)
    assert said.split() == ["voxax.torch.torchsparse.version_1_4", "1.4.0", "--lr"]


def test_one_version_is_installed_at_a_time():
    ts_1_4.install()
    try:
        ts_1_4.install()
        with pytest.raises(ModuleLoadedError, match="already imported"):
            ts.install()
    finally:
        ts_1_4.uninstall()
    assert not [name for name in sys.modules if name.split(".")[0] == "torchsparse"]


def tensor(coords, stride=1):
    return ts_1_4.SparseTensor(torch.ones(len(coords), 3), torch.tensor(coords), stride)


ONE = torch.tensor([[2, 4, 6, 0]], dtype=torch.int32)
ERRORS = {
    "of 2.1": (
        lambda: spnn.Conv3d(3, 4)(ts.SparseTensor(torch.ones(1, 3), ONE)),
        "torchsparse.tensor.SparseTensor: expected .*version_1_4",
    ),
    "layer of 2.1": (
        lambda: ts.nn.Conv3d(3, 4)(ts_1_4.SparseTensor(torch.ones(1, 3), ONE)),
        "take the layers of its nn",
    ),
    "int64": (lambda: spnn.Conv3d(3, 4)(tensor([[2, 4, 6, 0]])), "expected int32.*index last"),
    "stride": (
        lambda: spnn.Conv3d(3, 4)(ts_1_4.SparseTensor(torch.ones(1, 3), ONE, 4)),
        r"\[2, 4, 6, 0\] of stride \(4, 4, 4\): expected .* multiples",
    ),
    "batch index": (
        lambda: spnn.Conv3d(3, 4)(ts_1_4.SparseTensor(torch.ones(1, 3), ONE - 1)),
        "batch index of -1",
    ),
    "dense": (lambda: ts_1_4.SparseTensor(torch.ones(1, 3), ONE).dense(), "TorchSparse 2.1"),
    "dilation": (
        lambda: spnn.Conv3d(3, 4, 3, 1, 2)(ts_1_4.SparseTensor(torch.ones(1, 3), ONE)),
        "dilation=2.*Set 1",
    ),
    "hash": (lambda: F.sphash(ONE[:, :3]), r"\[1, 3\] .*expected int32\[N, 4\]"),
    "transposed first": (
        lambda: spnn.Conv3d(3, 4, 2, 2, transposed=True)(
            ts_1_4.SparseTensor(torch.ones(1, 3), ONE, 2)
        ),
        r"no layer of this kernel .* from stride \(1, 1, 1\)",
    ),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors_name_value_and_fix(name):
    call, text = ERRORS[name]
    with pytest.raises(InputError, match=text):
        call()
