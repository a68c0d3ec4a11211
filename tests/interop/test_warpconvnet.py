"""Weights from and to WarpConvNet against its definition; WarpConvNet itself is not needed."""

import numpy as np
import pytest

import voxax as vx
from interop.peer_weights import (
    C_IN,
    C_OUT,
    check,
    check_taps,
    draw,
    grid_voxels,
    loader,
    sites_of,
)
from oracle.peers import convolved, warpconvnet_taps
from voxax.interop import from_warpconvnet, to_warpconvnet, warpconvnet_offsets
from voxax.nn.modules import (
    BatchNorm,
    Linear,
    SparseConv3d,
    SparseConvTranspose3d,
    SpatiallySparseConv,
    SpatiallySparseDepthwiseConv,
    SubMConv3d,
)

loaded = loader("weight", from_warpconvnet, to_warpconvnet)


@pytest.mark.parametrize("size", [(3, 3, 3), (1, 3, 5), (2, 1, 3), (1, 1, 1)])
def test_taps_at_stride_1(rng, size):
    weight, layer = draw(rng, np.prod(size), C_IN, C_OUT), SubMConv3d(C_IN, C_OUT, size)
    loaded(layer, weight)
    check_taps(layer, warpconvnet_taps(weight, size))


@pytest.mark.parametrize("size", [2, 3])
def test_strided_taps(rng, size):
    weight = draw(rng, size**3, C_IN, C_OUT)
    taps = warpconvnet_taps(weight, (size,) * 3)
    for kind in (SparseConv3d, SparseConvTranspose3d):
        layer = kind(C_IN, C_OUT, size, 2)
        loaded(layer, weight)
        check_taps(layer, taps)


@pytest.mark.slow
@pytest.mark.parametrize("size", [(2, 2, 2), (3, 3, 3)])
def test_strided_and_its_transpose(rng, size):
    voxels, weight = grid_voxels(rng), draw(rng, np.prod(size), C_IN, C_OUT)
    down = SparseConv3d(C_IN, C_OUT, size, 2)
    bias = loaded(down, weight)
    out, inputs = down(voxels), sites_of(voxels)
    check(out, convolved(inputs, sites_of(out), warpconvnet_taps(weight, size), 2, bias))
    back = draw(rng, np.prod(size), C_OUT, C_IN)
    up = SparseConvTranspose3d(C_OUT, C_IN, size, 2)
    bias, taps = loaded(up, back), warpconvnet_taps(back, size)
    check(up(out, voxels), convolved(sites_of(out), inputs, taps, 2, bias, transposed=True))


@pytest.mark.parametrize(("size", "stride"), [((4, 4, 4), 2), ((3, 3, 3), 3), ((4, 1, 3), 1)])
def test_another_reach_by_offsets(rng, size, stride):
    weight = draw(rng, np.prod(size), C_IN, C_OUT)
    plain = SparseConv3d(C_IN, C_OUT, size, stride, use_bias=False)
    with pytest.raises(vx.InputError, match=r"in WarpConvNet has.*warpconvnet_offsets\("):
        from_warpconvnet({"weight": weight}, plain)
    offsets = warpconvnet_offsets(size)
    layer = SparseConv3d(C_IN, C_OUT, stride=stride, kernel_shape=offsets)
    loaded(layer, weight)
    check_taps(layer, warpconvnet_taps(weight, size))


def test_depthwise(rng):
    weight, layer = draw(rng, 15, C_IN), SpatiallySparseDepthwiseConv(C_IN, (1, 3, 5))
    loaded(layer, weight)
    check_taps(layer, warpconvnet_taps(weight, (1, 3, 5)))


def test_grouped(rng):
    weight = draw(rng, 27, 3, 1, 2)
    layer = SpatiallySparseConv(C_IN, 6, groups=3, use_bias=False)
    loaded(layer, weight)
    check_taps(layer, warpconvnet_taps(weight, (3, 3, 3)))


def test_axes_in_a_cycle(rng):
    """The model's axes 0, 1, 2 are the peer's 1, 2, 0."""
    weight = draw(rng, 15, C_IN, C_OUT)
    layer = SubMConv3d(C_IN, C_OUT, (1, 3, 5), use_bias=False)
    loaded(layer, weight, axes=(1, 2, 0))
    theirs = warpconvnet_taps(weight, (5, 1, 3))
    check_taps(layer, {(x, y, z): matrix for (z, x, y), matrix in theirs.items()})


def test_norm_and_linear_in_their_inner_modules(rng):
    assert list(to_warpconvnet(BatchNorm(2), names={"": "bn"})) == [
        "bn.norm.weight", "bn.norm.bias", "bn.norm.running_mean", "bn.norm.running_var"
    ]  # fmt: skip
    linear, matrix = Linear(C_IN, C_OUT), draw(rng, C_IN, C_OUT)
    state = {"head.block.weight": matrix.T, "head.block.bias": draw(rng, C_OUT)}
    assert from_warpconvnet(state, linear, names={"": "head"}) == {"": "head.block"}
    np.testing.assert_array_equal(linear.linear.kernel[...], matrix)
    for name, value in to_warpconvnet(linear, names={"": "head"}).items():
        np.testing.assert_array_equal(value, state[name])
    # A convolution of size 1 in the place of the linear layer.
    from_warpconvnet({"weight": matrix[None], "bias": state["head.block.bias"]}, linear)
    np.testing.assert_array_equal(linear.linear.kernel[...], matrix)
