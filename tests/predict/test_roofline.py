"""Check each convolution's work, lower bound and time."""

import dataclasses

import jax
import numpy as np
import pytest

import voxax as vx
from voxax.hardware import describe
from voxax.nn.modules import Remat, SparseConv3d, SubMConv3d
from voxax.predict.roofline import roofline, rows


@pytest.fixture(scope="module")
def voxels():
    # A line of ten voxels: a 3-wide kernel has 10 + 9 + 9 pairs.
    coords = np.zeros((10, 4), np.int32)
    coords[:, 3] = np.arange(10)
    return vx.Voxels.from_coords(coords, np.ones((10, 4), np.float32), batch_size=1, capacity=16)


@pytest.fixture(scope="module")
def result(voxels):
    first, second, third = SubMConv3d(4, 8, 3), SubMConv3d(8, 8, 1), SparseConv3d(8, 2, 2, 2)

    def model(v):
        with jax.named_scope("early"):
            v = first(v)
        with jax.named_scope("late"):
            return third(jax.jit(second)(v))

    info = dataclasses.replace(describe(), peak_rates=(("float32", 1e6),), memory_bandwidth=1e9)
    return roofline(model, vx.plan(model, voxels), info)


def test_work_is_that_of_existing_pairs(result):
    first, second, third = result.layers
    assert first.flops == 2 * 28 * 4 * 8
    assert second.flops == 2 * 10 * 8 * 8
    assert third.flops == 2 * 10 * 8 * 2
    # Input, weight, output, and the table of neighbors.
    assert first.bytes == 4 * (16 * 4 + 27 * 4 * 8 + 16 * 8 + 16 * 27)


def test_names_floors_and_times(result):
    first = result.layers[0]
    assert "early" in first.name
    assert [layer.name.split()[0] for layer in result.layers] == ["0", "1", "2"]
    assert first.lower_bound == pytest.approx(first.flops / 1e6)
    assert first.bound == "compute"
    assert all(layer.seconds > 0 for layer in result.layers)
    assert first.ratio == first.seconds / first.lower_bound
    assert result.seconds > 0
    assert len(list(rows(result))) == 3
    assert all(isinstance(cell, str) for row in rows(result) for cell in row)


def test_unknown_rates_give_no_floor(voxels):
    info = dataclasses.replace(describe(), peak_rates=None, memory_bandwidth=None)
    model = SubMConv3d(4, 8, 1)
    (layer,) = roofline(model, vx.plan(model, voxels), info).layers
    assert (layer.lower_bound, layer.bound, layer.ratio) == (None, "unknown", None)
    assert next(rows(roofline(model, vx.plan(model, voxels), info)))[-1] == "-"


def test_convolutions_inside_remat_are_seen(voxels):
    model = Remat(SubMConv3d(4, 8, 1))
    assert len(roofline(model, vx.plan(model, voxels), describe()).layers) == 1
