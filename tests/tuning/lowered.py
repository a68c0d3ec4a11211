"""Return the algorithm that each product of a layer is lowered with, without compiling."""

import functools

import jax
import jax.numpy as jnp
from benchmarks.workloads import random_cube

import voxax as vx
from samples import make_voxels, make_weight
from voxax.nn.functional import dynamic_conv, spatially_sparse_conv, spatially_sparse_depthwise_conv
from voxax.tuning import record_choices


@functools.cache
def small_voxels():
    """40 voxels of 3 channels, in 48 rows."""
    with jax.ensure_compile_time_eval():  # the first to ask may be tracing
        return make_voxels(random_cube(40), capacity=48)


@functools.cache
def dense_weight():
    with jax.ensure_compile_time_eval():
        return make_weight(3, 3)


def products(layer, weight, features=None):
    """``(forward, dgrad, wgrad)``: the algorithms' names, for ``layer(features, weight)``."""
    features = small_voxels().features if features is None else features

    def loss(features, weight):
        return jnp.sum(layer(features, weight) ** 2)

    with record_choices() as records:
        jax.jit(jax.value_and_grad(loss, (0, 1))).lower(features, weight)
    found = {choice.problem.product: choice.algorithm for choice in records}
    return found["forward"], found["dgrad"], found["wgrad"]


def only(name):
    """One algorithm for the three products."""
    return (name, name, name)


def conv(**requests):
    """The dense convolution's three algorithms."""

    def layer(features, weight):
        voxels = small_voxels().replace_features(features)
        return spatially_sparse_conv(voxels, weight, kernel_size=3, **requests).features

    return products(layer, dense_weight())


def depthwise(**requests):
    """The depthwise convolution's three algorithms."""
    kernel_map = vx.kernel_map(small_voxels(), 3)

    def layer(features, weight):
        rows = kernel_map.out_capacity
        return spatially_sparse_depthwise_conv(features, weight, kernel_map, rows, **requests)

    return products(layer, dense_weight()[:, :, 0])


def dynamic(**request):
    """The dynamic convolution's three, of sizes that the program does not know."""

    def layer(x, weight):
        return dynamic_conv(x, weight, size=x[..., 0].astype(jnp.int32), **request)

    return products(layer, jnp.ones((3, 3, 2, 4)), jnp.ones((1, 6, 5, 2)))
