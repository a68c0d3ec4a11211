"""Weights from and to spconv against its definition; spconv itself is not needed."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import voxax as vx
from interop.peer_weights import C_IN, C_OUT, SHAPE, check, check_taps, draw, loader, sites_of
from oracle.peers import convolved, spconv_taps
from samples import make_voxels, slow_unless
from voxax.interop import from_spconv, spconv_offsets, to_spconv
from voxax.nn.modules import (
    BatchNorm,
    Linear,
    SparseConv3d,
    SparseConvTranspose3d,
    SpatiallySparseConv,
    SpatiallySparseDepthwiseConv,
    SubMConv3d,
)

loaded = loader("weight", from_spconv, to_spconv)


def grid_voxels(rng, shape=SHAPE, share=0.4, batch_size=2):
    """A random part of a grid that is no cube, in two scenes."""
    occupied = np.argwhere(rng.random((batch_size, *shape)) < share).astype(np.int32)
    return make_voxels(rng.permutation(occupied), C_IN)


@pytest.mark.parametrize("size", [(3, 3, 3), (1, 3, 5), (5, 1, 3), (1, 1, 1)])
def test_submanifold(rng, size):
    weight, layer = draw(rng, C_OUT, *size, C_IN), SubMConv3d(C_IN, C_OUT, size)
    loaded(layer, weight)
    check_taps(layer, spconv_taps(weight))


def test_dilated(rng):
    weight = draw(rng, C_OUT, 3, 3, 3, C_IN)
    layer = SubMConv3d(C_IN, C_OUT, 3, dilation=2, use_bias=False)
    loaded(layer, weight)
    check_taps(layer, spconv_taps(weight, dilation=2))


@pytest.mark.parametrize(("size", "padding"), [((2, 2, 2), (0, 0, 0)), ((3, 3, 3), (1, 1, 1))])
def test_strided_and_its_inverse(rng, size, padding):
    voxels, weight = grid_voxels(rng), draw(rng, C_OUT, *size, C_IN)
    down = SparseConv3d(C_IN, C_OUT, size, 2)
    bias = loaded(down, weight)
    out, inputs = down(voxels), sites_of(voxels)
    taps = spconv_taps(weight, padding=padding, stride=2)
    check(out, convolved(inputs, sites_of(out), taps, 2, bias))

    back = draw(rng, C_IN, *size, C_OUT)
    up = SparseConvTranspose3d(C_OUT, C_IN, size, 2)
    bias = loaded(up, back)
    taps = spconv_taps(back, padding=padding, stride=2)
    check(up(out, voxels), convolved(sites_of(out), inputs, taps, 2, bias, transposed=True))


@pytest.mark.parametrize(
    ("size", "padding", "dilation"),
    [slow_unless(False, (3, 3, 3), (0, 0, 0), 1), slow_unless(False, (3, 2, 2), (0, 0, 0), 1),
     ((3, 3, 2), (0, 1, 1), 1), slow_unless(False, (2, 3, 2), (1, 1, 0), 2)],
)  # fmt: skip
def test_other_paddings_by_offsets(rng, size, padding, dilation):
    voxels, weight = grid_voxels(rng), draw(rng, C_OUT, *size, C_IN)
    offsets = spconv_offsets(size, padding, dilation)
    layer = SparseConv3d(C_IN, C_OUT, stride=2, kernel_shape=offsets, generative=True)
    bias = loaded(layer, weight)
    out = layer(voxels)
    taps = spconv_taps(weight, padding=padding, dilation=dilation, stride=2)
    check(out, convolved(sites_of(voxels), sites_of(out), taps, 2, bias))


@pytest.mark.parametrize("layout", ["KRSC", "RSKC", "RSCK"])
@pytest.mark.parametrize("size", [(1, 3, 5), (1, 1, 1)])
def test_layouts(rng, layout, size):
    channels = {"KRSC": (C_OUT, *size, C_IN), "RSKC": (*size, C_OUT, C_IN)}
    weight = draw(rng, *channels.get(layout, (*size, C_IN, C_OUT)))
    layer = SubMConv3d(C_IN, C_OUT, size, use_bias=False)
    loaded(layer, weight, layout=layout)
    check_taps(layer, spconv_taps(weight, layout=layout))


@pytest.mark.parametrize("axes", [(2, 1, 0), (1, 2, 0)])
def test_axes_of_the_peer_in_another_order(rng, axes):
    """The model's axes 0, 1, 2 are the peer's ``axes``; an order need not be its inverse."""
    size = (1, 3, 5)
    weight = draw(rng, C_OUT, *(size[axes.index(axis)] for axis in range(3)), C_IN)
    layer = SubMConv3d(C_IN, C_OUT, size, use_bias=False)
    loaded(layer, weight, axes=axes)
    theirs = spconv_taps(weight)
    check_taps(layer, {tuple(tap[axis] for axis in axes): m for tap, m in theirs.items()})


@pytest.mark.parametrize("ndim", [1, 2, 4])
def test_other_dimensions(rng, ndim):
    shape, size = (5, 4, 3, 3)[:ndim], (3, 1, 5, 3)[:ndim]
    voxels, weight = grid_voxels(rng, shape), draw(rng, C_OUT, *size, C_IN)
    layer = SpatiallySparseConv(C_IN, C_OUT, size, ndim=ndim)
    bias = loaded(layer, weight)
    inputs = sites_of(voxels)
    check(layer(voxels), convolved(inputs, inputs, spconv_taps(weight), bias=bias))


@pytest.mark.parametrize("stored", ["matrix", "convolution"])
def test_linear_in_both_forms(rng, stored):
    voxels, layer = grid_voxels(rng), Linear(C_IN, C_OUT)
    matrix = draw(rng, C_IN, C_OUT)
    weight = matrix.T if stored == "matrix" else matrix.reshape(C_OUT, 1, 1, 1, C_IN)
    state = {"weight": weight, "bias": draw(rng, C_OUT)}
    from_spconv(state, layer)
    expected = voxels.valid_features() @ matrix + state["bias"]
    np.testing.assert_allclose(layer(voxels).valid_features(), expected, rtol=1e-5, atol=1e-5)
    for name, value in to_spconv(layer, like=state).items():
        np.testing.assert_array_equal(value, state[name])


def test_batch_norm_statistics(rng):
    voxels, layer = grid_voxels(rng), BatchNorm(C_IN)
    state = {
        "weight": draw(rng, C_IN),
        "bias": draw(rng, C_IN),
        "running_mean": draw(rng, C_IN),
        "running_var": rng.uniform(0.5, 2, C_IN).astype(np.float32),
        "num_batches_tracked": np.asarray(3),
    }
    from_spconv(state, layer)
    layer.eval()
    x = voxels.valid_features()
    expected = (x - state["running_mean"]) / np.sqrt(state["running_var"] + 1e-5)
    expected = expected * state["weight"] + state["bias"]
    np.testing.assert_allclose(layer(voxels).valid_features(), expected, rtol=1e-5, atol=1e-5)
    back = to_spconv(layer)
    assert list(back) == ["weight", "bias", "running_mean", "running_var"]
    for name, value in back.items():
        np.testing.assert_array_equal(value, state[name])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_dtypes_are_kept(rng, dtype):
    weight = rng.normal(size=(C_OUT, 3, 3, 3, C_IN)).astype(jnp.dtype(dtype))
    layer = SubMConv3d(C_IN, C_OUT, 3, use_bias=False)
    with jax.enable_x64(dtype == "float64"):
        loaded(layer, weight)
        assert layer.weight[...].dtype == dtype


def test_float64_is_not_rounded_silently(rng):
    layer = SubMConv3d(C_IN, C_OUT, 3, use_bias=False)
    before = np.asarray(layer.weight[...])
    with pytest.raises(vx.InputError, match=r"'weight' is float64.*float32.*jax_enable_x64"):
        from_spconv({"weight": rng.normal(size=(C_OUT, 3, 3, 3, C_IN))}, layer)
    np.testing.assert_array_equal(layer.weight[...], before)


def test_what_spconv_does_not_have():
    with pytest.raises(vx.InputError, match="no depthwise"):
        to_spconv(SpatiallySparseDepthwiseConv(4))
    with pytest.raises(vx.InputError, match="groups=2"):
        to_spconv(SpatiallySparseConv(4, 4, groups=2))
    with pytest.raises(vx.InputError, match="box kernels only"):
        to_spconv(SpatiallySparseConv(4, 4, kernel_shape="cross"))
    with pytest.raises(vx.InputError, match=r"2x2x2.*odd sizes only; generative=True"):
        to_spconv(SubMConv3d(4, 4, 2))
    assert to_spconv(SparseConv3d(4, 4, 2, generative=True))["weight"].shape == (4, 2, 2, 2, 4)


@pytest.mark.parametrize(
    ("offsets", "options", "places", "fix"),
    [
        (spconv_offsets(3, 0), {},
         r"0\.\.2 x 0\.\.2 x 0\.\.2", r"\(3, 3, 3\), dilation=\(1, 1, 1\)"),
        (spconv_offsets((1, 3, 5), (0, 0, 4), (1, 1, 2)), {"dilation": (1, 3, 1)},
         r"0\.\.0 x 0\.\.2 x -4\.\.4", r"\(1, 3, 5\), dilation=\(1, 3, 2\)"),
        (((0, 0, 1),), {}, r"0\.\.0 x 0\.\.0 x 1\.\.1", r"\(1, 1, 1\), dilation=\(1, 1, 1\)"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("axes", [None, (2, 1, 0)])
def test_submanifold_kernels_off_the_center(offsets, options, places, fix, axes):
    layer = SubMConv3d(4, 16, kernel_shape=offsets, **options)
    match = rf"taps at {places}: spconv's SubMConv is centered.*kernel_size={fix}.*generative=True"
    with pytest.raises(vx.InputError, match=match):
        to_spconv(layer, axes=axes)
    state = to_spconv(SparseConv3d(4, 16, kernel_shape=offsets, generative=True, **options))
    with pytest.raises(vx.InputError, match="centered at 0"):
        from_spconv(state, layer)


def test_custom_offsets_about_the_center(rng):
    """Compare with the layer of kernel_size=3, dilation=2."""
    weight, offsets = draw(rng, C_OUT, 3, 3, 3, C_IN), spconv_offsets(3, 2, 2)[::-1]
    layer = SubMConv3d(C_IN, C_OUT, kernel_shape=offsets, use_bias=False)
    loaded(layer, weight)
    check_taps(layer, spconv_taps(weight, dilation=2))


@pytest.mark.parametrize("stride", [1, 2])
def test_taps_at_uneven_distances(stride):
    taps = [(x, y, z) for x in (0, 1, 5) for y in (0, 1) for z in (0,)]
    layer = SparseConv3d(4, 4, stride=stride, kernel_shape=taps, generative=True)
    with pytest.raises(vx.InputError, match=r"0,1,5 x 0,1 x 0: .*evenly.*=spconv_offsets\("):
        to_spconv(layer)
    uneven = [(-1, 0, 0), (0, 0, 0), (2, 0, 0)]
    with pytest.raises(vx.InputError, match=r"taps at -1,0,2 x 0 x 0"):
        to_spconv(SubMConv3d(4, 4, kernel_shape=uneven))


def test_bad_arguments():
    layer = SubMConv3d(1, 1, 3)
    with pytest.raises(vx.InputError, match="unknown layout 'NCHW'; known: KRSC"):
        to_spconv(layer, layout="NCHW")
    with pytest.raises(vx.InputError, match=r"axes=\(0, 0, 1\).*each of the 3"):
        to_spconv(layer, axes=(0, 0, 1))
    with pytest.raises(vx.InputError, match=r"padding=\(1, 2\)"):
        spconv_offsets(3, (1, 2))


def test_offsets_of_the_default_padding():
    ours = SparseConv3d(1, 1, 3, 2).relation
    assert spconv_offsets(3, 1) == vx.KernelSpec.make(3, **ours).offsets
    assert spconv_offsets(2, 0) == vx.KernelSpec.make(3, kernel_size=2, stride=2).offsets


def test_the_optimizer_still_finds_the_parameters(rng):
    layer = SubMConv3d(C_IN, C_OUT, 3)
    paths = list(nnx.to_flat_state(nnx.state(layer, nnx.Param)).paths)
    loaded(layer, draw(rng, C_OUT, 3, 3, 3, C_IN))
    assert list(nnx.to_flat_state(nnx.state(layer, nnx.Param)).paths) == paths
