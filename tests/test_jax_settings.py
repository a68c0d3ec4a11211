"""Settings of JAX that careful users switch on: each call works under each."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import voxax as vx
from voxax.coords import hilbert_keys, morton_keys
from voxax.nn import functional as F

ROWS = np.array([[0, 0, 0, 0], [0, 1, 2, 3], [1, 5, 1, 2], [1, 7, 7, 7]], np.int32)
WEIGHT = jnp.ones((27, 4, 4), jnp.float32)


def make(values=None):
    values = np.arange(16).reshape(4, 4) if values is None else values
    return vx.Voxels.from_coords(ROWS, values.astype(np.float32), 2, capacity=8)


@pytest.mark.parametrize("keys", [morton_keys, hilbert_keys])
def test_curves_are_the_same_without_jit(keys):
    want = np.asarray(keys(jnp.asarray(ROWS)))
    with jax.disable_jit():
        np.testing.assert_array_equal(keys(jnp.asarray(ROWS)), want)


@pytest.mark.parametrize("curve", ["lexicographic", "morton", "hilbert"])
def test_orders_are_the_same_without_jit(curve):
    want = vx.curve_order(make(), curve)
    with jax.disable_jit():
        jax.tree.map(np.testing.assert_array_equal, vx.curve_order(make(), curve), want)


def two_layers(voxels):
    fine = F.spatially_sparse_conv(voxels, WEIGHT, 3)
    return F.spatially_sparse_conv(fine, WEIGHT[:8], 2, 2)


def pooled(voxels):
    return F.max_pool(F.depthwise_conv(voxels, WEIGHT[..., 0], 3), 2)


@pytest.mark.parametrize("network", [two_layers, pooled])
def test_a_plan_leaks_no_tracer(network):
    with jax.checking_leaks():
        planned = vx.plan(network, make())
    want = network(make())
    np.testing.assert_array_equal(network(planned).valid_features(), want.valid_features())


@pytest.mark.parametrize("reduction", ["mean", "sum", "max", "min"])
@pytest.mark.parametrize("call", ["global_pool", "from_coords", "coarsen", "union"])
def test_reductions_make_no_infinity(call, reduction):
    calls = {
        "global_pool": lambda: F.global_pool(make(), reduction),
        "from_coords": lambda: (
            vx.Voxels.from_coords(
                ROWS, np.ones((4, 1), np.float32), 2, capacity=8, reduction=reduction
            ).features
        ),
        "coarsen": lambda: vx.coarsen(make(), reduction=reduction).features,
        "union": lambda: vx.union(make(), make(), reduction=reduction).features,
    }
    with jax.debug_infs(True), jax.debug_nans(True):
        assert np.isfinite(calls[call]()).all()


@pytest.mark.parametrize("reduction", ["max", "min"])
@pytest.mark.parametrize("extreme", [-np.inf, np.inf, -3e38, 3e38, np.nan, -5.0])
def test_extremes_of_scenes_are_those_of_numpy(extreme, reduction):
    values = np.random.default_rng(0).normal(size=(4, 4)).astype(np.float32)
    values[2:, 1], values[:, 2] = extreme, extreme
    got = F.global_pool(make(values), reduction)
    take = np.max if reduction == "max" else np.min
    np.testing.assert_array_equal(got, np.stack([take(values[:2], 0), take(values[2:], 0)]))
