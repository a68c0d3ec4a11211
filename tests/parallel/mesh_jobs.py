"""Operators on arrays that are split over a mesh; run in a process that has several devices."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import dynamic_cases
import voxax as vx
from conformance.cases import make_inputs, run
from conformance.catalogue import OPERATORS
from voxax.geometry.lost_rows import LostRows
from voxax.nn import modules

DEVICES = 4
LOSSES = LostRows.of({}).table.shape


def mesh_of(kind):
    return jax.make_mesh((DEVICES,), ("shard",), axis_types=(getattr(AxisType, kind),))


def split(tree, mesh):
    """Arrays whose first axis divides are split over it, the others are on every device."""

    def put(leaf):
        whole = leaf.ndim == 0 or leaf.shape[0] % DEVICES
        spec = PartitionSpec() if whole else PartitionSpec("shard")
        return jax.device_put(leaf, NamedSharding(mesh, spec))

    return jax.tree.map(put, tree)


def operator(name):
    """A function and its arguments: of the conformance suite, or a dynamic one."""
    if name in OPERATORS:
        voxels, params, _, _ = make_inputs(OPERATORS[name], 2, "float32", "random")
        return lambda v, p: run(OPERATORS[name], v, p), (voxels, params)
    values, call, _ = dynamic_cases.CASES[name](np.random.default_rng(0))
    # What an operator reads on the host stays there.
    arrays = {n: jnp.asarray(v) for n, v in values.items() if hasattr(v, "dtype")}
    others = {n: v for n, v in values.items() if n not in arrays}
    return lambda a, o: call({**a, **o}), (arrays, others)


# Their cases index, multiply or assign split arrays outside of voxax.
OUTSIDE = ("voxelize", "devoxelize", "splat", "selective", "batch_norm_evaluation")
# Refused beside the native kernels.
REFUSED = ("dynamic_specialized",)


def names():
    return tuple(
        n for n in (*OPERATORS, *dynamic_cases.CASES) if not n.startswith((*OUTSIDE, *REFUSED))
    )


def check(kind, chosen, eagerly):
    """The result of each operator is that of whole arrays, jitted and, if asked, eager."""
    split_alike = functools.partial(split, mesh=mesh_of(kind))

    def pairs(name):
        function, arguments = operator(name)
        for call in (jax.jit(function), function)[: 1 + eagerly]:
            yield call(*split_alike(arguments)), call(*arguments)

    compare(chosen, pairs)


def check_mapped(chosen):
    """Under ``jax.vmap`` over an explicit axis, results are those of a batch that is whole."""
    along = NamedSharding(mesh_of("Explicit"), PartitionSpec("shard"))

    def pairs(name):
        function, (first, others) = operator(name)
        batch = jax.tree.map(lambda x: jnp.stack([x] * DEVICES), first)
        mapped = jax.jit(jax.vmap(function, in_axes=(0, None)))
        found = mapped(jax.device_put(batch, along), others)
        # What does not depend on the batch, such as an origin, is not split.
        mapped_part = found.features if isinstance(found, vx.Voxels) else found
        assert all(leaf.sharding.spec[0] == "shard" for leaf in jax.tree.leaves(mapped_part))
        yield found, mapped(batch, others)

    compare(chosen, pairs)


def check_modules():
    """Modules whose parameters and statistics are split too, as those of large models are."""
    voxels, _, _, _ = make_inputs(OPERATORS["conv"], 3, "float32", "random")
    voxels = dataclasses.replace(voxels, voxel_size=(1.0,) * 3)
    channels = voxels.num_channels
    points = vx.Points.make(voxels.positions(), voxels.features)
    mesh = mesh_of("Explicit")
    made = {
        "linear": (modules.Linear(channels, 8), voxels),
        "conv": (modules.SubMConv3d(channels, 8, 3), voxels),
        "batch_norm": (modules.BatchNorm(channels), points),
        "encoder": (modules.VoxelFeatureEncoder(channels, 8, 1.0, capacity=64), points),
    }

    def pairs(name):
        module, given = made[name]
        graph, state = nnx.split(module)

        @jax.jit
        def call(state, given):
            module = nnx.merge(graph, state, copy=True)
            return module(given), nnx.state(module)

        yield call(split(state, mesh), split(given, mesh)), call(state, given)

    compare(made, pairs)


def compare(chosen, pairs):
    """``pairs(name)`` are results, and what they must be."""
    wrong = {}
    for name in chosen:
        try:
            for result, want in pairs(name):
                leaves = map(jax.tree.leaves, (result, want))
                for found, value in zip(*leaves, strict=True):
                    if value.shape[-2:] == LOSSES:  # a level without losses may have a name or none
                        found, value = (a * (a[..., :1] > 0) for a in (found, value))
                    np.testing.assert_allclose(found, value, rtol=2e-4, atol=2e-4)
        except Exception as error:
            wrong[name] = f"{type(error).__name__}: {str(error)[:400]}"
    assert wrong == {}, "\n".join(f"{name}: {text}" for name, text in wrong.items())


def check_a_network(kind):
    """Scenes under vmap, with gradients; everything made inside a mesh; raw arrays."""
    mesh = mesh_of(kind)
    conv = vx.nn.functional.spatially_sparse_conv
    rng = np.random.default_rng(0)
    weights = jnp.asarray(rng.normal(size=(27, 4, 4)) / 5, jnp.float32)

    def scene():
        rows = np.unique(rng.integers(0, 5, (60, 4)) * [0, 1, 1, 1], axis=0)
        features = rng.normal(size=(len(rows), 4)).astype(np.float32)
        return vx.Voxels.from_coords(rows.astype(np.int32), features, capacity=64)

    scenes = [scene() for _ in range(DEVICES)]
    stacked = jax.tree.map(lambda *x: jnp.stack(x), *scenes)

    def network(voxels, w):
        coarse = conv(conv(voxels, w, 3), w[:8], 2, 2)
        return conv(coarse, w[:8], 2, 2, transposed=True, out_voxels=voxels).features

    def loss(w, voxels):
        return jnp.sum(jax.vmap(lambda v: network(v, w))(voxels) ** 2)

    def close(found, want):
        np.testing.assert_allclose(found, want, rtol=1e-4, atol=1e-4)

    many = split(stacked, mesh)
    slope = jax.jit(jax.grad(loss))
    close(
        jax.jit(jax.vmap(lambda v: network(v, weights)))(many),
        jnp.stack([network(s, weights) for s in scenes]),
    )
    close(slope(weights, many), slope(weights, stacked))
    with jax.set_mesh(mesh):
        inside = scene()
        close(jax.jit(network)(inside, weights), network(inside, weights))
    positions = jnp.asarray(rng.uniform(0, 3, (64, 3)), jnp.float32)
    made = vx.voxelize(split(positions, mesh), split(positions * 2, mesh), 0.5, capacity=64)
    same = vx.voxelize(positions, positions * 2, 0.5, capacity=64)
    np.testing.assert_array_equal(made.coords, same.coords)
    close(made.features, same.features)
    read = vx.devoxelize(split(same, mesh), split(positions, mesh))
    close(read, vx.devoxelize(same, positions))
    added = vx.splat(split(positions, mesh), split(positions, mesh), split(same, mesh))
    close(added.features, vx.splat(positions, positions, same).features)
    order = vx.curve_order(split(same, mesh), "hilbert").order
    np.testing.assert_array_equal(order, vx.curve_order(same, "hilbert").order)
    voxels, sums = split(same, mesh), split(jnp.ones((8, 4, 4, 4)), mesh)
    np.testing.assert_array_equal(voxels.to_dense((8, 8, 8)), same.to_dense((8, 8, 8)))
    assert int(vx.Voxels.from_dense(sums, capacity=512).count) == 8 * 4 * 4
