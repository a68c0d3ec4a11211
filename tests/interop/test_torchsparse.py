"""Weights from and to TorchSparse against its definition; TorchSparse itself is not needed."""

import numpy as np
import pytest

import voxax as vx
from interop.peer_weights import (
    C_IN,
    C_OUT,
    check_taps,
    draw,
    loader,
)
from oracle.peers import torchsparse_taps
from voxax.interop import from_torchsparse, to_torchsparse, torchsparse_offsets
from voxax.nn.modules import (
    BatchNorm,
    Linear,
    SparseConv3d,
    SparseConvTranspose3d,
    SpatiallySparseConv,
    SpatiallySparseDepthwiseConv,
    SubMConv3d,
)

loaded = loader("kernel", from_torchsparse, to_torchsparse)


@pytest.mark.parametrize("size", [(3, 3, 3), (1, 3, 5), (5, 1, 3), (2, 2, 2), (1, 1, 2)])
def test_taps_at_stride_1(rng, size):
    kernel, layer = draw(rng, np.prod(size), C_IN, C_OUT), SubMConv3d(C_IN, C_OUT, size)
    loaded(layer, kernel)
    check_taps(layer, torchsparse_taps(kernel, size))


@pytest.mark.parametrize("size", [(4, 4, 4), (2, 3, 3), (4, 1, 3)])
def test_an_even_number_of_taps_at_stride_1_by_offsets(rng, size):
    """Reaches 0 to k - 1 along every axis, the odd ones too."""
    kernel = draw(rng, np.prod(size), C_IN, C_OUT)
    with pytest.raises(vx.InputError, match=r"at stride 1.*torchsparse_offsets\("):
        from_torchsparse({"kernel": kernel}, SubMConv3d(C_IN, C_OUT, size, use_bias=False))
    layer = SubMConv3d(C_IN, C_OUT, kernel_shape=torchsparse_offsets(size))
    loaded(layer, kernel)
    check_taps(layer, torchsparse_taps(kernel, size))


@pytest.mark.parametrize(("size", "padding"), [(2, 0), (3, 1)])
@pytest.mark.parametrize("generative", [False, True])
def test_strided_taps(rng, size, padding, generative):
    kernel = draw(rng, size**3, C_IN, C_OUT)
    taps = torchsparse_taps(kernel, (size,) * 3, stride=2, padding=padding)
    down = SparseConv3d(C_IN, C_OUT, size, 2, generative=generative)
    up = SparseConvTranspose3d(C_IN, C_OUT, size, 2)
    for layer in (down, up):
        loaded(layer, kernel)
        check_taps(layer, taps)


@pytest.mark.parametrize(("size", "padding"), [((3, 3, 3), 0), ((4, 3, 2), 1), ((3, 2, 3), 0)])
def test_other_paddings_by_offsets(rng, size, padding):
    kernel = draw(rng, np.prod(size), C_IN, C_OUT)
    offsets = torchsparse_offsets(size, 2, padding)
    layer = SparseConv3d(C_IN, C_OUT, stride=2, kernel_shape=offsets, generative=True)
    loaded(layer, kernel)
    check_taps(layer, torchsparse_taps(kernel, size, stride=2, padding=padding))


def test_axes_in_a_cycle(rng):
    """The model's axes 0, 1, 2 are the peer's 1, 2, 0."""
    kernel = draw(rng, 15, C_IN, C_OUT)
    layer = SubMConv3d(C_IN, C_OUT, (1, 3, 5), use_bias=False)
    loaded(layer, kernel, axes=(1, 2, 0))
    theirs = torchsparse_taps(kernel, (5, 1, 3))
    check_taps(layer, {(x, y, z): matrix for (z, x, y), matrix in theirs.items()})


def test_one_tap_norm_and_linear(rng):
    matrix = draw(rng, C_IN, C_OUT)
    point = SubMConv3d(C_IN, C_OUT, 1, use_bias=False)
    loaded(point, matrix)
    np.testing.assert_array_equal(point.weight[...][0], matrix)
    stacked = SparseConv3d(C_IN, C_OUT, 1, 2, use_bias=False)
    loaded(stacked, matrix[None])
    linear = Linear(C_IN, C_OUT, use_bias=False)
    from_torchsparse({"kernel": matrix}, linear)
    from_torchsparse({"weight": matrix.T}, linear)
    np.testing.assert_array_equal(linear.linear.kernel[...], matrix)
    names = list(to_torchsparse(BatchNorm(C_IN)))
    assert names == ["weight", "bias", "running_mean", "running_var"]


def test_what_torchsparse_does_not_have():
    with pytest.raises(vx.InputError, match="no depthwise"):
        to_torchsparse(SpatiallySparseDepthwiseConv(4))
    with pytest.raises(vx.InputError, match=r"groups=2.*TorchSparse has no grouped"):
        to_torchsparse(SpatiallySparseConv(4, 4, groups=2))
    with pytest.raises(vx.InputError, match="boxes along three axes only"):
        to_torchsparse(SpatiallySparseConv(4, 4, kernel_shape="cross"))
    with pytest.raises(vx.InputError, match="boxes along three axes only"):
        to_torchsparse(SpatiallySparseConv(4, 4, ndim=2))
    with pytest.raises(vx.InputError, match="without dilation"):
        to_torchsparse(SubMConv3d(4, 4, dilation=2))
    with pytest.raises(vx.InputError, match="generative and transposed"):
        to_torchsparse(SparseConvTranspose3d(4, 4, generative=True))
    with pytest.raises(vx.InputError, match="generative at stride 1"):
        to_torchsparse(SparseConv3d(4, 4, generative=True))
    shifted = ((1, 0, 0), (2, 0, 0))
    with pytest.raises(vx.InputError, match="follow one another from -padding on"):
        to_torchsparse(SparseConv3d(4, 4, stride=2, kernel_shape=shifted))
    with pytest.raises(vx.InputError, match="padding=-1"):
        torchsparse_offsets(3, 2, -1)
