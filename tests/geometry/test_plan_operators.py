"""Plans know the maps of every operator: none is built inside the trace."""

import jax
import jax.monitoring
import numpy as np
import pytest
from benchmarks.workloads import random_cube

import voxax as vx
from samples import make_voxels, make_weight
from voxax.geometry import MAP_BUILT_EVENT
from voxax.nn import functional as F

CUSTOM = ((0, 0, 0), (1, -2, 0), (0, 0, 3))


def network(voxels):
    """Kernel shapes, pooling and its inverses, a clipped generative level and the way back."""
    x = F.spatially_sparse_conv(voxels, make_weight(1, 3, 3, 4).repeat(7, 0), kernel_shape="cross")
    x = F.spatially_sparse_conv(x, make_weight(1, 3, 4, 4).repeat(3, 0), kernel_shape=CUSTOM)
    pooled, indices = F.max_pool(x, 3, 2, return_indices=True)
    x = x + F.unpool(pooled, x, indices) + F.unpool(F.mean_pool(x, 2), x)
    x = x + F.channel_to_space(F.space_to_channel(x, 2), 2, x)
    weight = make_weight(3, 3, 4, 4)
    reached = F.spatially_sparse_conv(
        x, weight, 3, 2, generative=True, spatial_shape=6, capacity=1024
    )
    return F.spatially_sparse_conv(reached, weight, 3, 2, transposed=True, out_voxels=x)


@pytest.fixture
def built():
    """Names of the map events so far."""
    seen = []

    def listen(event, **_):
        if event == MAP_BUILT_EVENT:
            seen.append(event)

    jax.monitoring.register_event_listener(listen)
    yield seen
    jax.monitoring.unregister_event_listener(listen)


@pytest.mark.slow
def test_a_planned_network_is_the_same_and_builds_no_map(built):
    voxels = make_voxels(random_cube(), capacity=384)
    expected = network(voxels)
    planned = vx.plan(network, voxels)
    built.clear()
    out = jax.jit(network)(planned)
    assert built == []
    np.testing.assert_array_equal(out.valid_coords(), expected.valid_coords())
    np.testing.assert_allclose(
        out.valid_features(), expected.valid_features(), rtol=1e-4, atol=1e-4
    )
