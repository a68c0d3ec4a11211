"""Every JAX transformation of the three products, against finite differences and loops."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from benchmarks.workloads import random_cube
from jax.test_util import check_grads

import voxax as vx
from oracle import relative_error
from problems import needs_native
from samples import make_voxels, make_weight, slow_unless
from voxax.nn.functional import spatially_sparse_conv
from voxax.products import convolve
from voxax.products.primitives import PARTS

KINDS = ("dense", "grouped", "depthwise")


def problem(kind="dense", stride=1, kernel=2, rows=40, capacity=48):
    """``(features, weight, map)``; an even kernel, so that no map is its own transpose."""
    voxels = make_voxels(random_cube(rows), 4, capacity=capacity)
    weight = make_weight(kernel, 3, 4, 6, groups=2 if kind == "grouped" else None)
    if kind == "depthwise":
        weight = weight[:, :, 0]
    return voxels.features, weight, vx.kernel_map(voxels, kernel, stride)


@pytest.mark.parametrize(
    ("kind", "axes"),
    [
        slow_unless(kind == "dense" or axes == (2, 1), kind, axes)
        for kind in KINDS
        for axes in ((0, None), (None, 0), (0, 0), (2, 1))
    ],
)
def test_vmap_is_a_loop(kind, axes):
    """Over features, weights and both; the gradients of the mapped function too."""
    x, w, kmap = problem(kind)

    def stacked(array, axis):
        return array if axis is None else jnp.stack([array, 2 * array + 1], axis)

    def entry(array, axis, i):
        return array if axis is None else jnp.take(array, i, axis)

    xs, ws = stacked(x, axes[0]), stacked(w, axes[1])
    conv = functools.partial(convolve, kernel_map=kmap)

    def mapped(xs, ws):
        return jax.vmap(conv, axes)(xs, ws)

    def loop(xs, ws):
        return jnp.stack([conv(entry(xs, axes[0], i), entry(ws, axes[1], i)) for i in range(2)])

    actual, actual_vjp = jax.vjp(mapped, xs, ws)
    expected, expected_vjp = jax.vjp(loop, xs, ws)
    assert relative_error(actual, expected) < 1e-5
    ct = jnp.cos(expected)
    for one, other in zip(actual_vjp(ct), expected_vjp(ct), strict=True):
        assert relative_error(one, other) < 1e-5


@pytest.mark.parametrize("kind", KINDS)
def test_vmap_of_gradients_is_a_loop(kind):
    """Per-example gradients: batching of the transposed products themselves."""
    x, w, kmap = problem(kind)
    xs = jnp.stack([x, x**2])
    grad = jax.grad(lambda x, w: (convolve(x, w, kmap) ** 2).sum(), (0, 1))
    actual = jax.vmap(grad, (0, None))(xs, w)
    for i in range(2):
        for one, other in zip(actual, grad(xs[i], w), strict=True):
            assert relative_error(one[i], other) < 1e-5


def test_vmap_over_maps_builds_one_per_entry():
    rows = [random_cube(40, seed=seed, batch_size=1) for seed in (0, 1)]
    scenes = [make_voxels(r, capacity=48) for r in rows]
    weight = make_weight(3, 3)

    def layer(v):
        return spatially_sparse_conv(v, weight).features

    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *scenes)
    together = jax.vmap(layer)(stacked)
    for one, scene in zip(together, scenes, strict=True):
        assert relative_error(one, layer(scene)) < 1e-6


def primitives_of(function, *args):
    """Names of voxax's primitives in the jaxpr, in order."""
    text = str(jax.make_jaxpr(function)(*args))
    return re.findall(r"voxax_(forward|dgrad|wgrad|tangent|gradients)\b", text)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("kernel", "stride"), [(3, 1), (2, 2)])
def test_both_gradients_of_a_layer_are_one_equation(kind, kernel, stride):
    """Check that a gradient of one operand runs only that product."""
    x, w, kmap = problem(kind, stride, kernel)

    def loss(x, w):
        return jnp.sin(convolve(x, w, kmap)).sum()

    assert primitives_of(jax.grad(loss, (0, 1)), x, w) == ["forward", "gradients"]
    assert primitives_of(jax.grad(loss, 0), x, w) == ["forward", "dgrad"]
    assert primitives_of(jax.grad(loss, 1), x, w) == ["forward", "wgrad"]
    both = jax.grad(loss, (0, 1))(x, w)
    for one, other in zip(both, (jax.grad(loss, 0)(x, w), jax.grad(loss, 1)(x, w)), strict=True):
        assert relative_error(one, other) < 1e-6


def custom_calls(function, *args):
    text = jax.jit(function).lower(*args).compile().as_text()
    return sorted(re.findall(r'custom_call_target="voxax_(depthwise\w*?)(?:_\d+)?"', text))


@needs_native
def test_a_gradient_that_nobody_uses_is_not_computed():
    """Check loops, nested programs, and requests of which only one is native."""
    x, w, kmap = problem("depthwise", kernel=3)

    def gradients(x, w, **algorithms):
        pinned = {"fwd_algo": "implicit", "dgrad_algo": "implicit", "wgrad_algo": "implicit"}
        conv = functools.partial(convolve, kernel_map=kmap, **(pinned | algorithms))
        return jax.grad(lambda x, w: jnp.sin(conv(x, w)).sum(), (0, 1))(x, w)

    def scanned(x, w):
        return jax.lax.scan(lambda c, _: (c + gradients(x, c)[1], None), w, length=3)[0]

    inner = jax.jit(gradients)
    assert custom_calls(gradients, x, w) == ["depthwise", "depthwise_gradients"]
    apart = functools.partial(gradients, wgrad_algo="explicit")
    assert custom_calls(apart, x, w) == ["depthwise", "depthwise"]
    for one, other in zip(gradients(x, w), apart(x, w), strict=True):
        assert relative_error(one, other) < 1e-6
    for function, wanted in (
        (lambda x, w: gradients(x, w)[0], gradients(x, w)[0]),
        (lambda x, w: gradients(x, w)[1], gradients(x, w)[1]),
        (lambda x, w: inner(x, w)[1], gradients(x, w)[1]),
        (scanned, jax.jit(scanned)(x, w)),
    ):
        assert custom_calls(function, x, w) == ["depthwise", "depthwise"]
        assert relative_error(jax.jit(function)(x, w), wanted) < 1e-6
    assert custom_calls(lambda x, w: gradients(x, w) and x, x, w) == []


@pytest.mark.parametrize("kind", ["dense", "depthwise"])
def test_a_hessian_vector_product_computes_nothing_twice(kind):
    x, w, kmap = problem(kind)

    def loss(x, w):
        return jnp.sin(convolve(x, w, kmap)).sum()

    found = primitives_of(lambda x, w: jax.jvp(jax.grad(loss, (0, 1)), (x, w), (x, w)), x, w)
    assert sorted(found) == ["dgrad"] * 2 + ["forward", "gradients", "tangent"] + ["wgrad"] * 2
    found = primitives_of(
        lambda x, w: jax.jvp(lambda w: jax.grad(loss, (0, 1))(x, w), (w,), (w,)), x, w
    )
    assert sorted(found) == ["dgrad"] * 2 + ["forward"] * 2 + ["gradients", "wgrad"]


@pytest.mark.parametrize("kind", ["dense", "depthwise"])
def test_gradients_that_do_not_move_have_no_tangent(kind):
    """The filters move alone, by what dy does not depend on: dw stands still."""
    x, w, kmap = problem(kind)
    dy = jnp.cos(convolve(x, w, kmap))

    def gradients(w):
        return jax.vjp(lambda x, w: convolve(x, w, kmap), x, w)[1](dy)

    out, tangents = jax.jvp(gradients, (w,), (w,))
    assert relative_error(tangents[0], out[0]) < 1e-6
    assert not tangents[1].any()


@pytest.mark.parametrize("kind", ["dense", "depthwise"])
def test_gradients_inside_shard_map_are_those_outside(kind):
    """The filters are shared by all shards, their gradient is the sum."""
    x, w, kmap = problem(kind, kernel=3)
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("d",))
    spec = jax.sharding.PartitionSpec

    def loss(x, w):
        return jnp.sin(convolve(x, w, kmap)).sum()

    def shard(x, w):
        return jax.lax.psum(loss(x, w), "d")

    specs = {"in_specs": (spec("d"), spec()), "out_specs": spec()}
    sharded = jax.shard_map(shard, mesh=mesh, **specs)
    wanted = jax.grad(loss, (0, 1))(x, w)
    for run in (jax.grad(sharded, (0, 1)), jax.jit(jax.grad(sharded, (0, 1)))):
        for one, other in zip(run(x, w), wanted, strict=True):
            assert relative_error(one, other) < 1e-5


@pytest.mark.parametrize("kind", ["depthwise", slow_unless(False, "dense")])
def test_gradients_are_differentiable_again(kind):
    """Third derivatives, in every order of the modes: the two transpose each other."""
    x, w, kmap = problem(kind, rows=6, capacity=8)

    def loss(x, w):
        return jnp.sin(convolve(x, w, kmap)).sum()

    hessians = [
        outer(inner(loss, (0, 1)), (0, 1))(x, w)
        for outer in (jax.jacfwd, jax.jacrev)
        for inner in (jax.jacfwd, jax.jacrev)
    ]
    for hessian in hessians[1:]:
        for one, other in zip(jax.tree.leaves(hessian), jax.tree.leaves(hessians[0]), strict=True):
            assert relative_error(one, other) < 1e-5
    with jax.enable_x64(True):
        conv = functools.partial(convolve, kernel_map=kmap)
        operands = x.astype(jnp.float64), w.astype(jnp.float64)
        check_grads(jax.jit(conv), operands, order=3, modes=("fwd", "rev"))


@pytest.mark.parametrize("kind", ["dense", "depthwise"])
def test_tangents_and_gradients_are_linear_in_each_operand(kind):
    """Every transpose that a rule has, against inner products."""
    x, w, kmap = problem(kind, 2, 2)
    rng = np.random.default_rng(0)

    def like(array):
        return jnp.asarray(rng.normal(size=array.shape), array.dtype)

    _, tangent = jax.linearize(lambda x, w: convolve(x, w, kmap), x, w)
    dx, dw = like(x), like(w)
    dy = like(tangent(dx, dw))

    def gradients(dy, x, w):
        return jax.vjp(lambda x, w: convolve(x, w, kmap), x, w)[1](dy)

    for function, operands in (
        (tangent, (dx, dw)),
        (lambda dy: gradients(dy, x, w), (dy,)),
        (lambda dy: gradients(dy, x, w)[0], (dy,)),
        (lambda dy: gradients(dy, x, w)[1], (dy,)),
        (lambda x, w: gradients(dy, x, w), (x, w)),
        (lambda x: gradients(dy, x, w)[1], (x,)),
        (lambda w: gradients(dy, x, w)[0], (w,)),
    ):
        out = function(*operands)
        cotangents = jax.tree.map(like, out)
        back = jax.linear_transpose(function, *operands)(cotangents)
        inner = sum(map(jnp.vdot, jax.tree.leaves(out), jax.tree.leaves(cotangents)))
        np.testing.assert_allclose(inner, sum(map(jnp.vdot, operands, back)), rtol=1e-4)


def test_disable_jit_runs():
    """The eager rule keeps a jitted program, which must not call itself when jit is off."""
    x, w, kmap = problem()
    with jax.disable_jit():
        y = convolve(x, w, kmap)
    assert relative_error(y, convolve(x, w, kmap)) < 1e-6


def loss_and_gradients(x, w, kmap):
    return jax.value_and_grad(lambda x, w: convolve(x, w, kmap).sum(), (0, 1))(x, w)


@pytest.mark.parametrize("platform", ["cuda", "tpu"])
@pytest.mark.parametrize("algorithm", ["explicit_gemm", "implicit_gemm"])
def test_lowers_for_a_platform_that_is_not_here(algorithm, platform):
    """Forward and backward of a small network, maps included."""
    voxels, weight = make_voxels(random_cube(40), capacity=48), make_weight(3, 3, 3, 3)
    conv = functools.partial(spatially_sparse_conv, fwd_algo=algorithm, bwd_algo=algorithm)

    def loss(w, v):
        down = conv(v, w, 3, 2)
        return conv(down, w, 3, 2, transposed=True, out_voxels=v).features.sum()

    lowered = jax.jit(jax.grad(loss)).trace(weight, voxels).lower(lowering_platforms=(platform,))
    assert "func.func public @main" in lowered.as_text()


@pytest.mark.parametrize("platform", ["cuda", "tpu"])
@pytest.mark.parametrize("algorithm", ["explicit", "implicit"])
def test_depthwise_gradients_lower_for_a_platform_that_is_not_here(algorithm, platform):
    x, w, kmap = problem("depthwise", kernel=3)
    pinned = {f"{product}_algo": algorithm for product in ("fwd", "dgrad", "wgrad")}

    def loss(x, w):
        return convolve(x, w, kmap, **pinned).sum()

    traced = jax.jit(jax.grad(loss, (0, 1))).trace(x, w)
    text = traced.lower(lowering_platforms=(platform,)).as_text()
    assert "func.func public @main" in text
    assert "voxax_depthwise" not in text


def product_precisions(function, *args):
    """The precision of every product in the jaxpr, and of every dot it is lowered to."""
    jaxpr = jax.make_jaxpr(function)(*args)
    asked = {eqn.params["layer"].precision for eqn in jaxpr.eqns if eqn.primitive in PARTS}
    text = jax.jit(function).lower(*args).as_text()
    dots = [line for line in text.splitlines() if "stablehlo.dot_general" in line]
    assert asked
    assert dots
    return asked, dots


@pytest.mark.usefixtures("portable")
def test_float32_is_never_rounded_silently():
    asked, dots = product_precisions(loss_and_gradients, *problem())
    assert asked == {"highest"}
    assert all("precision = [HIGHEST, HIGHEST]" in dot for dot in dots)


@pytest.mark.usefixtures("portable")
def test_default_matmul_precision_is_respected():
    with jax.default_matmul_precision("tensorfloat32"):
        asked, dots = product_precisions(loss_and_gradients, *problem())
    assert asked == {"high"}  # the name that all its aliases have
    assert all("precision = [HIGH, HIGH]" in dot for dot in dots)


@pytest.mark.usefixtures("portable")
@pytest.mark.parametrize("precision", ["default", jax.lax.Precision.DEFAULT])
def test_own_precision_wins(precision):
    x, w, kmap = problem()
    with jax.default_matmul_precision("highest"):
        asked, _ = product_precisions(lambda x, w: convolve(x, w, kmap, precision=precision), x, w)
    assert asked == {"default"}


def test_unequal_precisions_are_refused():
    with pytest.raises(TypeError, match="share one precision"):
        convolve(*problem(), precision=("high", "default"))


def test_features_and_weight_are_promoted():
    x, w, kmap = problem()
    with jax.numpy_dtype_promotion("standard"):
        assert convolve(x.astype(jnp.bfloat16), w, kmap).dtype == jnp.float32
