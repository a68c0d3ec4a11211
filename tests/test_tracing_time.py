"""Tracing a network takes time in proportion to its length."""

import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

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


@pytest.fixture(scope="module")
def calls():
    """What :mod:`tracing_calls` counts."""
    script = Path(__file__).parent / "tracing_calls.py"
    result = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
    )
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [("relu", "jax.nn.relu"), ("SubMConv3d", "nnx.Conv"), ("BatchNorm", "nnx.BatchNorm")],
)
def test_a_traced_layer_makes_few_calls(calls, ours, theirs):
    assert calls[ours] <= 2 * calls[theirs]


def test_attached_maps_are_looked_at_once(calls):
    """Each layer of a network gets all maps of the plan."""
    assert calls["another layer"] == calls["another layer, more maps"]
