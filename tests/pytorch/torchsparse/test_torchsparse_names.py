"""The package under TorchSparse's names: modules, networks, initial values, errors."""

import copy
import importlib
import pickle

import pytest

torch = pytest.importorskip("torch")

from sparse_scenes import cloud, scene  # noqa: E402

import voxax.torch.torchsparse as ts  # noqa: E402
import voxax.torch.torchsparse.nn as spnn  # noqa: E402
import voxax.torch.torchsparse.nn.functional as F  # noqa: E402
import voxax.torch.torchsparse.version_1_4 as ts_1_4  # noqa: E402
from voxax.errors import InputError  # noqa: E402

pytestmark = pytest.mark.torch


@pytest.fixture
def installed():
    ts.install()
    yield
    ts.uninstall()


def test_what_networks_import(installed):
    import torchsparse
    import torchsparse.nn.functional.conv.conv_config as conv_config
    from torchsparse.nn import functional
    from torchsparse.nn.functional.devoxelize import calc_ti_weights
    from torchsparse.utils.collate import sparse_collate_fn
    from torchsparse.utils.quantize import sparse_quantize
    from torchsparse.utils.tensor_cache import TensorCache

    assert torchsparse is ts
    assert torchsparse.__version__ == "2.1.0"
    assert functional is F
    assert F.conv_config is conv_config
    assert calc_ti_weights is F.calc_ti_weights
    assert sparse_collate_fn is ts.collate.sparse_collate_fn
    assert sparse_quantize is ts.quantize.sparse_quantize
    assert TensorCache is ts.tensor_cache.TensorCache
    assert importlib.import_module("torchsparse.nn") is spnn
    assert importlib.import_module("torchsparse.backbones.unet").SparseResUNet42


def test_networks():
    torch.manual_seed(0)
    x = cloud(dtype=torch.float32)
    net = ts.backbones.SparseResUNet42(width_multiplier=0.25)
    outputs = net(x)
    assert [out.s[0] for out in outputs] == [1, 2, 4, 8, 16, 8, 4, 2, 1]
    assert [out.F.shape[1] for out in outputs] == [8, 8, 16, 32, 64, 64, 32, 24, 24]
    outputs[-1].F.square().mean().backward()
    assert all(parameter.grad is not None for parameter in net.parameters())
    names = list(net.state_dict())
    for name in (
        "stem.3.kernel",
        "encoders.3.1.shortcut.0.kernel",
        "encoders.0.0.1.running_mean",
        "decoders.3.upsample.0.kernel",
        "decoders.0.fuse.0.main.4.weight",
    ):
        assert name in names
    net = ts.backbones.SparseResNet21D()
    assert {"0.0.0.kernel", "4.0.1.bias", "3.2.main.3.kernel"} <= set(net.state_dict())


def test_initial_values_follow_the_seed():
    torch.manual_seed(3)
    conv = spnn.Conv3d(4, 6, (3, 1, 2), bias=True, transposed=True)
    torch.manual_seed(3)
    bound = (6 * 6) ** -0.5
    assert torch.equal(conv.kernel, torch.zeros(6, 4, 6).uniform_(-bound, bound))
    assert torch.equal(conv.bias, torch.zeros(6).uniform_(-bound, bound))


def test_copies_and_pickles():
    net = torch.nn.Sequential(spnn.Conv3d(3, 4, 3), spnn.BatchNorm(4), spnn.Conv3d(4, 4, 2, 2))
    x = scene()
    x.feats = x.feats.detach().float()
    expected = net.eval()(x).feats
    for other in (copy.deepcopy(x), pickle.loads(pickle.dumps(x))):
        assert torch.equal(copy.deepcopy(net)(other).feats, expected)


def test_autocast():
    net = torch.nn.Sequential(spnn.Conv3d(3, 4, 1), spnn.Conv3d(4, 4, 3), spnn.Conv3d(4, 4, 2, 2))
    x = scene()
    x.feats = x.feats.detach().float()
    with torch.autocast("cpu", torch.bfloat16):
        out = net(x)
    assert out.feats.dtype == torch.bfloat16
    torch.testing.assert_close(out.feats.float(), net(x).feats, rtol=0.05, atol=0.05)
    out.feats.float().sum().backward()
    assert net[1].kernel.grad.dtype == torch.float32


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_convolutions_compute_in_the_dtype_of_autocast(dtype, training):
    net = torch.nn.Sequential(
        spnn.Conv3d(3, 4, 3, bias=True), spnn.BatchNorm(4), spnn.ReLU(True), spnn.Conv3d(4, 4, 2, 2)
    )
    x = scene()
    x.feats = x.feats.detach().float()
    expected = net.train(training)(x).feats
    with torch.autocast("cpu", dtype):
        out = net(x).feats
        half = torch.nn.Sequential(*net[:1])(x).feats
        double = copy.deepcopy(net).double()(ts.SparseTensor(x.feats.double(), x.coords)).feats
    assert (out.dtype, half.dtype, double.dtype) == (dtype, dtype, torch.float64)
    torch.testing.assert_close(out.float(), expected, rtol=0.05, atol=0.05)
    torch.testing.assert_close(double.float(), expected)
    out.float().square().sum().backward()
    assert {p.grad.dtype for p in net.parameters()} == {torch.float32}
    weight = ts_1_4.nn.Conv3d(3, 4, 3)
    y = ts_1_4.SparseTensor(x.feats, x.coords[:, [1, 2, 3, 0]])
    with torch.autocast("cpu", dtype):
        assert weight(y).feats.dtype is dtype


def tensor(coords, channels=3, **options):
    coords = torch.tensor(coords, dtype=torch.int32)
    return ts.SparseTensor(torch.ones(len(coords), channels), coords, **options)


ONE = [[0, 1, 2, 3]]
ERRORS = {
    "two voxels": (lambda: spnn.Conv3d(3, 4)(tensor(ONE * 2)), r"occur twice.*\[0, 1, 2, 3\]"),
    "negative": (
        lambda: spnn.Conv3d(3, 4)(tensor([[0, -2, 0, 0]])),
        r"coordinate of -2 .*set_allow_negative_coordinates\(True\)",
    ),
    "batch index": (lambda: spnn.Conv3d(3, 4)(tensor([[-1, 0, 0, 0]])), "batch index of -1"),
    "range": (
        lambda: spnn.Conv3d(3, 4)(tensor(ONE, spatial_range=(1, 3, 3, 3))),
        r"\[1, 2, 3\] outside spatial_range \(1, 3, 3, 3\)",
    ),
    "no output": (lambda: spnn.Conv3d(3, 4, 9, 2)(tensor(ONE)), "no output .*Enlarge the padding"),
    "dtype": (
        lambda: spnn.Conv3d(3, 4)(ts.SparseTensor(torch.ones(1, 3), torch.ones(1, 4).long())),
        r"torch.int64: expected int32\[N, 4\]",
    ),
    "channels": (lambda: spnn.Conv3d(5, 4)(tensor(ONE)), "3 channels, the layer takes 5"),
    "mixed": (
        lambda: spnn.Conv3d(3, 4).double()(tensor(ONE)),
        "float32 and .*float64: expected one",
    ),
    "dilation": (lambda: spnn.Conv3d(3, 4, dilation=2)(tensor(ONE)), "dilation=2.*Set 1"),
    "transposed first": (
        lambda: spnn.Conv3d(3, 4, 2, 2, transposed=True)(tensor(ONE, stride=2)),
        r"no layer of this kernel .* from stride \(1, 1, 1\)",
    ),
    "generative": (lambda: spnn.Conv3d(3, 4, generative=True), "give transposed=True"),
    "on the fly": (
        lambda: spnn.Conv3d(3, 4, 2, 2, transposed=True, generative=True)(tensor(ONE)),
        'set kmap_mode="hashmap"',
    ),
    "no range": (
        lambda: spnn.Conv3d(
            3, 4, 2, 2, transposed=True, generative=True, config={"kmap_mode": "hashmap"}
        )(tensor(ONE)),
        "without spatial_range",
    ),
    "weight": (
        lambda: F.conv3d(tensor(ONE), torch.ones(9, 3, 4), 3),
        r"\[9, 3, 4\]: expected \[27, C_in, C_out\]",
    ),
    "dense": (lambda: tensor(ONE).dense(), "without spatial_range"),
    "dense, outside": (lambda: tensor(ONE, spatial_range=(1, 2, 2, 2)).dense(), "enlarge"),
    "sum": (lambda: tensor(ONE) + tensor([[0, 1, 2, 4]]), "voxels that differ"),
    "cat": (lambda: ts.cat([tensor(ONE), tensor([*ONE, [0] * 4])]), "1 and 2 voxels"),
    "stride": (lambda: tensor(ONE, stride=(1, 2)), r"\[1, 2\] for 3 axes"),
    "mode": (lambda: F.set_kmap_mode("grid"), "kmap_mode='grid': expected one of hashmap_on"),
    "config": (
        lambda: spnn.Conv3d(3, 4, config={"kmap_mode": "grid"})(tensor(ONE)),
        "kmap_mode='grid'",
    ),
    "collate": (lambda: ts.collate.sparse_collate([tensor(ONE)]), r"\[1, 4\]: expected \[N, 3\]"),
    "voxel size": (lambda: ts.quantize.sparse_quantize(torch.ones(2, 3), 0), "positive"),
    "far points": (lambda: ts.quantize.sparse_quantize([[1e30, 0, 0]], 1), "32 bits"),
    "hash": (lambda: F.sphash(torch.ones(2, 3).int()), r"\[2, 3\] .*expected int32\[N, 4\]"),
    "count": (lambda: F.spcount(torch.tensor([5]), 5), "row 5 of 5"),
    "pool": (lambda: F.global_max_pool(tensor([[1, 0, 0, 0]])), r"scenes \[0\] of 2"),
    "table": (
        lambda: ts.backend.GPUHashTable(4).lookup_vals(torch.ones(1).long()),
        "call insert_vals first",
    ),
}


CELL = torch.tensor(ONE, dtype=torch.int32)
ROWS = torch.zeros(2, 8, dtype=torch.int32)
ERRORS |= {
    "a plain tensor": (lambda: spnn.Conv3d(3, 4)(torch.ones(1, 3)), "of a Tensor: expected a Sp"),
    "a plain tensor, norm": (lambda: spnn.BatchNorm(3)(torch.ones(1, 3)), "of a Tensor"),
    "a number": (lambda: tensor(ONE) + 1, r"\+ of a int: expected a SparseTensor"),
    "a list": (lambda: spnn.Conv3d(3, 4)(ts.SparseTensor(torch.ones(1, 3), ONE)), "as_tensor"),
    "one axis": (lambda: spnn.Conv3d(3, 4)(ts.SparseTensor(torch.ones(1), CELL)), r"\[N, C\]"),
    "rows": (
        lambda: spnn.Conv3d(3, 4)(ts.SparseTensor(torch.ones(2, 3), CELL)),
        "2 rows of features for 1",
    ),
    "integers": (
        lambda: spnn.Conv3d(3, 4)(ts.SparseTensor(torch.ones(1, 3).int(), CELL)),
        r"convert with \.float",
    ),
    "columns": (
        lambda: spnn.Conv3d(3, 4)(ts.SparseTensor(torch.ones(1, 3), CELL[:, 1:])),
        r"\[1, 3\] .*expected int32\[N, 4\]",
    ),
    "device": (
        lambda: spnn.Conv3d(3, 4)(ts.SparseTensor(torch.ones(1, 3), CELL.to("meta"))),
        "coords on meta",
    ),
    "last scene": (
        lambda: spnn.Conv3d(3, 4)(tensor([[2**31 - 1, 0, 0, 0]])),
        "batch index of 2147483647",
    ),
    "kernel size": (lambda: spnn.Conv3d(3, 4, 0), "kernel_size=0: expected 1 or more"),
    "kernel size 2.5": (lambda: spnn.Conv3d(3, 4, 2.5), "2.5: expected an integer"),
    "stride 0": (lambda: spnn.Conv3d(3, 4, 2, 0), "stride=0: expected 1 or more"),
    "stride of a tensor": (lambda: tensor(ONE, stride=0), "stride=0: expected 1 or more"),
    "padding": (lambda: spnn.Conv3d(3, 4, 2, 2, -1), "padding=-1: expected 0 or more"),
    "no channels": (lambda: spnn.Conv3d(0, 4), "0 to 4 channels"),
    "spatial range": (lambda: tensor(ONE, spatial_range=(4, 4, 4)), "for 4 axes"),
    "bias": (
        lambda: F.conv3d(tensor(ONE), torch.ones(27, 3, 4), 3, torch.ones(5)),
        r"bias of shape \[5\]: expected \[4\]",
    ),
    "configuration": (lambda: spnn.Conv3d(3, 4, config="x")(tensor(ONE)), "expected a dictionary"),
    "global configuration": (lambda: F.set_global_conv_config("x"), "expected a dictionary"),
    "cat of none": (lambda: ts.cat([]), "of no tensors"),
    "sum of channels": (lambda: tensor(ONE) + tensor(ONE, 2), "as many channels"),
    "generative sum": (lambda: ts.generative_add(tensor(ONE), tensor(ONE, 2)), "as many channels"),
    "layer on labels": (
        lambda: spnn.Conv3d(3, 4)(ts.SparseTensor(torch.ones(1), CELL)),
        r"shape \[1\].*: expected \[N, C\]",
    ),
    "collate none": (lambda: ts.collate.sparse_collate([]), "a batch of 0"),
    "collate channels": (
        lambda: ts.collate.sparse_collate(
            [ts.SparseTensor(torch.ones(1, c), CELL[:, 1:]) for c in (2, 3)]
        ),
        r"\[1, 2\] and \[1, 3\]: expected as many channels",
    ),
    "points": (lambda: ts.quantize.sparse_quantize(torch.ones(2, 4)), r"expected \[N, 3\]"),
    "sizes": (lambda: ts.quantize.sparse_quantize(torch.ones(2, 3), (1, 2)), "or three"),
    "nan": (lambda: ts.quantize.sparse_quantize(torch.ones(2, 3) * torch.nan), "not finite"),
    "voxelize": (
        lambda: F.spvoxelize(torch.ones(3, 2), torch.zeros(2).int(), torch.ones(1).int()),
        r"feats of shape \[3, 2\]: expected \[2, any\]",
    ),
    "devoxelize": (lambda: F.spdevoxelize(torch.ones(3, 2), ROWS, torch.ones(3, 8)), "weights of"),
    "devoxelize, beyond": (
        lambda: F.spdevoxelize(torch.ones(3, 2), ROWS + 3, torch.ones(2, 8)),
        "row 3 of 3 voxels",
    ),
    "weights": (lambda: F.calc_ti_weights(torch.ones(3, 3), ROWS), r"expected \[3, 8\]"),
    "scale": (lambda: F.calc_ti_weights(torch.ones(2, 3), ROWS, 0), "scale=0: expected"),
    "queries": (lambda: F.sphashquery(torch.ones(3), torch.ones(3).long()), "expected int64"),
    "offsets": (lambda: F.sphash(CELL, CELL), r"offsets .*expected int32\[N, 3\]"),
    "downsample": (lambda: F.spdownsample(CELL.long()), "expected int32"),
    "downsample mode": (lambda: F.spdownsample(CELL, downsample_mode="x"), "'x': expected"),
    "upsample": (lambda: F.spupsample_generative(CELL), "without spatial_range"),
    "crop": (lambda: F.spcrop(tensor(ONE), (0, 0)), "for 3 axes"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors_name_value_and_fix(name):
    call, text = ERRORS[name]
    with pytest.raises(InputError, match=text):
        call()


def test_a_transposed_layer_checks_the_voxels():
    down = spnn.Conv3d(3, 4, 2, 2)
    up = spnn.Conv3d(4, 3, 2, 2, transposed=True)
    x = scene()
    x.feats = x.feats.detach().float()
    coarse = down(x)
    cropped = F.spcrop(coarse, (0, 0, 0), (2, 2, 2))
    cropped._caches = coarse._caches
    with pytest.raises(InputError, match="voxels are not the"):
        up(cropped)
    x.coords[0, 1] += 100
    with pytest.raises(InputError, match="written to since"):
        up(coarse)


def test_settings_of_gpus_are_accepted():
    config = F.get_default_conv_config()
    assert config.dataflow is F.Dataflow.ImplicitGEMM
    F.set_global_conv_config({"kmap_mode": "hashmap"})
    try:
        assert F.get_global_conv_config()["split_mask_num"] == 1
        x = scene(low=-3, spatial_range=None)
        assert spnn.Conv3d(3, 4).double()(x).feats.shape == (90, 4)
    finally:
        F.clear_global_conv_config()
    for value in ("hashmap", "hashmap_on_the_fly"):
        F.set_kmap_mode(value)
        assert F.get_kmap_mode() == value
    for value in ("minkowski", "spconv"):
        F.set_downsample_mode(value)
        assert F.get_downsample_mode() == value
    F.set_conv_mode(2)
    assert F.get_conv_mode() is F.conv_config.ConvMode.mode2
    F.set_conv_mode(F.conv_config.ConvMode.mode0)
    assert ts.tune(None, []) is None
    ts.backends.init()
