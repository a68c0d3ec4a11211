"""Tracing a network takes time in proportion to its length."""

import jax
import numpy as np

from samples import make_voxels
from voxax.nn.modules import BatchNorm, ReLU, Sequential, SubMConv3d


def test_no_tracer_is_asked_for_its_sharding(monkeypatch):
    """It has none, and the message that says so costs a pass over all of the program so far."""
    asked = []

    def sharding(tracer):
        asked.append(tracer)
        raise AttributeError("sharding")

    layers = Sequential(SubMConv3d(3, 4, 3), BatchNorm(4), ReLU())
    layers.eval()
    voxels = make_voxels(np.unique(np.indices((1, 4, 4, 4)).reshape(4, -1).T, axis=0))
    monkeypatch.setattr(jax.core.Tracer, "sharding", property(sharding))
    jax.eval_shape(
        jax.grad(lambda x: layers(voxels.replace_features(x)).features.sum()), voxels.features
    )
    assert not asked
