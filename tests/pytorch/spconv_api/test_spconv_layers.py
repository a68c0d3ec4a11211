"""Layers of voxax.torch.spconv against PyTorch's dense ones on the cells that exist."""

import collections
import copy

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
spconv = pytest.importorskip("voxax.torch.spconv")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

from voxax.torch.core import kernel_map, known_calls  # noqa: E402
from voxax.torch.spconv import pool  # noqa: E402

pytestmark = pytest.mark.torch

SIDE = {1: 40, 2: 12, 3: 7, 4: 5}
DENSE = {1: functional.conv1d, 2: functional.conv2d, 3: functional.conv3d}
BACK = {
    1: functional.conv_transpose1d,
    2: functional.conv_transpose2d,
    3: functional.conv_transpose3d,
}


def cloud(ndim, channels=3, seed=0, rows=60):
    """Distinct voxels of two scenes in no order, with float64 features."""
    generator = torch.Generator().manual_seed(seed)
    shape = [SIDE[ndim] + axis for axis in range(ndim)]
    columns = [torch.randint(0, size, (rows,), generator=generator) for size in (2, *shape)]
    indices = torch.unique(torch.stack(columns, 1), dim=0)
    indices = indices[torch.randperm(len(indices), generator=generator)].int()
    features = torch.randn(len(indices), channels, generator=generator, dtype=torch.float64)
    return spconv.SparseConvTensor(features, indices, shape, 2)


def layer_of(kind, ndim, *args, **kwargs):
    torch.manual_seed(1)
    return getattr(spconv, f"{kind}{ndim}d")(*args, **kwargs).double()


def dense_weight(layer):
    """PyTorch's ``[C_out, C_in, *kernel_size]``."""
    return layer.weight.movedim(-1, 1)


def at(dense, out):
    """The values of ``[B, C, *shape]`` at the voxels."""
    index = [out.indices[:, axis].long() for axis in range(out.indices.shape[1])]
    return dense[index[0], :, *index[1:]]


def reached(dense_ones):
    return {tuple(row) for row in torch.nonzero(dense_ones[:, 0] > 0.5).tolist()}


CASES = [
    {"kernel_size": 3, "stride": 2, "padding": 1},
    {"kernel_size": 3},
    {"kernel_size": 2, "stride": 2},
    {"kernel_size": 3, "stride": 2, "padding": 2, "dilation": 2},
    {"kernel_size": 3, "stride": 3, "padding": 1},
]


@pytest.mark.parametrize("ndim", [1, 2, 3])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_strided_layers(ndim, case):
    x = cloud(ndim)
    layer = layer_of("SparseConv", ndim, 3, 4, **case)
    out = layer(x)
    options = {name: value for name, value in case.items() if name != "kernel_size"}
    dense = DENSE[ndim](x.dense(), dense_weight(layer), layer.bias, **options)
    torch.testing.assert_close(out.features, at(dense, out))
    assert list(dense.shape[2:]) == out.spatial_shape
    # Every cell that a tap reaches is there, and no other.
    ones = x.replace_feature(torch.ones_like(x.features)).dense()
    hits = DENSE[ndim](ones, torch.ones_like(dense_weight(layer)), **options)
    assert {tuple(row) for row in out.indices.tolist()} == reached(hits)
    assert len(out.indices) == len(reached(hits))


@pytest.mark.parametrize("ndim", [1, 2, 3])
@pytest.mark.parametrize("dilation", [1, 2])
def test_submanifold_layers(ndim, dilation):
    x = cloud(ndim)
    layer = layer_of("SubMConv", ndim, 3, 4, 3, dilation=dilation, stride=5, padding=7)
    out = layer(x)
    assert out.indices is x.indices
    dense = DENSE[ndim](
        x.dense(), dense_weight(layer), layer.bias, padding=dilation, dilation=dilation
    )
    torch.testing.assert_close(out.features, at(dense, out))


@pytest.mark.parametrize("ndim", [1, 2, 3])
@pytest.mark.parametrize(
    "case",
    [{"kernel_size": 2, "stride": 2}, {"kernel_size": 3, "stride": 2, "padding": 1}],
    ids=str,
)
def test_transposed_layers(ndim, case):
    x = cloud(ndim)
    layer = layer_of("SparseConvTranspose", ndim, 3, 4, **case)
    out = layer(x)
    options = {name: value for name, value in case.items() if name != "kernel_size"}
    weight = layer.weight.movedim(-1, 0)  # [C_in, C_out, *kernel_size]
    dense = BACK[ndim](x.dense(), weight, layer.bias, **options)
    assert list(dense.shape[2:]) == out.spatial_shape
    torch.testing.assert_close(out.features, at(dense, out))


@pytest.mark.parametrize("ndim", [1, 2, 3, 4])
def test_an_inverse_layer_is_the_adjoint(ndim):
    x = cloud(ndim)
    down = layer_of("SparseConv", ndim, 3, 4, 3, 2, 1, bias=False, indice_key="a")
    up = layer_of("SparseInverseConv", ndim, 4, 3, 3, "a", bias=False)
    up.weight.data = down.weight.data.movedim(0, -1).movedim(-2, 0).contiguous()
    leaf = x.features.clone().requires_grad_()
    coarse = down(x.replace_feature(leaf))
    g = torch.randn_like(coarse.features)
    back = up(coarse.replace_feature(g))
    assert back.indices is x.indices
    assert back.spatial_shape == x.spatial_shape
    (expected,) = torch.autograd.grad(coarse.features, leaf, g)
    torch.testing.assert_close(back.features, expected)


def test_four_axes_against_three():
    """A kernel of size 1 along the first axis is a 3-D layer in each of its slices."""
    x = cloud(4)
    layer = layer_of("SubMConv", 4, 3, 5, (1, 3, 3, 3))
    out = layer(x)
    flat = layer_of("SubMConv", 3, 3, 5, 3)
    flat.load_state_dict({"weight": layer.weight.squeeze(1), "bias": layer.bias})
    scene = x.indices[:, 0] * x.spatial_shape[0] + x.indices[:, 1]
    indices = torch.cat([scene[:, None], x.indices[:, 2:]], 1).contiguous()
    slices = 2 * x.spatial_shape[0]
    same = spconv.SparseConvTensor(x.features, indices, x.spatial_shape[1:], slices)
    torch.testing.assert_close(out.features, flat(same).features)


def test_poolings():
    x = cloud(3, rows=150)
    shape = [*x.spatial_shape]
    for padding in (0, 1):
        largest = spconv.SparseMaxPool3d(3, 2, padding)(x)
        dense = functional.max_pool3d(x.dense().clamp(min=0), 3, 2, padding)
        torch.testing.assert_close(largest.features, at(dense, largest))
        mean = spconv.SparseAvgPool3d(3, 2, padding)(x)
        assert torch.equal(mean.indices, largest.indices)
        ones = x.replace_feature(torch.ones_like(x.features)).dense()
        total, number = (
            27 * functional.avg_pool3d(values, 3, 2, padding) for values in (x.dense(), ones)
        )
        torch.testing.assert_close(mean.features, at(total / number, mean))
    kept = pool.SparseMaxPool(3, 3, 1, 1, subm=True)(x)
    dense = functional.max_pool3d(x.dense().clamp(min=0), 3, 1, 1)
    torch.testing.assert_close(kept.features, at(dense, kept))
    assert kept.spatial_shape == shape
    best = spconv.SparseGlobalMaxPool()(x)
    scenes = [x.features[x.indices[:, 0] == scene] for scene in range(2)]
    torch.testing.assert_close(best, torch.stack([rows.amax(0) for rows in scenes]))
    means = spconv.SparseGlobalAvgPool()(x)
    torch.testing.assert_close(means, torch.stack([rows.mean(0)[0] for rows in scenes]))


def test_the_kernel_of_one_tap_reads_its_weight_as_spconv_does():
    x = cloud(3)
    for kind in ("SubMConv", "SparseConv"):
        layer = layer_of(kind, 3, 3, 4, 1)
        expected = x.features @ layer.weight.reshape(3, 4) + layer.bias
        torch.testing.assert_close(layer(x).features, expected)


@pytest.mark.parametrize(
    ("layout", "axes"),
    [("KRSC", (0, 1, 2, 3, 4)), ("RSKC", (1, 2, 3, 0, 4)), ("RSCK", (1, 2, 3, 4, 0))],
)
def test_checkpoints_of_other_layouts(layout, axes, monkeypatch):
    layer = layer_of("SparseConv", 3, 3, 4, (3, 2, 1))
    saved = {"0.weight": layer.weight.detach().permute(axes), "0.bias": layer.bias.detach()}
    other = spconv.SparseSequential(spconv.SparseConv3d(3, 4, (3, 2, 1)).double())
    monkeypatch.setattr(spconv.constants, "SAVED_WEIGHT_LAYOUT", layout)
    other.load_state_dict(saved)
    assert torch.equal(other[0].weight, layer.weight)
    monkeypatch.setattr(spconv.constants, "SAVED_WEIGHT_LAYOUT", "KCRS")
    with pytest.raises(spconv.SpconvError, match="KCRS"):
        other.load_state_dict(saved)


def network():
    torch.manual_seed(0)
    net = spconv.SparseSequential(
        spconv.SubMConv3d(3, 4, 3),
        nn.BatchNorm1d(4),
        nn.ReLU(),
        spconv.SparseConv3d(4, 5, 3, 2, 1, bias=False),
        spconv.SparseBatchNorm(5),
        spconv.SparseReLU(),
        spconv.SubMConv3d(5, 6, 1),
        nn.BatchNorm1d(6, affine=False),
        spconv.SubMConv3d(6, 5, 3),
        nn.ReLU(inplace=True),
        nn.ReLU(),
    ).double()
    for module in net.modules():
        if isinstance(module, nn.BatchNorm1d):
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2)
            if module.affine:
                module.weight.data.normal_()
                module.bias.data.normal_()
    return net.eval()


def test_what_is_computed_with_a_convolution_changes_nothing():
    net, x = network(), cloud(3)
    expected = net(x)
    kept = x.features.clone()
    with torch.no_grad():
        found = net(x)
    torch.testing.assert_close(found.features, expected.features)
    assert torch.equal(found.indices, expected.indices)
    assert torch.equal(x.features, kept)
    assert not found.features.requires_grad


class _Ten(spconv.SubMConv3d):
    def forward(self, input, add_input=None):
        return ten_times(super().forward(input, add_input))


class _TenNorm(nn.BatchNorm1d):
    def forward(self, input):
        return ten_times(super().forward(input))


class _TenSparseNorm(spconv.SparseBatchNorm):
    def __call__(self, input):
        return ten_times(super().__call__(input))


class _TenReLU(nn.ReLU):
    def forward(self, input):
        return ten_times(super().forward(input))


def ten_times(value):
    if isinstance(value, spconv.SparseConvTensor):
        return value.replace_feature(10 * value.features)
    return 10 * value


def wrapped(call):
    return lambda *args, **kwargs: ten_times(call(*args, **kwargs))


CONV, NORM, ACT = 0, 1, 2


def subclass(kind, place, conv_args):
    def apply(net, patch):
        made = kind(*conv_args).double().eval()
        made.load_state_dict(net[place].state_dict())
        net._modules[str(place)] = made

    return apply


def on_module(name, place):
    def apply(net, patch):
        patch.setattr(net[place], name, wrapped(getattr(net[place], name)), raising=False)

    return apply


def on_class(kind, name, sparse=False):
    def apply(net, patch):
        if sparse:
            net._modules["1"] = copy.copy(net[1])
            net[1].__class__ = spconv.SparseBatchNorm
            net._modules["2"] = spconv.SparseReLU()
        patch.setattr(kind, name, wrapped(getattr(kind, name)))

    return apply


def hook(register, before=False):
    def apply(net, patch):
        def before_hook(module, args):
            # Only once, where the hook is of all modules.
            return tuple(map(ten_times, args)) if isinstance(module, nn.ReLU) else None

        def after_hook(module, args, out):
            return ten_times(out) if isinstance(module, nn.ReLU) or module is net[0] else None

        handle = register(net)(before_hook if before else after_hook)
        net.removed = handle

    return apply


OF_ALL = nn.modules.module
USER_CODE = {
    "subclass of conv": subclass(_Ten, CONV, (3, 4, 3)),
    "subclass of norm": subclass(_TenNorm, NORM, (4,)),
    "subclass of sparse norm": subclass(_TenSparseNorm, NORM, (4,)),
    "subclass of relu": subclass(_TenReLU, ACT, ()),
    "conv.forward": on_module("forward", CONV),
    "norm.forward": on_module("forward", NORM),
    "relu.forward": on_module("forward", ACT),
    "conv._call_impl": on_module("_call_impl", CONV),
    "norm._compiled_call_impl": lambda net, patch: patch.setattr(
        net[1], "_compiled_call_impl", wrapped(net[1]._call_impl), raising=False
    ),
    "SparseConvolution.forward": on_class(spconv.conv.SparseConvolution, "forward"),
    "SubMConv3d.forward": on_class(spconv.SubMConv3d, "forward"),
    "SubMConv3d.__call__": on_class(spconv.SubMConv3d, "__call__"),
    "BatchNorm1d.forward": on_class(nn.BatchNorm1d, "forward"),
    "_BatchNorm.forward": on_class(nn.modules.batchnorm._BatchNorm, "forward"),
    "_BatchNorm.forward of a sparse one": on_class(
        nn.modules.batchnorm._BatchNorm, "forward", True
    ),
    "SparseBatchNorm.forward": on_class(spconv.SparseBatchNorm, "forward", True),
    "ReLU.forward": on_class(nn.ReLU, "forward"),
    "ReLU.forward of a sparse one": on_class(nn.ReLU, "forward", True),
    "Module.__call__": on_class(nn.Module, "__call__"),
    "conv hook": hook(lambda net: net[0].register_forward_hook),
    "relu hook": hook(lambda net: net[2].register_forward_hook),
    "relu pre-hook": hook(lambda net: net[2].register_forward_pre_hook, before=True),
    "hook of all": hook(lambda net: OF_ALL.register_module_forward_hook),
    "pre-hook of all": hook(lambda net: OF_ALL.register_module_forward_pre_hook, before=True),
}


@pytest.mark.parametrize("how", USER_CODE)
def test_code_of_the_user_is_called(how, monkeypatch):
    """With gradients nothing is fused: without them, the numbers are those."""
    net, x = network(), cloud(3)
    plain = net(x).features
    USER_CODE[how](net, monkeypatch)
    try:
        expected = net(x).features
        with torch.no_grad():
            found = net(x).features
    finally:
        if hasattr(net, "removed"):
            net.removed.remove()
    assert not torch.allclose(expected, plain)
    torch.testing.assert_close(found, expected)


def test_hooks_are_called():
    net, x = network(), cloud(3)
    calls = collections.Counter()
    for name, module in net.named_children():
        module.register_forward_hook(lambda *_, name=name: calls.update([name]))
    with torch.no_grad():
        net(x)
    assert calls == dict.fromkeys((str(index) for index in range(11)), 1)


def test_classes_that_another_package_changed_before_are_not_fused():
    known_calls.know(_TenReLU, nn.ReLU)
    assert _TenReLU not in known_calls._KNOWN
    assert nn.ReLU in known_calls._KNOWN


def test_known_modules_are_fused(monkeypatch):
    """Or nothing above would test anything."""
    calls = collections.Counter()
    fused = spconv.conv.SparseConvolution.with_epilogue

    def counted(self, input, norm=None, relu=False):
        calls.update([(norm is not None) + relu])
        return fused(self, input, norm, relu)

    monkeypatch.setattr(spconv.conv.SparseConvolution, "with_epilogue", counted)
    with torch.no_grad():
        network()(cloud(3))
    assert calls == {2: 2, 1: 2}


def test_maps_are_built_once(monkeypatch):
    built = []
    for name in ("kept_map", "reached_map"):
        make = getattr(kernel_map, name)
        monkeypatch.setattr(
            f"voxax.torch.core.sites.{name}",
            lambda *args, make=make: built.append(args) or make(*args),
        )
    x = cloud(3)
    convs = [layer_of("SubMConv", 3, 3, 3, 3) for _ in range(3)]
    downs = [layer_of("SparseConv", 3, 3, 3, 2, 2) for _ in range(2)]
    y = x
    for conv in convs:
        y = conv(y)
    assert torch.equal(downs[0](y).indices, downs[1](y).indices)
    assert len(built) == 2
    y.indices[0, 0] = 1 - y.indices[0, 0]  # another voxel: the maps are not of these any more
    if len(torch.unique(y.indices, dim=0)) == len(y.indices):
        convs[0](y)
        assert len(built) == 3


def through_data(indices, rows):
    indices.data[: len(rows)] = rows


def through_new_data(indices, rows):
    indices.data = torch.cat([rows, indices[len(rows) :]])


def through_numpy(indices, rows):
    indices.numpy()[: len(rows)] = rows.numpy()


def through_a_view(indices, rows):
    indices.detach().view(-1).numpy()[: rows.numel()] = rows.flatten().numpy()


def in_place(indices, rows):
    indices[: len(rows)] = rows


WRITES = [in_place, through_data, through_new_data, through_numpy, through_a_view]
ON_VOXELS = {
    "submanifold": lambda: layer_of("SubMConv", 3, 3, 3, 3),
    "strided": lambda: layer_of("SparseConv", 3, 3, 3, 3, 2, 1),
    "transposed": lambda: layer_of("SparseConvTranspose", 3, 3, 3, 3, 2),
    "pooling": lambda: spconv.SparseMaxPool3d(2, 2),
    "mean pooling": lambda: spconv.SparseAvgPool3d(2, 2),
    "dense": lambda: spconv.ToDense(),
    "inverse": lambda: spconv.SparseSequential(
        layer_of("SparseConv", 3, 3, 3, 3, 2, 1, indice_key="a"),
        layer_of("SparseInverseConv", 3, 3, 3, 3, "a"),
    ),
    "keys": lambda: spconv.SparseSequential(
        layer_of("SubMConv", 3, 3, 3, 3, indice_key="a"),
        layer_of("SubMConv", 3, 3, 3, 3, indice_key="a"),
    ),
}


def values_of(out):
    return out.features if isinstance(out, spconv.SparseConvTensor) else out


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("name", ON_VOXELS)
@pytest.mark.parametrize("inference", [False, True])
def test_indices_written_to_after_a_layer(name, write, inference):
    """Whatever the way: PyTorch counts writes of the first kind only."""
    with torch.inference_mode(inference):
        x, layer = cloud(3), ON_VOXELS[name]()
        layer(x)
        rows = x.indices[:5].clone()
        rows[:, 1:] = (rows[:, 1:] + 3) % 7
        held = {tuple(row) for row in x.indices[5:].tolist()}
        assert held.isdisjoint(tuple(row) for row in rows.tolist())
        write(x.indices, rows)
        again = spconv.SparseConvTensor(x.features, x.indices.clone(), x.spatial_shape, 2)
        torch.testing.assert_close(values_of(layer(x)), values_of(layer(again)), rtol=0, atol=0)


@pytest.mark.parametrize("write", WRITES)
def test_outputs_written_to_after_a_layer(write):
    """They belong to the caller: the next call gives others."""
    x = cloud(3)
    for layer in (ON_VOXELS["strided"](), ON_VOXELS["pooling"]()):
        first = layer(x)
        kept = first.indices.clone()
        write(first.indices, torch.zeros_like(first.indices[:3]))
        assert torch.equal(layer(x).indices, kept)


@pytest.mark.parametrize("write", WRITES)
def test_pairs_written_to_after_a_layer(write):
    for algo, name in (
        (None, "pair_fwd"),
        (None, "pair_bwd"),
        (spconv.ConvAlgo.Native, "indice_pairs"),
    ):
        layer = layer_of("SubMConv", 3, 3, 3, 3, indice_key="a", algo=algo)
        x = layer(cloud(3))
        expected = layer(x).features
        pairs = getattr(x.find_indice_pair("a"), name)
        write(pairs, torch.zeros_like(pairs[:1]))
        torch.testing.assert_close(layer(x).features, expected, rtol=0, atol=0)


@pytest.mark.parametrize("write", WRITES)
def test_keys_of_voxels_that_were_written_to(write):
    """Their pairs belong to other voxels: spconv would take them without a word."""
    same = layer_of("SubMConv", 3, 3, 3, 3, indice_key="s")
    down, up = ON_VOXELS["inverse"]()
    for before, behind, message in ((same, same, "other voxels"), (down, up, "written to since")):
        x = cloud(3)
        y = before(x)
        write(x.indices, x.indices[:1] * 0)
        with pytest.raises(spconv.SpconvError, match=message):
            behind(y)
    y = down(cloud(3))
    write(y.indices, y.indices[:1] * 0 + 1)
    with pytest.raises(spconv.SpconvError, match="other voxels"):
        up(y)
