"""Weights from and to MinkowskiEngine against its definition (it was not run)."""

import re

import numpy as np
import pytest

import voxax as vx
from interop.peer_weights import C_IN, C_OUT, check, check_taps, draw, round_trip, sites_of
from oracle.peers import convolved, minkowski_taps
from samples import make_voxels
from voxax.interop import from_minkowski, minkowski_offsets, to_minkowski
from voxax.nn.modules import (
    BatchNorm,
    Linear,
    SparseConv2d,
    SparseConv3d,
    SparseConvTranspose3d,
    SpatiallySparseConv,
    SpatiallySparseDepthwiseConv,
    SubMConv3d,
)


def some_voxels(rng, ndim=3, batch_size=2):
    """Random voxels on both sides of the origin, in two scenes."""
    high = np.array([5, 3, 2, 2][:ndim])
    rows = rng.integers(-high, high, (150, ndim))
    rows = np.column_stack([rng.integers(0, batch_size, 150), rows])
    return make_voxels(np.unique(rows, axis=0).astype(np.int32), C_IN)


def loaded(layer, kernel, **options):
    """Check the round trip of a kernel of the peer; return the layer's bias."""
    state = {"peer.kernel": kernel}
    if layer.bias is not None:
        state["peer.bias"] = draw(np.random.default_rng(7), 1, *layer.bias[...].shape)
    round_trip(layer, state, from_minkowski, to_minkowski, **options)
    return state["peer.bias"][0] if layer.bias is not None else 0.0


@pytest.mark.parametrize("size", [(3, 3, 3), (1, 3, 5), (2, 2, 2), (1, 1, 1)])
def test_stride_1(rng, size):
    taps = int(np.prod(size))
    kernel = draw(rng, C_IN, C_OUT) if taps == 1 else draw(rng, taps, C_IN, C_OUT)
    layer = SparseConv3d(C_IN, C_OUT, size)
    loaded(layer, kernel)
    check_taps(layer, minkowski_taps(kernel, size))


@pytest.mark.parametrize("size", [(2, 2, 2), (3, 3, 3), (2, 3, 1)])
@pytest.mark.filterwarnings("ignore:a kernel of extent")
def test_strided_and_transposed(rng, size):
    voxels, kernel = some_voxels(rng), draw(rng, int(np.prod(size)), C_IN, C_OUT)
    down = SparseConv3d(C_IN, C_OUT, size, 2)
    bias = loaded(down, kernel)
    out, inputs = down(voxels), sites_of(voxels)
    check(out, convolved(inputs, sites_of(out), minkowski_taps(kernel, size), 2, bias))

    back = draw(rng, int(np.prod(size)), C_OUT, C_IN)
    up = SparseConvTranspose3d(C_OUT, C_IN, size, 2)
    bias = loaded(up, back)
    taps = minkowski_taps(back, size)
    check(up(out, voxels), convolved(sites_of(out), inputs, taps, 2, bias, transposed=True))


@pytest.mark.parametrize(("size", "stride"), [(4, 2), (3, 3)])
def test_another_reach_is_an_error_that_names_the_fix(rng, size, stride):
    voxels, kernel = some_voxels(rng, 2), draw(rng, size**2, C_IN, C_OUT)
    layer = SparseConv2d(C_IN, C_OUT, size, stride, use_bias=False)
    with pytest.raises(vx.InputError, match=rf"kernel_shape=minkowski_offsets\(\[{size}, {size}"):
        from_minkowski({"kernel": kernel}, layer)
    offsets = minkowski_offsets(size, ndim=2)
    layer = SparseConv2d(C_IN, C_OUT, stride=stride, kernel_shape=offsets, use_bias=False)
    loaded(layer, kernel)
    np.testing.assert_array_equal(layer.weight[...], kernel)  # the offsets are in its order
    out = layer(voxels)
    taps = minkowski_taps(kernel, (size, size))
    check(out, convolved(sites_of(voxels), sites_of(out), taps, stride))


@pytest.mark.parametrize(("axes", "ndim"), [((2, 1, 0), 3), ((1, 2, 0), 3), ((1, 0), 2)])
def test_the_fix_is_in_the_order_of_our_axes(rng, axes, ndim):
    own = (4, 2, 2)[:ndim]
    size = tuple(own[axes.index(a)] for a in range(ndim))  # the peer's
    voxels, kernel = some_voxels(rng, ndim), draw(rng, int(np.prod(own)), C_IN, C_OUT)
    options = {"ndim": ndim, "stride": 2, "use_bias": False}
    layer = SpatiallySparseConv(C_IN, C_OUT, own, **options)
    with pytest.raises(vx.InputError, match=rf"a box of size \[{', '.join(map(str, size))}") as e:
        from_minkowski({"kernel": kernel}, layer, axes=axes)
    fix = re.search(r"kernel_shape=minkowski_offsets\(\[(.*?)\](, ndim=2)?\)$", str(e.value))
    assert tuple(map(int, fix[1].split(", "))) == own
    assert bool(fix[2]) == (ndim == 2)
    offsets = minkowski_offsets(own, ndim=ndim)
    layer = SpatiallySparseConv(C_IN, C_OUT, kernel_shape=offsets, **options)
    loaded(layer, kernel, axes=axes)
    out = layer(voxels)
    there, back = np.argsort(axes), np.asarray(axes)
    inputs, outputs = (
        {(site[0], *np.take(site[1:], there).tolist()): row for site, row in sites_of(v).items()}
        for v in (voxels, out)
    )
    expected = convolved(inputs, outputs, minkowski_taps(kernel, size), 2)
    check(out, {(s[0], *np.take(s[1:], back).tolist()): row for s, row in expected.items()})


def test_cross(rng):
    size = (3, 5, 1)
    kernel = draw(rng, 7, C_IN, C_OUT)
    layer = SpatiallySparseConv(C_IN, C_OUT, size, kernel_shape="cross", use_bias=False)
    loaded(layer, kernel)
    check_taps(layer, minkowski_taps(kernel, size, cross=True))


@pytest.mark.parametrize("cross", [False, True])
@pytest.mark.parametrize("custom", [False, True])
def test_box_and_cross_along_a_line_differ_in_order(rng, cross, custom):
    size = (1, 3, 1)
    kernel, shape = draw(rng, 3, C_IN, C_OUT), "cross" if cross else "box"
    given = minkowski_offsets(size, shape) if custom else shape
    layer = SpatiallySparseConv(C_IN, C_OUT, size, kernel_shape=given, use_bias=False)
    loaded(layer, kernel)
    check_taps(layer, minkowski_taps(kernel, size, cross=cross))


def test_channelwise(rng):
    kernel, layer = draw(rng, 15, C_IN), SpatiallySparseDepthwiseConv(C_IN, (3, 1, 5))
    loaded(layer, kernel)
    check_taps(layer, minkowski_taps(kernel, (3, 1, 5)))


def test_dilated_and_with_axes_in_a_cycle(rng):
    """The model's axes 0, 1, 2 are the peer's 1, 2, 0."""
    kernel = draw(rng, 15, C_IN, C_OUT)
    layer = SubMConv3d(C_IN, C_OUT, (1, 3, 5), dilation=2, use_bias=False)
    loaded(layer, kernel, axes=(1, 2, 0))
    theirs = minkowski_taps(kernel, (5, 1, 3), dilation=2)
    check_taps(layer, {(x, y, z): matrix for (z, x, y), matrix in theirs.items()})


@pytest.mark.parametrize("inner", ["linear.weight", "kernel", "stacked kernel"])
def test_linear_in_every_form(rng, inner):
    voxels, layer, matrix = some_voxels(rng), Linear(C_IN, C_OUT), draw(rng, C_IN, C_OUT)
    bias = draw(rng, C_OUT)
    state = {
        "linear.weight": {"final.linear.weight": matrix.T, "final.linear.bias": bias},
        "kernel": {"final.kernel": matrix, "final.bias": bias[None]},
        "stacked kernel": {"final.kernel": matrix[None], "final.bias": bias[None]},
    }[inner]
    from_minkowski(state, layer, names={"": "final"})
    expected = voxels.valid_features() @ matrix + bias
    np.testing.assert_allclose(layer(voxels).valid_features(), expected, rtol=1e-5, atol=1e-5)
    back = to_minkowski(layer, names={"": "final"}, like=state)
    assert list(back) == list(state)
    for name, value in back.items():
        np.testing.assert_array_equal(value, state[name])


def test_batch_norm_is_an_inner_module(rng):
    layer = BatchNorm(C_IN)
    names = ("weight", "bias", "running_mean", "running_var")
    state = {f"bn1.bn.{name}": draw(rng, C_IN) for name in names}
    assert from_minkowski(state, layer, names={"": "bn1"}) == {"": "bn1.bn"}
    for name, value in to_minkowski(layer, names={"": "bn1"}).items():
        np.testing.assert_array_equal(value, state[name])


def test_bad_arguments():
    with pytest.raises(vx.InputError, match="unknown kernel_shape 'ball'; known: box, cross"):
        minkowski_offsets(3, "ball")
    with pytest.raises(vx.InputError, match=r"\(2, 2, 2\) must be odd"):
        minkowski_offsets(2, "cross")
    layer = SparseConv3d(1, 1, kernel_shape=[(0, 0, 0), (5, 5, 5)])
    with pytest.raises(vx.InputError, match=r"2 taps at 0\.\.5 x 0\.\.5 x 0\.\.5"):
        to_minkowski(layer)
