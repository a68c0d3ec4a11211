"""Normalization modules: parameters, state, and statistics that span devices."""

import os
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import voxax as vx
from own_process import run_python
from voxax.nn import functional as F
from voxax.nn.modules.norm import BatchNorm, GroupNorm, InstanceNorm, LayerNorm, RMSNorm

ROWS, CHANNELS, CAPACITY = 30, 4, 32
MAKERS = {
    "BatchNorm": BatchNorm,
    "LayerNorm": LayerNorm,
    "RMSNorm": RMSNorm,
    "InstanceNorm": InstanceNorm,
    "GroupNorm": lambda channels, **options: GroupNorm(channels, 2, **options),
}


def voxels_of(features, first=0):
    """Voxels on one axis with these features; NaN in the padding."""
    number = len(features)
    coords = np.full((CAPACITY, 2), vx.PAD, np.int32)
    coords[:number] = np.stack([np.zeros(number), first + np.arange(number)], axis=1)
    padded = np.full((CAPACITY, features.shape[1]), np.nan, np.float32)
    padded[:number] = features
    zero, count = jnp.zeros((), jnp.int32), jnp.asarray(number, jnp.int32)
    geometry = vx.VoxelGeometry(jnp.asarray(coords), count, {(1,): zero}, None, (1,), 1)
    return vx.Voxels(geometry, jnp.asarray(padded))


@pytest.mark.parametrize("name", list(MAKERS))
def test_modules_are_the_functions(name, rng):
    voxels = voxels_of(rng.normal(size=(ROWS, CHANNELS)))
    module = MAKERS[name](CHANNELS, epsilon=0.1, rngs=nnx.Rngs(0))
    affine = [jnp.asarray(rng.normal(size=CHANNELS), jnp.float32) for _ in range(2)]
    module.scale[...] = affine[0]
    if name == "RMSNorm":
        affine.pop()
    else:
        module.bias[...] = affine[1]
    if name == "BatchNorm":
        mean, variance, _ = F.masked_moments(voxels.features, voxels.valid)
        expected = F.normalize(voxels, mean, variance, *affine, 0.1)
    elif name == "GroupNorm":
        expected = F.group_norm(voxels, 2, *affine, 0.1)
    else:
        function = {"Layer": F.layer_norm, "RMS": F.rms_norm, "Instance": F.instance_norm}
        expected = function[name.removesuffix("Norm")](voxels, *affine, 0.1)
    out = module(voxels)
    # A BatchNorm takes its statistics in one pass: another order of sums.
    tolerance = 1e-5 if name == "BatchNorm" else 0
    np.testing.assert_allclose(out.features, expected.features, tolerance, tolerance)
    assert out.geometry is voxels.geometry
    assert not np.asarray(out.features[ROWS:]).any()


def test_without_parameters_and_in_other_dtypes(rng):
    bare = [LayerNorm(4, use_scale=False, use_bias=False), RMSNorm(4, use_scale=False)]
    bare += [InstanceNorm(4, use_scale=False, use_bias=False)]
    bare += [GroupNorm(4, 4, use_scale=False, use_bias=False)]
    voxels = voxels_of(rng.normal(size=(ROWS, CHANNELS))).map(lambda x: x.astype(jnp.bfloat16))
    for module in bare:
        assert jax.tree.leaves(nnx.state(module, nnx.Param)) == []
        assert module(voxels).features.dtype == jnp.bfloat16
    assert LayerNorm(4, param_dtype=jnp.bfloat16).scale[...].dtype == jnp.bfloat16


@pytest.mark.parametrize("name", list(MAKERS))
def test_another_number_of_channels(name, rng):
    with pytest.raises(vx.InputError, match=f"{name} expects 6 channels, the voxels have 4"):
        MAKERS[name](6)(voxels_of(rng.normal(size=(ROWS, CHANNELS))))


def test_groups_that_do_not_divide():
    with pytest.raises(vx.InputError, match="num_groups=32 must divide num_features=48"):
        GroupNorm(48)


# Statistics across devices: each shard holds voxels of its own.


def normalize_shard(features, coords, count, scale, bias, axis_name):
    """One training step of a BatchNorm: ``(features, running mean, running variance)``."""
    zero = jnp.zeros((), jnp.int32)
    geometry = vx.VoxelGeometry(coords, count, {(1,): zero}, None, (1,), 1)
    module = BatchNorm(CHANNELS, axis_name=axis_name)
    module.scale[...], module.bias[...] = scale, bias
    out = module(vx.Voxels(geometry, features))
    return out.features, module.mean[...], module.var[...]


def sharded_by_vmap(features, coords, count, scale, bias):
    def shard(*arrays):
        return normalize_shard(*arrays, scale, bias, "devices")

    out, mean, var = jax.vmap(shard, axis_name="devices")(features, coords, count)
    return out, mean[0], var[0]


def sharded_by_shard_map(features, coords, count, scale, bias):
    def shard(features, coords, count, scale, bias):
        arrays = (features[0], coords[0], count[0])
        out, mean, var = normalize_shard(*arrays, scale, bias, "devices")
        return out[None], mean, var

    split, whole = jax.sharding.PartitionSpec("devices"), jax.sharding.PartitionSpec()
    return jax.shard_map(
        shard,
        mesh=jax.sharding.Mesh(np.asarray(jax.devices()[:2]), ("devices",)),
        in_specs=(split, split, split, whole, whole),
        out_specs=(split, whole, whole),
    )(features, coords, count, scale, bias)


def check_sharded(sharded):
    """Values, running averages and gradients are those of one device, however rows are split."""
    rng = np.random.default_rng(0)
    x, y = (rng.normal(3, 2, size=(ROWS, CHANNELS)).astype(np.float32) for _ in range(2))
    scale, bias = (jnp.asarray(rng.normal(size=CHANNELS), jnp.float32) for _ in range(2))

    def single(x, scale, bias):
        v = voxels_of(np.zeros((ROWS, CHANNELS)))
        padded = jnp.zeros((CAPACITY, CHANNELS)).at[:ROWS].set(x)
        return normalize_shard(padded, v.coords, v.count, scale, bias, None)

    def loss_of_single(x, scale, bias):
        out, mean, var = single(x, scale, bias)
        return jnp.sum(jnp.sin(out[:ROWS]) * y), (out[:ROWS], mean, var)

    gradient_of = jax.value_and_grad(loss_of_single, argnums=(0, 1, 2), has_aux=True)
    (_, expected), expected_gradient = jax.jit(gradient_of)(jnp.asarray(x), scale, bias)

    @jax.jit
    def run(shards, weights, scale, bias):
        def loss(features, scale, bias):
            out, mean, var = sharded(features, shards.coords, shards.count, scale, bias)
            return jnp.sum(jnp.sin(out) * weights), (out, mean, var)

        gradient = jax.value_and_grad(loss, argnums=(0, 1, 2), has_aux=True)
        return gradient(shards.features, scale, bias)

    for first in (22, ROWS, 0):
        parts = [voxels_of(x[:first]), voxels_of(x[first:], first)]
        shards = jax.tree.map(lambda *arrays: jnp.stack(arrays), *parts)
        weights = np.zeros((2, CAPACITY, CHANNELS), np.float32)
        weights[0, :first], weights[1, : ROWS - first] = y[:first], y[first:]
        (_, found), gradient = run(shards, weights, scale, bias)

        def rows(array, cut=first):
            return np.concatenate([array[0, :cut], array[1, : ROWS - cut]])

        found, gradient = (rows(found[0]), *found[1:]), (rows(gradient[0]), *gradient[1:])
        for one, other in zip((*found, *gradient), (*expected, *expected_gradient), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def test_statistics_over_a_mapped_axis():
    check_sharded(sharded_by_vmap)


def test_statistics_over_two_devices():
    """In a process of its own: the number of devices is fixed when JAX starts."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=2"
    script = (
        "import jax, test_norm_modules as tests\n"
        "assert len(jax.devices()) == 2\n"
        "tests.check_sharded(tests.sharded_by_shard_map)\n"
    )
    path = os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)])
    variables = {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags, "PYTHONPATH": path}
    run_python("-c", script, timeout=300, **variables)


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
@pytest.mark.parametrize("scale", [1000.0, 300.0, 30.0])
def test_averages_of_half_precision_hold_variances(dtype, scale):
    rng = np.random.default_rng(0)
    rows = np.stack([np.zeros(64, int), np.arange(64)], axis=1).astype(np.int32)
    values = (scale * rng.normal(size=(64, 4))).astype(np.float32)
    voxels = vx.Voxels.from_coords(rows, jnp.asarray(values, dtype), reduction="first")
    norm = BatchNorm(4, param_dtype=dtype, epsilon=1e-12)
    for _ in range(80):
        norm(voxels)
    x = np.asarray(voxels.valid_features(), np.float64)
    np.testing.assert_allclose(norm.var[...], x.var(0), rtol=1e-2)
    norm.eval()
    got = np.asarray(norm(voxels).valid_features(), np.float64)
    np.testing.assert_allclose(got, (x - x.mean(0)) / x.std(0), rtol=0.05, atol=0.05)
    assert norm.scale[...].dtype == dtype


def test_running_averages_are_replaced_not_scattered():
    model = BatchNorm(CHANNELS)
    graph, state = nnx.split(model)

    def step(state, features):
        merged = nnx.merge(graph, state)
        merged(voxels_of(np.zeros((ROWS, CHANNELS))).replace_features(features))
        return nnx.state(merged)

    program = jax.make_jaxpr(step)(state, jnp.ones((CAPACITY, CHANNELS)))
    assert "scatter" not in str(program)
