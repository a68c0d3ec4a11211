"""What XLA compiles of a training step on CPUs: few fusions, since layers are native calls."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import voxax as vx
from voxax import _native, models
from voxax.models.training import masked_cross_entropy

pytestmark = pytest.mark.skipif(
    _native.unavailable() is not None, reason=f"no native kernels: {_native.unavailable()}"
)


def fusions(model, voxels):
    """Fusions of the loss and its gradients, without the optimizer's update."""
    graph, params, rest = nnx.split(model, nnx.Param, ...)

    def loss_of(params, rest, voxels, labels):
        module = nnx.merge(graph, params, rest, copy=True)
        out = module(voxels)
        if isinstance(out, vx.Voxels):
            loss = masked_cross_entropy(out.features, labels)
        else:
            leaves = [x for x in jax.tree.leaves(out) if jnp.issubdtype(x.dtype, jnp.inexact)]
            loss = sum(jnp.mean(x * x) for x in leaves)
        return loss, nnx.split(module, nnx.Param, ...)[2]

    step = jax.jit(jax.value_and_grad(loss_of, has_aux=True))
    labels = jnp.zeros(voxels.capacity, jnp.int32)
    program = step.lower(params, rest, voxels, labels).compile()
    return len(re.findall(r" fusion\(", program.as_text()))


@pytest.mark.parametrize(
    ("name", "most"), [("minkunet-18", 60), ("spunet-14", 60), ("voxelnext", 200), ("ptv3", 250)]
)
def test_a_training_step_has_few_fusions(rng, name, most):
    positions = rng.uniform(0, 20, (400, 3)) * [1, 1, 0.2]
    features = rng.normal(size=(400, 4)).astype(np.float32)
    voxels = vx.voxelize(positions.astype(np.float32), features, 1.0)
    if name == "ptv3":  # one block a level
        levels = {"encoder_depths": (1, 1), "encoder_channels": (16, 32), "strides": (2,)}
        levels |= {"encoder_num_heads": (2, 4), "decoder_depths": (1,)}
        levels |= {"decoder_channels": (16,), "decoder_num_heads": (2,)}
        model = models.PTv3(4, 5, **levels)
    else:
        model = models.create(name, in_channels=4, num_classes=5)
    assert fusions(model, vx.plan(model, voxels)) <= most
