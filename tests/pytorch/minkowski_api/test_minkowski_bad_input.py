"""What the door refuses: each with the value, the limit and the fix."""

import numpy as np
import pytest
import torch
from torch import nn

import voxax.torch.minkowski as ME
from voxax.errors import InputError

pytestmark = pytest.mark.torch

ROWS = torch.IntTensor([[0, 0, 0], [0, 1, 1], [0, 1, 1]])
CUBE, CROSS = ME.RegionType.HYPER_CUBE, ME.RegionType.HYPER_CROSS


def plain(channels=1, rows=ROWS[:2], **arguments):
    return ME.SparseTensor(torch.ones(len(rows), channels), coordinates=rows, **arguments)


def field(rows):
    return ME.TensorField(torch.ones(len(rows), 1), coordinates=rows)


def conv(c_in=1, c_out=1, size=3, **arguments):
    return ME.MinkowskiConvolution(c_in, c_out, kernel_size=size, dimension=2, **arguments)


def late():
    x = plain()
    ME.MinkowskiGlobalPooling()(x)
    y = plain(rows=ROWS[:2] + torch.IntTensor([1, 0, 0]), coordinate_manager=x.coordinate_manager)
    return ME.MinkowskiGlobalPooling()(y)


def coarse_and_fine():
    x = plain()
    return conv(size=2, stride=2)(x), x


def updated(x, y):
    x += y
    return x


# A call, and what its message names.
BAD = {
    "features of one axis": (
        lambda: ME.SparseTensor(torch.ones(3), coordinates=ROWS),
        r"\[3\].* \[N, C\]",
    ),
    "features of NumPy": (
        lambda: ME.SparseTensor(np.ones((3, 1)), coordinates=ROWS),
        r"features .* tensor",
    ),
    "no coordinates": (lambda: ME.SparseTensor(torch.ones(3, 1)), "give coordinates"),
    "coordinates of one axis": (
        lambda: ME.SparseTensor(torch.ones(3, 1), coordinates=ROWS[:, 0]),
        r"\[N, 1 \+ D\]",
    ),
    "empty coordinates of one axis": (
        lambda: ME.SparseTensor(torch.ones(0, 1), coordinates=torch.IntTensor([])),
        r"\[N, 1 \+ D\]",
    ),
    "coordinates without axes": (lambda: plain(rows=ROWS[:, :1]), "D=0"),
    "coordinates in a list": (
        lambda: ME.SparseTensor(torch.ones(3, 1), coordinates=ROWS.tolist()),
        "expected a tensor",
    ),
    "fewer features": (
        lambda: ME.SparseTensor(torch.ones(2, 1), coordinates=ROWS),
        "2 rows of features for 3",
    ),
    "fewer features of a field": (
        lambda: ME.TensorField(torch.ones(2, 1), coordinates=ROWS.float()),
        "2 rows of features for 3",
    ),
    "coordinates of bool": (lambda: plain(rows=ROWS.bool()), "torch.bool: expected int32"),
    "complex coordinates": (lambda: plain(rows=ROWS.to(torch.complex64)), "torch.complex64"),
    "coordinates of int64 for a manager": (
        lambda: ME.CoordinateManager(D=2).insert_and_map(ROWS.long()),
        r"torch.int64: expected int32; convert with .int\(\)",
    ),
    "coordinates of int64 for outputs": (lambda: conv()(plain(), ROWS.long()), "torch.int64"),
    "beyond 32 bits": (
        lambda: plain(rows=ROWS.long() + torch.tensor([0, 2**31, 0])),
        "from 0 to 2147483649: .* 32 bits",
    ),
    "below 32 bits": (
        lambda: plain(rows=ROWS.long() - torch.tensor([0, 2**31 + 1, 0])),
        "from -2147483649 to",
    ),
    "floats beyond 32 bits": (lambda: plain(rows=ROWS * 3e9), "3000000000.0: .* 32 bits"),
    "not finite": (lambda: plain(rows=ROWS * torch.nan), "nan.* finite"),
    "field beyond 32 bits": (lambda: field(ROWS * 3e9), "32 bits"),
    "field not finite": (lambda: field(ROWS * torch.inf), "not finite"),
    "collated beyond 32 bits": (
        lambda: ME.utils.batched_coordinates([ROWS.long() + 2**31]),
        "32 bits",
    ),
    "quantized beyond 32 bits": (lambda: ME.utils.sparse_quantize(ROWS * 3e9), "32 bits"),
    "quantized array beyond 32 bits": (
        lambda: ME.utils.sparse_quantize(ROWS.numpy() * 3e9),
        "32 bits",
    ),
    "quantized to nothing": (
        lambda: ME.utils.sparse_quantize(ROWS.float(), quantization_size=0),
        "quantization_size=0: .* above 0",
    ),
    "negative batch index": (lambda: plain(rows=ROWS - 1), "batch index -1 .* 0 or more"),
    "negative batch index of a field": (lambda: field(ROWS.float() - 1), "batch index -1"),
    "tensor stride of other axes": (lambda: plain(tensor_stride=[1, 1, 1]), "for 2 axes"),
    "device": (lambda: plain(device="cuda"), "device=cuda"),
    "repeated sites": (
        lambda: plain(rows=ROWS, quantization_mode=ME.SparseTensorQuantizationMode.NO_QUANTIZATION),
        "NO_QUANTIZATION",
    ),
    "unknown key": (
        lambda: ME.SparseTensor(
            torch.ones(3, 1),
            coordinate_map_key=ME.CoordinateMapKey([1, 1]),
            coordinate_manager=ME.CoordinateManager(D=2),
        ),
        r"\[1, 1\] in this manager",
    ),
    "kernel of other axes": (lambda: conv(size=[3, 3, 3]), r"\[3, 3, 3\] for 2 axes"),
    "kernel of fractions": (lambda: conv(size=2.5), "kernel_size=2.5"),
    "kernel of nothing": (lambda: conv(size=0), "1 or more"),
    "stride of other axes": (lambda: conv(stride=[1, 2, 3]), r"\[1, 2, 3\] for 2 axes"),
    "no dimension": (lambda: ME.MinkowskiConvolution(1, 1, kernel_size=1), "dimension="),
    "layer of other axes": (
        lambda: ME.MinkowskiConvolution(1, 1, kernel_size=3, dimension=3)(plain()),
        "3-D layer .* 2 axes",
    ),
    "pooling of other axes": (
        lambda: ME.MinkowskiMaxPooling(2, 2, dimension=3)(plain()),
        "3-D layer .* 2 axes",
    ),
    "even cross": (
        lambda: ME.KernelGenerator(2, region_type=CROSS, dimension=2),
        r"\[2, 2\]: only odd sizes",
    ),
    "even cross in a hybrid": (
        lambda: ME.KernelGenerator(
            [2, 4], region_type=ME.RegionType.HYBRID, axis_types=[CUBE, CROSS], dimension=2
        ),
        r"\[2, 4\]: only odd sizes",
    ),
    "hybrid of other axes": (
        lambda: ME.KernelGenerator(
            3, region_type=ME.RegionType.HYBRID, axis_types=[CUBE], dimension=2
        ),
        "1 axis_types for 2 axes",
    ),
    "custom without offsets": (
        lambda: ME.KernelGenerator(3, region_type=ME.RegionType.CUSTOM, dimension=2),
        "region_offsets",
    ),
    "no channels": (lambda: conv(0, 3), "1 channel or more"),
    "channels of a convolution": (lambda: conv(2, 3)(plain()), "1 channels, the layer takes 2"),
    "channels of a product": (lambda: conv(2, 3, size=1)(plain()), "the layer takes 2"),
    "channels of a channelwise layer": (
        lambda: ME.MinkowskiChannelwiseConvolution(3, kernel_size=3, dimension=2)(plain()),
        "the layer takes 3",
    ),
    "channels of a batch norm": (lambda: ME.MinkowskiBatchNorm(3)(plain()), "takes 3"),
    "channels of an instance norm": (lambda: ME.MinkowskiInstanceNorm(3)(plain()), "takes 3"),
    "channels of a linear layer": (lambda: ME.MinkowskiLinear(3, 4)(plain()), "takes 3"),
    "channels of a sum": (
        lambda: (lambda x: x + x.replaced(torch.ones(2, 3)))(plain(2)),
        "2 and 3 channels",
    ),
    "dtype of a kernel": (
        lambda: conv().double()(plain()),
        "features of torch.float32 for a kernel of torch.float64",
    ),
    "a dense tensor convolved": (lambda: conv()(torch.ones(2, 1)), "SparseTensor"),
    "a dense tensor normalized": (lambda: ME.MinkowskiBatchNorm(1)(torch.ones(2, 1)), "Tensor:"),
    "a dense tensor rectified": (lambda: ME.MinkowskiReLU()(torch.ones(2, 1)), "Tensor:"),
    "a dense tensor in a function": (
        lambda: ME.MinkowskiFunctional.relu(torch.ones(2, 1)),
        "Tensor:",
    ),
    "sum of two managers": (lambda: plain() + plain(), "two coordinate managers: .*manager="),
    "update by another manager": (lambda: updated(plain(), plain()), "two coordinate managers"),
    "update at another key": (lambda: updated(*coarse_and_fine()), r"\[2, 2\] and .*\[1, 1\]"),
    "sum with a string": (lambda: plain() + "a", "SparseTensor with str"),
    "union of two managers": (lambda: ME.MinkowskiUnion()(plain(), plain()), "two coordinate"),
    "union of one": (lambda: ME.MinkowskiUnion()(plain()), "two or more"),
    "joined managers": (lambda: ME.cat(plain(), plain()), "two coordinate managers"),
    "outputs of another manager": (lambda: conv()(plain(), plain()), "another coordinate manager"),
    "transposed to a fraction": (
        lambda: ME.MinkowskiConvolutionTranspose(1, 1, kernel_size=2, stride=2, dimension=2)(
            plain()
        ),
        r"stride \[2, 2\] .* \[1, 1\]",
    ),
    "mask": (
        lambda: ME.MinkowskiPruning()(plain(), torch.ones(1, dtype=torch.bool)),
        r"expected bool\[2\]",
    ),
    "dtype of points": (
        lambda: plain().features_at_coordinates(torch.zeros(1, 3).double()),
        "torch.float64 for features of torch.float32",
    ),
    "dense shape": (lambda: plain().dense(shape=torch.Size([1, 1, 1, 1])), "outside"),
    "mode of a global pooling": (
        lambda: ME.MinkowskiGlobalPooling(ME.PoolingMode.LOCAL_SUM_POOLING),
        "global PoolingMode",
    ),
    "rows of a broadcast": (lambda: ME.MinkowskiBroadcast()(plain(), plain()), "2 rows for 1"),
    "late scene": (late, "scene"),
    "rows of a collation": (
        lambda: ME.utils.sparse_collate([torch.zeros(2, 3)], [torch.zeros(3, 1)]),
        "3 rows of features for 2",
    ),
    "limit of a collation": (
        lambda: ME.utils.SparseCollation(1)([(np.zeros((2, 3)), np.zeros((2, 1)), [1])]),
        "limit_numpoints=1",
    ),
}


@pytest.mark.filterwarnings("ignore:coordinates of .* are floored")
@pytest.mark.parametrize("case", BAD)
def test_bad_input_raises(case):
    call, message = BAD[case]
    with pytest.raises(InputError, match=message) as raised:
        call()
    assert isinstance(raised.value, AssertionError)  # as MinkowskiEngine raises


def test_integers_within_32_bits_are_exact():
    rows = torch.tensor([[0, 2**31 - 1, -(2**31)]])
    with pytest.warns(UserWarning, match="torch.int64 are floored"):
        assert torch.equal(plain(rows=rows).C, rows.int())


def test_even_kernels_begin_at_their_site():
    """Only a cross needs a center: other even kernels are shifted, as in MinkowskiEngine."""
    layer = conv(size=2)
    nn.init.ones_(layer.kernel)
    assert layer(plain()).F.flatten().tolist() == [2, 1]


def test_an_empty_tensor_passes():
    x = plain(rows=ROWS[:0])
    net = nn.Sequential(
        conv(size=3), ME.MinkowskiReLU(), ME.MinkowskiMaxPooling(2, 2, dimension=2), conv(1, 4)
    )
    assert net(x).F.shape == (0, 4)
