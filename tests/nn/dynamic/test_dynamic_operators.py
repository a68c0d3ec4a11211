"""Named operators on dense grids: other libraries' numbers, limits and errors.

Against their definitions, with derivatives and in one program: test_dynamic_cases.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.ndimage
import scipy.special

from recipes import recipe
from samples import slow_unless
from voxax.errors import InputError
from voxax.nn.functional import deform_conv, local_conv


@pytest.mark.parametrize("modulation", [slow_unless(False, "plain"), "sigmoid"])
def test_deform_is_onnx(modulation, rng):
    """ONNX's reference implementation of DeformConv, opset 19, two groups of both kinds."""
    onnx = pytest.importorskip("onnx", reason="compares with onnx.reference: pip install onnx")
    from onnx.reference import ReferenceEvaluator

    x, w = rng.standard_normal((2, 5, 6, 4)), rng.standard_normal((3, 3, 2, 6))
    # The reference rounds places to float32: these are exact there.
    offsets = rng.integers(-128, 129, (2, 3, 6, 2, 9, 2)) / 64
    mask = rng.uniform(-1, 1, (2, 3, 6, 2, 9))
    modulated = scipy.special.expit(mask) if modulation == "sigmoid" else mask
    # Five rows, stride 2, dilation 1: a row of zeros on both sides. Six columns, dilation 2: two.
    node = onnx.helper.make_node(
        "DeformConv",
        ["x", "w", "offset", "bias", "mask"],
        ["y"],
        kernel_shape=[3, 3],
        strides=[2, 1],
        dilations=[1, 2],
        pads=[1, 2, 1, 2],
        group=2,
        offset_group=2,
    )
    double = onnx.TensorProto.DOUBLE
    inputs = [onnx.helper.make_tensor_value_info(n, double, None) for n in node.input]
    graph = onnx.helper.make_graph(
        [node], "deform", inputs, [onnx.helper.make_tensor_value_info("y", double, None)]
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 19)])
    want = ReferenceEvaluator(model).run(
        None,
        {
            "x": np.moveaxis(x, -1, 1),
            "w": np.transpose(w, (3, 2, 0, 1)),
            "offset": np.transpose(offsets, (0, 3, 4, 5, 1, 2)).reshape(2, 36, 3, 6),
            "bias": np.zeros(6),
            "mask": np.transpose(modulated, (0, 3, 4, 1, 2)).reshape(2, 18, 3, 6),
        },
    )[0]
    with jax.enable_x64(True):
        y = deform_conv(
            jnp.asarray(x),
            jnp.asarray(w),
            jnp.asarray(offsets),
            mask=jnp.asarray(mask),
            modulation=modulation,
            stride=(2, 1),
            dilation=(1, 2),
            groups=2,
        )
    np.testing.assert_allclose(y, np.moveaxis(want, 1, -1), atol=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("ndim", [1, 3])
def test_constant_blur_is_scipys(ndim, rng):
    shape = (9, 8, 7)[:ndim]
    x = rng.standard_normal((2, *shape, 3))
    with jax.enable_x64(True):
        y = recipe("gaussian_blur")(jnp.asarray(x), 1.3, radius=4)
    want = scipy.ndimage.gaussian_filter(
        x, 1.3, mode="constant", radius=4, axes=tuple(range(1, 1 + ndim))
    )
    np.testing.assert_allclose(y, want, atol=1e-12)


@pytest.mark.slow
def test_a_blur_without_width_copies():
    x = jnp.arange(12.0).reshape(1, 6, 2)
    sigma, blur = jnp.zeros((1, 6, 1)), recipe("gaussian_blur")
    y, slope = jax.jit(jax.value_and_grad(lambda s: blur(x, s, radius=2).sum()))(sigma)
    assert float(y) == float(x.sum())
    np.testing.assert_array_equal(slope, 0)


@pytest.mark.slow
@pytest.mark.parametrize("spatial", [(1, 1), (0, 3)], ids=str)
def test_tiny_and_empty_grids(spatial):
    x, w = jnp.ones((2, *spatial, 4)), jnp.ones((3, 3, 4, 2))
    taps, places = jnp.zeros((2, *spatial, 9)), jnp.zeros((2, *spatial, 9, 2))

    @jax.jit
    def run(x, w):
        return (
            deform_conv(x, w, places),
            recipe("pixel_adaptive_conv")(x, x, w),
            recipe("selective_conv")(x, [w], lambda _: jnp.zeros((2, 1, 2))),
            recipe("mixture_conv")(x, w[None], jnp.ones((2, 1))),
            local_conv(x, taps, kernel_size=3),
            recipe("gaussian_blur")(x, 0.0, radius=1),
        )

    *mixed, local, blurred = run(x, w)
    number = 2 if spatial == (1, 1) else 0
    for y in mixed:
        assert y.shape == (2, *spatial, 2)
        assert float(y.sum()) == 8 * number
    assert local.shape == x.shape
    assert float(blurred.sum()) == 4 * number


def test_refused():
    x, w = jnp.ones((2, 4, 4, 4)), jnp.ones((3, 3, 4, 2))
    with pytest.raises(InputError, match="offsets of shape"):
        deform_conv(x, w, jnp.ones((2, 4, 4, 8, 2)))
    with pytest.raises(InputError, match="mask of shape"):
        deform_conv(x, w, jnp.ones((2, 4, 4, 9, 2)), mask=jnp.ones((2, 4, 4, 8)))
    with pytest.raises(InputError, match="known: plain, sigmoid, softmax"):
        deform_conv(x, w, jnp.ones((2, 4, 4, 9, 2)), modulation="tanh")
    with pytest.raises(InputError, match="kernel_size=None must be given"):
        deform_conv(x, None, jnp.ones((2, 4, 4, 9, 2)))
    with pytest.raises(InputError, match="have 3 groups"):
        local_conv(x, jnp.ones((2, 4, 4, 9, 3)), kernel_size=3)
