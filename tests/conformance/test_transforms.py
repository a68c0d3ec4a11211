"""Every operator inside ``jit``, ``grad``, ``checkpoint``, ``scan`` and ``vmap``."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

import voxax as vx
from conformance.cases import as_function, make_inputs, run, wide_types
from conformance.catalogue import OPERATORS
from oracle import relative_error

pytestmark = pytest.mark.filterwarnings("ignore:a kernel of extent")

FAST = frozenset({"conv_strided", "conv_transposed", "depthwise", "max_pool_overlapping"})


def operators(accept=lambda operator: True):
    return [
        pytest.param(name, marks=() if name in FAST else pytest.mark.slow)
        for name, operator in OPERATORS.items()
        if accept(operator)
    ]


def dimension(operator):
    return 2 if 2 in operator.dims else operator.dims[0]


def problem(name, dtype="float32", layout="random"):
    operator = OPERATORS[name]
    voxels, params, *_ = make_inputs(operator, dimension(operator), dtype, layout)
    return as_function(operator, voxels, params)


def close(actual, expected, tolerance=1e-5):
    for one, other in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        assert relative_error(one, other) < tolerance


def weighted(apply, features, weights):
    """A scalar that no symmetry makes zero."""
    out = apply(features, weights)
    return jnp.sum(out * jnp.cos(jnp.arange(out.size, dtype=out.dtype)).reshape(out.shape))


@pytest.mark.parametrize("name", operators())
def test_jit_scan_and_checkpoint_change_nothing(name):
    """The values, and all gradients, in one program; shapes are static or it would not trace."""
    apply, features, weights = problem(name)
    smooth = OPERATORS[name].smooth
    loss = functools.partial(weighted, apply)
    slope = jax.value_and_grad(loss, (0, 1)) if smooth else loss

    @jax.jit
    def everything(features, weights):
        inner = jax.checkpoint(loss)
        again = jax.value_and_grad(inner, (0, 1)) if smooth else inner

        def body(carry, factor):
            return carry, again(carry * factor, weights)

        factors = jnp.asarray([1, 2], features.dtype)
        return (
            apply(features, weights),
            again(features, weights),
            jax.lax.scan(body, features, factors)[1],
        )

    value, once, stacked = everything(features, weights)
    close(value, apply(features, weights))
    expected = slope(features, weights)
    close(once, expected)
    close(jax.tree.map(lambda leaf: leaf[0], stacked), expected)
    close(jax.tree.map(lambda leaf: leaf[1], stacked), slope(features * 2, weights))


@pytest.mark.parametrize("name", operators(lambda operator: operator.weighted))
def test_vmap_over_weights_is_a_loop(name):
    apply, features, weights = problem(name)
    two = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf[::-1] * 2]), weights)
    mapped = jax.jit(jax.vmap(apply, (None, 0)))(features, two)
    for i in range(2):
        close(mapped[i], apply(features, jax.tree.map(lambda leaf, i=i: leaf[i], two)))


@pytest.mark.parametrize("name", operators(lambda operator: operator.smooth))
def test_derivatives_of_order_1_and_2(name):
    """Forward and reverse mode against finite differences, in float64."""
    with wide_types("float64"):
        operator = OPERATORS[name]
        voxels, params, *_ = make_inputs(operator, dimension(operator), "float64", "random", 0.0)
        apply, features, weights = as_function(operator, voxels, params)
        check_grads(apply, (features, weights), order=2, modes=("fwd", "rev"))


@pytest.mark.parametrize("name", operators(lambda operator: operator.smooth))
@pytest.mark.parametrize("layout", ["gap_in_batch", "no_voxel"])
def test_gradients_do_not_see_padding(name, layout):
    """NaN in padding rows, of features and of the cotangent, reaches no gradient."""
    operator = OPERATORS[name]
    voxels, params, *_ = make_inputs(operator, dimension(operator), "float32", layout)
    apply, features, weights = as_function(operator, voxels, params)
    out = run(operator, voxels, params)
    padding = ~out.valid[:, None] if isinstance(out, vx.Voxels) else False

    @jax.jit
    def gradients(features, weights, poison):
        y, pull_back = jax.vjp(apply, features, weights)
        cotangent = jnp.cos(jnp.arange(y.size, dtype=y.dtype)).reshape(y.shape)
        return pull_back(jnp.where(padding, poison, cotangent))

    poisoned = gradients(features, weights, jnp.nan)
    clean = jnp.where(jnp.isnan(features), 0, features)
    jax.tree.map(np.testing.assert_array_equal, poisoned, gradients(clean, weights, 0.0))
    assert (np.asarray(poisoned[0])[np.isnan(np.asarray(features))] == 0).all()
