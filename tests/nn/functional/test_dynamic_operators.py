"""Named operators on dense grids against their definitions, position by position."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.ndimage
import scipy.special

from oracle import dynamic_operators as oracle
from oracle.derivatives import check_derivatives
from samples import slow_unless
from voxax.errors import InputError
from voxax.nn.functional import (
    deform_conv,
    gaussian_blur,
    local_conv,
    mixture_conv,
    pixel_adaptive_conv,
    selective_conv,
)


def shares(scores, axis):
    return scipy.special.softmax(scores, axis=axis)


def deform_v1(r):
    v = {
        "x": r.standard_normal((2, 5, 4, 3)),
        "w": r.standard_normal((3, 2, 3, 4)),
        "offsets": r.uniform(-2.3, 2.3, (2, 3, 4, 6, 2)),
        "bias": r.standard_normal(4),
    }

    def run(v):
        options = {"stride": (2, 1), "dilation": (1, 2), "bias": v["bias"]}
        return deform_conv(v["x"], v["w"], v["offsets"], **options)

    def want(v):
        one = v["offsets"][..., None, :, :]
        mask = np.ones(one.shape[:-1])
        y = oracle.deform_conv(v["x"], v["w"], one, mask, (3, 2), (2, 1), (1, 2))
        return y + v["bias"]

    return v, run, want


def deform_v2(r):
    v = {
        "x": r.standard_normal((2, 4, 3, 4)),
        "w": r.standard_normal((3, 3, 2, 6)),
        "offsets": r.uniform(-1.7, 1.7, (2, 4, 3, 2, 9, 2)),
        "mask": r.standard_normal((2, 4, 3, 2, 9)),
    }

    def run(v):
        options = {"mask": v["mask"], "modulation": "sigmoid", "groups": 2}
        return deform_conv(v["x"], v["w"], v["offsets"], **options)

    def want(v):
        mask = scipy.special.expit(v["mask"])
        return oracle.deform_conv(
            v["x"], v["w"], v["offsets"], mask, (3, 3), (1, 1), (1, 1), groups=2
        )

    return v, run, want


def deform_v3(r):
    v = {
        "x": r.standard_normal((1, 3, 4, 2, 4)),
        "offsets": r.uniform(-1.7, 1.7, (1, 3, 4, 2, 2, 12, 3)),
        "mask": r.standard_normal((1, 3, 4, 2, 2, 12)),
    }

    def run(v):
        options = {"mask": v["mask"], "modulation": "softmax", "kernel_size": (3, 2, 2)}
        return deform_conv(v["x"], None, v["offsets"], **options)

    def want(v):
        mask = shares(v["mask"], -1)
        return oracle.deform_conv(v["x"], None, v["offsets"], mask, (3, 2, 2), (1, 1, 1), (1, 1, 1))

    return v, run, want


def deform_v4(r):
    v = {
        "x": r.standard_normal((2, 9, 4)),
        "offsets": r.uniform(-3.4, 3.4, (2, 5, 4, 3, 1)),
        "mask": r.standard_normal((2, 5, 4, 3)),
    }

    def run(v):
        return deform_conv(v["x"], None, v["offsets"], mask=v["mask"], kernel_size=3, stride=2)

    def want(v):
        return oracle.deform_conv(v["x"], None, v["offsets"], v["mask"], (3,), (2,), (1,))

    return v, run, want


def involution(r):
    v = {"x": r.standard_normal((2, 5, 4, 4)), "k": r.standard_normal((2, 3, 4, 6, 2))}
    options = {"kernel_size": (2, 3), "stride": (2, 1), "dilation": (1, 2)}
    return (
        v,
        lambda v: local_conv(v["x"], v["k"], **options),
        lambda v: oracle.local_conv(v["x"], v["k"], (2, 3), (2, 1), (1, 2)),
    )


def adaptive(r, normalize=False):
    v = {
        "x": r.standard_normal((2, 5, 4, 3)),
        "guide": r.standard_normal((2, 5, 4, 2)),
        "w": r.standard_normal((3, 2, 3, 4)),
        "bias": r.standard_normal(4),
    }
    options = {"stride": (1, 2), "dilation": (2, 1), "normalize": normalize}

    def run(v):
        return pixel_adaptive_conv(v["x"], v["guide"], v["w"], bias=v["bias"], **options)

    def want(v):
        return oracle.pixel_adaptive_conv(
            v["x"], v["guide"], v["w"], v["bias"], (1, 2), (2, 1), normalize
        )

    return v, run, want


def blur(r, normalize_edges=False):
    v = {"x": r.standard_normal((2, 6, 5, 2)), "sigma": r.uniform(0.3, 2.5, (2, 6, 5, 2))}
    options = {"radius": (3, 2), "normalize_edges": normalize_edges}
    return (
        v,
        lambda v: gaussian_blur(v["x"], v["sigma"], **options),
        lambda v: oracle.gaussian_blur(v["x"], v["sigma"], (3, 2), normalize_edges),
    )


def selective(r):
    v = {
        "x": r.standard_normal((2, 5, 4, 3)),
        "w3": r.standard_normal((3, 3, 3, 4)),
        "w2": r.standard_normal((2, 2, 3, 4)),
        "b3": r.standard_normal(4),
        "b2": r.standard_normal(4),
        "select": r.standard_normal((4, 8)),
    }

    def run(v):
        def select(pooled):
            return jnp.tanh(pooled @ v["select"]).reshape(-1, 2, 4)

        weights, biases = [v["w3"], v["w2"]], [v["b3"], v["b2"]]
        return selective_conv(v["x"], weights, select, biases=biases, stride=2, dilations=(2, 1))

    def want(v):
        first = oracle.conv(v["x"], v["w3"], (2, 2), (2, 2), bias=v["b3"])
        second = oracle.conv(v["x"], v["w2"], (2, 2), (1, 1), bias=v["b2"])
        pooled = (first + second).mean((1, 2))
        part = shares(np.tanh(pooled @ v["select"]).reshape(-1, 2, 4), 1)[:, :, None, None]
        return part[:, 0] * first + part[:, 1] * second

    return v, run, want


def mixture(r, by_kernel=False):
    each = (2, 3) if by_kernel else (2,)
    v = {
        "x": r.standard_normal((2, 5, 4, 4)),
        "w": r.standard_normal((3, 3, 2, 2, 6)),
        "mixture": r.standard_normal((2, 3)),
        "tap": r.standard_normal((*each, 6)),
        "in": r.standard_normal((*each, 4)),
        "out": r.standard_normal((2, 6)),
        "bias": r.standard_normal((3, 6)),
    }

    def run(v):
        gates = {"tap_gate": v["tap"], "in_gate": v["in"], "out_gate": v["out"]}
        options = {"groups": 2, "stride": (2, 1), "bias": v["bias"]}
        return mixture_conv(v["x"], v["w"], v["mixture"], **gates, **options)

    def want(v):
        kernels = oracle.scene_kernels(v["w"], v["mixture"], v["tap"], v["in"], v["out"], groups=2)
        bias = v["mixture"] @ v["bias"]
        scenes = [
            oracle.conv(v["x"][b : b + 1], kernels[b], (2, 1), (1, 1), groups=2, bias=bias[b])
            for b in range(2)
        ]
        return np.concatenate(scenes)

    return v, run, want


OPERATORS = {
    "deform_v1": deform_v1,
    "deform_v2": deform_v2,
    "deform_v3": deform_v3,
    "deform_v4": deform_v4,
    "local": involution,
    "pixel_adaptive": adaptive,
    "pixel_adaptive_normalized": lambda r: adaptive(r, normalize=True),
    "blur": blur,
    "blur_normalized": lambda r: blur(r, normalize_edges=True),
    "selective": selective,
    "mixture": mixture,
    "mixture_of_gated": lambda r: mixture(r, by_kernel=True),
}


MAIN = ("deform_v2", "local", "pixel_adaptive", "blur", "selective", "mixture_of_gated")
# Of each operator the variant with the most arguments.
DERIVED = ("deform_v2", "deform_v4", "local", "pixel_adaptive_normalized", "blur", *MAIN[-2:])


def cast(values, dtype):
    return {key: jnp.asarray(value, dtype) for key, value in values.items()}


@pytest.mark.parametrize("name", [slow_unless(n in MAIN, n) for n in OPERATORS])
def test_exact(name, rng):
    values, run, want = OPERATORS[name](rng)
    with jax.enable_x64(True):
        y = jax.jit(run)(cast(values, jnp.float64))
    assert y.dtype == np.float64
    np.testing.assert_allclose(y, want(values), atol=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", MAIN)
def test_narrow_types(name, dtype, rng):
    """Sums of up to a hundred products of normal numbers: a few units of each dtype's rounding."""
    values, run, want = OPERATORS[name](rng)
    y = jax.jit(run)(cast(values, dtype))
    assert y.dtype == dtype
    rounded = {k: np.asarray(v, np.float64) for k, v in cast(values, dtype).items()}
    expected = want(rounded)
    tolerance = {"float32": 1e-5, "bfloat16": 0.05}[dtype] * max(1, np.abs(expected).max())
    np.testing.assert_allclose(np.asarray(y, np.float64), expected, atol=tolerance)


@pytest.mark.slow
@pytest.mark.parametrize("name", DERIVED)
def test_derivatives(name, rng):
    values, run, _ = OPERATORS[name](rng)
    with jax.enable_x64(True):
        check_derivatives(run, values, rng)


@pytest.mark.slow
@pytest.mark.parametrize("name", DERIVED)
def test_lowers_and_compiles_once(name, rng):
    """Gradients lower for TPUs and CUDA GPUs; other numbers are no new program."""
    values, run, _ = OPERATORS[name](rng)
    values = cast(values, jnp.float32)
    step = jax.jit(jax.grad(lambda v: jnp.sum(run(v) ** 2)))
    jax.export.export(step, platforms=["tpu", "cuda"])(values)
    forward = jax.jit(run)
    for scale in (1.0, 0.0, -3.0):
        forward({key: scale * value for key, value in values.items()})
    assert forward._cache_size() == 1


@pytest.mark.parametrize("modulation", [slow_unless(False, "plain"), "sigmoid"])
def test_deform_is_onnx(modulation, rng):
    """ONNX's reference implementation of DeformConv, opset 19, two groups of both kinds."""
    onnx = pytest.importorskip("onnx", reason="compares with onnx.reference: pip install onnx")
    from onnx.reference import ReferenceEvaluator

    x, w = rng.standard_normal((2, 5, 6, 4)), rng.standard_normal((3, 3, 2, 6))
    # The reference rounds places to float32: these are none the worse for it.
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
        y = gaussian_blur(jnp.asarray(x), 1.3, radius=4)
    want = scipy.ndimage.gaussian_filter(
        x, 1.3, mode="constant", radius=4, axes=tuple(range(1, 1 + ndim))
    )
    np.testing.assert_allclose(y, want, atol=1e-12)


@pytest.mark.slow
def test_a_blur_without_width_copies():
    x = jnp.arange(12.0).reshape(1, 6, 2)
    sigma = jnp.zeros((1, 6))
    y, slope = jax.jit(jax.value_and_grad(lambda s: gaussian_blur(x, s, radius=2).sum()))(sigma)
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
            pixel_adaptive_conv(x, x, w),
            selective_conv(x, [w], jnp.zeros((2, 1, 2))),
            mixture_conv(x, w[None], jnp.ones((2, 1))),
            local_conv(x, taps, kernel_size=3),
            gaussian_blur(x, 0.0, radius=1),
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
    with pytest.raises(InputError, match="guide of shape"):
        pixel_adaptive_conv(x, x[:, :3], w)
    with pytest.raises(InputError, match="scores of shape"):
        selective_conv(x, [w, w], jnp.ones((2, 3, 2)))
    with pytest.raises(InputError, match="mixture of shape"):
        mixture_conv(x, w[None], jnp.ones((2, 2)))
    with pytest.raises(InputError, match="radius=-1 must be at least 0"):
        gaussian_blur(x, 1.0, radius=-1)
    with pytest.raises(InputError, match="sigma of shape"):
        gaussian_blur(x, jnp.ones((2, 4)), radius=1)
