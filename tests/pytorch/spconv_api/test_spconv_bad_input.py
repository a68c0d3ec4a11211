"""What the layers refuse: each with the value, the limit and the fix."""

import numpy as np
import pytest
import torch
from torch import nn

import voxax.torch.spconv as spconv
from voxax.errors import InputError
from voxax.torch.spconv import core, functional, utils

pytestmark = pytest.mark.torch

SHAPE = [6, 7, 8]


def indices(*rows):
    return torch.tensor(rows, dtype=torch.int32)


def tensor(rows=None, channels=3, shape=SHAPE, batch_size=2, dtype=torch.float32):
    rows = indices([0, 1, 2, 3], [1, 5, 6, 7], [1, 0, 0, 0]) if rows is None else rows
    features = torch.randn(len(rows), channels, generator=torch.Generator().manual_seed(0))
    return spconv.SparseConvTensor(features.to(dtype), rows, shape, batch_size)


LAYERS = {
    "submanifold": lambda: spconv.SubMConv3d(3, 4, 3),
    "pointwise": lambda: spconv.SubMConv3d(3, 4, 1),
    "strided": lambda: spconv.SparseConv3d(3, 4, 2, 2),
    "transposed": lambda: spconv.SparseConvTranspose3d(3, 4, 3, 2, 1),
    "max pooling": lambda: spconv.SparseMaxPool3d(2, 2),
    "mean pooling": lambda: spconv.SparseAvgPool3d(2, 2),
    "global": lambda: spconv.SparseGlobalMaxPool(),
    "dense": lambda: spconv.ToDense(),
}
# What moves no voxel need not know where voxels are.
PLACED = [name for name in LAYERS if name != "pointwise"]

OUTSIDE = [
    ([0, 6, 0, 0], r"axis 0 of 6 .*\[6, 7, 8\].* 0 to 5"),
    ([0, 0, 7, 0], r"axis 1 of 7 .* 0 to 6"),
    ([0, 0, 0, 2**31 - 1], r"axis 2 of 2147483647 .* 0 to 7"),
    ([0, -1, 0, 0], r"axis 0 of -1 "),
    ([0, 0, 0, -(2**31)], r"axis 2 of -2147483648 "),
    ([2, 0, 0, 0], r"batch index of 2 .*batch_size 2.* 0 to 1"),
    ([-1, 0, 0, 0], r"batch index of -1 "),
]


@pytest.mark.parametrize(("row", "message"), OUTSIDE)
@pytest.mark.parametrize("layer", PLACED)
def test_coordinates_outside(row, message, layer):
    with pytest.raises(InputError, match=message):
        LAYERS[layer]()(tensor(indices([0, 1, 2, 3], row)))


def test_coordinates_that_leave_later():
    """A write into the indices is seen: no layer trusts what it checked before."""
    x = tensor()
    layer = spconv.SubMConv3d(3, 3, 3)
    once = layer(x)
    x.indices[0, 1] = 6
    with pytest.raises(InputError, match="axis 0 of 6"):
        layer(x)
    with pytest.raises(InputError, match="axis 0 of 6"):
        layer(once)  # shares the indices
    x.indices[0, 1] = 2
    again = layer(spconv.SparseConvTensor(x.features, x.indices.clone(), SHAPE, 2))
    assert torch.equal(layer(x).features, again.features)


@pytest.mark.parametrize("layer", [name for name in PLACED if name != "global"])
def test_duplicates(layer, monkeypatch):
    monkeypatch.setattr(core, "_strict", True)
    with pytest.raises(InputError, match=r"2 of 5 rows .*\[1, 2, 2, 2\].*unique"):
        LAYERS[layer]()(tensor(indices([0, 0, 0, 0], *[[1, 2, 2, 2]] * 3, [1, 2, 2, 3])))


@pytest.mark.parametrize("dtype", [torch.int64, torch.int16, torch.uint8, torch.float32])
def test_dtypes_of_indices(dtype):
    with pytest.raises(InputError, match=r"only int32; convert with \.int\(\)"):
        tensor(indices([0, 0, 0, 0]).to(dtype))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int8, torch.bool, torch.complex64])
@pytest.mark.parametrize("layer", [name for name in LAYERS if name != "dense"])
def test_dtypes_of_features(dtype, layer):
    with pytest.raises(InputError, match=r"expected float32, float64, float16 or bfloat16"):
        LAYERS[layer]()(tensor(dtype=dtype))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((torch.ones(3), indices([0, 0, 0, 0])), r"\[N, C\]"),
        ((torch.ones(1, 3), torch.zeros(1, 6, dtype=torch.int32)), "D from 1 to 4"),
        ((torch.ones(1, 3), torch.zeros(1, 1, dtype=torch.int32)), "D from 1 to 4"),
        ((torch.ones(1, 3), indices([0, 0, 0])), r"\[6, 7, 8\] for indices of 2 axes"),
    ],
)
def test_shapes(arguments, message):
    with pytest.raises(InputError, match=message):
        spconv.SparseConvTensor(*arguments, SHAPE, 1)


@pytest.mark.parametrize("batch_size", [0, -1])
def test_batch_sizes(batch_size):
    with pytest.raises(InputError, match=f"batch_size {batch_size}: expected 1 or more"):
        tensor(batch_size=batch_size)


@pytest.mark.parametrize("layer", [name for name in LAYERS if name != "dense"])
def test_other_rows_of_features(layer):
    x = tensor().replace_feature(torch.ones(5, 3))  # VoxelNeXt does, and sets the indices behind
    with pytest.raises(InputError, match="5 rows of features for 3 rows of indices"):
        LAYERS[layer]()(x)


def test_channels_and_axes():
    with pytest.raises(InputError, match="2 channels, the layer takes 3"):
        spconv.SubMConv3d(3, 4, 3)(tensor(channels=2))
    with pytest.raises(InputError, match="2-D layer on indices of 3 axes"):
        spconv.SubMConv2d(3, 4, 3)(tensor())
    with pytest.raises(InputError, match="SparseConvTensor is expected"):
        spconv.SubMConv3d(3, 4, 3)(torch.ones(4, 3))


@pytest.mark.parametrize("key", [None, "down"])
def test_an_inverse_without_its_forward(key):
    with pytest.raises(InputError, match=r"no layer with indice_key.*before this inverse"):
        spconv.SparseInverseConv3d(3, 4, 2, indice_key=key)(tensor())


def test_an_inverse_of_a_submanifold_layer():
    x = spconv.SubMConv3d(3, 3, 3, indice_key="same")(tensor())
    with pytest.raises(InputError, match="'same' belongs to a submanifold layer"):
        spconv.SparseInverseConv3d(3, 4, 3, indice_key="same")(x)


def test_an_inverse_from_other_voxels():
    down = spconv.SparseConv3d(3, 3, 2, 2, indice_key="down")
    further = spconv.SparseConv3d(3, 3, 2, 2)
    up = spconv.SparseInverseConv3d(3, 3, 2, indice_key="down")
    with pytest.raises(InputError, match=r"'down' have one spatial shape: expected \[3, 3, 4\]"):
        up(further(down(tensor())))
    with pytest.raises(InputError, match=r"'down' have one kernel size: expected \[2, 2, 2\]"):
        spconv.SparseInverseConv3d(3, 3, 3, indice_key="down")(down(tensor()))


def test_keys_of_other_layers():
    x = spconv.SubMConv3d(3, 3, 3, indice_key="key")(tensor())
    with pytest.raises(InputError, match=r"kernel size: expected \[3, 3, 3\], .* \[1, 3, 3\]"):
        spconv.SubMConv3d(3, 3, (1, 3, 3), indice_key="key")(x)
    with pytest.raises(InputError, match="'key' already exists"):
        spconv.SparseConv3d(3, 3, 2, 2, indice_key="key")(x)
    down = spconv.SparseConv3d(3, 3, 2, 2)(x)
    with pytest.raises(InputError, match="'key' have one spatial shape"):
        spconv.SubMConv3d(3, 3, 3, indice_key="key")(down)


def test_a_key_with_other_voxels():
    """As many voxels in the same grid, but others: the pairs would be wrong without a word."""
    layer = spconv.SubMConv3d(3, 3, 3, indice_key="key")
    x = layer(tensor())
    moved = tensor(indices([0, 1, 2, 4], [1, 5, 6, 7], [1, 0, 0, 0]))
    moved.indice_dict = x.indice_dict
    with pytest.raises(InputError, match="'key'"):
        layer(moved)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: spconv.SubMConv3d(3, 4, 2)(tensor()), "odd"),
        (lambda: spconv.SubMConv3d(3, 4, (3, 3)), "one per axis"),
        (lambda: spconv.SparseConv3d(3, 4, 0), "kernel_size"),
        (lambda: spconv.SparseConv3d(3, 4, 3, 0), "stride"),
        (lambda: spconv.SparseConv3d(3, 4, 3, padding=-1), "padding"),
        (lambda: spconv.SparseConv3d(4, 4, 3, groups=2), "groups=2"),
        (
            lambda: spconv.SparseConv3d(3, 4, 7)(tensor(indices([0, 1, 2, 3]), shape=[6, 6, 6])),
            "no cells",
        ),
    ],
)
def test_sizes(make, message):
    with pytest.raises(InputError, match=message):
        make()


def test_sums_of_other_grids():
    with pytest.raises(InputError, match=r"\[6, 7, 8\].*\[6, 7, 9\]"):
        _ = tensor() + tensor(shape=[6, 7, 9])
    with pytest.raises(InputError, match=r"\[6, 7, 8\]"):
        functional.sparse_add(tensor(), tensor(shape=[6, 7, 9]))
    other = tensor(indices([0, 1, 2, 4]))
    for table in (spconv.AddTable(), spconv.JoinTable()):
        with pytest.raises(InputError, match="3"):
            table([tensor(), other])


def test_features_are_not_set():
    with pytest.raises(InputError, match="replace_feature"):
        tensor().features = torch.ones(3, 3)


def test_a_grid_that_64_bits_cannot_number():
    x = tensor(indices([0, 0, 0, 0]), shape=[2**31 - 1] * 3)
    with pytest.raises(InputError, match=r"at most 2\^63"):
        spconv.SubMConv3d(3, 4, 3)(x)


def features_elsewhere(layer, x):
    return layer(x.replace_feature(x.features.to("meta")))


def indices_elsewhere(layer, x):
    x.indices = x.indices.to("meta")
    return layer(x)


def layer_elsewhere(layer, x):
    return layer.to("meta")(x)


def points_elsewhere(layer, x):
    return spconv.utils.PointToVoxel([1.0], [0, 4], 1, 4, 4, torch.device("cuda"))


@pytest.mark.parametrize(
    "call", [features_elsewhere, indices_elsewhere, layer_elsewhere, points_elsewhere]
)
def test_other_devices(call):
    """No copy behind the caller's back. The meta device stands for a GPU, which may be absent."""
    with pytest.raises(InputError, match=r"on (meta|cuda).*(\.cpu\(\)|runs on the CPU)"):
        call(spconv.SubMConv3d(3, 4, 3), tensor())


@pytest.mark.parametrize("channels", [0, 1])
@pytest.mark.parametrize("layer", LAYERS)
def test_no_voxels(layer, channels):
    """An empty tensor passes every layer, and a backward pass too."""
    module = LAYERS[layer]().train()
    x = tensor(torch.zeros(0, 4, dtype=torch.int32))
    x = x.replace_feature(x.features.requires_grad_(bool(channels)))
    out = module(x)
    values = out.features if isinstance(out, spconv.SparseConvTensor) else out
    assert np.prod(values.shape) == 0 or not values.any()
    if channels and values.requires_grad:
        values.sum().backward()
        assert x.features.grad.shape == (0, 3)
    for parameter in module.parameters():
        assert parameter.grad is None or not parameter.grad.any()


def test_layers_that_share_a_key_have_one_kernel():
    x = spconv.SubMConv3d(3, 3, 3, indice_key="k")(tensor())
    with pytest.raises(InputError, match=r"'k' have one kernel size: .*3, 3, 3.*5, 5, 5"):
        spconv.SubMConv3d(3, 3, 5, indice_key="k")(x)


def test_what_is_no_tensor_of_pytorch():
    x = tensor()
    for values in ((x.features.numpy(), x.indices), (x.features, x.indices.numpy())):
        with pytest.raises(InputError, match=r"of ndarray: expected a PyTorch tensor.*as_tensor"):
            spconv.SparseConvTensor(*values, SHAPE, 2)


@pytest.mark.filterwarnings("ignore:Complex modules are a new feature")
def test_weights_are_real_numbers():
    layer = spconv.SubMConv3d(3, 4, 3).to(torch.complex64)
    with pytest.raises(InputError, match=r"weight of torch\.complex64: expected"):
        layer(tensor())


def test_no_voxels_through_a_network():
    down = spconv.SparseConv3d(4, 4, 2, 2, indice_key="down")
    net = spconv.SparseSequential(
        spconv.SubMConv3d(3, 4, 3, indice_key="a"),
        nn.BatchNorm1d(4),
        nn.ReLU(),
        down,
        spconv.SparseMaxPool3d(2, 2),
    )
    out = net(tensor(torch.zeros(0, 4, dtype=torch.int32)))
    assert out.features.shape == (0, 4)
    assert out.spatial_shape == [1, 1, 2]


def test_points_that_float32_moves_to_other_cells():
    """Projected coordinates of maps: cells of float64 points would be those of others."""
    origin = torch.tensor([500_000.0, 5_400_000.0, 100.0], dtype=torch.float64)
    points = torch.rand(50, 3, dtype=torch.float64) * 5
    far = [*origin.tolist(), *(origin + 5).tolist()]
    with pytest.raises(InputError, match="Subtract an origin"):
        utils.PointToVoxel([0.25] * 3, far, 3, 100, 5)(points + origin)
    cells = utils.PointToVoxel([0.25] * 3, [0, 0, 0, 5, 5, 5], 3, 100, 5)(points)[1]
    assert len(cells) == len(torch.unique((points / 0.25).floor(), dim=0))
