"""Exported programs call no native kernel, so they run where voxax is not."""

import importlib.util
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import voxax as vx
from parallel.own_devices import on_devices
from problems import needs_native
from voxax import _compat, _native
from voxax.nn.functional import spatially_sparse_conv, spatially_sparse_depthwise_conv

OFFSETS = 27


def network(coords, features, weights):
    """Down, along and up again: float32[N, 4] to float32[N, 4], rows in canonical order."""
    first, second, up, depthwise = weights
    fine = vx.Voxels.from_coords(coords, features, batch_size=2, capacity=len(coords))
    coarse = spatially_sparse_conv(fine, first, kernel_size=3, stride=2)
    coarse = spatially_sparse_conv(coarse.map(jax.nn.relu), second, kernel_size=3)
    back = spatially_sparse_conv(
        coarse, up, kernel_size=3, stride=2, transposed=True, out_voxels=fine
    )
    kmap = vx.kernel_map(fine, kernel_size=3)
    return spatially_sparse_depthwise_conv(back.features, depthwise, kmap)


def make_arguments(rng):
    coords = np.unique(rng.integers([0, -6, -6, -6], [2, 6, 5, 7], (90, 4)), axis=0)
    coords = rng.permutation(coords)[:70].astype(np.int32)
    shapes = (OFFSETS, 4, 6), (OFFSETS, 6, 6), (OFFSETS, 6, 4), (OFFSETS, 4)
    weights = [jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in shapes]
    return jnp.asarray(coords), jnp.asarray(rng.normal(size=(70, 4)), jnp.float32), weights


def through_bytes(exported):
    """Return the program as another process reads it. JAX needs flatbuffers for that."""
    if importlib.util.find_spec("flatbuffers") is None:
        return exported
    return jax.export.deserialize(exported.serialize())


def calls(text):
    """Targets of voxax's that a program calls."""
    return set(re.findall(r"custom_call @(voxax_\w+)", text))


@pytest.mark.parametrize("platforms", [("cpu",), ("cpu", "tpu"), ("cuda", "tpu", "cpu")])
def test_an_exported_network_computes_the_same(platforms, rng):
    arguments = make_arguments(rng)
    apply = jax.jit(network)
    wanted = apply(*arguments)  # compiled before: what is exported does not depend on it
    exported = jax.export.export(apply, platforms=platforms)(*arguments)
    assert not calls(exported.mlir_module())
    found = through_bytes(exported).call(*arguments)
    assert np.asarray(wanted).any()
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)


def test_a_function_that_two_platforms_share_is_lowered_for_each():
    """JAX would lower it once, for the platform whose rule comes first."""

    @jax.jit
    def shared(values):
        return jax.lax.platform_dependent(
            values, cuda=lambda values: values + 1, default=lambda values: values - 1
        )

    primitive = _compat.staged_primitive(
        "shared", lambda platform, values: shared(values), lambda values: values, many=False
    )
    values = jnp.arange(3.0)
    for function in (
        lambda values: (primitive.bind(values), shared(values)),
        lambda values: (shared(values), primitive.bind(values)),
    ):
        for platforms in (("cuda", "tpu", "cpu"), ("cpu", "cuda")):
            exported = jax.export.export(jax.jit(function), platforms=platforms)(values)
            for found in through_bytes(exported).call(values):
                np.testing.assert_array_equal(found, values - 1)


def test_exported_gradients_are_the_same(rng):
    coords, features, weights = make_arguments(rng)

    def loss(features, weights):
        return jnp.sum(network(coords, features, weights) ** 2)

    gradient = jax.jit(jax.grad(loss, argnums=(0, 1)))
    exported = jax.export.export(gradient)(features, weights)
    assert not calls(exported.mlir_module())
    again = through_bytes(exported)
    for found, wanted in zip(
        jax.tree.leaves(again.call(features, weights)),
        jax.tree.leaves(gradient(features, weights)),
        strict=True,
    ):
        np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-3 * np.abs(wanted).max())


# Of a layer of each kind, both gradients too, whose voxels are distributed over two devices.
SPREAD = """
import jax, numpy as np
from benchmarks.workloads import random_cube
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import voxax as vx
from samples import make_voxels, make_weight
from voxax.products import convolve

mesh = Mesh(np.array(jax.devices()), ("d",))
rows, whole = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in (("d",), ()))
voxels, dense = make_voxels(random_cube(40), 4, capacity=48), make_weight(3, 3, 4, 4)
kernel_map = vx.kernel_map(voxels, 3)
loss = lambda x, w: convolve(x, w, kernel_map).sum()
for weight in (dense, dense[:, :, 0]):
    for function in (loss, jax.grad(loss, (0, 1))):
        split = jax.jit(function, in_shardings=(rows, whole))
        assert "@voxax_" not in jax.export.export(split)(voxels.features, weight).mlir_module()
"""


def test_exported_programs_that_xla_spreads_call_none_either():
    on_devices(SPREAD, devices=2)


@needs_native
def test_programs_for_this_process_call_native_kernels(rng):
    """Exported before: its lowering is not found again."""
    arguments = make_arguments(rng)
    apply = jax.jit(network)
    jax.export.export(apply)(*arguments)
    found = calls(apply.lower(*arguments).as_text())
    expected = "voxax_product", "voxax_depthwise", "voxax_find_neighbors"
    assert found >= set(map(_native.target, expected))
    coords, *rest = arguments
    gradient = jax.jit(jax.grad(lambda *rest: network(coords, *rest).sum(), argnums=(0, 1)))
    gradients = _native.target("voxax_depthwise_gradients")
    assert gradients in calls(gradient.lower(*rest).as_text())
