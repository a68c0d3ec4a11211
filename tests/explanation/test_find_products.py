"""Finding the products of a function, wherever in it they are."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from benchmarks.workloads import random_cube
from flax import nnx
from jax.sharding import Mesh, PartitionSpec

import voxax as vx
from samples import make_voxels, make_weight
from voxax.errors import AlgorithmError, InputError
from voxax.explanation.inspect import find_products
from voxax.nn.functional import depthwise_conv, spatially_sparse_conv
from voxax.nn.modules import SpatiallySparseConv


@functools.cache
def voxels():
    """40 voxels of 3 channels in 48 rows, their map attached."""
    with jax.ensure_compile_time_eval():  # the first to ask may be tracing
        host = jax.tree.map(np.asarray, make_voxels(random_cube(40), capacity=48))
        layer = functools.partial(spatially_sparse_conv, weight=weight())
        return jax.tree.map(jnp.asarray, vx.plan(layer, host))


@functools.cache
def weight():
    with jax.ensure_compile_time_eval():
        return make_weight(3, 3, 3, 3)


def conv(w, v=None, **requests):
    return spatially_sparse_conv(voxels() if v is None else v, w, **requests).features


def loss(w, v=None, **requests):
    return (conv(w, v, **requests) ** 2).sum()


def scanned(w):
    return jax.lax.scan(lambda c, w: (c + loss(w), None), 0.0, jnp.stack([w, w, w]))[0]


def branched(w):
    one = functools.partial(loss, fwd_algo="implicit_gemm")
    other = functools.partial(loss, fwd_algo="explicit_gemm")
    return jax.lax.cond(w[0, 0, 0] > 0, one, other, w)


def looped(w):
    first = 0, conv(w)
    return jax.lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, c[1] + conv(w)), first)


def sharded(w):
    mesh = Mesh(np.array(jax.devices()[:1]), ("d",))
    spec = PartitionSpec()
    inner = jax.shard_map(
        lambda w: jax.lax.psum(loss(w), "d"), mesh=mesh, in_specs=spec, out_specs=spec
    )
    return inner(w)


@jax.custom_vjp
def custom(w):
    return loss(w)


custom.defvjp(lambda w: (loss(w), w), lambda w, ct: (ct * w,))

# By name: a function of the weight, the products found in it, and how many of those have a map
# that can be computed.
FUNCTIONS = {
    "plain": (loss, ["forward"], 1),
    "jit": (jax.jit(lambda w: jax.jit(loss)(w)), ["forward"], 1),
    "twice": (lambda w: conv(w) + conv(2 * w), ["forward", "forward"], 2),
    "grad": (jax.grad(loss), ["forward", "wgrad"], 2),
    "remat": (jax.grad(jax.checkpoint(loss)), ["forward", "forward", "wgrad"], 3),
    "custom_vjp": (custom, ["forward"], 1),
    "jvp": (lambda w: jax.jvp(loss, (w,), (w,)), ["forward", "forward"], 2),
    "vmap": (lambda w: jax.vmap(loss)(jnp.stack([w, w])), ["forward"], 1),
    "scan": (scanned, ["forward"], 0),
    "grad of scan": (jax.grad(scanned), ["forward", "wgrad"], 0),
    "cond": (branched, ["forward", "forward"], 0),
    "while": (looped, ["forward", "forward"], 1),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_products_in_the_order_of_the_program(name):
    function, products, _ = FUNCTIONS[name]
    calls = find_products(function, (weight(),), "cpu")
    assert [c.problem.product for c in calls] == products
    assert all("spatially_sparse_conv" in c.scope for c in calls)
    groups = 2 if name == "vmap" else 1
    for call in calls:
        p = call.problem
        assert (p.layer.in_capacity, p.layer.num_offsets, p.in_channels) == (48, 27, 3 * groups)
        assert (p.platform, p.layer.spec, p.layer.level) == (
            "cpu",
            vx.KernelSpec.make(3, 3),
            (1, 1, 1),
        )


SLOW = {"jit", "twice", "jvp", "remat", "custom_vjp", "vmap", "grad of scan"}


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] if n in SLOW else []) for n in FUNCTIONS]
)
def test_maps_outside_of_loops_are_the_real_ones(name):
    function, products, number = FUNCTIONS[name]
    calls = find_products(function, (weight(),), "cpu", maps=True)
    assert [c.problem.product for c in calls] == products
    found = [(c, c.views) for c in calls if c.views is not None]
    assert len(found) == number
    for call, views in found:
        assert set(views) == set(call.layer.view_names)
        np.testing.assert_array_equal(views["neighbors"], vx.kernel_map(voxels(), 3).neighbors)


def test_each_product_has_its_own_map():
    """Check a compiled function that is called in a loop first, and on another map later."""
    inner = jax.jit(loss)
    other = voxels().replace_features(voxels().features)
    other = vx.Voxels.from_coords(
        other.valid_coords()[:7], other.valid_features()[:7], batch_size=2, capacity=48
    )

    def function(w, v, other):
        looped = jax.lax.scan(lambda c, _: (c + inner(w, v), None), 0.0, None, length=2)[0]
        return looped + inner(w, v) + inner(w, other)

    looped, first, second = find_products(function, (weight(), voxels(), other), "cpu", maps=True)
    assert looped.views is None
    for call, own in ((first, voxels()), (second, other)):
        np.testing.assert_array_equal(call.views["neighbors"], vx.kernel_map(own, 3).neighbors)


@pytest.mark.parametrize("maps", [False, True])
def test_equations_of_two_products_are_two_calls(maps):
    """Depthwise layers: both gradients, and both terms of the product rule."""
    filters, x = weight()[:, 0], voxels().features

    def layer(x, w):
        given = voxels().replace_features(x)
        return depthwise_conv(given, w).features

    def gradients(x, w):
        return jax.grad(lambda x, w: jnp.sin(layer(x, w)).sum(), (0, 1))(x, w)

    def tangent(x, w):
        return jax.jvp(layer, (x, w), (x, w))

    for function, products in (
        (gradients, ["forward", "dgrad", "wgrad"]),
        (tangent, ["forward"] * 3),
    ):
        calls = find_products(function, (x, filters), "cpu", maps=maps)
        assert [c.problem.product for c in calls] == products
        for call in calls:
            p = call.problem
            assert (p.layer.kind, p.layer.in_capacity, p.layer.num_offsets, p.in_channels) == (
                "depthwise",
                48,
                27,
                3,
            )
            if maps:
                np.testing.assert_array_equal(
                    call.views["neighbors"], vx.kernel_map(voxels(), 3).neighbors
                )


def test_only_maps_are_computed():
    def function(w, v):
        jax.debug.callback(lambda: pytest.fail("this ran"))
        return loss(w, v)

    (call,) = find_products(function, (weight(), voxels()), "cpu", maps=True)
    assert call.views is not None


def test_shards():
    """A shard's map is not the whole one."""
    (call,) = find_products(sharded, (weight(),), "cpu", maps=True)
    assert call.problem.product == "forward"
    assert call.views is None


def test_the_scope_names_the_layer():
    class Net(nnx.Module):
        def __init__(self):
            self.first = SpatiallySparseConv(3, 3, 3)
            self.second = SpatiallySparseConv(3, 3, 3)

        def __call__(self, v):
            with jax.named_scope("entry"):
                v = self.first(v)
            with jax.named_scope("exit"):
                return self.second(v)

    net = Net()
    before = jax.tree.leaves(nnx.state(net))
    scopes = [c.scope for c in find_products(net, (voxels(),), "cpu")]
    assert scopes == [
        f"{name}/SpatiallySparseConv/spatially_sparse_conv" for name in ("entry", "exit")
    ]
    scopes = [
        c.scope
        for c in find_products(nnx.jit(lambda net, v: net(v).features), (net, voxels()), "cpu")
    ]
    assert scopes[0].endswith("entry/SpatiallySparseConv/spatially_sparse_conv")
    assert all(a is b for a, b in zip(before, jax.tree.leaves(nnx.state(net)), strict=True))


def test_requests_are_told_with_the_call():
    calls = find_products(branched, (weight(),), "cpu")
    # JAX sorts the branches: false first.
    assert [c.admitted for c in calls] == [("explicit_gemm",), ("implicit_gemm",)]
    step = jax.grad(functools.partial(loss, bwd_algo=["implicit_gemm", "explicit_gemm"]))
    (forward, wgrad) = find_products(step, (weight(),), "cpu")
    assert len(forward.admitted) == 3
    assert wgrad.admitted == ("implicit_gemm", "explicit_gemm")


def test_a_function_traced_before_is_traced_again():
    """Nested compiled functions are cached by JAX; their products are found each time."""
    inner = jax.jit(loss)
    inner.lower(weight())
    for _ in range(2):
        assert len(find_products(lambda w: inner(w) * 2, (weight(),), "cpu")) == 1


def test_abstract_arguments_will_do():
    shape = jax.ShapeDtypeStruct(weight().shape, weight().dtype)
    (call,) = find_products(loss, (shape,), "tpu")
    assert call.problem.platform == "tpu"
    abstract = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), voxels())
    (call,) = find_products(loss, (shape, abstract), "cpu")
    assert call.problem.layer.density is None


def test_a_function_without_products_is_an_error():
    def total(v):
        return v.features.sum()

    with pytest.raises(InputError, match="total computes no sparse convolution"):
        find_products(total, (voxels(),), "cpu")


def test_errors_of_the_function_come_through():
    with pytest.raises(AlgorithmError, match="unknown algorithm"):
        find_products(functools.partial(loss, fwd_algo="fastest_gemm"), (weight(),), "cpu")
    with pytest.raises(ZeroDivisionError):
        find_products(lambda w: loss(w) / (1 // 0), (weight(),), "cpu")
