"""Findings about voxax's own layers: capacities (VX309) and maps built again (VX310)."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import voxax as vx
from voxax.nn.functional import spatially_sparse_conv

pytestmark = pytest.mark.lax_promotion

RNG = np.random.default_rng(0)
SAME = jnp.asarray(RNG.normal(size=(27, 2, 2)), jnp.float32)
DOWN = jnp.asarray(RNG.normal(size=(8, 2, 2)), jnp.float32)


def cloud(size, capacity=None):
    # A flat block, with negative coordinates: strided layers keep a quarter of it.
    axes = (range(1), range(-size, size), range(-size, size), range(1))
    rows = np.stack(np.meshgrid(*axes, indexing="ij"), -1).reshape(-1, 4)
    options = {} if capacity is None else {"capacity": capacity}
    return vx.Voxels.from_coords(rows, jnp.ones((len(rows), 2)), **options)


def network(voxels):
    coarse = spatially_sparse_conv(voxels, DOWN, kernel_size=2, stride=2)
    return coarse.features


def codes(report):
    return [f.code for f in report.findings]


def test_level_with_the_capacity_of_the_input():
    report = vx.check_static(network, cloud(16))
    (finding,) = report.findings
    assert finding.code == "VX309"
    assert finding.excerpt().splitlines()[0].strip().startswith("coarse = spatially_sparse_conv(")
    assert "1024 rows, and the examples use 256" in finding.message
    assert "capacity=256" in finding.fix
    assert report.verdict == "static"


def test_planned_network_has_no_finding():
    assert not codes(vx.check_static(network, vx.plan(network, cloud(16))))


@pytest.mark.slow
def test_largest_example_counts():
    def model(voxels):
        return spatially_sparse_conv(voxels, SAME).features

    small, large = cloud(4, 1024), cloud(15, 1024)
    report = vx.check_static(model, small)
    assert [f.message for f in report.findings] == [
        "argument `voxels` has a capacity of 1024 rows, and the examples use 64 of them"
    ]
    assert not codes(vx.check_static(model, small, also=[(large,)]))


def down_twice(voxels):
    one = spatially_sparse_conv(voxels, DOWN, kernel_size=2, stride=2)
    two = spatially_sparse_conv(voxels, SAME, kernel_size=3, stride=2)
    one, two = spatially_sparse_conv(one, SAME), spatially_sparse_conv(two, SAME)
    return one.features + two.features


def checkpointed(voxels):
    layer = jax.checkpoint(lambda v, w: spatially_sparse_conv(v, w))
    return layer(layer(voxels, SAME), SAME).features


@pytest.mark.slow
@pytest.mark.parametrize("model", [down_twice, checkpointed])
def test_map_that_is_there_already(model):
    report = vx.check_static(model, cloud(3))
    assert codes(report) == ["VX310"], str(report)
    (finding,) = report.findings
    assert "spatially_sparse_conv(" in finding.excerpt()
    assert f"in line {finding.line}" in finding.message  # both of this line


def test_maps_of_different_kernels_are_different():
    def model(voxels):
        voxels = spatially_sparse_conv(voxels, SAME)
        wide = jnp.ones((27, 2, 2))
        return spatially_sparse_conv(voxels, wide, dilation=2).features

    assert not codes(vx.check_static(model, cloud(3)))
